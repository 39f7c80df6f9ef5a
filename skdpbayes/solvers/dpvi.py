"""Differentially private variational inference with a Gaussian guide.

The guide is ``theta = mu + L e``, ``e ~ N(0, I)``, over unconstrained parameters. A gradient round releases the
clipped sum of per-record scores at one drawn theta; prior and entropy stay outside the clip and outside the noise
(Jalko et al. 2023; d3p and NA-DPVI clip the whole ELBO gradient). Where the model knows a bound on the score, a score
is shortened by that bound and not by its own size, which keeps the sum unbiased (`unbiased_weight`). From that one
release:

* with ``guide="mean_field"``, ``L = diag(exp u)``, mu and u take Adam steps on the ELBO (u by the reparametrisation
  gradient ``g_j e_j exp(u_j) + 1``), and the late iterates are averaged;
* with ``guide="full_rank"``, mu takes preconditioned steps (`_step`), and the late points and scores are averaged; a
  Newton step from the averaged point, by the averaged score, ends the run.

With ``guide="full_rank"``, every tenth round releases the clipped sum of per-record *curvatures* (negative Hessians
at the drawn theta, with the weights of the scores) instead, and ``L L' = (prior precision + E_q[curvature])^-1``, which
is the fixed point of the Gaussian ELBO. The reparametrisation gradient of a full L would put the privacy noise of every
round into every entry of L; the curvature is a bounded statistic with far less noise.

What follows corrects for weights w and noise, both of which are public or released; without them all of it vanishes:

* the weighted scores have curvature ``H = E[w h]`` and covariance ``E[w^2 h]``, which is taken for ``omega H``; omega
  is the mean of w, each record weighted by the norm of its curvature, and is released with it;
* the prior precision P is multiplied by ``omega + tau^2 / h``: tau is the standard deviation of the averaged privacy
  noise in the full-data score, h the mean curvature known so far. With curvature H in a direction, the posterior
  mean given the noisy score is that of a prior with precision ``P (omega + tau^2 / H)`` and no noise: where the noise
  exceeds the signal, the fit goes to the prior instead of to the noise;
* the reported covariance includes the noise. The averaged iterate is, to first order, the posterior mean plus
  ``N(0, tau^2 H^-2)``; seen as an observation of theta under the prior that gives
  ``cov = (P + H (omega H + tau^2 I)^-1 H)^-1``: the usual posterior without noise, the prior when all is noise;
* the released curvature is shrunk by its noise's share (`denoised`); what is reported takes one standard error of its
  mean off; while the guide runs, the edge of the noise's spectrum is added, which keeps it positive definite;
* the learning rate is limited (`_rates`), and fewer scores are shortened where the noise is small (`clip_fraction`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from skdpbayes.models.base import Model, curvature, flat_start, score, unbiased_weight
from skdpbayes.posteriors import GaussianPosterior
from skdpbayes.privacy.mechanism import Block, Mechanism, contribution_norm, scaled
from skdpbayes.solvers.base import Round

CURVATURE_EVERY = 10
_INITIAL_SD = 0.1  # of the guide, in prior standard deviations
_TALLY_SHARE = 0.01  # budget share of the count that adapts the clipping norm
_WEIGHT_SHARE = 0.05  # budget share of the mean weight
_AVERAGED_FROM = 0.3  # fraction of the run after which iterates are averaged
_TIME_CONSTANT = 20  # rounds in which a direction of known curvature settles


class DPVIState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    guide: Any  # (mu, log_sd); log_sd is empty for the full-rank guide
    moments: Any  # Adam's averages of the gradient and its square; full rank: the mean square of the gradient
    average: Any  # of the guide, over the late rounds; full rank: of the points and of the scores there
    n_averaged: Any
    tempering: Any  # factor of the prior precision
    variance: Any  # sum over the averaged rounds of the noise variance of the score
    log_clip: Any
    root: Any  # Cholesky factor of the guide's precision, L^-T (full rank)
    values: Any  # eigenvalues of the curvature, zero where noise may have made them
    vectors: Any
    curvature: Any
    curvature_variance: Any  # of one off-diagonal entry
    weights: Any  # sums of the curvatures' norms, and of these times the records' weights
    n_curvature: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DPVI:
    """Gaussian variational inference on private gradients.

    Attributes
    ----------
    guide : {"full_rank", "mean_field"}
    adaptive : bool
        Lower the clipping norm until a private count of the shortened scores reaches `clip_fraction`.
    learning_rate : float
        Root mean square of the mean's steps where the curvature is not known; log standard deviations move at no
        more than 0.02.
    clipping_norm : float
        Of the score; the largest that adapting may reach, and where it starts.
    n_records : float
        Public number of records, or a public guess of it; it limits the learning rate and scales the counts.
    clip_fraction : float
        Fraction of scores to shorten, when adaptive: it costs information, and saves noise.
    lowest : float
        Least clipping norm, when adaptive, in units of `clipping_norm`.
    curvature_bound : float
        Public bound on the norm of a record's curvature.
    curvature_ratio : float
        Clipping norm of a record's curvature over the square of the score's, unless `curvature_bound` is less.
    rate_limit : float
        See `_rates`.
    """

    guide: str = field(metadata={"static": True})
    adaptive: bool = field(metadata={"static": True})
    learning_rate: Any
    clipping_norm: Any
    n_records: Any
    clip_fraction: Any = 0.5
    lowest: Any = 0.05
    curvature_bound: Any = np.inf
    curvature_ratio: Any = 0.75
    rate_limit: Any = 0.1

    def init(self, model: Model, mechanism: Mechanism, key) -> DPVIState:
        """Guide centred on the model's starting point."""
        del key
        mu, _ = flat_start(model)
        sd = _INITIAL_SD / jnp.sqrt(prior_precision(model))
        full, p = self.guide == "full_rank", mu.size
        params = (mu, jnp.zeros(0, mu.dtype) if full else jnp.log(sd))
        zero = jnp.zeros((), mu.dtype)
        square = jnp.zeros((p, p) if full else (0, 0), mu.dtype)
        return DPVIState(
            guide=params,
            moments=zero if full else jax.tree.map(jnp.zeros_like, (params, params)),
            average=(mu, jnp.zeros_like(mu)) if full else params,
            n_averaged=zero,
            tempering=zero + 1,
            variance=zero,
            log_clip=jnp.log(jnp.asarray(self.clipping_norm, mu.dtype)),
            root=jnp.diag(1 / sd) if full else square,
            values=jnp.zeros(len(square), mu.dtype),
            vectors=square,
            curvature=square,
            curvature_variance=zero,
            weights=jnp.zeros(2, mu.dtype),
            n_curvature=jnp.zeros((), jnp.int32),
        )

    def which(self, step):
        """Every tenth round, the first included, asks for the curvature."""
        return (step % CURVATURE_EVERY == 0).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A gradient round and, for the full-rank guide, a curvature round."""
        _, unravel = flat_start(model)
        prior_gradient = jax.grad(lambda flat: model.log_prior(unravel(flat)))
        precision = prior_precision(model)

        def draw(state, key):
            mu, log_sd = state.guide
            noise = jax.random.normal(key, mu.shape, mu.dtype)
            if self.guide == "full_rank":
                return mu + solve_triangular(state.root, noise, trans="T", lower=True), noise
            return mu + jnp.exp(log_sd) * noise, noise

        def score_query(state, point):
            theta, clip = unravel(point[0]), jnp.exp(state.log_clip)

            def query(record):
                own, weight = score(model, theta, record), unbiased_weight(model, theta, record, clip)
                contribution = {"score": scaled(own, weight)}
                if self.adaptive:
                    norm = contribution_norm(own)
                    tally = ((weight < 1) | (norm > clip)) - self.clip_fraction
                    contribution["tally"] = jnp.where(norm > 0, tally, 0)  # a null record counts as nothing
                return contribution

            return query

        def score_blocks(state):
            clip = jnp.exp(state.log_clip)
            if not self.adaptive:
                return {"score": Block(clip)}
            return {"score": Block(clip, 1 - _TALLY_SHARE), "tally": Block(jnp.ones_like(clip), _TALLY_SHARE)}

        def score_update(state, point, step, estimate, scales):
            theta, noise = point
            tempering = self._tempering(precision, state, scales["score"], mechanism)
            own = ravel_pytree(estimate["score"])[0]
            gradient = own + tempering * prior_gradient(theta)
            rates = self._rates(step, gradient.size, scales["score"], mechanism)
            if self.guide == "full_rank":
                mu, moments = self._step(gradient, state, tempering * precision, rates[0], rates[2])
                guide, averaged = (mu, state.guide[1]), (theta, own)
            else:
                log_sd = state.guide[1]
                gradient = gradient, gradient * noise * jnp.exp(log_sd) + 1
                guide, moments = _adam(gradient, state.guide, state.moments, step, rates[:2])
                averaged = guide
            counted = (step >= _AVERAGED_FROM * mechanism.n_steps).astype(theta.dtype)
            n = state.n_averaged + counted
            weight = counted / jnp.maximum(n, 1)
            return state._replace(
                guide=guide,
                moments=moments,
                tempering=tempering,
                average=jax.tree.map(lambda a, x: jnp.where(n > 0, a + weight * (x - a), x), state.average, averaged),
                n_averaged=n,
                variance=state.variance + counted * scales["score"] ** 2,
                log_clip=self._adapted(state.log_clip, estimate, scales, mechanism),
            )

        def curvature_query(state, point):
            theta, clip = unravel(point[0]), jnp.exp(state.log_clip)

            def query(record):
                weight = unbiased_weight(model, theta, record, clip)
                weighted = scaled(curvature(model, theta, record), weight)
                norm = contribution_norm(weighted) / jnp.sqrt(jnp.asarray(2, clip.dtype))
                return {"curvature": weighted, "weights": jnp.stack([norm, weight * norm])}

            return query

        def curvature_blocks(state):
            norm = jnp.minimum(self.curvature_bound, self.curvature_ratio * jnp.exp(2 * state.log_clip))
            return {"curvature": Block(norm, 1 - _WEIGHT_SHARE), "weights": Block(norm, _WEIGHT_SHARE)}

        def curvature_update(state, point, step, estimate, scales):
            del point
            matrix = estimate["curvature"].reshape(precision.size, precision.size)
            n = state.n_curvature + 1
            rate = 2 / (n.astype(jnp.float32) + 1)  # late-weighted: early rounds measure the curvature elsewhere
            matrix = (1 - rate) * state.curvature + rate * (matrix + matrix.T) / 2
            variance = (1 - rate) ** 2 * state.curvature_variance + rate**2 * scales["curvature"] ** 2 / 2
            weights = (1 - rate) * state.weights + rate * estimate["weights"]
            # The spectrum of the noise ends at 2 sqrt(p variance): smaller eigenvalues say nothing. With it added the
            # matrix is positive definite as soon as the true curvature is (up to rare draws: the last root stays).
            edge = noise_edge(precision.size, variance, jnp)
            root = jnp.linalg.cholesky(
                denoised(matrix, variance, jnp) + jnp.diag(state.tempering * precision + edge), symmetrize_input=False
            )
            values, vectors = jax.lax.cond(
                (n <= 2) | (n % 4 == 0),  # it is slow
                lambda: known_spectrum(matrix, edge),
                lambda: (state.values, state.vectors),
            )
            return state._replace(
                curvature=matrix,
                curvature_variance=variance,
                weights=weights,
                n_curvature=n,
                root=jnp.where(jnp.isfinite(root).all(), root, state.root),
                values=values,
                vectors=vectors,
            )

        gradient_round = Round(draw, score_query, score_blocks, score_update)
        if self.guide == "mean_field":
            return (gradient_round,)
        return (gradient_round, Round(draw, curvature_query, curvature_blocks, curvature_update))

    def posterior(self, model: Model, state: DPVIState) -> GaussianPosterior:
        """Averaged guide, with the privacy noise in its covariance."""
        state = jax.tree.map(lambda x: np.asarray(x, np.float64), state._replace(moments=None))
        precision = np.asarray(prior_precision(model), np.float64)
        noise = state.variance / max(state.n_averaged, 1) ** 2  # of the averaged score
        if self.guide == "mean_field":
            mean, log_sd = state.average
            information = np.maximum(np.exp(-2 * log_sd) - state.tempering * precision, 0)
            total = precision + information**2 / (information + noise + np.finfo(float).tiny)
            return GaussianPosterior(mean, 1 / np.sqrt(total))
        return GaussianPosterior(self._newton_step(model, state, precision), self._factor(state, precision, noise))

    def _newton_step(self, model, state, precision):
        """Zero of the tempered gradient, linearised at the averaged point, as far as the curvature is known."""
        point, own = state.average
        _, unravel = flat_start(model)
        prior = np.asarray(jax.grad(lambda flat: model.log_prior(unravel(flat)))(point.astype(np.float32)), np.float64)
        edge = noise_edge(precision.size, state.curvature_variance, np)
        matrix = denoised(state.curvature, state.curvature_variance, np) + np.diag(state.tempering * precision + edge)
        return point + np.linalg.solve(matrix, own + state.tempering * prior)

    def _factor(self, state, precision, noise):
        """Factor of the covariance ``(P + H (omega H + tau^2 I)^-1 H)^-1``."""
        values, vectors = np.linalg.eigh(denoised(state.curvature, state.curvature_variance, np))
        values = np.maximum(values - mean_curvature_error(precision.size, state.curvature_variance, np), 0)
        observed = values**2 / (self._omega(state, np) * values + noise + np.finfo(float).tiny)
        total, rotation = np.linalg.eigh((vectors * observed) @ vectors.T + np.diag(precision))
        return rotation / np.sqrt(total)

    def diagnostics(self, state: DPVIState) -> dict:
        """The clipping norm reached."""
        return {"clipping_norm": float(np.exp(state.log_clip))}

    def _step(self, gradient, state, prior, rate, decay):
        """Mean after one step, and the mean square of the gradient.

        In directions whose curvature stands out of its noise, a Newton step shortened so that iterates settle within
        `_TIME_CONSTANT` rounds: faster ones would only follow the noise. In the others, a step in proportion to the
        gradient over its size, which is mostly the noise's.
        """
        square = jnp.mean(gradient**2)
        square = jnp.where(state.moments > 0, 0.9 * state.moments + 0.1 * square, square)
        curvature = state.values + prior @ state.vectors**2
        slowness = _TIME_CONSTANT / decay * curvature + jnp.sqrt(square) / rate
        shortened = 1 / jnp.maximum(slowness, jnp.finfo(slowness.dtype).tiny)
        return state.guide[0] + state.vectors @ (shortened * (gradient @ state.vectors)), square

    def _rates(self, step, n_parameters, scale, mechanism):
        """Learning rates of the mean and of the log standard deviations at a step.

        Constant, then falling to a tenth; and never so large that the privacy noise in the iterates spreads the
        logits of a generalised linear model by much: with step r and gradient noise s the iterates have variance
        ``r s / (2 h)`` in a direction of curvature h, which adds up to ``r s P / (2 N w)`` in the logits (w the
        likelihood's mean curvature), and the average of iterates spread like that is inflated.
        """
        left = 1 - step / jnp.maximum(mechanism.n_steps, 1).astype(scale.dtype)
        calm = self.rate_limit * self.n_records / (n_parameters * jnp.maximum(scale, 1e-6))
        decay = jnp.clip(2 * left, 0.1, 1)
        rate = jnp.minimum(self.learning_rate * decay, calm)
        return rate, jnp.minimum(0.02 * decay, rate), decay

    def _omega(self, state, xp):
        """Covariance of the weighted scores over their curvature, taken for the mean weight; towards 1 by its noise."""
        if self.guide == "mean_field":
            return 1.0
        norms, weighted = state.weights
        error = 2 * xp.sqrt(2 * state.curvature_variance * (1 / _WEIGHT_SHARE - 1)) + np.finfo(np.float32).tiny
        return xp.clip((weighted + error) / (xp.maximum(norms, 0) + error), 0.05, 1)

    def _tempering(self, precision, state, scale, mechanism):
        """Factor of the prior precision: ``omega + tau^2 / h``, h being the mean curvature known so far."""
        noise = scale**2 / (mechanism.n_steps.astype(scale.dtype) * (1 - _AVERAGED_FROM))
        if self.guide == "full_rank":
            known = mean_curvature(state.curvature, state.curvature_variance, jnp)
            known = jnp.maximum(known, mean_curvature_error(precision.size, state.curvature_variance, jnp))
        else:
            known = jnp.mean(jnp.exp(-2 * state.guide[1]))
        return self._omega(state, jnp) + noise / jnp.maximum(known, jnp.min(precision))

    def _adapted(self, log_clip, estimate, scales, mechanism):
        """Move the clipping norm so that `clip_fraction` of the scores are shortened, as fast as the noise allows."""
        if not self.adaptive:
            return log_clip
        n_steps = mechanism.n_steps.astype(log_clip.dtype)
        spread = scales["tally"] / jnp.sqrt(n_steps) / self.n_records  # noise of the fraction, averaged over the run
        gain = 10 * jnp.minimum(1, 0.03 / jnp.maximum(spread, 1e-6)) / n_steps
        moved = log_clip + gain * jnp.clip(estimate["tally"] / self.n_records, -1, 1)
        highest = jnp.log(jnp.asarray(self.clipping_norm, log_clip.dtype))
        return jnp.clip(moved, highest + jnp.log(self.lowest), highest)


def _adam(gradient, params, moments, step, rates, decay=(0.9, 0.999)):
    """One ascent step of Adam, with a learning rate for each leaf."""
    first, second = moments
    first = jax.tree.map(lambda m, g: decay[0] * m + (1 - decay[0]) * g, first, gradient)
    second = jax.tree.map(lambda v, g: decay[1] * v + (1 - decay[1]) * g**2, second, gradient)
    bias = [1 - jnp.asarray(d, jnp.float32) ** (step + 1).astype(jnp.float32) for d in decay]
    params = jax.tree.map(
        lambda x, m, v, rate: x + rate * (m / bias[0]) / (jnp.sqrt(v / bias[1]) + 1e-8), params, first, second, rates
    )
    return params, (first, second)


def prior_precision(model: Model):
    """Diagonal of the prior's precision, ravelled.

    Raises
    ------
    TypeError
        If the model does not say that its prior is an independent normal one.
    """
    if not hasattr(model, "prior_precision"):
        raise TypeError(
            f"dpvi needs a model with an independent normal prior, which says so by a method prior_precision(); "
            f"{type(model).__name__} has none. SGLD takes any prior."
        )
    return ravel_pytree(model.prior_precision())[0].astype(jnp.float32)


def mean_curvature(matrix, entry_variance, xp):
    """Mean eigenvalue of a noisy symmetric matrix, shrunk to zero by the noise's share of its square."""
    p = matrix.shape[0]
    mean = xp.maximum(xp.trace(matrix) / p, 0)
    return mean * xp.clip(1 - 2 * entry_variance / p / xp.maximum(mean**2, np.finfo(np.float32).tiny), 0, 1)


def mean_curvature_error(p, entry_variance, xp):
    """Standard error of the mean eigenvalue of a noisy symmetric p x p matrix."""
    return xp.sqrt(2 * entry_variance / p)


def noise_edge(p, entry_variance, xp):
    """Largest eigenvalue of a p x p symmetric matrix of nothing but noise, nearly (the edge of Wigner's semicircle)."""
    return 2 * xp.sqrt(p * entry_variance)


def known_spectrum(matrix, edge):
    """Eigenvalues and eigenvectors, with zero for eigenvalues below the edge of the noise."""
    values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
    return jnp.where(values > edge, values, 0), vectors


def denoised(matrix, entry_variance, xp):
    """Shrink a noisy symmetric matrix towards a multiple of the identity, by the noise's share of its spread.

    As Ledoit and Wolf's estimator, except that the noise's share is known: p (p + 1) times `entry_variance` (the
    variance of an off-diagonal entry, half of a diagonal one's) against the squared distance from the identity's
    multiple.
    """
    p = matrix.shape[0]
    centre = mean_curvature(matrix, entry_variance, xp) * xp.eye(p, dtype=matrix.dtype)
    spread = xp.sum((matrix - centre) ** 2)
    kept = xp.clip(1 - p * (p + 1) * entry_variance / xp.maximum(spread, np.finfo(np.float32).tiny), 0, 1)
    return centre + kept * (matrix - centre)
