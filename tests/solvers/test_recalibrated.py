"""Networks whose last rounds are on their outputs: who has which round, and what outputs are asked of."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models.networks.layers import DenseLayer
from skdpbayes.models.networks.perceptron import Classifier
from skdpbayes.privacy.accounting import GaussianSteps
from skdpbayes.solvers.adam import Adam
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.dpvi import DPVI, MeanField
from skdpbayes.solvers.gaussian_guides import Noise
from skdpbayes.solvers.recalibrated import Recalibrated, RecalibratedState
from skdpbayes.solvers.sgld import SGLD

NETWORK = Classifier((DenseLayer(2, 3), DenseLayer(3, 1)), "tanh")
KEY = jax.random.key(0)


@dataclass
class Witness:
    """A solver that keeps what it is told."""

    mechanism: object = None
    steps: tuple = ()

    def rounds(self, model, mechanism):
        self.mechanism = mechanism

        def update(state, point, step, estimate, scales):
            self.steps += (int(step),)
            return state + 1

        return (Round(lambda state, key: state, None, None, update),) * 2

    def draws(self, model, state, key, n):
        return jnp.zeros((n, 1))

    def which(self, step):
        return step % 2


def test_each_solver_has_its_part_of_the_schedule():
    pieces = (GaussianSteps(2.0, 0.5, 4), GaussianSteps(3.0, 0.5, 6))
    schedule = MechanismSpec(pieces, "zero_out", "fast", most_rows=3).traced()
    weights, outputs = Witness(), Witness()
    solver = Recalibrated(weights, outputs, 7)
    rounds = solver.rounds(NETWORK, schedule)
    state = RecalibratedState(0, 10)
    for step in range(10):
        own = rounds[int(solver.which(jnp.asarray(step)))]
        state = own.update(state, own.point(state, KEY), step, None, None)
    assert weights.steps == tuple(range(7)) and outputs.steps == (0, 1, 2)
    assert state == RecalibratedState(7, 13)
    for own, n_steps, ends in ((weights, 7, [4, 7]), (outputs, 3, [0, 3])):
        told = own.mechanism
        assert int(told.n_steps) == n_steps and list(np.asarray(told.ends)[:2]) == ends
        assert told.several_rows == schedule.several_rows
        assert told._replace(n_steps=0, ends=0) == schedule._replace(n_steps=0, ends=0)


def test_draws_in_a_round_are_those_of_the_reported_posterior():
    solver = DPVI(MeanField(local=True), 0.1, 1.0, 1e3)
    state = solver.init(NETWORK, KEY)
    state = state._replace(n_averaged=jnp.float32(10), noise=Noise(jnp.float32(5e4), 2.0))
    wanted = solver.posterior(NETWORK, state)
    draws = np.asarray(solver.draws(NETWORK, state, KEY, 4_000))
    assert (wanted.std > 1.2 * np.exp(np.asarray(state.guide.log_sd))).all()  # noise widens it
    np.testing.assert_allclose(draws.std(axis=0), wanted.std, rtol=0.07)
    np.testing.assert_allclose(draws.mean(axis=0), wanted.mean, atol=5 * wanted.std.max() / 63)
    again = np.asarray(solver.draws(NETWORK, state, jax.random.key(1), 4_000))
    assert not np.array_equal(draws, again)


def test_noise_draws_the_mean_to_the_prior_unless_a_posterior_is_local():
    state = DPVI(MeanField(), 0.1, 1.0, 1e3).init(NETWORK, KEY)
    state = state._replace(n_averaged=jnp.float32(10), noise=Noise(jnp.float32(5e5), 0.0))
    own, usual = (
        DPVI(MeanField(local=local), 0.1, 1.0, 1e3).posterior(NETWORK, state)
        for local in (True, False)
    )
    np.testing.assert_array_equal(own.mean, np.asarray(state.mu, float))
    assert np.linalg.norm(usual.mean) < 0.9 * np.linalg.norm(own.mean)
    np.testing.assert_array_equal(own.std, usual.std)


@pytest.mark.parametrize("kept", [0, 3, 6])
def test_draws_of_a_chain_are_its_iterates_as_far_as_there_are_any(kept):
    solver = SGLD(6, 1.0)
    state = solver.init(NETWORK, KEY)
    rows = jnp.arange(kept, dtype=jnp.float32)[:, None] * jnp.ones(state.theta.size)
    state = state._replace(draws=state.draws.at[:kept].set(rows))
    found = np.asarray(solver.draws(NETWORK, state, KEY, 10))
    np.testing.assert_array_equal(found[:kept], rows)
    np.testing.assert_array_equal(found[kept:], np.tile(state.theta, (6 - kept, 1)))


def test_a_point_is_drawn_once():
    solver = Adam(0.1, 1.0)
    state = solver.init(NETWORK, KEY)
    draws = solver.draws(NETWORK, state, KEY, 10)
    np.testing.assert_array_equal(draws, np.asarray(solver.posterior(NETWORK, state).mean)[None])
