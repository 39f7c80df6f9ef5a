"""Langevin dynamics with released curvature, whose law includes the privacy noise.

The average of the scores that a chain releases has noise of variance nu. Given a released curvature
H, and omega H as the sampling covariance of the summed scores, the posterior has the precision
``F + P`` and the covariance L,

    W = H (omega H + nu I)^-1,    F = W H,    L = (F + P)^-1        (P: precision of the prior),

as in `na-dpvi`. A step of size h with friction a (1 for SGLD) is

    v' = (1 - a) v + h L (W g(x) + F (x - theta) - P (theta - prior mean)) + own noise,
    theta' = theta + v',        x = c + S (theta - c),

with g the noisy score at x and c an average of the chain. A chain with the covariance L needs noise
of variance ``a h (4 - 2 a - h) / (2 - a)``, in units of L, in each step. Where privacy noise is
less, the solver adds the difference, and S is one. Where it is more, the chain is hotter than the
posterior: S contracts it to the covariance L. So scores are released at draws of the posterior,
every step size is private enough, and the chain mixes at a rate that does not depend on the budget.

This is ours; the idea of a chain driven by the privacy noise is that of Wang, Fienberg and Smola
(2015) and Li et al. (2019). Derivation: ``docs/solvers/sgld.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_matrix,
    prior_mean,
    unbiased_total,
    weighted_score,
)
from skdpbayes.models.denoising import cautious_curvature, estimated_curvature
from skdpbayes.models.protocols import Array, Number
from skdpbayes.posteriors.base import DrawsPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Query, Round, Scales, Sums
from skdpbayes.solvers.normal_posterior import gained, within_reach
from skdpbayes.solvers.released_curvature import (
    Curvature,
    curvature_round,
    sampling_covariance,
)
from skdpbayes.solvers.sgld import chain_diagnostics

_REACH = 30.0  # prior standard deviations within which scores are released
_TINY = 1e-9  # curvature where none is known, over the mean eigenvalue


class Law(NamedTuple):
    """Normal law that the chain samples, and how privacy noise compares with it."""

    gain: jax.Array  # W
    information: jax.Array  # F
    covariance: jax.Array  # L
    root: jax.Array  # of L
    own: jax.Array  # root of the covariance of the own noise of a step
    standardise: jax.Array  # matrix that takes the chain's deviations to N(0, I)


class AwareState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: jax.Array
    momentum: jax.Array
    friction: jax.Array
    centre: jax.Array  # average of the chain, with weights proportional to time
    known: Curvature
    law: Law  # that of the last release of curvature before the chain ends
    draws: jax.Array  # (n_draws, n_parameters) of the chain, NaN where no iterate fell
    mean: jax.Array  # of all kept iterates
    kept: jax.Array  # their number
    noise: jax.Array  # standard deviation of the noise of a score
    subsampled: jax.Array  # variance of a score by subsampling, over that of the data's own


@pytree
@dataclass(frozen=True)
class AwareSGLD:
    """Langevin dynamics on private scores, preconditioned by the posterior's covariance.

    Attributes
    ----------
    n_draws : int
        Iterates kept, evenly spaced between the last two of the `turns`.
    clipping_norm, curvature_norm : float
        Clipping norms of a record's weighted score and curvature.
    turns : array of int
        Rounds that release curvature, the first and the last among them.
    step_size : float
        h, between 0 and 1.
    friction : float
        Initial friction of the samplers with momentum; 1 without momentum.
    sampler : {"sgld", "sghmc", "sgnht"}
    """

    n_draws: int = field(metadata={"static": True})
    clipping_norm: Number
    curvature_norm: Number
    turns: Array
    step_size: Number
    friction: Number = 1.0
    sampler: str = field(default="sgld", metadata={"static": True})

    def init(self, model: Model, key: jax.Array) -> AwareState:
        """The chain at rest, at the model's starting point."""
        del key
        theta = flat_start(model)[0].astype(jnp.float64)
        zero, matrix = jnp.zeros_like(theta), jnp.zeros((theta.size, theta.size))
        return AwareState(
            theta=theta,
            momentum=zero,
            friction=jnp.asarray(self.friction, float),
            centre=theta,
            known=Curvature.none(theta.size),
            law=Law(*[matrix] * len(Law._fields)),
            draws=jnp.full((self.n_draws, theta.size), jnp.nan, jnp.float32),
            mean=zero,
            kept=jnp.zeros((), jnp.int32),
            noise=jnp.zeros(()),
            subsampled=jnp.zeros(()),
        )

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: 1 at the turns."""
        return jnp.isin(step, jnp.asarray(self.turns)).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[AwareState], ...]:
        """A Langevin step and a release of curvature."""
        unravel, centre = flat_start(model)[1], prior_mean(model)
        clip = jnp.asarray(self.clipping_norm, jnp.float32)
        turns = jnp.asarray(self.turns)
        first, last = turns[-2] + 1, turns[-1]

        def at_draw(state: AwareState, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            z = state.law.standardise @ (state.theta - state.centre)
            x = state.centre + state.law.root @ z
            noise = jax.random.normal(key, x.shape, x.dtype)
            return within_reach(model, x, _REACH).astype(jnp.float32), noise

        def score_of(state: AwareState, point: tuple[jax.Array, jax.Array]) -> Query:
            del state
            params = unravel(point[0])
            return lambda record: {"score": weighted_score(model, params, record, clip)[0]}

        def move(
            state: AwareState,
            point: tuple[jax.Array, jax.Array],
            step: jax.Array,
            estimate: Sums,
            scales: Scales,
        ) -> AwareState:
            x, law = point[0].astype(jnp.float64), state.law
            score = unbiased_total(model, unravel(point[0]), estimate["score"], clip)
            drift = (
                law.gain @ score.astype(jnp.float64)
                + law.information @ (x - state.theta)
                - prior_matrix(model) @ (state.theta - centre)
            )
            kick = self._step() * law.covariance @ drift + law.own @ point[1]
            theta, momentum, friction = self._moved(state, kick)
            moved_centre = state.centre + 2 / (step + 2.0) * (theta - state.centre)
            keep = step >= first
            kept = state.kept + keep
            slot = (step - first) * self.n_draws // (last - first)
            slot = slot.clip(0, self.n_draws - 1)
            return state._replace(
                theta=theta,
                momentum=momentum,
                friction=friction,
                centre=moved_centre,
                draws=state.draws.at[slot].set(
                    jnp.where(keep, theta.astype(jnp.float32), state.draws[slot])
                ),
                mean=state.mean + keep * (theta - state.mean) / kept.clip(1),
                kept=kept,
                noise=scales["score"].astype(jnp.float64),
                subsampled=(1 / mechanism.rate - 1).astype(jnp.float64),
            )

        def learn(
            state: AwareState, point: jax.Array, step: jax.Array, estimate: Sums, scales: Scales
        ) -> AwareState:
            del point
            # Only the last two are averaged: points of the others are too far from the optimum.
            nothing = Curvature.none(state.theta.size)
            before = jax.tree.map(lambda x, y: jnp.where(step == last, x, y), state.known, nothing)
            known = before.after(estimate, scales, mechanism)
            longest = mechanism.norm_of_record(clip, "score")
            noise = mechanism.noise_multiplier(first).astype(jnp.float64) * longest / mechanism.rate
            subsampled = 1 / mechanism.rate - 1
            law = self._law(
                model, known, noise, subsampled, last - first, estimate=cautious_curvature
            )
            law = jax.tree.map(lambda x, y: jnp.where(step == last, x, y), state.law, law)
            return state._replace(known=known, law=law)

        return (
            Round(at_draw, score_of, lambda state: {"score": Block(clip, together="score")}, move),
            curvature_round(
                model,
                mechanism,
                point=lambda state, key: within_reach(model, state.centre, _REACH).astype(
                    jnp.float32
                ),
                params=unravel,
                clip=lambda state: clip,
                norm=lambda state: self.curvature_norm,
                update=learn,
            ),
        )

    def posterior(self, model: Model, state: AwareState) -> DrawsPosterior:
        """Draws of all chains, with the covariance given all releases."""
        if not np.isfinite(state.theta).all():
            raise ValueError(
                "The chain diverged: the noise hid the curvature. (The budget is spent: the "
                "releases were made.)"
            )
        alone = np.ndim(state.theta) == 1
        chains = jax.tree.map(lambda x: np.asarray(x)[None] if alone else np.asarray(x), state)
        draws = []
        for i in range(len(chains.theta)):
            own = jax.tree.map(lambda x, i=i: x[i], chains)
            away = own.draws[~np.isnan(own.draws).any(axis=1)].astype(np.float64) - own.mean
            z = away @ own.law.standardise.T
            with jax.enable_x64(True):
                root = _root(self, model, own.known, own.noise, own.subsampled, own.kept)
            draws.append(own.mean + z @ np.asarray(root).T)
        return DrawsPosterior(np.stack(draws))

    def diagnostics(
        self, model: Model, state: AwareState, posterior: DrawsPosterior
    ) -> dict[str, Any]:
        """Split R-hat and effective sample size of each parameter, over all chains."""
        del model, state
        return chain_diagnostics(posterior)

    def _step(self) -> jax.Array:
        return jnp.asarray(self.step_size, float)

    def _needed(self) -> jax.Array:
        """Noise variance of a step for unit stationary variance."""
        a, h = jnp.asarray(self.friction, float), self._step()
        return a * h * (4 - 2 * a - h) / (2 - a)

    def _law(
        self,
        model: Model,
        known: Curvature,
        noise: jax.Array,
        subsampled: Number,
        n_kept: Number,
        *,
        estimate: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> Law:
        """Law of a chain of `n_kept` scores, with the curvature denoised by `estimate`."""
        h = estimate(known.matrix.astype(jnp.float64), known.variance.astype(jnp.float64))
        sampling = sampling_covariance(known, h)
        identity = jnp.eye(len(h))
        of_one = noise**2 * identity + subsampled * sampling
        total = sampling + of_one / n_kept + _TINY * jnp.trace(h) / len(h) * identity
        gain, information = gained(h, total)
        covariance = jnp.linalg.inv(information + prior_matrix(model))
        root = jnp.linalg.cholesky(covariance)
        # Noise of a step over what unit variance needs, in the coordinates in which L is one.
        inside = root.T @ gain
        heat = self._step() ** 2 / self._needed() * inside @ of_one @ inside.T
        values, vectors = jnp.linalg.eigh(heat)
        contract = (vectors / jnp.sqrt(jnp.maximum(values, 1))) @ vectors.T
        own = root @ vectors * jnp.sqrt((1 - values).clip(0) * self._needed())
        return Law(gain, information, covariance, root, own, contract @ jnp.linalg.inv(root))

    def _moved(self, state: AwareState, kick: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Next point, momentum and friction."""
        if self.sampler == "sgld":
            return state.theta + kick, state.momentum, state.friction
        momentum = (1 - state.friction) * state.momentum + kick
        friction, started = state.friction, jnp.asarray(self.friction, float)
        if self.sampler == "sgnht":
            usual = 2 * self._step() / (2 - started)
            heat = jnp.mean((state.law.standardise @ momentum) ** 2) - usual
            friction = jnp.clip(friction + heat, started / 2, 1)
        return state.theta + momentum, momentum, friction


@jax.jit
def _root(
    solver: AwareSGLD,
    model: Model,
    known: Curvature,
    noise: jax.Array,
    subsampled: jax.Array,
    n_kept: jax.Array,
) -> jax.Array:
    """Root of the covariance that is reported."""
    law = solver._law(model, known, noise, subsampled, n_kept, estimate=estimated_curvature)
    return law.root
