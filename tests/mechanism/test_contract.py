"""The guarantees of the mechanism, checked in running solvers; `test_kill_matrix.py` shows that the checks can fail."""

import pytest
from cases import cases, every_fit
from whitebox import (
    CASE_CHECKS,
    CHECKS,
    SOLVERS,
    applies,
    check_chains,
    check_memory,
    check_noise_of,
    check_number_of_records,
    check_replay,
)

from skdpbayes import DPBayesianLogisticRegression

# These two need the programs that users run, bit for bit: see test_replay.py.
QUICK = [check for check in CHECKS if check not in (check_replay, check_memory)]
ALWAYS = ("dpvi",)  # solvers whose programs compile quickly


@pytest.mark.parametrize(
    ("check", "solver"),
    [
        pytest.param(
            check,
            solver,
            id=f"{check.__name__}-{solver}",
            marks=[]
            if solver in ALWAYS
            or (check, solver) == (check_number_of_records, "sgld")
            or (check, solver) == (check_chains, "sgld")
            else [pytest.mark.slow],
        )
        for check in QUICK
        for solver in SOLVERS
        if applies(check, solver)
    ],
)
def test_contract(check, solver, compiled_quickly):
    check(solver)


@pytest.mark.slow
@pytest.mark.parametrize("case", every_fit())
@pytest.mark.parametrize("check", CASE_CHECKS, ids=lambda check: check.__name__)
def test_contract_of_every_estimator(check, case, compiled_quickly):
    check(case)


@pytest.mark.slow
def test_the_first_release_of_logistic_regression_is_as_noisy_as_the_others(compiled_quickly):
    """Its axes: the quick checks above are of fits without an opening."""
    (case,) = cases(cls=DPBayesianLogisticRegression, solver="na-dpvi")
    check_noise_of(case)
