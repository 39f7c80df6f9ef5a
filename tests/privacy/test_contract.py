"""The guarantees of the mechanism, checked in running solvers; `test_kill_matrix.py` shows that the checks can fail."""

import pytest
from whitebox import CHECKS


@pytest.mark.parametrize("solver", ["dpvi", "sgld"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, solver):
    check(solver)
