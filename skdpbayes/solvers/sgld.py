"""Stochastic gradient Langevin dynamics whose injected noise is the privacy noise.

Sources: Li et al. 2019, algorithm 1 (SGLD); Chen, Fox and Guestrin 2014, equation 15 (SGHMC, as in
its section 3.5); Ding et al. 2014 (SGNHT). With g the release over q plus the prior's
gradient, the updates are

    sgld     theta' = theta + h g,                          noise of h g: sqrt(2 h)
    sghmc    v' = (1 - a) v + h g,  theta' = theta + v',    noise of h g: sqrt(2 a h)
    sgnht    as sghmc, with  a' = a + |v'|^2 / P - h        (P parameters)

Where we differ:

* The step size follows from the privacy noise: ``h = 2 a q^2 / (C sigma)^2`` (a = 1 for SGLD) with
  noise multiplier sigma, clipping norm C and sampling rate q. No other noise is added.
* The noise has temperature 1, so that the stationary law is the posterior; Li et al. add half of
  the variance and sample at temperature 1/2.
* Scores are weighted or corrected so that clipping adds no bias where the model knows how
  (`unbiased_weight`, `unbiased_total`).

The largest step that a budget allows is that of the calibrated noise multiplier (`step_size`); a
smaller step has more noise in the release and spends less. Derivations: ``docs/solvers/sgld.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_score,
    random_start,
    score_unit,
    unbiased_total,
    weighted_score,
)
from skdpbayes.models.protocols import Number
from skdpbayes.posteriors.base import DrawsPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import OneKindOfRound, Query, Round, Scales, Sums


class SGLDState(NamedTuple):
    """State; the draws are iterates, each of them released."""

    theta: jax.Array
    momentum: jax.Array  # empty without momentum
    friction: jax.Array
    draws: jax.Array  # (n_draws, n_parameters), NaN where no iterate fell
    time: jax.Array  # sum of the step sizes so far


@pytree
@dataclass(frozen=True)
class SGLD(OneKindOfRound):
    """Langevin dynamics on private gradients.

    Attributes
    ----------
    n_draws : int
        Iterates kept per chain, evenly spaced in Langevin time after the burn-in.
    clipping_norm : float
        Over the model's `score_unit`.
    burn_in : float
        Fraction of the Langevin time discarded.
    friction : float
        Initial friction of the samplers with momentum; 1 without momentum.
    sampler : {"sgld", "sghmc", "sgnht"}
    """

    n_draws: int = field(metadata={"static": True})
    clipping_norm: Number
    burn_in: Number = 0.5
    friction: Number = 1.0
    sampler: str = field(default="sgld", metadata={"static": True})

    def init(self, model: Model, key: jax.Array) -> SGLDState:
        """Each chain at rest, at a draw near the model's starting point."""
        theta = random_start(model, key)
        theta = theta + 0.1 * jax.random.normal(key, theta.shape, theta.dtype)
        momentum = jnp.zeros_like(theta[:0] if self.sampler == "sgld" else theta)
        draws = jnp.full((self.n_draws, theta.size), jnp.nan, theta.dtype)
        return SGLDState(
            theta, momentum, jnp.float32(self.friction), draws, jnp.zeros((), theta.dtype)
        )

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[SGLDState], ...]:
        """A Langevin step."""
        unravel, prior_gradient = flat_start(model)[1], prior_score(model)
        clip = jnp.asarray(self.clipping_norm, jnp.float32) * score_unit(model)
        total = self._total_time(mechanism, mechanism.norm_of_record(clip, "score"))

        def query(state: SGLDState, theta: jax.Array) -> Query:
            del state
            params = unravel(theta)
            return lambda record: {"score": weighted_score(model, params, record, clip)[0]}

        def update(
            state: SGLDState, theta: jax.Array, step: jax.Array, estimate: Sums, scales: Scales
        ) -> SGLDState:
            del step
            h = 2 * self.friction / scales["score"] ** 2
            gradient = unbiased_total(
                model, unravel(theta), estimate["score"], clip
            ) + prior_gradient(theta)
            theta, momentum, friction = self._moved(state, h * gradient, h)
            time = state.time + h
            progress = (time / total - self.burn_in) / (1 - self.burn_in)
            slot = jnp.clip((progress * self.n_draws).astype(jnp.int32), 0, self.n_draws - 1)
            kept = jnp.where(progress > 0, theta, state.draws[slot])
            return SGLDState(theta, momentum, friction, state.draws.at[slot].set(kept), time)

        return (
            Round(
                lambda state, key: state.theta,
                query,
                lambda state: {"score": Block(clip, together="score")},
                update,
            ),
        )

    def draws(self, model: Model, state: SGLDState, key: jax.Array, n: int) -> jax.Array:
        """Iterates kept so far, evenly spaced; the present one for those not reached."""
        del model, key
        kept = state.draws[np.linspace(0, self.n_draws - 1, min(n, self.n_draws)).astype(int)]
        return jnp.where(jnp.isnan(kept), state.theta, kept)

    def posterior(self, model: Model, state: SGLDState) -> DrawsPosterior:
        """Draws of all chains, without the rows that no iterate reached in short runs."""
        del model
        draws = np.asarray(state.draws, np.float64).reshape(-1, *state.draws.shape[-2:])
        if not np.isfinite(state.theta).all():
            raise ValueError(
                "The chain diverged: the step size is too large for the curvature of the "
                "posterior. Take a smaller learning_rate. (The budget is spent: the releases were "
                "made.)"
            )
        return DrawsPosterior(draws[:, ~np.isnan(draws).any(axis=(0, 2))])

    def diagnostics(
        self, model: Model, state: SGLDState, posterior: DrawsPosterior
    ) -> dict[str, Any]:
        """Split R-hat and effective sample size of each parameter, over all chains."""
        del model, state
        return chain_diagnostics(posterior)

    def _moved(
        self, state: SGLDState, kick: jax.Array, h: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Next point, momentum and friction."""
        if self.sampler == "sgld":
            return state.theta + kick, state.momentum, state.friction
        momentum = (1 - state.friction) * state.momentum + kick
        friction = state.friction
        if self.sampler == "sgnht":
            friction = friction + jnp.mean(momentum**2) - h
        return state.theta + momentum, momentum, friction

    def _total_time(self, mechanism: Mechanism, clip: jax.Array) -> jax.Array:
        ends = jnp.minimum(jnp.asarray(mechanism.ends), mechanism.n_steps)
        counts = jnp.diff(ends, prepend=0)
        scale = jnp.asarray(mechanism.sigmas) * clip / mechanism.rate
        return jnp.sum(jnp.where(counts > 0, counts * 2 * self.friction / scale**2, 0)).astype(
            jnp.float32
        )


def chain_diagnostics(posterior: DrawsPosterior) -> dict[str, Any]:
    """Split R-hat and effective sample size of each parameter, over all chains."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    draws = posterior.draws
    if draws.shape[1] < 4:
        nothing = np.full(draws.shape[2], np.nan)
        return {"r_hat": nothing, "ess": nothing}
    return {"r_hat": split_gelman_rubin(draws), "ess": effective_sample_size(draws)}
