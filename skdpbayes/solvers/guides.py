"""The Gaussian families of `dpvi`: what they remember, how they step, and the posterior that they report.

Every entry of a state is a function of the releases, the solver key and public values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular

from skdpbayes.mechanism.contributions import contribution_norm, scaled
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import curvature, flat_start, prior_score, unbiased_weight
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.spectra import (
    denoised,
    known_spectrum,
    learnt_curvature,
    noise_edge,
    possible_eigenvalues,
)

CURVATURE_RATIO = 0.75  # clipping norm of a record's curvature over the square of the score's
TIME_CONSTANT = 20  # rounds in which a direction of known curvature settles
WEIGHT_SHARE = 0.05  # budget share, in curvature rounds, of the mean weight
_ADAM = optax.scale_by_adam()
_TINY = float(np.finfo(np.float32).tiny)


class Rates(NamedTuple):
    """Learning rates of one step: for the mean, for log standard deviations, and the part that is decay."""

    mean: Any
    log_sd: Any
    decay: Any


class MeanFieldState(NamedTuple):
    """Of `MeanField`."""

    log_sd: Any
    moments: optax.ScaleByAdamState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MeanField:
    """Independent normals ``mu + exp(u) e``; mu and u take Adam steps on the evidence lower bound."""

    def init(self, mu, sd):
        """State, and what is averaged over the late rounds: the guide."""
        guide = mu, jnp.log(sd)
        return MeanFieldState(guide[1], _ADAM.init(guide)), guide

    def draw(self, mu, state, noise):
        """Point of the guide."""
        return mu + jnp.exp(state.log_sd) * noise

    def step(self, mu, state, score, prior, point, rates, factor, precision):
        """Next mean and state, and what is averaged; `score` and `prior` are the two parts of the gradient."""
        del precision
        gradient = score + factor * prior
        gradient = gradient, gradient * point[1] * jnp.exp(state.log_sd) + 1  # by reparametrisation
        direction, moments = _ADAM.update(gradient, state.moments)
        mu, log_sd = mu + rates.mean * direction[0], state.log_sd + rates.log_sd * direction[1]
        return mu, MeanFieldState(log_sd, moments), (mu, log_sd)

    def prior_factor(self, state, noise, precision):
        """``1 + noise / h``, with h the mean of the guide's precision."""
        return 1 + noise / jnp.maximum(jnp.mean(jnp.exp(-2 * state.log_sd)), jnp.min(precision))

    def more_rounds(self, model, precision, draw):
        """None."""
        del model, precision, draw
        return ()

    def posterior(self, model, state, precision, noise):
        """Averaged guide, with the privacy noise (of variance `noise` in the averaged score) in its variances."""
        del model
        mean, log_sd = state.average
        prior = (
            np.asarray(self.prior_factor(state.guide, state.averaged_noise, precision), np.float64)
            * precision
        )
        information = np.maximum(np.exp(-2 * log_sd) - prior, 0)
        gain = information / (information + noise + _TINY)
        total = precision + information * gain
        # The average is the zero of a gradient with a corrected prior, the same for all; here each
        # has its own.
        return GaussianPosterior(mean * gain * (information + prior) / total, 1 / np.sqrt(total))


class Curvature(NamedTuple):
    """Average of the released curvatures."""

    matrix: Any
    variance: Any  # of one off-diagonal entry
    weights: (
        Any  # sums of the norms of the records' weighted curvatures, and of these times the weights
    )
    n: Any

    @classmethod
    def none(cls, p):
        """Before the first release."""
        zero = jnp.zeros((), jnp.float32)
        return cls(
            jnp.zeros((p, p), jnp.float32),
            zero,
            jnp.zeros(2, jnp.float32),
            jnp.zeros((), jnp.int32),
        )

    def after(self, estimate, scales) -> Curvature:
        """With one more release, late-weighted: early rounds measure the curvature elsewhere."""
        matrix = estimate["curvature"].reshape(self.matrix.shape)
        n = self.n + 1
        lateness = jnp.where(
            scales["curvature"] > 0, 1, 3
        )  # where it is noise that long averages are for
        new = (lateness + 1) / (n.astype(jnp.float32) + lateness)
        return Curvature(
            matrix=(1 - new) * self.matrix + new * (matrix + matrix.T) / 2,
            variance=(1 - new) ** 2 * self.variance + new**2 * scales["curvature"] ** 2 / 2,
            weights=(1 - new) * self.weights + new * estimate["weights"],
            n=n,
        )

    def mean_weight(self, *, towards, errors, least):
        """Mean weight of the records, moved `towards` a value by so many standard errors, and not below `least`."""
        norms, weighted = self.weights
        error = errors * (2 * self.variance * (1 / WEIGHT_SHARE - 1)) ** 0.5 + 1e-30
        return ((weighted + towards * error) / (norms.clip(0) + error)).clip(least, 1)


def curvature_query(model, theta, clip):
    """Of a record: its curvature, with the weight of its score at norm `clip`, and what tells the mean weight."""

    def one(record):
        weight = unbiased_weight(model, theta, record, clip)
        weighted = scaled(curvature(model, theta, record), weight)
        norm = contribution_norm(weighted) / jnp.sqrt(jnp.asarray(2, clip.dtype))
        return {"curvature": weighted, "weights": jnp.stack([norm, weight * norm])}

    return one


def curvature_blocks(norm):
    """Blocks of `curvature_query`."""
    return {"curvature": Block(norm, 1 - WEIGHT_SHARE), "weights": Block(norm, WEIGHT_SHARE)}


class FullRankState(NamedTuple):
    """Of `FullRank`."""

    curvature: Curvature
    precision_root: Any  # Cholesky factor of the guide's precision, L^-T
    eigenvalues: Any  # of the learnt curvature, zero where noise may have made them
    eigenvectors: Any
    levels: Any  # eigenvalues, but not less than the error with which they are known
    square: Any  # mean square of the gradient


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FullRank:
    """Normals with a covariance that follows from released curvatures.

    Attributes
    ----------
    curvature_bound : float
        Public bound on the norm of a record's curvature; infinity if there is none.
    """

    curvature_bound: Any = np.inf

    def init(self, mu, sd):
        """State, and what is averaged over the late rounds: the points and the scores there."""
        p, nothing = mu.size, jnp.zeros_like(mu)
        root, vectors = jnp.diag(1 / sd), jnp.eye(p, dtype=mu.dtype)
        state = FullRankState(
            Curvature.none(p), root, nothing, vectors, nothing, jnp.zeros((), mu.dtype)
        )
        return state, (mu, jnp.zeros_like(mu))

    def draw(self, mu, state, noise):
        """Point of the guide."""
        return mu + solve_triangular(state.precision_root, noise, trans="T", lower=True)

    def step(self, mu, state, score, prior, point, rates, factor, precision):
        """Next mean and state, and what is averaged; `score` and `prior` are the two parts of the gradient.

        In directions whose curvature stands out of its noise, a Newton step shortened so that
        iterates settle within `TIME_CONSTANT` rounds: faster ones would only follow the noise. In
        the others, a step in proportion to the gradient over its size, which is mostly the noise's.
        """
        vectors = state.eigenvectors
        gradient = score @ vectors + factor * (prior @ vectors)
        square = jnp.mean(gradient**2)
        square = jnp.where(state.square > 0, 0.9 * state.square + 0.1 * square, square)
        curvatures = state.eigenvalues + factor * (precision @ vectors**2)
        slowness = TIME_CONSTANT / rates.decay * curvatures + jnp.sqrt(square) / rates.mean
        mu = mu + vectors @ (gradient / jnp.maximum(slowness, _TINY))
        return mu, state._replace(square=square), (point[0], score)

    def prior_factor(self, state, noise, precision):
        """``omega + noise / h`` in each direction of `eigenvectors`, with h its level."""
        return self.mean_weight(state) + noise / jnp.maximum(state.levels, jnp.min(precision))

    def mean_weight(self, state):
        """Covariance of the weighted scores over their curvature, taken for the mean weight; towards 1 by its noise."""
        return state.curvature.mean_weight(towards=1.0, errors=2, least=0.05)

    def more_rounds(self, model, precision, draw):
        """The curvature round."""
        unravel = flat_start(model)[1]

        def query(state, point):
            return curvature_query(model, unravel(point[0]), jnp.exp(state.log_clip))

        def blocks(state):
            return curvature_blocks(
                jnp.minimum(self.curvature_bound, CURVATURE_RATIO * jnp.exp(2 * state.log_clip))
            )

        def update(state, point, step, estimate, scales):
            del point, step
            known = state.guide.curvature.after(estimate, scales)
            n = known.n
            # Positive definite as soon as the true curvature is (up to rare draws, in which the
            # last root stays).
            factor = self.prior_factor(state.guide, state.averaged_noise, precision)
            working = damped(known, corrected_prior(precision, state.guide.eigenvectors, factor))
            root = jnp.linalg.cholesky(working, symmetrize_input=False)
            root = jnp.where(jnp.isfinite(root).all(), root, state.guide.precision_root)
            old = state.guide
            values, vectors, levels = jax.lax.cond(
                (n <= 2) | (n % 4 == 0),  # it is slow
                lambda: known_spectrum(known.matrix, known.variance),
                lambda: (old.eigenvalues, old.eigenvectors, old.levels),
            )
            return state._replace(
                guide=FullRankState(known, root, values, vectors, levels, old.square)
            )

        return (Round(draw, query, blocks, update),)

    def posterior(self, model, state, precision, noise):
        """A Newton step from the averaged point, and the covariance ``(P + H (omega H + noise I)^-1 H)^-1``."""
        point, score = state.average
        matrix, variance, *_ = state.guide.curvature
        factor = np.asarray(
            self.prior_factor(state.guide, state.averaged_noise, precision), np.float64
        )
        corrected = corrected_prior(precision, state.guide.eigenvectors, factor)
        prior = np.asarray(prior_score(model)(point.astype(np.float32)), np.float64)
        mean = point + np.linalg.solve(
            damped(state.guide.curvature, corrected), score + corrected @ (prior / precision)
        )

        learnt, error = learnt_curvature(matrix, variance, np)
        values, vectors = np.linalg.eigh(learnt)
        along, known = vectors.T**2 @ precision, np.maximum(values - error, 0)
        curvatures = possible_eigenvalues(known, variance)
        observed = curvatures**2 / (self.mean_weight(state.guide) * curvatures + noise + _TINY)
        observed = 1 / (1 / (along + observed)).mean(axis=0) - along  # of the variance's mean
        total, rotation = np.linalg.eigh((vectors * observed) @ vectors.T + np.diag(precision))
        return GaussianPosterior(mean, rotation / np.sqrt(total))


def corrected_prior(precision, vectors, factor):
    """Prior precision, multiplied by `factor` in the directions of `vectors`."""
    root = precision[:, None] ** 0.5 * vectors
    return (root * factor) @ root.T


def damped(known: Curvature, prior):
    """Precision of curvature and prior, with the edge of the noise's spectrum added on the diagonal."""
    p = len(known.matrix)
    edge = noise_edge(p, known.variance) * np.eye(p, dtype=known.matrix.dtype)
    return denoised(known.matrix, known.variance) + prior + edge
