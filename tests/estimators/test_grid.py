"""Every estimator under every solver: it fits and spends what it says, or is refused by a message that says what works.

To add an estimator, add an entry to `ESTIMATORS`; what holds for each fit whatever the solver is in
`privacy/test_every_estimator.py`.
"""

import inspect

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import skdpbayes
from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPSigmoidBeliefNet,
    DPVariationalAutoencoder,
)
from skdpbayes.privacy import compose

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 400
RNG = np.random.default_rng(0)
NUMBERS = RNG.uniform(0.1, 0.9, (N, 2))
BITS = (RNG.random((N, 4)) < 0.3).astype(float)
COUNTS = RNG.poisson(2.0, (N, 6)).astype(float)
LABELS = RNG.integers(0, 2, N)


def normal(x):
    """A NumPyro model."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, spread).expand([2]).to_event(1), obs=x)


# Parameters, X, y and the solvers that work.
ESTIMATORS = {
    DPBayesianLogisticRegression: (
        {"classes": [0, 1]},
        NUMBERS,
        LABELS,
        ("dpvi", "na-dpvi", "sgld", "vips"),
    ),
    DPBayesianLinearRegression: (
        {"bounds": ((0, 1), (-1, 2))},
        NUMBERS,
        LABELS,
        ("na-dpvi", "vips"),
    ),
    DPGammaExponential: ({}, NUMBERS, None, ("dpvi", "na-dpvi", "sgld", "vips")),
    DPBetaBernoulli: ({}, BITS, None, ("dpvi", "na-dpvi", "sgld", "vips")),
    DPDirichletCategorical: (
        {"categories": [0, 1]},
        BITS[:, :1],
        None,
        ("dpvi", "na-dpvi", "sgld", "vips"),
    ),
    DPGaussianMixture: (
        {"bounds": (0, 1), "n_components": 2, "covariance_type": "spherical"},
        NUMBERS,
        None,
        ("dpvi", "na-dpvi", "sgld", "vips"),
    ),
    DPLatentDirichletAllocation: ({"n_components": 2}, COUNTS, None, ("vips",)),
    DPSigmoidBeliefNet: ({"n_components": 2}, BITS, None, ("vips",)),
    DPHierarchicalLogisticRegression: (
        {"groups": 2, "classes": [0, 1]},
        BITS,
        LABELS,
        ("dpvi", "na-dpvi", "sgld"),
    ),
    DPBayesianMLPClassifier: ({"classes": [0, 1]}, BITS, LABELS, ("dpvi", "sgld")),
    DPBayesianMLPRegressor: ({"bounds": ((0, 1), (-1, 2))}, NUMBERS, LABELS, ("dpvi", "sgld")),
    DPVariationalAutoencoder: ({"n_components": 2}, BITS, None, ("dpvi",)),
    DPNumPyroModel: ({"model": normal}, NUMBERS, None, ("dpvi", "na-dpvi", "sgld")),
}
SOLVERS = ("dpvi", "na-dpvi", "sgld", "vips")
SLOW = {DPGaussianMixture: ("dpvi", "na-dpvi", "sgld")}
WORK = [
    # Of pairs that have tests of their own all but a few are slow.
    pytest.param(
        kind,
        solver,
        marks=[pytest.mark.slow] if solver in SLOW.get(kind, ("dpvi", "na-dpvi")) else [],
    )
    for kind, entry in ESTIMATORS.items()
    for solver in entry[3]
]
REFUSED = [
    (kind, solver)
    for kind, entry in ESTIMATORS.items()
    for solver in SOLVERS
    if solver not in entry[3]
]


def named(case):
    return case.__name__ if inspect.isclass(case) else case


def test_every_estimator_is_in_the_grid():
    assert {kind.__name__ for kind in ESTIMATORS} == {
        name for name in skdpbayes.__all__ if name.startswith("DP")
    }


@pytest.mark.filterwarnings("ignore:The chains have not mixed")  # nor could they in 40 steps
@pytest.mark.parametrize(("kind", "solver"), WORK, ids=named)
def test_a_pair_fits_and_spends_what_it_says(kind, solver):
    parameters, X, y, _ = ESTIMATORS[kind]
    steps = {"n_steps": 40} if solver in ("dpvi", "sgld", "na-dpvi") else {}
    draws = (
        {} if kind is DPVariationalAutoencoder else {"n_posterior_samples": 20}
    )  # its weights are a point
    fitted = kind(solver=solver, epsilon=1.0, random_state=0, **parameters, **steps, **draws).fit(
        X, y
    )
    spent = fitted.privacy_spent_
    assert spent.epsilon <= 1 and (spent.epsilon > 0.5 or solver == "sgld")
    assert spent.epsilon == pytest.approx(
        compose(spent.releases, "zero_out").epsilon(1e-5), rel=1e-9
    )
    assert sum(piece.steps for piece in spent.steps) == fitted.n_iter_
    if not draws:
        return
    assert np.isfinite(fitted.posterior_.mean).all() and np.isfinite(fitted.posterior_.std).all()
    for leaf in jax.tree.leaves(fitted.posterior_samples_):
        assert len(leaf) == 20 and np.isfinite(leaf).all()


@pytest.mark.parametrize(("kind", "solver"), REFUSED, ids=named)
def test_a_pair_that_does_not_work_is_refused_by_name(kind, solver):
    parameters, X, y, works = ESTIMATORS[kind]
    with pytest.raises(ValueError, match=f"solver.*'{solver}'") as error:
        kind(solver=solver, **parameters).fit(X, y)
    assert all(repr(one) in str(error.value) for one in works)
