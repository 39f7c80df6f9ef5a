"""Sums of products of linear regression: no record exceeds the bound on its statistic, and some reach it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped

from skdpbayes.models.linear import Huber, normal_prior
from skdpbayes.models.linear_sums import LinearSums
from skdpbayes.posteriors.linear import NormalInverseGamma

D, NORM = 3, 1.3


def model(norm=NORM):
    hyper = {name: np.float32(1) for name in ("precision", "shape", "scale", "unit")}
    own = {"normal": normal_prior(1, 1, 1), "huber": Huber.at(2)}
    return LinearSums(D, **hyper, **own, row_norm=np.float32(norm), intercept=True)


def statistics(x, y, norm=NORM):
    records = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    return np.asarray(mapped(model(norm).statistic)(records), np.float64)


def awkward(n, rng):
    """Rows of all lengths, some the longest without loss of weight, and responses of all sizes."""
    x = rng.normal(size=(n, D))
    lengths = NORM * np.exp(rng.choice([0.0, 1e-3, 1.0, 5.0], n) * rng.normal(size=n))
    x *= (lengths / np.linalg.norm(x, axis=1))[:, None]
    y = rng.choice([1.0, -1.0, 0.99, 0.0, 1e30, np.nan, np.inf], n)
    return x, np.where(rng.random(n) < 0.3, rng.normal(size=n), y)


@pytest.mark.parametrize("norm", [0.3, NORM, 20.0])
def test_no_record_exceeds_the_bound_and_one_reaches_it(norm):
    x, y = awkward(200_000, np.random.default_rng(0))
    found = np.linalg.norm(statistics(x * norm / NORM, y, norm), axis=1)
    bound = model(norm).statistic_bound()
    assert np.isfinite(found).all() and found.max() <= bound * (1 + 1e-5)
    assert found.max() > 0.9999 * bound


def test_a_climb_does_not_exceed_the_bound_nor_a_substitution_twice_it():
    """Uphill in the norm of one statistic, and in the distance of two, from many starts."""
    m = model()

    def one(record):
        return jnp.sum(m.statistic({"x": record[:D], "y": record[D]}) ** 2)

    def two(pair):
        a, b = (m.statistic({"x": r[:D], "y": r[D]}) for r in (pair[: D + 1], pair[D + 1 :]))
        return jnp.sum((a - b) ** 2)

    bound = m.statistic_bound()
    for height, size, most in ((one, D + 1, bound), (two, 2 * D + 2, 2 * bound)):
        rng = np.random.default_rng(1)
        points, value = rng.normal(size=(256, size)).astype(np.float32), jax.jit(jax.vmap(height))
        best = value(points)
        for step in np.geomspace(1, 1e-3, 300, dtype=np.float32):
            moved = points + step * rng.normal(size=points.shape).astype(np.float32)
            new = value(moved)
            points, best = np.where((new > best)[:, None], moved, points), np.maximum(new, best)
        assert np.sqrt(best.max()) <= most * (1 + 1e-5)
    assert np.sqrt(best.max()) > 0.7 * 2 * bound  # two records are nearly orthogonal at worst


def test_the_weight_does_not_look_at_the_response():
    x, _ = awkward(50, np.random.default_rng(2))
    weights = [statistics(x, np.full(50, y))[:, -1] for y in (0.0, 0.7, -1e9)]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])
    assert len(np.unique(weights[0])) > 2


def test_a_null_record_contributes_nothing():
    assert not statistics(np.zeros((1, D)), [np.nan]).any()


def test_sums_without_noise_are_those_of_the_records():
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-0.5, 0.5, (400, D)), rng.uniform(-1, 1, 400)
    posterior = model().noisy_posterior(statistics(x, y).sum(axis=0), 0.0, 400)
    assert isinstance(posterior, NormalInverseGamma) and posterior.shape == pytest.approx(
        1 + 400 / 2
    )
    np.testing.assert_allclose(posterior.precision, x.T @ x + np.eye(D), atol=1e-3)
    np.testing.assert_allclose(posterior.precision @ posterior.centre, x.T @ y, atol=1e-3)
