"""Steps by Adam are those of algorithm 1 of Kingma and Ba (2015)."""

import jax.numpy as jnp
import numpy as np

from skdpbayes.models.mixtures import sketch
from skdpbayes.solvers.gaussian_guides import MeanField, Rates

N_STEPS = 40


def textbook_direction(gradients, decay=(0.9, 0.999)):
    """Direction of the last step, in double precision."""
    first = second = 0.0
    for gradient in gradients:
        first = decay[0] * first + (1 - decay[0]) * gradient
        second = decay[1] * second + (1 - decay[1]) * gradient**2
    t = len(gradients)
    return first / (1 - decay[0] ** t) / (np.sqrt(second / (1 - decay[1] ** t)) + 1e-8)


def test_mean_field_takes_steps_of_the_textbook():
    rng = np.random.default_rng(0)
    scores, noises = rng.normal(size=(2, N_STEPS, 3)) * np.array([1e-3, 1, 1e3])
    scores[:, 1] = 0  # a direction in which nothing is released
    guide = MeanField()
    mu = jnp.asarray([0.5, -1.0, 0.0])
    state, _ = guide.init(mu, jnp.asarray([1.0, 0.1, 2.0]))
    rates = Rates(mean=jnp.float32(0.02), log_sd=jnp.float32(0.005), decay=jnp.float32(1.0))

    slopes, log_slopes = [], []
    expected_mu, expected_log_sd = np.asarray(mu, float), np.asarray(state.log_sd, float)
    for score, noise in zip(scores, noises / 1e3, strict=True):
        prior = -expected_mu
        slopes.append(score + 0.7 * prior)
        log_slopes.append(slopes[-1] * noise * np.exp(expected_log_sd) + 1)
        point = None, jnp.asarray(noise, jnp.float32)
        mu, state, _ = guide.step(
            mu, state, jnp.asarray(score, jnp.float32), -mu, point, rates, 0.7, None
        )
        expected_mu = expected_mu + 0.02 * textbook_direction(slopes)
        expected_log_sd = expected_log_sd + 0.005 * textbook_direction(log_slopes)
    np.testing.assert_allclose(mu, expected_mu, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.log_sd, expected_log_sd, rtol=1e-4, atol=1e-5)


def test_fit_of_a_sketch_takes_steps_of_the_textbook():
    starts, scales = np.array([[1.0, -2.0], [0.3, 5.0]]), np.array([1.0, 10.0])
    losses, found = sketch._adam(lambda x: jnp.sum(scales * x**2) / 2, jnp.asarray(starts), N_STEPS)

    expected, slopes = starts, []
    for i in range(N_STEPS):
        last = (scales * expected**2).sum(axis=1) / 2
        slopes.append(scales * expected)
        rate = 0.1 * min(1, 2 - 2 * i / N_STEPS)
        expected = expected - rate * textbook_direction(slopes, (0.9, 0.99))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses, last, rtol=1e-4)
