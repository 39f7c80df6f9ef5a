"""Gaussian mixtures under the solvers that sum labels out: dpvi, na-dpvi and sgld."""

import pickle
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from sklearn.base import clone
from whitebox import assert_given_the_same, assert_replayed, one_program, planned, replay_mixture

from skdpbayes import DPGaussianMixture
from skdpbayes.facts import Shape
from skdpbayes.models.mixtures.marginal import MarginalMixture
from skdpbayes.plans import registry
from skdpbayes.plans.settings import Settings
from skdpbayes.privacy import AccountingError, compose

pytestmark = [
    pytest.mark.usefixtures("compiled_quickly"),
    pytest.mark.filterwarnings("ignore:The chains have not mixed"),  # nor could they in a few steps
]

N, MEANS, SD = 4000, np.array([[-1.0, 0], [1.0, 0.5]]), 0.7  # components that overlap
SLOW = [pytest.param(solver, marks=pytest.mark.slow) for solver in ("na-dpvi", "dpvi", "sgld")]


def rows(seed, n=N):
    rng = np.random.default_rng(seed)
    return MEANS[(rng.random(n) < 0.4).astype(int)] + SD * rng.standard_normal((n, 2))


@pytest.fixture(autouse=True)
def fits():
    with one_program(100) as kept:
        yield kept


def estimator(solver, epsilon=1.0, **parameters):
    given = {
        "n_components": 2,
        "covariance_type": "spherical",
        "bounds": (-4, 4),
        "means_init": MEANS + 0.1,
    }
    return DPGaussianMixture(
        epsilon=epsilon, solver=solver, **{"random_state": 0} | given | parameters
    )


def found(model):
    """Log odds of the second component, both means and both standard deviations, of draws; as rows."""
    draws = model.posterior_samples_
    log_odds = np.log(draws["weights"][:, 1] / draws["weights"][:, 0])
    return np.column_stack(
        [log_odds, draws["means"].reshape(-1, 4), draws["covariances"][:, :, 0, 0] ** 0.5]
    )


TRUTH = np.array([np.log(0.4 / 0.6), *MEANS.ravel(), SD, SD])


@pytest.mark.parametrize("solver", SLOW)
def test_it_finds_the_mixture_and_spends_what_it_says(solver, fits):
    model = estimator(solver, n_steps=21 if solver != "sgld" else 100).fit(rows(0))
    draws = found(model)
    tolerance = 4 * draws.std(axis=0) if solver != "sgld" else 0.3
    assert (np.abs(draws.mean(axis=0) - TRUTH) < tolerance).all()
    assert np.abs(model.means_ - MEANS).max() < 0.3 and model.score(rows(1)) > -2.9
    spent = model.privacy_spent_
    assert (
        spent.releases == fits[-1][2].composed()
        and sum(piece.steps for piece in spent.steps) == model.n_iter_
    )
    assert compose(spent.releases, "zero_out").epsilon(1e-5) == pytest.approx(spent.epsilon)
    assert (0.99 if solver != "sgld" else 0.3) < spent.epsilon <= 1
    assert not hasattr(model, "converged_") and not hasattr(model, "weight_concentration_")
    assert pickle.loads(pickle.dumps(model)).score(rows(1)) == model.score(rows(1))
    assert clone(model).get_params()["solver"] == solver


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["na-dpvi", "dpvi"])
def test_without_noise_it_is_the_posterior_of_the_marginal_likelihood(solver, fits):
    """Its mode, found by Newton steps, and the curvature there, which labels that are unknown lessen."""
    X = rows(0)
    priors = {"mean_prior": np.zeros(2), "covariance_prior": 0.5}
    model = estimator(solver, np.inf, n_steps=61, **priors).fit(X)
    planned, start = model.plan(N, 2).model, model.posterior_.function
    with jax.enable_x64(True):
        given = MarginalMixture(
            "spherical", 2, 2, 1.0, 1.0, 2.0, np.zeros(2),
            np.tile(np.float64(planned.covariance_prior), (2, 1, 1)), np.full(2, 0.5),
            start.means, np.linalg.inv(start.roots), np.ones((3, 2)), N, planned.nodes,
        )  # fmt: skip
        start, unravel = ravel_pytree(jax.tree.map(lambda x: x.astype(jnp.float64), given.init()))
        Z = jnp.asarray((X - model._scales[0]) / model._scales[1])
        likelihood = jax.vmap(lambda v, x: given.log_likelihood(unravel(v), {"x": x}), (None, 0))
        both = jax.jit(lambda v: likelihood(v, Z).sum() + given.log_prior(unravel(v)))
        point, slope, curvature = start, jax.jit(jax.grad(both)), jax.jit(jax.hessian(both))
        for _ in range(20):
            point = point - jnp.linalg.solve(curvature(point), slope(point))
        exact = np.linalg.inv(-curvature(point))
        assert float(jnp.abs(slope(point)).max()) < 1e-6
        point = np.asarray(point)
    inner = model.posterior_.posterior
    sd = np.sqrt(np.diag(exact))
    assert (np.abs(inner.mean - point) < 0.25 * sd).all()
    np.testing.assert_allclose(inner.std, sd, rtol=0.12)


STARTS = {
    "given": {},
    "sketch": {"means_init": None},
    "one": {"n_components": 1, "means_init": None},
}
PLANS = [
    *(
        pytest.param(solver, parameters, id=f"{solver}-{start}")
        for solver in ("vips", "dpvi", "na-dpvi", "sgld")
        for start, parameters in STARTS.items()
    ),
    pytest.param(
        "sgld", {"step_schedule": "decreasing"}, id="sgld-decreasing", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("solver", "parameters"), PLANS)
def test_plans_spend_what_is_asked_for_and_give_openings_their_shares(solver, parameters):
    """Of the budget (the sum of one over squared multipliers); nothing is compiled."""
    n = 10**7 if solver != "sgld" else 1000  # so few that the budget limits the steps
    for adjacency, rate in (("zero_out", 1.0), ("replace_one", 0.1), ("add_remove", 0.5)):
        model = estimator(solver, adjacency=adjacency, sampling_rate=rate, **parameters)
        if (solver, adjacency) == ("sgld", "add_remove"):
            model.learning_rate = 1e-9
        task = model._task(model._reader().declared(Shape(n, 2)))
        own, settings = task.model, Settings.of(model._parameters(), model._defaults)
        spec = registry.planned(settings, own, task.bounds, n).spec
        spent = compose(spec.composed(), adjacency).epsilon(model.delta)
        assert spent <= 1 and (spent > 0.99 or model.learning_rate is not None)
        multipliers = np.repeat(
            *zip(*((p.noise_multiplier, p.steps) for p in spec.steps), strict=True)
        )
        openings = len(own.openings())
        assert openings == (4 if own.frequencies is not None else 2)
        if (
            adjacency == "zero_out"
        ):  # all rows, so that one round with the whole budget is the sum of all
            shares = (settings.noise(1, rate).noise_multiplier / multipliers[:openings]) ** 2
            np.testing.assert_allclose(shares, [0.05, 0.03, 0.33, 0.1][:openings], rtol=2e-3)


def test_a_step_that_would_need_less_noise_than_privacy_is_refused():
    with pytest.raises(ValueError, match=r"learning_rate=.* is too large for epsilon=1") as error:
        estimator("sgld", learning_rate=1.0).fit(rows(0))
    largest = float(re.search(r"At most (\S+) is allowed", str(error.value))[1])
    with pytest.raises(ValueError, match="is too large"):
        estimator("sgld", learning_rate=1.01 * largest).fit(rows(0))


def test_a_plan_that_would_overspend_is_not_run(monkeypatch):
    model = estimator("na-dpvi")
    noise = Settings.noise
    monkeypatch.setattr(
        Settings, "noise", lambda self, *rest: noise(replace(self, epsilon=1.1), *rest)
    )
    with pytest.raises(
        AccountingError, match=r"would spend epsilon=1\.\d+ where epsilon=1 was asked for"
    ):
        model.fit(rows(0))
    assert not hasattr(model, "privacy_spent_")


@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi", "sgld"])
def test_what_is_run_does_not_depend_on_what_rows_hold(solver):
    """Nor on how many there are, where that is private."""
    hidden = {"adjacency": "add_remove", "sampling_rate": 0.5}
    if solver == "sgld":
        hidden["learning_rate"] = 1e-7
    X, public, private = rows(0), estimator(solver), estimator(solver, **hidden)
    assert_given_the_same(planned(public, X), planned(public, X * np.nan))
    assert_given_the_same(planned(private, X), planned(private, rows(1)[1:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "covered"), [("dpvi", (0.88, 1)), ("na-dpvi", (0.86, 0.98)), ("vips", (0, 0.88))]
)
def test_intervals_hold_where_components_overlap(solver, covered):
    """At 90 percent; those of variational Bayes, which takes labels for known, do not."""
    inside = []
    for seed in range(40):
        draws = found(estimator(solver, random_state=seed).fit(rows(seed)))
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside.append((low < TRUTH) & (high > TRUTH))
    assert covered[0] <= np.mean(inside) <= covered[1], np.mean(inside, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi", "sgld"])
@pytest.mark.parametrize("parameters", [{}, {"means_init": None}], ids=["given", "sketch"])
def test_the_fit_follows_from_the_releases_and_the_solver_key(
    solver, parameters, fits, compiled_as_users_do
):
    model = estimator(solver, n_steps=21, **parameters).fit(rows(0))
    again = estimator(solver, n_steps=21, **parameters)
    replay_mixture(again, fits[-1][-1], 2, N)
    assert_replayed(model, again)


@pytest.mark.slow
def test_the_noise_of_every_round_is_what_the_report_says(fits):
    """Of null rows every release is noise alone, that of the opening and those of scores."""
    pieces = {"opening": [], "score": []}
    for seed in range(6):
        model = estimator("na-dpvi", n_steps=21, random_state=seed).fit(np.full((N, 2), np.nan))
        own, releases, spent = fits[-1][0], np.float64(fits[-1][-1]), model.privacy_spent_
        multipliers = np.repeat(
            *zip(*((piece.noise_multiplier, piece.steps) for piece in spent.steps), strict=True)
        )
        unit = releases / multipliers[:, None]
        blocks = own.openings()[0].blocks.values()
        scales = np.repeat([b.clipping_norm / b.share**0.5 for b in blocks], [1, 36, 1])
        pieces["opening"].append(unit[0, :38] / scales)
        pieces["score"].append(unit[2:, :7] / spent.clipping_norm)
        assert not releases[2:, 7:].any()
    for name, noise in pieces.items():
        noise = np.concatenate([np.ravel(x) for x in noise])
        assert 1e-6 < stats.chi2(noise.size).cdf(np.square(noise).sum()) < 1 - 1e-6, name
        assert stats.kstest(noise, "norm").pvalue > 1e-6, name
