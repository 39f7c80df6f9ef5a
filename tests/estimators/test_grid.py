"""Every estimator under every solver: it fits and spends what it says, or is refused by a message that says what works.

What holds for each fit whatever the solver is in `test_every_estimator.py`.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases import CASES, ENTRIES, EVERY_FIT, Case, N, public_estimators, slow_but, solvers_of
from sklearn.model_selection import GridSearchCV

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
)
from skdpbayes.models.score_unit import WithScoreUnit
from skdpbayes.privacy import compose

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SOLVERS = sorted({solver for case in CASES for solver in solvers_of(case.cls)})
CHOICES = [
    entry for entry in ENTRIES if not entry.only and Case(entry, entry.solvers[0]).has("solver")
]


def label(case):
    of = f", {case.entry.name}" if case.entry.only else ""
    return f"{case.cls.__name__}-{case.solver}{of}"


# Of pairs that have tests of their own all but a few are slow.
WORK = [
    pytest.param(
        case,
        id=label(case),
        marks=[pytest.mark.slow]
        if case.entry.only or case.entry.slow or case.solver in case.entry.slow_in_grid
        else [],
    )
    for case in CASES
]
REFUSED = [
    pytest.param(entry, solver, id=f"{entry.cls.__name__}-{solver}")
    for entry in CHOICES
    for solver in SOLVERS
    if solver not in solvers_of(entry.cls)
]


def test_every_public_estimator_has_a_case_under_each_of_its_solvers():
    offered = {(cls, solver) for cls in public_estimators() for solver in solvers_of(cls)}
    assert {(case.cls, case.solver) for case in CASES if not case.entry.only} == offered


def test_every_public_estimator_is_in_the_tests_of_every_fit():
    assert {case.cls for case in EVERY_FIT} == set(public_estimators())
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_pair_plans_the_model_of_its_entry(case):
    model = case.plan().model
    assert type(model.model if isinstance(model, WithScoreUnit) else model).__name__ == case.model


@pytest.mark.filterwarnings("ignore:The chains have not mixed")  # nor could they in 20 steps
@pytest.mark.filterwarnings("ignore:The law of x is not one")  # so a density of points is biased
@pytest.mark.parametrize("case", WORK)
def test_a_pair_fits_and_spends_what_it_says(case):
    fitted = case.make(epsilon=1.0).fit(*case.data())
    spent, told = fitted.privacy_spent_, case.plan(epsilon=1.0).report
    told = replace(told, public={"n_features": fitted.n_features_in_} | told.public)
    assert spent == told
    assert spent.epsilon <= 1 and (spent.epsilon > 0.5 or case.solver == "sgld")
    assert spent.epsilon == pytest.approx(
        compose(spent.releases, "zero_out").epsilon(1e-5), rel=1e-9
    )
    if case.has("solver"):
        assert sum(piece.steps for piece in spent.steps) == fitted.n_iter_
    assert np.isfinite(case.entry.learnt(fitted)).all()
    if not case.has("n_posterior_samples"):  # what it learns is a point
        return
    assert np.isfinite(fitted.posterior_.mean).all()
    if case.cls is not DPSigmoidBeliefNet:  # whose weights are not identified
        assert np.isfinite(fitted.posterior_.std).all()
    for leaf in jax.tree.leaves(fitted.posterior_samples_):
        assert len(leaf) == 20 and np.isfinite(leaf).all()


@pytest.mark.parametrize(("entry", "solver"), REFUSED)
def test_a_pair_that_does_not_work_is_refused_by_name(entry, solver):
    works = solvers_of(entry.cls)
    X, y = Case(entry, works[0]).data()
    with pytest.raises(ValueError, match=f"solver.*'{solver}'") as error:
        entry.cls(solver=solver, **entry.parameters).fit(X, y)
    assert all(repr(one) in str(error.value) for one in works)


UNDER_ALL_SOLVERS = (
    DPBayesianLogisticRegression,
    DPGaussianMixture,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
)


@pytest.mark.filterwarnings("ignore:The chains have not mixed")  # nor could they in 20 steps
@pytest.mark.parametrize("cls", slow_but(UNDER_ALL_SOLVERS, DPBetaBernoulli, DPSigmoidBeliefNet))
def test_a_grid_search_runs_over_the_four_solvers(cls):
    cases = [case for case in CASES if case.cls is cls and not case.entry.only]
    assert {case.solver for case in cases} == {"dpvi", "na-dpvi", "sgld", "vips"}
    candidates = [
        {name: [value] for name, value in {"solver": case.solver, **case.quick}.items()}
        for case in cases
    ]
    model = cls(**cases[0].entry.parameters, n_posterior_samples=20, random_state=0)
    rows = np.arange(N)  # as in the fits above, whose programs are compiled
    search = GridSearchCV(model, candidates, cv=[(rows, rows[:50])], error_score="raise")
    found = search.fit(*cases[0].data()).cv_results_
    assert [own["solver"] for own in found["params"]] == [case.solver for case in cases]
    assert np.isfinite(found["mean_test_score"]).all()
    assert search.best_estimator_.solver == found["params"][search.best_index_]["solver"]
