"""The driver of replicates: one compilation, the same replicates whatever the batches, and known posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conjugate import NOISE, STD

from skdpbayes.calibration import (
    marginal_coverage,
    simulate,
    simulation_based_calibration,
    tarp_coverage,
)

WIDTHS = (0.5, 1.0, 1.5)


def conjugate_model(key):
    """Two parameters, three times: with posteriors of each of the widths."""
    prior, data, posterior = jax.random.split(key, 3)
    truth = jax.random.normal(prior, (2,))
    mean = (truth + NOISE * jax.random.normal(data, (2,))) / (1 + NOISE**2)
    noise = STD * jax.random.normal(posterior, (199, 2))
    return jnp.tile(truth, 3), jnp.hstack([mean + width * noise for width in WIDTHS])


@pytest.fixture(scope="module")
def replicates():
    return simulate(conjugate_model, 500, batch_size=100, random_state=0)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_conjugate_model(replicates, width):
    columns = slice(2 * WIDTHS.index(width), 2 * WIDTHS.index(width) + 2)
    truth, draws = replicates[0][:, columns], replicates[1][:, :, columns]
    found = tarp_coverage(draws, truth, random_state=0, confidence=0.99)
    assert found.within_band == (width == 1.0)
    assert (found.rmse > 1.5 * found.rmse_band[1]) == (width != 1.0)
    assert np.all(simulation_based_calibration(draws, truth).p_value > 0.001) == (width == 1.0)
    assert np.all(marginal_coverage(draws, truth, confidence=0.999).within_band) == (width == 1.0)


def bits(key):
    """A simulator that compiles fast."""
    return jax.random.key_data(key).astype(jnp.float64), jnp.zeros((1, 2))


def test_one_compilation_and_the_same_replicates_for_all_batches():
    traced = []

    def counted(key):
        traced.append(key)
        return jax.random.uniform(key, (3,)), jax.random.uniform(key, (5, 3))

    truth, draws = simulate(counted, 10, batch_size=4, random_state=3)
    assert len(traced) == 1
    assert truth.shape == (10, 3) and draws.shape == (10, 5, 3)
    assert isinstance(truth, np.ndarray) and truth.dtype == draws.dtype == np.float64
    assert len(np.unique(truth[:, 0])) == 10 and len(np.unique(draws)) == 150
    fewer = simulate(counted, 7, batch_size=100, random_state=3)
    np.testing.assert_array_equal(fewer[0], truth[:7])
    np.testing.assert_array_equal(fewer[1], draws[:7])


def test_seeds():
    seeds = {
        name: simulate(bits, 2, random_state=seed)[0]
        for name, seed in {"one": 1, "again": 1, "two": 2}.items()
    }
    np.testing.assert_array_equal(seeds["one"], seeds["again"])
    assert not np.any(seeds["one"] == seeds["two"])
    assert not np.any(simulate(bits, 2)[0] == simulate(bits, 2)[0])
    a, b = (simulate(bits, 2, random_state=np.random.default_rng(5))[0] for _ in range(2))
    np.testing.assert_array_equal(a, b)


def test_sixty_four_bits_end_with_the_call():
    before = jnp.zeros(1).dtype
    simulate(lambda key: (jnp.zeros(1), jnp.zeros((3, 1))), 2)
    assert jnp.zeros(1).dtype == before
    # 1 + 1e-12 needs float64.
    truth, _ = simulate(lambda key: (1.0 + jnp.full(1, 1e-12), jnp.zeros((3, 1))), 2)
    assert np.all(truth > 1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda key: jnp.zeros(2), "pair"),
        (lambda key: (jnp.zeros(()), jnp.zeros((3, 1))), r"got \(\) and \(3, 1\)"),
        (lambda key: (jnp.zeros(2), jnp.zeros((3, 1))), r"got \(2,\) and \(3, 1\)"),
        (lambda key: (jnp.zeros(2), jnp.zeros((2, 3, 2))), "n_draws"),
    ],
)
def test_wrong_simulators(wrong, message):
    with pytest.raises(ValueError, match=message):
        simulate(wrong, 2)


@pytest.mark.parametrize("arguments", [{"n_replicates": 0}, {"n_replicates": 2, "batch_size": 0}])
def test_refusals(arguments):
    with pytest.raises(ValueError, match="integer of at least 1"):
        simulate(bits, **arguments)
