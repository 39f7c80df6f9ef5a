"""The benchmark of noise-aware inference: its problems, its scores, its bookkeeping, and the published recipe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import _na_dpvi_recipe as recipe
from benchmarks import na_dpvi
from benchmarks._na_dpvi_problems import PROBLEMS, LogisticRegression, softplus
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.privacy import GaussianSteps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_exact_posterior_is_that_of_the_densities(name):
    """Under a density p the gradient of log p has mean zero, and its product with (theta - mean) is minus one."""
    model, _ = PROBLEMS[name]
    rng = np.random.default_rng(0)
    (theta,) = model.draw_prior(rng, 1)
    rows = model.draw_records(rng, theta)[:200]
    draws = model.draw_posterior(rng, rows, 4000)

    @jax.jit
    def gradients(thetas):
        def log_density(theta):
            return model.log_prior(theta) + jnp.sum(
                jax.vmap(lambda row: model.log_likelihood(theta, row))(rows)
            )

        return jax.vmap(jax.grad(log_density))(thetas)

    gradient = np.asarray(gradients(jnp.asarray(draws, jnp.float32)), float)
    scale = draws.std(axis=0)
    np.testing.assert_allclose(gradient.mean(axis=0) * scale, 0, atol=0.1)
    np.testing.assert_allclose(
        (gradient * (draws - draws.mean(axis=0))).mean(axis=0), -1, atol=0.12
    )
    assert np.all(np.abs(draws.mean(axis=0) - theta) < 6 * scale + 1)


@pytest.mark.parametrize("name", PROBLEMS)
def test_mean_scores_are_those_of_the_draws(name):
    model, _ = PROBLEMS[name]
    rng = np.random.default_rng(1)
    thetas = jnp.asarray(model.draw_prior(rng, 10), jnp.float32)
    noise = jnp.asarray(rng.normal(size=thetas.shape), jnp.float32)
    record = jnp.asarray(model.draw_records(rng, model.draw_prior(rng, 1)[0])[0])
    scores = jax.vmap(jax.grad(model.log_likelihood), in_axes=(0, None))(thetas, record)
    for found, want in zip(
        recipe.mean_scores(model, thetas, noise, record), (scores, scores * noise), strict=True
    ):
        np.testing.assert_allclose(
            found, want.mean(axis=0), rtol=1e-4, atol=1e-5 * float(jnp.abs(scores).max())
        )


def test_mean_scores_of_logistic_regression_are_those_of_the_draws():
    model, rng = LogisticRegression(3), np.random.default_rng(0)
    thetas, noise = rng.normal(size=(2, 10, 3))
    for y in 0.0, 1.0:
        record = jnp.asarray([*rng.normal(size=3), y])
        scores = jax.vmap(jax.grad(model.log_likelihood), in_axes=(0, None))(thetas, record)
        np.testing.assert_allclose(model.score(thetas[0], record), scores[0], rtol=1e-5)
        for found, want in zip(
            recipe.mean_scores(model, thetas, noise, record), (scores, scores * noise), strict=True
        ):
            np.testing.assert_allclose(found, want.mean(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [recipe.Published, recipe.Aligned])
def test_with_little_noise_the_recipe_finds_the_posterior(kind):
    cell = next(c for c in na_dpvi.CELLS if c.problem == "Beta-Bernoulli")
    data = na_dpvi.simulate(cell, 0, 40)
    settings = PROBLEMS[cell.problem][1]
    own = recipe.solver(kind, cell.model, settings, 1.0)
    spec = MechanismSpec((GaussianSteps(1.0, recipe.SAMPLING_RATE, 1000),))
    state = recipe.run(fit_keys(0, 40), data.records, cell.model, own, spec)
    draws = na_dpvi.not_private(cell, data, np.random.default_rng(0))["not private"]
    np.testing.assert_array_equal(state.sums.n, 800)
    found = np.asarray(state.sums.mean_x)
    errors = (found[:, 0] - draws.mean(axis=1)[:, 0]) / draws.std(axis=1)[:, 0]
    assert np.sqrt(np.mean(errors**2)) < 0.2 and abs(errors.mean()) < 0.1
    ratios = softplus(found[:, 1]) / draws.std(axis=1)[:, 0]
    assert np.sqrt(np.mean((ratios - 1) ** 2)) < 0.15


@pytest.mark.slow
def test_scores_of_calibrated_and_of_other_posteriors():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3000, 2))
    observed = truth + rng.normal(size=truth.shape)

    def scored(sd, shift=0.0):
        draws = observed[:, None] / 2 + [0, shift] + sd * rng.normal(size=(3000, 400, 2))
        return na_dpvi.scored(na_dpvi.figures(draws, truth))

    right, narrow, wide = (scored(sd) for sd in (0.5**0.5, 0.5, 1.0))
    assert right.joint.within_band
    assert right.marginal.within_band.all()
    assert min(other.joint.rmse for other in (narrow, wide)) > 0.05
    assert right.covered.mean() == pytest.approx(0.9, abs=0.015)
    assert narrow.covered.mean() < 0.8 < 0.95 < wide.covered.mean()
    assert right.sd_of_z == pytest.approx(1, abs=0.03)
    assert right.sd == pytest.approx(0.5**0.5, rel=0.01)
    assert abs(right.mean_z) < 0.08
    assert scored(0.5, -0.2).mean_z == pytest.approx(-0.4, abs=0.1)
    # Closed form for a normal forecast (Gneiting and Raftery 2007), and the right one is the best.
    z = (truth - observed / 2) / 0.5**0.5
    crps = 0.5**0.5 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)
    assert right.crps == pytest.approx(crps.mean(), rel=0.01)
    assert right.crps < min(narrow.crps, wide.crps)
    # Groups as in the paper: six of 500, each with a larger error than all of them together.
    assert right.joint.rmse < right.at_paper < 0.04


def test_posteriors_are_thinned_but_scored_with_all_draws():
    draws = np.random.default_rng(0).normal(size=(3, 1000, 2))
    kept = na_dpvi.figures(draws, np.zeros((3, 2)))
    assert kept["draws"].shape == (3, na_dpvi.KEPT, 2)
    np.testing.assert_array_equal(kept["sd"], draws.std(axis=1))
    few = na_dpvi.figures(draws[:, :50], np.zeros((3, 2)))
    assert few["draws"].shape == (3, 50, 2)
    assert np.isnan(na_dpvi.scored(few | {"truth": draws[:, 0]}).at_paper)


def test_posteriors_that_are_not_finite_are_left_out():
    draws = np.random.default_rng(0).normal(size=(3, 300, 2))
    draws[1, 5, 0] = np.nan
    kept = na_dpvi.figures(draws, np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(kept["truth"], [[0, 1], [4, 5]])
    assert {len(x) for x in kept.values()} == {2}
    none = na_dpvi.figures(draws[1:2], np.zeros((1, 2)))
    assert {name: x.shape for name, x in none.items()} == {
        name: (0, *x.shape[1:]) for name, x in kept.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_with_much_budget_our_estimators_find_the_posterior_in_the_coordinates_of_the_cell(name):
    cell = na_dpvi.Cell(name, 2e4, {})
    data = na_dpvi.simulate(cell, 0, 3)
    exact = na_dpvi.not_private(cell, data, np.random.default_rng(0))["not private"]
    for draws in na_dpvi.own(cell, data, np.random.default_rng(1)).values():
        assert draws.shape[::2] == exact.shape[::2]
        sd = exact.std(axis=1)
        assert np.all(np.abs(draws.mean(axis=1) - exact.mean(axis=1)) < 1.5 * sd)
        np.testing.assert_allclose(draws.std(axis=1), sd, rtol=0.3)


@pytest.mark.filterwarnings(
    "ignore:random_state is set"
)  # each fit of a benchmark has a seed of its own
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "linear regression"])
def test_with_next_to_no_budget_the_conjugate_estimators_return_the_prior_of_the_cell(name):
    cell = na_dpvi.Cell(name, 1e-4, {})
    estimators, fields, unconstrained = na_dpvi._own(cell)
    records = na_dpvi.simulate(cell, 0, 1).records[0]
    draws = unconstrained(estimators["skdpbayes"].set_params(random_state=1).fit(*fields(records)))
    prior = cell.model.draw_prior(np.random.default_rng(2), 4000)
    np.testing.assert_allclose(draws.std(axis=0), prior.std(axis=0), rtol=0.2)
    assert np.all(np.abs(draws.mean(axis=0) - prior.mean(axis=0)) < 0.4 * prior.std(axis=0))


def test_the_prior_of_linear_regression_is_that_of_the_cell_but_for_the_intercept():
    cell = na_dpvi.CELLS[-1]
    estimators, _, _ = na_dpvi._own(cell)
    model = estimators["skdpbayes"].plan(5000, 10).model.model

    def difference(theta):
        """Of log densities of (w, log s2)."""
        s2 = softplus(theta[11])
        params = {
            "u": np.log(s2 / 16) / model.unit,
            "w": jnp.asarray(np.append(theta[:10] * 3, theta[10]) / 4),
        }
        return (
            cell.model.log_prior(theta)
            - jax.nn.log_sigmoid(theta[11])
            + np.log(s2)
            - model.log_prior(params)
        )

    thetas = cell.model.draw_prior(np.random.default_rng(0), 5)
    at_zero = [difference(np.where(np.arange(12) == 10, 0, theta)) for theta in thetas]
    np.testing.assert_allclose(at_zero, at_zero[0], atol=1e-3)
    # The intercept's precision is a ninth.
    extra = [a - difference(theta) for a, theta in zip(at_zero, thetas, strict=True)]
    np.testing.assert_allclose(
        extra, (1 - 1 / 9) * thetas[:, 10] ** 2 / (8 * softplus(thetas[:, 11])), atol=1e-3
    )


def test_each_fit_has_its_own_noise():
    cell = na_dpvi.CELLS[3]
    data = na_dpvi.simulate(cell, 0, 1)
    twice = na_dpvi.Data(np.repeat(data.truth, 2, axis=0), np.repeat(data.records, 2, axis=0))
    first, second = na_dpvi.own(cell, twice, np.random.default_rng(0))["skdpbayes"]
    assert not np.isclose(first.mean(), second.mean(), rtol=1e-6)


def test_finished_blocks_are_not_computed_again(monkeypatch, tmp_path, capsys):
    seen = []

    def prior(cell, data, rng):
        seen.append(data.truth)
        return {
            "the prior": cell.model.draw_prior(rng, 20 * len(data.truth)).reshape(
                len(data.truth), 20, -1
            )
        }

    monkeypatch.setattr(na_dpvi, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(na_dpvi, "BLOCK", 3)
    monkeypatch.setitem(na_dpvi.CONTENDERS, "prior", prior)
    cells = na_dpvi.CELLS[1:2]
    na_dpvi.work(cells, ["prior"], range(2))
    na_dpvi.work(cells, ["prior"], range(3))
    assert len(seen) == 3
    np.testing.assert_array_equal(seen[0], na_dpvi.simulate(cells[0], 0, 3).truth)
    assert not np.array_equal(seen[0], seen[1])
    assert "replicates a minute" in capsys.readouterr().out
    found = na_dpvi.score(cells, ["prior"], range(4))
    line = na_dpvi.report(found).splitlines()[-1].split()
    assert line[:3] == ["the", "prior", "9"]
    assert found[cells[0]]["the prior"].joint.rmse < 0.5
    assert na_dpvi.score(cells, ["published"], range(4)) == {}
    pytest.importorskip("matplotlib")
    assert [p.name for p in na_dpvi.draw(found)] == [
        f"{name}.{suffix}" for name in ("coverage", "coverage_error") for suffix in ("png", "pdf")
    ]
    assert all(p.stat().st_size > 5000 for p in na_dpvi.draw(found))
