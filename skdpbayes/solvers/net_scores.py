"""Gradient solvers of the belief network: rounds of scores of the records' optimised bounds.

A record's score is the gradient of its bound at its optimal hidden probabilities h (envelope
theorem), a product ``r (1, h - p)'``: `SigmoidBeliefNet.scores`. With the second moments S of
``h - p``, released beside it, the summed score G observes the covariance A of visible and hidden
units, since the bound is quadratic in the logits,

    A = G / n + t w S,        noise tau in each entry of G / n.

The second term is public, and its residuals are shorter than those of ``y - m``: G needs less noise
than the statistics of `vips`, of which A is one. The M-step then maximises the bound (a Newton step
with the curvature ``n t S`` of each visible unit). The rounds' observations of A are averaged:

    dpvi      at draws of the guide, with weights 2 / (t + 2)
    na-dpvi   at the posterior mean, with the inverse of each round's variance: of the noise, and of
              what the trace still moves beyond it
    sgld      along a chain ``B' = B + a (A_t - B)``, whose noise is the privacy noise

The guide is normal, independent between visible units, with covariance ``(n t S)^-1`` and the noise
``tau (t S)^-1``. The last rounds release scores by the records' own tangents, at which the bound is
tightest, and scale all weights by a Newton step (`_rescaled`): few rounds of the EM algorithm leave
weights too small, and so does denoising.

See ``docs/solvers/belief-net-gradients.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import double, single
from skdpbayes.models.belief_net import NetParams, SigmoidBeliefNet
from skdpbayes.models.protocols import Number
from skdpbayes.models.quadrature import normal_nodes
from skdpbayes.posteriors.belief_net import ChainWeightsPosterior, WeightsPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Query, Round, Scales, Sums, opening_rounds

RESCALED = 4  # last rounds, which scale the weights
STEP = 0.4  # a, of the chain
_MOST_SCALE = 1.5


class Trace(NamedTuple):
    """Averages of what the rounds observe, about the present probabilities of hidden units."""

    visible: jax.Array  # covariance A, (J, K)
    hidden: jax.Array  # second moments of (1, h - p), (K + 1, K + 1)
    variance: jax.Array  # of an entry of `visible`
    hidden_variance: jax.Array
    information: jax.Array  # sum of the rounds' weights; of na-dpvi


class NetState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    params: NetParams
    trace: Trace
    chain: jax.Array  # standardised deviation of the chain from the average, (J, K); else empty
    draws: jax.Array  # deviations kept, (n_draws, J, K); else empty


@pytree
@dataclass(frozen=True)
class NetScores:
    """Rounds of scores at the posterior mean, after the model's openings.

    Attributes
    ----------
    n_openings : int
    n_rounds : int
        Number of rounds, the openings not counted.
    least_weight : float
        Least weight of a round in the average; 1 takes each round alone, which is best
        without noise.
    clipping_norm : float
        Clipping norm of every block, for the report.
    """

    n_openings: Number
    n_rounds: Number
    least_weight: Number
    clipping_norm: Number

    def init(self, model: SigmoidBeliefNet, key: jax.Array) -> NetState:
        """State before any release."""
        del key
        j, k = model.n_visible, model.n_hidden
        zero = jnp.zeros((), jnp.float32)
        nothing = jnp.zeros((j, k), jnp.float32)
        moments = jnp.zeros((k + 1, k + 1), jnp.float32)
        return NetState(
            model.init(),
            Trace(nothing, moments, zero, zero, zero),
            nothing[:0],
            nothing[None][:0],
        )

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: each opening once, scores, and those by own tangents."""
        last = step >= self.n_openings + self.n_rounds - RESCALED
        return jnp.minimum(step, self.n_openings) + (last & (step > self.n_openings))

    def rounds(self, model: SigmoidBeliefNet, mechanism: Mechanism) -> tuple[Round[NetState], ...]:
        """The model's openings, rounds of scores, and those that scale the weights."""
        del mechanism

        def blocks(state: NetState) -> Mapping[str, Block]:
            del state
            return model.blocks()

        def score_of(state: NetState, point: NetParams) -> Query:
            del state
            return model.scores(point)

        def own_score_of(state: NetState, point: NetParams) -> Query:
            del state
            return model.scores(point, own=True)

        def learn(
            state: NetState, point: NetParams, step: jax.Array, estimate: Sums, scales: Scales
        ) -> NetState:
            t = (step - self.n_openings).astype(float)
            return single(self._learnt(model, *double((state, point)), t, estimate, scales))

        def rescale(
            state: NetState, point: NetParams, step: jax.Array, estimate: Sums, scales: Scales
        ) -> NetState:
            del step
            own, at = double((state.params, point))
            return state._replace(params=single(_rescaled(model, own, at, estimate, scales)))

        return (
            *opening_rounds(model.openings()),
            Round(lambda state, key: self._point(state, key), score_of, blocks, learn),
            Round(lambda state, key: state.params, own_score_of, blocks, rescale),
        )

    def _point(self, state: NetState, key: jax.Array) -> NetParams:
        """Where scores are released."""
        del key
        return state.params

    def _weights(
        self, trace: Trace, new: jax.Array, noise: jax.Array, t: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Weight of a round in the average, and the sum of the rounds' information."""
        del new, noise
        return jnp.maximum(2 / (t + 2), self.least_weight), trace.information

    def _learnt(
        self,
        model: SigmoidBeliefNet,
        state: NetState,
        point: NetParams,
        t: jax.Array,
        estimate: Sums,
        scales: Scales,
    ) -> NetState:
        """State after one more round."""
        params, trace = state.params, state.trace
        seen = model.observed(estimate, scales, model.score_lengths(point))
        # Hidden units are seen as they are at the point: late rounds tell most about them.
        weight = jnp.maximum(2 / (t + 2), self.least_weight)
        hidden = (1 - weight) * trace.hidden + weight * seen.hidden
        hidden_variance = (
            1 - weight
        ) ** 2 * trace.hidden_variance + weight**2 * seen.hidden_noise**2
        units, inside, about = model.hidden_units(params.active, hidden, jnp.sqrt(hidden_variance))
        added = point.tangent[:, None] * (point.weights @ units.spread)
        lost = point.tangent[:, None] * point.weights * inside
        new = seen.score - lost + added
        weight, information = self._weights(trace, new, seen.noise, t)
        visible = (1 - weight) * trace.visible + weight * new
        variance = (1 - weight) ** 2 * trace.variance + weight**2 * seen.noise**2
        after = model.maximised(params, visible, jnp.sqrt(variance), units, seen.weight)
        trace = Trace(visible, about, variance, hidden_variance, information)
        return self._moved(state, new - visible, seen.noise, t)._replace(params=after, trace=trace)

    def _moved(self, state: NetState, away: jax.Array, noise: jax.Array, t: jax.Array) -> NetState:
        """Next state of the chain, where there is one.

        `away` is what a round observes of `Trace.visible` less the average, and `noise` the
        standard deviation of the noise in an entry.
        """
        del away, noise, t
        return state

    def posterior(self, model: SigmoidBeliefNet, state: NetState) -> WeightsPosterior:
        """The guide."""
        return model.posterior(state.params)

    def diagnostics(
        self, model: SigmoidBeliefNet, state: NetState, posterior: Any
    ) -> dict[str, Any]:
        """Standard deviation of the noise in the averages."""
        del model, posterior
        return {
            "noise_std": {
                "visible": float(state.trace.variance) ** 0.5,
                "hidden": float(state.trace.hidden_variance) ** 0.5,
            }
        }


@pytree
@dataclass(frozen=True)
class NetDPVI(NetScores):
    """Rounds of scores at draws of the guide."""

    def _point(self, state: NetState, key: jax.Array) -> NetParams:
        params = state.params
        along, vectors = _deviations(params)
        drawn = along * jax.random.normal(key, along.shape, along.dtype)
        known = params.weight > 0  # the start is a draw already
        return params._replace(weights=params.weights + known * drawn @ vectors.T)


@pytree
@dataclass(frozen=True)
class NetNADPVI(NetScores):
    """Rounds of scores at the posterior mean, each weighted by its variance."""

    def _weights(
        self, trace: Trace, new: jax.Array, noise: jax.Array, t: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        del t
        moved = jnp.mean((new - trace.visible) ** 2) - noise**2 - trace.variance
        own = 1 / (noise**2 + moved.clip(0) + 1e-12)
        information = trace.information + own
        return jnp.maximum(own / information, self.least_weight), information


@pytree
@dataclass(frozen=True)
class NetSGLD(NetScores):
    """Rounds of scores along a chain.

    Attributes
    ----------
    n_draws : int
        Draws kept of the chain.
    """

    n_draws: int = field(metadata={"static": True})

    def init(self, model: SigmoidBeliefNet, key: jax.Array) -> NetState:
        """State before any release."""
        nothing = jnp.zeros((model.n_visible, model.n_hidden), jnp.float32)
        draws = jnp.full((self.n_draws, *nothing.shape), jnp.nan, jnp.float32)
        return super().init(model, key)._replace(chain=nothing, draws=draws)

    def _point(self, state: NetState, key: jax.Array) -> NetParams:
        del key
        params = state.params
        along, vectors = _deviations(params)
        return params._replace(weights=params.weights + (state.chain @ vectors * along) @ vectors.T)

    def _moved(self, state: NetState, away: jax.Array, noise: jax.Array, t: jax.Array) -> NetState:
        """Next state of the chain, standardised to unit variance, and its draws.

        The chain's stationary variance is ``a / (2 - a)`` times that of its noise. The privacy
        noise is all of it; without privacy there is none, and the chain stays.
        """
        stationary = jnp.sqrt(STEP / (2 - STEP)) * noise
        chain = (1 - STEP) * state.chain + STEP * away / jnp.maximum(stationary, 1e-30) * (
            noise > 0
        )
        first = jnp.floor(self.n_rounds * 0.25)
        left = self.n_rounds - RESCALED - first
        slot = jnp.floor((t - first) * self.n_draws / left.clip(1)).astype(jnp.int32)
        slot = slot.clip(0, self.n_draws - 1)
        kept = jnp.where(t >= first, chain, state.draws[slot])
        return state._replace(chain=chain, draws=state.draws.at[slot].set(kept))

    def posterior(self, model: SigmoidBeliefNet, state: NetState) -> WeightsPosterior:
        """Draws of the chain about the posterior mean."""
        own = super().posterior(model, state)
        draws = np.asarray(state.draws, np.float64)
        draws = draws[~np.isnan(draws).any(axis=(1, 2))]
        if not draws.any():  # without privacy noise nothing drives the chain
            return own
        return ChainWeightsPosterior(**vars(own), chain=draws - draws.mean(axis=0))


def _deviations(params: NetParams) -> tuple[jax.Array, jax.Array]:
    """Standard deviations of weights along the eigenvectors of `spread`, (J, K); and these."""
    values, vectors = jnp.linalg.eigh(params.spread)
    slope = params.tangent[:, None]
    rows = 1 / (params.weight.clip(1) * slope * values)
    return jnp.sqrt(rows + (params.noise / (slope * values)) ** 2), vectors


def _rescaled(
    model: SigmoidBeliefNet, params: NetParams, point: NetParams, estimate: Sums, scales: Scales
) -> NetParams:
    """Weights scaled by one Newton step on the bound by own tangents."""
    seen = model.observed(estimate, scales, model.score_lengths(point))
    inside = (params.active * (1 - params.active) - jnp.diag(seen.hidden)[1:]).clip(0)
    tangent = _mean_tangent(point)
    score = seen.score - tangent[:, None] * point.weights * inside
    slope = jnp.sum(score * point.weights)
    curvature = jnp.sum(tangent[:, None] * point.weights * (point.weights @ params.spread))
    scale = (1 + slope / curvature.clip(1e-12)).clip(1 / _MOST_SCALE, _MOST_SCALE)
    return params._replace(weights=params.weights * scale)


def _mean_tangent(params: NetParams) -> jax.Array:
    """Mean of the records' own tangents, for normal logits, (J,)."""
    nodes, weights = normal_nodes(1, 51)
    variance = jnp.sum((params.weights @ params.spread) * params.weights, axis=1)
    logits = params.intercept[:, None] + jnp.sqrt(variance)[:, None] * nodes[:, 0]
    root = jnp.abs(logits).clip(1e-3)
    return (jnp.tanh(root / 2) / (2 * root)) @ weights
