"""Differentially private variational inference with a Gaussian guide.

The guide is ``theta = mu + L e``, ``e ~ N(0, I)``, over unconstrained parameters (doubly stochastic
variational inference, Titsias and Lazaro-Gredilla 2014; with private gradients, Jalko, Dikmen and
Honkela 2017). A gradient round releases the clipped sum g of per-record scores at one
draw of the guide, and takes a step on the evidence lower bound:

    mu   <- mu + rate * s,  s = g + grad log prior(theta)     by Adam, or preconditioned
    u_j  <- u_j + rate * (s_j e_j exp(u_j) + 1)               mean field, L = diag(exp u)
    L L' <- (P + E_q[curvature])^-1                           full rank

P is the prior precision. The last line is the fixed point of the Gaussian evidence lower bound:
every tenth round of the full-rank guide releases the clipped sum of per-record curvatures (negative
Hessians at the draw, with the weights of the scores). Late iterates are averaged; with the
full-rank guide a Newton step from the averaged point, by the averaged score, ends the run.

Where we differ:

* Only scores are clipped; prior and entropy stay outside the clip and the noise (Jalko et al. 2023
  for normal guides; d3p and NA-DPVI clip the whole gradient of the bound).
* Where the model bounds the score, it is shortened by that bound and not by its own norm, which
  keeps the sum unbiased (`unbiased_weight`).
* A full L follows from curvatures: its reparametrisation gradient would put the noise of every
  round into every entry of L. A curvature is a bounded statistic with far less noise.

Corrections for the weights w, the noise and subsampling, all public or released; without these
they vanish:

* The weighted scores have curvature ``H = E[w h]`` and covariance ``E[w^2 h]``, approximated by
  ``omega H``. Omega is the mean of w, each record weighted by the norm of its weighted curvature;
  it is released with the curvature.
* Batches at rate q add ``kappa omega H``, ``kappa = (1 - q) / (q n)``, to the covariance of a score
  averaged over n rounds. So omega below stands for ``(1 + kappa) omega``.
* P is multiplied by ``omega + tau^2 / h``: tau is the standard deviation of the averaged privacy
  noise in the full-data score, h the present estimate of the curvature (full rank: in each
  direction). In a direction of curvature H, the posterior mean given the noisy score is that of a
  prior with precision ``P (omega + tau^2 / H)`` and no noise. Where noise exceeds the signal, the
  fit goes to the prior instead of to the noise.
* The reported covariance includes the noise. To first order the averaged iterate is the posterior
  mean plus ``N(0, tau^2 H^-2)``; as an observation of theta under the prior it gives ``cov = (P + H
  (omega H + tau^2 I)^-1 H)^-1``: the usual posterior without noise, the prior under much noise.
* The curvature learnt is the part of its spectrum that stands out of the noise, and the diagonal of
  the rest (`learnt_curvature`). While the guide draws, the edge of the noise's spectrum is added
  (`denoised`), which keeps the precision positive definite.
* The learning rate is limited (`_rates`), steps of the full-rank guide shrink, and fewer scores
  are clipped where the noise is small (`clip_fraction`).

Derivations and measurements: ``docs/solvers/dpvi.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_precision,
    prior_score,
    random_start,
    score_unit,
    unbiased_total,
    weighted_score,
)
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Query, Round, Scales, Sums
from skdpbayes.solvers.gaussian_guides import (
    Draw,
    FullRank,
    FullRankState,
    Guide,
    MeanField,
    MeanFieldState,
    Noise,
    Progress,
    Rates,
    clip_of,
)

__all__ = ["DPVI", "DPVIState", "FullRank", "MeanField"]

CURVATURE_EVERY = 10  # rounds
_INITIAL_SD = 0.1  # of the guide, in prior standard deviations
_TALLY_SHARE = 0.01  # budget share of the count that adapts the clipping norm
_AVERAGED_FROM = 0.3  # fraction of the run after which iterates are averaged


class DPVIState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    mu: jax.Array
    guide: MeanFieldState | FullRankState
    average: tuple[jax.Array, jax.Array]  # over the late rounds, of the terms given by the guide
    n_averaged: jax.Array
    noise: Noise  # of the score, summed over the averaged rounds
    averaged_noise: Noise  # of the averaged score, were all rounds as noisy as the last one
    log_clip: jax.Array

    @property
    def centre(self) -> jax.Array:
        """Present estimate of the parameters."""
        return self.mu


@pytree
@dataclass(frozen=True)
class DPVI:
    """Gaussian variational inference on private gradients.

    Attributes
    ----------
    guide : FullRank or MeanField
    learning_rate : float
        Root mean square of the mean's steps where the curvature is unknown. Log standard deviations
        have a rate of at most 0.02.
    clipping_norm : float
        Clipping norm of a score, over the model's `score_unit`. If adaptive, its initial and
        largest value.
    n_records : float
        Public number of records, or a public guess of it. It limits the learning rate and scales
        the counts.
    clip_fraction : float, default=None
        Target fraction of clipped scores: the clipping norm falls until a private count reaches it,
        which costs information and saves noise. None keeps the norm fixed.
    least_clip : float
        Least clipping norm, when adaptive, in units of `clipping_norm`.
    """

    guide: Guide[Any]
    learning_rate: Number
    clipping_norm: Number
    n_records: Number
    clip_fraction: Number | None = None
    least_clip: Number = 0.05

    def init(self, model: Model, key: jax.Array) -> DPVIState:
        """Guide centred on the model's starting point."""
        mu = random_start(model, key)
        guide, average = self.guide.init(mu, _INITIAL_SD / jnp.sqrt(prior_precision(model)))
        zero = jnp.zeros((), mu.dtype)
        none = Noise(zero, zero)
        return DPVIState(mu, guide, average, zero, none, none, self._highest_clip(model))

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: every tenth, from the first on, is a curvature round."""
        return (step % CURVATURE_EVERY == 0).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[DPVIState], ...]:
        """A gradient round and, for the full-rank guide, a curvature round."""
        unravel, prior_gradient = flat_start(model)[1], prior_score(model)
        precision, guide = prior_precision(model), self.guide

        def draw(state: Any, key: jax.Array) -> Draw:
            noise = jax.random.normal(key, state.mu.shape, state.mu.dtype)
            return guide.draw(state.mu, state.guide, noise), noise

        def query(state: DPVIState, point: Draw) -> Query:
            theta, clip = unravel(point[0]), clip_of(model, state)

            def one(record: Record) -> Mapping[str, Contribution]:
                own, weight = weighted_score(model, theta, record, clip)
                if self.clip_fraction is None:
                    return {"score": own}
                norm = contribution_norm(own)
                shortened = ((weight < 1) | (norm > clip)) - self.clip_fraction
                # A null record adds nothing to the count.
                return {"score": own, "tally": jnp.where(norm > 0, shortened, 0)}

            return one

        def blocks(state: DPVIState) -> Mapping[str, Block]:
            clip = clip_of(model, state)
            if self.clip_fraction is None:
                return {"score": Block(clip, together="score")}
            return {
                "score": Block(clip, 1 - _TALLY_SHARE, "score"),
                "tally": Block(jnp.ones_like(clip), _TALLY_SHARE),
            }

        def update(
            state: DPVIState, point: Draw, step: jax.Array, estimate: Sums, scales: Scales
        ) -> DPVIState:
            theta, clip, scale = unravel(point[0]), clip_of(model, state), scales["score"]
            score = unbiased_total(model, theta, estimate["score"], clip)
            noise = Noise(scale**2, (1 / mechanism.rate - 1).astype(scale.dtype))
            n_late = mechanism.n_steps.astype(scale.dtype) * (1 - _AVERAGED_FROM)
            averaged_noise = jax.tree.map(lambda x: x / n_late, noise)
            prior_factor = guide.prior_factor(state.guide, averaged_noise, precision)
            rates = self._rates(step, score.size, scale, mechanism)
            mu, guide_state, averaged = guide.step(
                state.mu,
                state.guide,
                score,
                prior_gradient(point[0]),
                point,
                rates,
                prior_factor,
                precision,
            )
            counted = (step >= _AVERAGED_FROM * mechanism.n_steps).astype(score.dtype)
            n = state.n_averaged + counted
            weight = counted / jnp.maximum(n, 1)
            return DPVIState(
                mu=mu,
                guide=guide_state,
                average=jax.tree.map(
                    lambda a, x: jnp.where(n > 0, a + weight * (x - a), x), state.average, averaged
                ),
                n_averaged=n,
                noise=jax.tree.map(lambda total, x: total + counted * x, state.noise, noise),
                averaged_noise=averaged_noise,
                log_clip=self._adapted(model, state.log_clip, estimate, scales, mechanism),
            )

        return (
            Round(draw, query, blocks, update),
            *guide.more_rounds(model, mechanism, precision, draw),
        )

    def posterior(self, model: Model, state: DPVIState) -> GaussianPosterior:
        """Posterior reported by the guide, with privacy noise and subsampling in its covariance."""
        state = jax.tree.map(lambda x: np.asarray(x, np.float64), state)
        noise = jax.tree.map(np.asarray, _averaged(state))
        return self.guide.posterior(
            model, state, np.asarray(prior_precision(model), np.float64), noise
        )

    def draws(self, model: Model, state: DPVIState, key: jax.Array, n: int) -> jax.Array:
        """Draws of the posterior, by the mean-field guide."""
        assert isinstance(self.guide, MeanField)
        mean, sd = self.guide.reported(state, prior_precision(model), _averaged(state), jnp)
        draws = mean + sd * jax.random.normal(key, (n, mean.size), jnp.float32)
        return draws.astype(jnp.float32)

    def diagnostics(self, model: Model, state: DPVIState, posterior: Any) -> dict[str, Any]:
        """Final clipping norm; with a full-rank guide the length of the last step.

        That is its root mean square over the parameters, in posterior standard deviations.
        """
        del posterior  # it may be that of more parameters (`Opened`)
        found = {"clipping_norm": float(np.exp(state.log_clip))}
        if isinstance(state.guide, FullRankState):
            own = self.posterior(model, state)
            step = (own.mean - np.asarray(state.average[0], np.float64)) / own.std
            found["last_step"] = float(np.sqrt(np.mean(step**2)))
        return found

    def _rates(
        self, step: jax.Array, n_parameters: int, scale: jax.Array, mechanism: Mechanism
    ) -> Rates:
        """Learning rates at a step.

        They are limited so that the privacy noise in the iterates hardly spreads the logits of a
        generalised linear model: with step r and gradient noise s the iterates have variance ``r s
        / (2 h)`` in a direction of curvature h, which adds up to ``r s p / (2 N h1)`` in the logits
        (p parameters, h1 the mean curvature of a record). The average of iterates with a large
        spread is inflated.
        """
        noise = jnp.maximum(scale, 1e-6)
        calm = self.n_records / (n_parameters * noise)
        return self.guide.rates(Progress(step, mechanism.n_steps), self.learning_rate, calm, noise)

    def _highest_clip(self, model: Model) -> jax.Array:
        return jnp.log(self.clipping_norm * score_unit(model))

    def _adapted(
        self,
        model: Model,
        log_clip: jax.Array,
        estimate: Sums,
        scales: Scales,
        mechanism: Mechanism,
    ) -> jax.Array:
        """Clipping norm moved towards `clip_fraction` clipped scores, as fast as noise allows."""
        if self.clip_fraction is None:
            return log_clip
        n_steps = mechanism.n_steps.astype(log_clip.dtype)
        # Noise of the fraction, averaged over the run.
        spread = scales["tally"] / jnp.sqrt(n_steps) / self.n_records
        gain = 10 * jnp.minimum(1, 0.03 / jnp.maximum(spread, 1e-6)) / n_steps
        moved = log_clip + gain * jnp.clip(estimate["tally"] / self.n_records, -1, 1)
        highest = self._highest_clip(model)
        return jnp.clip(moved, highest + jnp.log(self.least_clip), highest)


def _averaged(state: DPVIState) -> Noise:
    """Noise of the averaged score."""
    n = state.n_averaged.clip(1)
    return Noise(*(total / n**2 for total in state.noise))
