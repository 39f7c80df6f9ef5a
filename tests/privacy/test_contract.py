"""The guarantees of the mechanism, checked in running solvers; `test_kill_matrix.py` shows that the checks can fail."""

import pytest
from whitebox import CHECKS, check_memory, check_replay

# These two need the programs that users run, bit for bit: see test_replay.py.
QUICK = [check for check in CHECKS if check not in (check_replay, check_memory)]


@pytest.mark.parametrize("solver", ["dpvi", "sgld"])
@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
def test_contract(check, solver, compiled_quickly):
    check(solver)
