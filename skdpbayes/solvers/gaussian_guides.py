"""Gaussian guides of `dpvi`: state, draw, step and reported posterior of each.

The guide is ``theta = mu + L e``, ``e ~ N(0, I)``: `MeanField` has a diagonal L and takes Adam
steps (Kingma and Ba 2015, algorithm 1) on the evidence lower bound; `FullRank` has a full L, from
released curvatures, and takes preconditioned steps. `skdpbayes.solvers.dpvi` has the algorithm, and
``docs/solvers/dpvi.md`` the derivations. Every entry of a state is a function of the releases, the
solver key and public values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import Model, double, flat_start, prior_score, score_scale, single
from skdpbayes.models.denoising import (
    denoised,
    known_spectrum,
    learnt_curvature,
    noise_edge,
    possible_eigenvalues,
)
from skdpbayes.models.protocols import Array, Number
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Round, Scales, Sums
from skdpbayes.solvers.released_curvature import Curvature, curvature_round

CURVATURE_RATIO = 0.75  # clipping norm of a record's curvature over the square of the score's
TIME_CONSTANT = 5  # rounds in which a direction settles at first
RATE_LIMITS = (0.2, 0.1)  # full rank, mean field; see `DPVI._rates`
_POSSIBLE = 64  # curvatures over which a posterior variance is averaged
FAST_UNTIL = 0.2  # fraction of the run after which it takes longer and longer, unless told
_ADAM = optax.scale_by_adam()
_TINY = float(np.finfo(np.float32).tiny)

Draw: TypeAlias = tuple[jax.Array, jax.Array]
"""A point of the guide, and its standard normal noise."""


State = TypeVar("State")


class Rates(NamedTuple):
    """Learning rates of one step."""

    mean: jax.Array
    log_sd: jax.Array
    decay: jax.Array  # share of the first rate that the schedule leaves


class Progress(NamedTuple):
    """Step of a run, and the number of its steps."""

    step: jax.Array
    n_steps: jax.Array


class Noise(NamedTuple):
    """Covariance of the noise in a sum of scores: ``privacy I + subsampling S``.

    S is the sum of the outer products of the records' scores. Near the optimum it is approximately
    ``omega H``, the covariance of the scores under the model.
    """

    privacy: Any
    subsampling: Any


class MeanFieldState(NamedTuple):
    """State of `MeanField`."""

    log_sd: jax.Array
    moments: optax.ScaleByAdamState


class FullRankState(NamedTuple):
    """State of `FullRank`."""

    curvature: Curvature
    precision_root: jax.Array  # Cholesky factor of the guide's precision, L^-T
    eigenvectors: jax.Array  # of the learnt curvature
    levels: jax.Array  # eigenvalues, not below their standard error
    square: jax.Array  # mean square of the gradient


class GuidedState(Protocol):
    """The members of a `DPVIState` that guides read."""

    @property
    def mu(self) -> jax.Array:
        """Mean of the guide."""

    @property
    def guide(self) -> Any:
        """State of the guide."""

    @property
    def average(self) -> tuple[Any, Any]:
        """Averages over the late rounds."""

    @property
    def averaged_noise(self) -> Noise:
        """Noise of a score averaged over the late rounds."""

    @property
    def log_clip(self) -> jax.Array:
        """Logarithm of the clipping norm of a score."""


class Guide(Protocol[State]):
    """A Gaussian guide, as `DPVI` uses it."""

    def init(self, mu: jax.Array, sd: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        """State, and what is averaged over the late rounds, at mean `mu` and deviations `sd`."""

    def draw(self, mu: jax.Array, state: State, noise: jax.Array) -> jax.Array:
        """Point of the guide, from standard normal noise."""

    def rates(self, progress: Progress, first: Number, calm: jax.Array, noise: jax.Array) -> Rates:
        """Learning rates of a step.

        Parameters
        ----------
        progress : Progress
        first : float
            Learning rate at first.
        calm : float
            Rate at which privacy noise spreads the logits with variance ``1 / (2 h1)``, for a mean
            curvature h1 of a record.
        noise : float
            Standard deviation of the privacy noise in a summed score.
        """

    def prior_factor(self, state: State, noise: Noise, precision: Array) -> jax.Array:
        """Factor of the prior precision, given the averaged noise."""

    def step(
        self,
        mu: jax.Array,
        state: State,
        score: jax.Array,
        prior: jax.Array,
        point: Draw,
        rates: Rates,
        factor: jax.Array,
        precision: jax.Array,
    ) -> tuple[jax.Array, State, tuple[jax.Array, jax.Array]]:
        """Next mean and state, and the terms of the averages.

        Parameters
        ----------
        mu, state
            Mean and state of the guide.
        score, prior : arrays of shape (P,)
            The two parts of the gradient at `point`.
        point : Draw
        rates : Rates
        factor : array
            `prior_factor`.
        precision : array of shape (P,)
            Of the prior.
        """

    def more_rounds(
        self, model: Model, mechanism: Mechanism, precision: jax.Array, draw: Callable[..., Draw]
    ) -> tuple[Round[Any], ...]:
        """Kinds of round beside the gradient round; `draw` gives their points."""

    def posterior(
        self, model: Model, state: GuidedState, precision: np.ndarray, noise: Noise
    ) -> GaussianPosterior:
        """Reported posterior; `noise` is that of the averaged score."""


@pytree
@dataclass(frozen=True)
class MeanField:
    """Independent normals ``mu + exp(u) e``; mu and u take steps of Adam.

    Attributes
    ----------
    local : bool
        Whether the posterior is that about one of many optima, near which the run has started.
        Noise does not draw its mean to that of the prior then: a hidden unit without its weights of
        little information would be another unit.
    """

    local: bool = field(default=False, metadata={"static": True})

    def init(self, mu: jax.Array, sd: jax.Array) -> tuple[MeanFieldState, Draw]:
        """State, and the averages over the late rounds: of mu and u."""
        guide = mu, jnp.log(sd)
        return MeanFieldState(guide[1], _ADAM.init(double(guide))), guide

    def draw(self, mu: jax.Array, state: MeanFieldState, noise: jax.Array) -> jax.Array:
        """Point of the guide."""
        return mu + jnp.exp(state.log_sd) * noise

    def rates(self, progress: Progress, first: Number, calm: jax.Array, noise: jax.Array) -> Rates:
        """Constant rates, which fall to a tenth over the second half."""
        del noise
        left = 1 - progress.step / jnp.maximum(progress.n_steps, 1).astype(calm.dtype)
        decay = jnp.clip(2 * left, 0.1, 1)
        rate = jnp.minimum(first * decay, RATE_LIMITS[1] * calm)
        return Rates(rate, jnp.minimum(0.02 * decay, rate), decay)

    def step(
        self,
        mu: jax.Array,
        state: MeanFieldState,
        score: jax.Array,
        prior: jax.Array,
        point: Draw,
        rates: Rates,
        factor: jax.Array,
        precision: jax.Array,
    ) -> tuple[jax.Array, MeanFieldState, tuple[jax.Array, jax.Array]]:
        """Step of Adam."""
        del precision
        total = score + factor * prior
        gradient = total, total * point[1] * jnp.exp(state.log_sd) + 1  # by reparametrisation
        # In double precision, so that a replay rounds to the same bits, however it is compiled.
        direction, moments = _ADAM.update(double(gradient), state.moments)
        mu = single(mu + double(rates.mean) * direction[0])
        log_sd = single(state.log_sd + double(rates.log_sd) * direction[1])
        return mu, MeanFieldState(log_sd, moments), (mu, log_sd)

    def prior_factor(self, state: MeanFieldState, noise: Noise, precision: Array) -> jax.Array:
        """``1 + subsampling + privacy / h``, with h the mean precision of the guide."""
        level = jnp.maximum(jnp.mean(jnp.exp(-2 * state.log_sd)), jnp.min(precision))
        return 1 + noise.subsampling + noise.privacy / level

    def more_rounds(
        self, model: Model, mechanism: Mechanism, precision: jax.Array, draw: Callable[..., Draw]
    ) -> tuple[()]:
        """No further kind of round."""
        del model, mechanism, precision, draw
        return ()

    def posterior(
        self, model: Model, state: GuidedState, precision: np.ndarray, noise: Noise
    ) -> GaussianPosterior:
        """Averaged guide, with privacy noise and subsampling in its variances."""
        del model
        return GaussianPosterior(*self.reported(state, precision, noise, np))

    def reported(
        self, state: GuidedState, precision: Array, noise: Noise, xp: Any
    ) -> tuple[Any, Any]:
        """Means and standard deviations of `posterior`, by NumPy or JAX."""
        mean, log_sd = state.average
        factor = self.prior_factor(state.guide, state.averaged_noise, xp.asarray(precision))
        prior = xp.asarray(factor, float) * precision
        information = xp.maximum(xp.exp(-2 * log_sd) - prior, 0)
        spread = (1 + noise.subsampling) * information + noise.privacy
        gain = information / (spread + _TINY)
        total = precision + information * gain
        # The average is the zero of a gradient with one prior factor for all parameters; here each
        # parameter has its own.
        if self.local:
            return mean, 1 / xp.sqrt(total)
        return mean * gain * (information + prior) / total, 1 / xp.sqrt(total)


@pytree
@dataclass(frozen=True)
class FullRank:
    """Normals with a full covariance, computed from released curvatures.

    Attributes
    ----------
    curvature_bound : float
        Public bound on the norm of a record's curvature; infinity if there is none.
    calm : float
        Most records per parameter that the learning rate assumes, where it is unknown how many
        inform one: a direction that only the prior holds hardly spreads then. Infinity: no limit.
    fast : float
        Fraction of the run after which steps get shorter.
    curvature_ratio : float
        Clipping norm of a record's curvature over the square of the score's.
    """

    curvature_bound: Number = np.inf
    calm: Number = np.inf
    fast: Number = FAST_UNTIL
    curvature_ratio: Number = CURVATURE_RATIO

    def init(self, mu: jax.Array, sd: jax.Array) -> tuple[FullRankState, Draw]:
        """State, and the averages over the late rounds: of points and of the scores there."""
        p, nothing = mu.size, jnp.zeros_like(mu)
        root, vectors = jnp.diag(1 / sd), jnp.eye(p, dtype=mu.dtype)
        state = FullRankState(Curvature.none(p), root, vectors, nothing, jnp.zeros((), mu.dtype))
        return state, (mu, jnp.zeros_like(mu))

    def draw(self, mu: jax.Array, state: FullRankState, noise: jax.Array) -> jax.Array:
        """Point of the guide."""
        return mu + solve_triangular(state.precision_root, noise, trans="T", lower=True)

    def rates(self, progress: Progress, first: Number, calm: jax.Array, noise: jax.Array) -> Rates:
        """Constant rates, which then fall like one over the number of rounds.

        `calm` limits them no further than to steps which, all of them noise, move a parameter by
        one in the fast rounds. With batches the noise of a sum does not fall as rows grow in
        number, and a fit would not arrive.
        """
        n_fast = self.fast * progress.n_steps.astype(calm.dtype)
        late = jnp.maximum(progress.step - n_fast, 0)
        decay = 1 / (1 + late / (2 * TIME_CONSTANT))
        held = jnp.maximum(RATE_LIMITS[0] * self.calm / noise, 1 / jnp.sqrt(n_fast))
        rate = jnp.minimum(jnp.minimum(first, RATE_LIMITS[0] * calm), held) * decay
        return Rates(rate, jnp.zeros_like(rate), decay)

    def step(
        self,
        mu: jax.Array,
        state: FullRankState,
        score: jax.Array,
        prior: jax.Array,
        point: Draw,
        rates: Rates,
        factor: jax.Array,
        precision: jax.Array,
    ) -> tuple[jax.Array, FullRankState, tuple[jax.Array, jax.Array]]:
        """Preconditioned step.

        A direction takes Newton steps by its level, shortened so that it settles within
        `TIME_CONSTANT` rounds at first, and within ever more rounds later: slow steps average the
        noise instead of following it. Steps are at most the gradient over its root mean square,
        times the rate.
        """
        vectors = state.eigenvectors
        gradient = score @ vectors + factor * (prior @ vectors)
        square = jnp.mean(gradient**2)
        square = jnp.where(state.square > 0, 0.9 * state.square + 0.1 * square, square)
        curvatures = state.levels + factor * (precision @ vectors**2)
        slowness = TIME_CONSTANT / rates.decay * curvatures + jnp.sqrt(square) / rates.mean
        mu = mu + vectors @ (gradient / jnp.maximum(slowness, _TINY))
        return mu, state._replace(square=square), (point[0], score)

    def prior_factor(self, state: FullRankState, noise: Noise, precision: Array) -> jax.Array:
        """``(1 + subsampling) omega + privacy / h`` in each of `eigenvectors`, with h its level."""
        sampling = (1 + noise.subsampling) * self.mean_weight(state)
        return sampling + noise.privacy / state.levels.clip(precision.min())

    def mean_weight(self, state: FullRankState) -> jax.Array:
        """Mean weight omega, the ratio of the weighted scores' covariance to their curvature.

        Shrunk towards 1 by its noise.
        """
        return state.curvature.mean_weight(towards=1.0, errors=2, least=0.05)

    def more_rounds(
        self, model: Model, mechanism: Mechanism, precision: jax.Array, draw: Callable[..., Draw]
    ) -> tuple[Round[Any]]:
        """The curvature round."""
        unravel = flat_start(model)[1]

        def clip(state: GuidedState) -> jax.Array:
            return clip_of(model, state)

        def norm(state: GuidedState) -> jax.Array:
            return jnp.minimum(self.curvature_bound, self.curvature_ratio * clip(state) ** 2)

        def update(state: Any, point: Draw, step: jax.Array, estimate: Sums, scales: Scales) -> Any:
            del point, step
            known = state.guide.curvature.after(estimate, scales, mechanism)
            n = known.n
            # Positive definite as soon as the true curvature is, up to rare draws, in which the
            # last root stays.
            factor = self.prior_factor(state.guide, state.averaged_noise, precision)
            working = damped(known, corrected_prior(precision, state.guide.eigenvectors, factor))
            root = jnp.linalg.cholesky(working, symmetrize_input=False)
            root = jnp.where(jnp.isfinite(root).all(), root, state.guide.precision_root)
            old = state.guide
            # The eigendecomposition is slow: every fourth release will do.
            vectors, levels = jax.lax.cond(
                (n <= 2) | (n % 4 == 0),
                lambda: known_spectrum(known.matrix, known.variance),
                lambda: (old.eigenvectors, old.levels),
            )
            return state._replace(guide=FullRankState(known, root, vectors, levels, old.square))

        return (
            curvature_round(
                model,
                mechanism,
                point=draw,
                params=lambda point: unravel(point[0]),
                clip=clip,
                norm=norm,
                update=update,
            ),
        )

    def posterior(
        self, model: Model, state: GuidedState, precision: np.ndarray, noise: Noise
    ) -> GaussianPosterior:
        """Newton step from the averaged point, with the noise in the covariance.

        The covariance is ``(P + H ((1 + subsampling) omega H + privacy I)^-1 H)^-1``.
        """
        point, score = state.average
        released = state.guide.curvature
        matrix, variance = np.asarray(released.matrix), np.asarray(released.variance)
        factor = self.prior_factor(state.guide, state.averaged_noise, precision)
        corrected = corrected_prior(precision, state.guide.eigenvectors, factor)
        prior = np.asarray(_prior_score(model, point.astype(np.float32)), np.float64)
        mean = point + np.linalg.solve(
            damped(state.guide.curvature, corrected), score + corrected @ (prior / precision)
        )

        learnt, error = learnt_curvature(matrix, variance, np)
        values, vectors = np.linalg.eigh(learnt)
        along, known = vectors.T**2 @ precision, np.maximum(values - error, 0)
        curvatures = possible_eigenvalues(known, variance, _POSSIBLE, np)
        sampling = (1 + noise.subsampling) * self.mean_weight(state.guide)
        observed = curvatures**2 / (sampling * curvatures + noise.privacy + _TINY)
        # Information that gives the mean of the posterior variance over the possible curvatures.
        observed = 1 / (1 / (along + observed)).mean(axis=0) - along
        total, rotation = np.linalg.eigh((vectors * observed) @ vectors.T + np.diag(precision))
        return GaussianPosterior(mean, rotation / np.sqrt(total))


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _prior_score(model: Model, point: jax.Array) -> jax.Array:
    return prior_score(model)(point)


def clip_of(model: Model, state: GuidedState) -> jax.Array:
    """Clipping norm of a score at the present mean."""
    unravel = flat_start(model)[1]
    return jnp.exp(state.log_clip) * score_scale(model, unravel(state.mu))


def corrected_prior(precision: Any, vectors: Any, factor: Any) -> Any:
    """Prior precision, multiplied by `factor` in the directions of `vectors`."""
    root = precision[:, None] ** 0.5 * vectors
    return (root * factor) @ root.T


def damped(known: Curvature, prior: Any) -> Any:
    """Precision from curvature and prior, plus the edge of the noise's spectrum on the diagonal."""
    p = len(known.matrix)
    edge = noise_edge(p, known.variance) * np.eye(p, dtype=known.matrix.dtype)
    return denoised(known.matrix, known.variance) + prior + edge
