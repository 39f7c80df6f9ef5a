"""The guarantees of the mechanism, checked in running solvers; `test_kill_matrix.py` shows that the checks can fail."""

import pytest
from whitebox import (
    CHECKS,
    check_contribution,
    check_memory,
    check_noise,
    check_number_of_records,
    check_replay,
)

# These two need the programs that users run, bit for bit: see test_replay.py.
QUICK = [check for check in CHECKS if check not in (check_replay, check_memory)]


@pytest.mark.parametrize("solver", ["dpvi", "sgld"])
@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
def test_contract(check, solver, compiled_quickly):
    check(solver)


@pytest.mark.parametrize(
    "check",
    [
        *(
            pytest.param(check, marks=pytest.mark.slow)
            for check in (check_noise, check_contribution)
        ),
        check_number_of_records,
    ],
    ids=lambda c: c.__name__,
)
@pytest.mark.parametrize("solver", ["na-dpvi", "vips"])
def test_contract_of_solvers_with_several_blocks(check, solver, compiled_quickly):
    check(solver)
