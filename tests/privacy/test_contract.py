"""The guarantees of the mechanism, checked in running solvers; `test_kill_matrix.py` shows that the checks can fail."""

import pytest
from whitebox import CHECKS, check_replay


@pytest.mark.parametrize("solver", ["dpvi", "sgld"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, solver):
    check(solver)


def test_mean_field_guide_is_a_function_of_the_releases():
    check_replay("dpvi", guide="mean_field")
