"""What a fit keeps follows from its releases, bit for bit, in the programs as they are compiled for users."""

import pytest
from whitebox import SOLVERS, check_memory, check_replay

# A GPU rounds a replay otherwise than a fit: its compiler divides the programs in other kernels.
pytestmark = pytest.mark.usefixtures("compiled_as_users_do", "on_the_host")


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(solver, marks=[pytest.mark.slow] if solver != "dpvi" else [])
        for solver in SOLVERS
    ],
)
@pytest.mark.parametrize("check", [check_replay, check_memory], ids=lambda check: check.__name__)
def test_contract(check, solver):
    check(solver)


@pytest.mark.slow
def test_mean_field_guide_is_a_function_of_the_releases():
    check_replay("dpvi", guide="mean_field")


def test_plain_chains_are_functions_of_the_releases():
    check_replay("sgld", learning_rate=1e-6, n_chains=2)
