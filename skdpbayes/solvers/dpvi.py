"""Differentially private variational inference with a Gaussian guide.

The guide is ``theta = mu + L e``, ``e ~ N(0, I)``, over unconstrained parameters. A gradient round
releases the clipped sum of per-record scores at one drawn theta; prior and entropy stay outside the
clip and outside the noise (Jalko et al. 2023; d3p and NA-DPVI clip the whole ELBO gradient). Where
the model knows a bound on the score, a score is shortened by that bound and not by its own size,
which keeps the sum unbiased (`unbiased_weight`). From that one release:

* with ``guide="mean_field"``, ``L = diag(exp u)``, mu and u take Adam steps on the ELBO (u by the
  reparametrisation gradient ``g_j e_j exp(u_j) + 1``), and the late iterates are averaged;
* with ``guide="full_rank"``, mu takes preconditioned steps (`FullRank.step`), and the late points
  and scores are averaged; a Newton step from the averaged point, by the averaged score, ends the
  run.

With ``guide="full_rank"``, every tenth round releases the clipped sum of per-record *curvatures*
(negative Hessians at the drawn theta, with the weights of the scores) instead, and ``L L' = (prior
precision + E_q[curvature])^-1``, which is the fixed point of the Gaussian ELBO. The
reparametrisation gradient of a full L would put the privacy noise of every round into every entry
of L; the curvature is a bounded statistic with far less noise.

What follows corrects for weights w and noise, both of which are public or released; without them
all of it vanishes:

* the weighted scores have curvature ``H = E[w h]`` and covariance ``E[w^2 h]``, which is taken for
  ``omega H``; omega is the mean of w, each record counting by the norm of its weighted curvature,
  and is released with it;
* the prior precision P is multiplied by ``omega + tau^2 / h``: tau is the standard deviation of the
  averaged privacy noise in the full-data score, h the curvature known so far (full rank: in each
  direction). With curvature H in a direction, the posterior mean given the noisy score is that of a
  prior with precision ``P (omega + tau^2 / H)`` and no noise: where the noise exceeds the signal,
  the fit goes to the prior instead of to the noise;
* the reported covariance includes the noise. The averaged iterate is, to first order, the posterior
  mean plus ``N(0, tau^2 H^-2)``; seen as an observation of theta under the prior that gives ``cov =
  (P + H (omega H + tau^2 I)^-1 H)^-1``: the usual posterior without noise, the prior when all is
  noise;
* what is learnt of the curvature is the part of its spectrum that stands out of the noise, and the
  diagonal of the rest (`learnt_curvature`); while the guide draws, the edge of the noise's spectrum
  is added (`denoised`), which keeps its precision positive definite;
* the learning rate is limited (`_rates`), and fewer scores are shortened where the noise is small
  (`clip_fraction`).
"""

from __future__ import annotations

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
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.guides import FullRank, MeanField, Rates

CURVATURE_EVERY = 10
_INITIAL_SD = 0.1  # of the guide, in prior standard deviations
_TALLY_SHARE = 0.01  # budget share of the count that adapts the clipping norm
_AVERAGED_FROM = 0.3  # fraction of the run after which iterates are averaged
_RATE_LIMIT = 0.1  # see `_rates`


class DPVIState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    mu: Any
    guide: Any  # of the guide
    average: Any  # over the late rounds, of what the guide's posterior needs
    n_averaged: Any
    noise: Any  # sum over the averaged rounds of the noise variance of the score
    averaged_noise: Any  # variance of the noise in a score averaged over the late rounds, were all as the last one
    log_clip: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DPVI:
    """Gaussian variational inference on private gradients.

    Attributes
    ----------
    guide : FullRank or MeanField
    learning_rate : float
        Root mean square of the mean's steps where the curvature is not known; log standard
        deviations move at no more than 0.02.
    clipping_norm : float
        Of the score, over the model's `score_unit`; if adaptive, where it starts, and the largest
        that it may be.
    n_records : float
        Public number of records, or a public guess of it; it limits the learning rate and scales
        the counts.
    clip_fraction : float, default=None
        Lower the clipping norm until a private count says that this fraction of the scores is
        shortened, which costs information and saves noise. None keeps it fixed.
    least_clip : float
        Least clipping norm, when adaptive, in units of `clipping_norm`.
    """

    guide: FullRank | MeanField
    learning_rate: Any
    clipping_norm: Any
    n_records: Any
    clip_fraction: Any = None
    least_clip: Any = 0.05

    def init(self, model: Model, key) -> DPVIState:
        """Guide centred on the model's starting point."""
        mu = random_start(model, key)
        guide, average = self.guide.init(mu, _INITIAL_SD / jnp.sqrt(prior_precision(model)))
        zero = jnp.zeros((), mu.dtype)
        return DPVIState(mu, guide, average, zero, zero, zero, self._highest_clip(model))

    def which(self, step):
        """Every tenth round, the first included, asks for the curvature."""
        return (step % CURVATURE_EVERY == 0).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A gradient round and, for the full-rank guide, a curvature round."""
        unravel, prior_gradient = flat_start(model)[1], prior_score(model)
        precision, guide = prior_precision(model), self.guide

        def draw(state, key):
            noise = jax.random.normal(key, state.mu.shape, state.mu.dtype)
            return guide.draw(state.mu, state.guide, noise), noise

        def query(state, point):
            theta, clip = unravel(point[0]), jnp.exp(state.log_clip)

            def one(record):
                own, weight = weighted_score(model, theta, record, clip)
                if self.clip_fraction is None:
                    return {"score": own}
                norm = contribution_norm(own)
                shortened = ((weight < 1) | (norm > clip)) - self.clip_fraction
                return {
                    "score": own,
                    "tally": jnp.where(norm > 0, shortened, 0),
                }  # a null record counts as nothing

            return one

        def blocks(state):
            clip = jnp.exp(state.log_clip)
            if self.clip_fraction is None:
                return {"score": Block(clip)}
            return {
                "score": Block(clip, 1 - _TALLY_SHARE),
                "tally": Block(jnp.ones_like(clip), _TALLY_SHARE),
            }

        def update(state, point, step, estimate, scales):
            theta, clip, scale = unravel(point[0]), jnp.exp(state.log_clip), scales["score"]
            score = unbiased_total(model, theta, estimate["score"], clip)
            averaged_noise = scale**2 / (
                mechanism.n_steps.astype(scale.dtype) * (1 - _AVERAGED_FROM)
            )
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
                noise=state.noise + counted * scale**2,
                averaged_noise=averaged_noise,
                log_clip=self._adapted(model, state.log_clip, estimate, scales, mechanism),
            )

        return (Round(draw, query, blocks, update), *guide.more_rounds(model, precision, draw))

    def posterior(self, model: Model, state: DPVIState) -> GaussianPosterior:
        """What the guide makes of the averages, with the privacy noise in the covariance."""
        state = jax.tree.map(lambda x: np.asarray(x, np.float64), state)
        noise = state.noise / max(state.n_averaged, 1) ** 2  # of the averaged score
        return self.guide.posterior(
            model, state, np.asarray(prior_precision(model), np.float64), noise
        )

    def diagnostics(self, state: DPVIState, posterior) -> dict:
        """The clipping norm reached."""
        del posterior
        return {"clipping_norm": float(np.exp(state.log_clip))}

    def _rates(self, step, n_parameters, scale, mechanism):
        """Learning rates at a step.

        Constant, then falling to a tenth; and never so large that the privacy noise in the iterates
        spreads the logits of a generalised linear model by much: with step r and gradient noise s
        the iterates have variance ``r s / (2 h)`` in a direction of curvature h, which adds up to
        ``r s P / (2 N h1)`` in the logits (h1 the mean curvature of a record), and the average of
        iterates spread like that is inflated.
        """
        left = 1 - step / jnp.maximum(mechanism.n_steps, 1).astype(scale.dtype)
        calm = _RATE_LIMIT * self.n_records / (n_parameters * jnp.maximum(scale, 1e-6))
        decay = jnp.clip(2 * left, 0.1, 1)
        rate = jnp.minimum(self.learning_rate * decay, calm)
        return Rates(rate, jnp.minimum(0.02 * decay, rate), decay)

    def _highest_clip(self, model):
        return jnp.log(self.clipping_norm * score_unit(model))

    def _adapted(self, model, log_clip, estimate, scales, mechanism):
        """Move the clipping norm so that `clip_fraction` of the scores are shortened, as fast as the noise allows."""
        if self.clip_fraction is None:
            return log_clip
        n_steps = mechanism.n_steps.astype(log_clip.dtype)
        spread = (
            scales["tally"] / jnp.sqrt(n_steps) / self.n_records
        )  # noise of the fraction, averaged over the run
        gain = 10 * jnp.minimum(1, 0.03 / jnp.maximum(spread, 1e-6)) / n_steps
        moved = log_clip + gain * jnp.clip(estimate["tally"] / self.n_records, -1, 1)
        highest = self._highest_clip(model)
        return jnp.clip(moved, highest + jnp.log(self.least_clip), highest)
