"""The benchmark of noise-aware inference: its problems, its scores, its bookkeeping, and the published recipe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import _na_dpvi_recipe as recipe
from benchmarks import na_dpvi
from benchmarks._na_dpvi_problems import PROBLEMS, softplus
from skdpbayes.privacy import GaussianSteps
from skdpbayes.privacy.mechanism import MechanismSpec
from skdpbayes.privacy.random import fit_keys


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
            return model.log_prior(theta) + jnp.sum(jax.vmap(lambda row: model.log_likelihood(theta, row))(rows))

        return jax.vmap(jax.grad(log_density))(thetas)

    gradient = np.asarray(gradients(jnp.asarray(draws, jnp.float32)), float)
    scale = draws.std(axis=0)
    np.testing.assert_allclose(gradient.mean(axis=0) * scale, 0, atol=0.1)
    np.testing.assert_allclose((gradient * (draws - draws.mean(axis=0))).mean(axis=0), -1, atol=0.12)
    assert np.all(np.abs(draws.mean(axis=0) - theta) < 6 * scale + 1)


@pytest.mark.parametrize("name", PROBLEMS)
def test_mean_scores_are_those_of_the_draws(name):
    model, _ = PROBLEMS[name]
    rng = np.random.default_rng(1)
    thetas = jnp.asarray(model.draw_prior(rng, 10), jnp.float32)
    noise = jnp.asarray(rng.normal(size=thetas.shape), jnp.float32)
    record = jnp.asarray(model.draw_records(rng, model.draw_prior(rng, 1)[0])[0])
    scores = jax.vmap(jax.grad(model.log_likelihood), in_axes=(0, None))(thetas, record)
    for found, want in zip(recipe.mean_scores(model, thetas, noise, record), (scores, scores * noise), strict=True):
        np.testing.assert_allclose(found, want.mean(axis=0), rtol=1e-4, atol=1e-5 * float(jnp.abs(scores).max()))


@pytest.mark.parametrize("kind", [recipe.Published, recipe.Aligned])
def test_with_little_noise_the_recipe_finds_the_posterior(kind):
    cell = next(c for c in na_dpvi.CELLS if c.problem == "Beta-Bernoulli")
    data = na_dpvi.simulate(cell, 0, 3)
    settings = PROBLEMS[cell.problem][1]
    own = recipe.solver(kind, cell.model, settings, 1.0)
    spec = MechanismSpec((GaussianSteps(1.0, recipe.SAMPLING_RATE, 1000),))
    state = recipe.run(fit_keys(0, 3), data.records, cell.model, own, spec)
    draws = na_dpvi.not_private(cell, data, np.random.default_rng(0))["not private"]
    np.testing.assert_array_equal(state.sums.n, 800)
    found = np.asarray(state.sums.mean_x)
    np.testing.assert_allclose(found[:, 0], draws.mean(axis=1)[:, 0], atol=0.01)
    np.testing.assert_allclose(softplus(found[:, 1]), draws.std(axis=1)[:, 0], rtol=0.25)


def test_scores_of_calibrated_and_of_other_posteriors():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3000, 2))
    observed = truth + rng.normal(size=truth.shape)

    def scored(sd):
        draws = observed[:, None] / 2 + sd * rng.normal(size=(3000, 400, 2))
        data = na_dpvi.Data(truth, np.zeros((3000, 0), np.float32), rng.normal(size=truth.shape))
        return {name: np.array(v) for name, v in na_dpvi.figures(draws, data).items()}

    right, narrow, wide = (scored(sd) for sd in (0.5**0.5, 0.5, 1.0))
    assert na_dpvi.tarp_error(right["tarp"]) < 2.5 * na_dpvi.floor(3000)
    assert min(na_dpvi.tarp_error(other["tarp"]) for other in (narrow, wide)) > 0.05
    assert right["covered_90"].mean() == pytest.approx(0.9, abs=0.015)
    assert narrow["covered_90"].mean() < 0.8 < 0.95 < wide["covered_90"].mean()
    assert right["z"].std() == pytest.approx(1, abs=0.03)
    # Closed form for a normal forecast (Gneiting and Raftery 2007), and the right one is the best.
    z = (truth - observed / 2) / 0.5**0.5
    crps = 0.5**0.5 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)
    assert right["crps"].mean() == pytest.approx(crps.mean(), rel=0.01)
    assert right["crps"].mean() < min(narrow["crps"].mean(), wide["crps"].mean())


def test_the_floor_is_what_uniform_fractions_score():
    rng = np.random.default_rng(0)
    errors = [na_dpvi.tarp_error(rng.random(500)) for _ in range(500)]
    assert np.mean(np.square(errors)) ** 0.5 == pytest.approx(na_dpvi.floor(500), rel=0.1)
    assert na_dpvi.repeated_error(rng.random(1200), 500) < 0.05
    assert np.isnan(na_dpvi.repeated_error(rng.random(499), 500))


def test_finished_blocks_are_not_computed_again(monkeypatch, tmp_path, capsys):
    seen = []

    def prior(cell, data, rng):
        seen.append(data.truth)
        return {"the prior": cell.model.draw_prior(rng, 20 * len(data.truth)).reshape(len(data.truth), 20, -1)}

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
    line = na_dpvi.report(cells, ["prior"], range(3)).splitlines()[-1].split()
    assert line[:3] == ["the", "prior", "9"]
