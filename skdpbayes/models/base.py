"""Models as solvers see them, and the functions by which solvers use a model.

Members that only some models have are declared in `skdpbayes.models.protocols`. Each function below
asks for one of them, and says what it does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import scaled
from skdpbayes.mechanism.grid import VECTOR, grid_of
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.protocols import (
    Contribution,
    HasClippingBias,
    HasCommonScale,
    HasCurvature,
    HasCurvatureUnit,
    HasIdentified,
    HasLargestWeight,
    HasLatentNoise,
    HasNormalPrior,
    HasParameterBlocks,
    HasPriorAxes,
    HasPriorDegrees,
    HasPriorMean,
    HasRandomStart,
    HasScore,
    HasScoreBound,
    HasScoreScale,
    HasScoreUnit,
    Number,
    Params,
    Record,
)
from skdpbayes.models.responses import fair_score, knows_responses
from skdpbayes.posteriors.base import Posterior

NORM = np.float32(1 + 2**-8)
"""Clipping norm of blocks of norm 1, with room for rounding and for shortening before rounding."""

Tree = TypeVar("Tree")


class Model(Protocol):
    """A prior, and a likelihood that factorises over records. Holds no data and no keys.

    A model is a frozen dataclass registered as a pytree: sizes are static, hyper-parameters traced.
    Optional members are declared in `skdpbayes.models.protocols`.
    """

    def init(self) -> Params:
        """Starting point: a pytree of unconstrained parameters, independent of any data."""

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior, up to a constant."""

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record."""


@runtime_checkable
class BoundedStatistic(Protocol):
    """Statistic of a record with a declared bound on its norm."""

    @property
    def n_statistics(self) -> int:
        """Length of the statistic."""

    def statistic(self, record: Record) -> jax.Array:
        """Statistic of one record, of shape (n_statistics,)."""

    def statistic_bound(self) -> float:
        """Largest norm of a statistic."""


class ConjugateModel(BoundedStatistic, Protocol):
    """Model with a bounded sufficient statistic: `solver="vips"` releases its sum, once.

    The posterior has `log_evidence` if the number of records may be a release, too.
    """

    def known(self, record: Record) -> jax.Array:
        """One, or zero or NaN for a null record."""

    def noisy_posterior(self, total: np.ndarray, scale: float, n_records: int) -> Any:
        """Posterior given the summed statistics plus normal noise of standard deviation `scale`."""


class Opening(NamedTuple):
    """A release made once, before the rounds of a `StatisticsModel`, to find a start.

    Attributes
    ----------
    statistics : callable ``params -> (record -> {block: contribution})``
    blocks : mapping of str to Block
    update : callable ``(params, sums, scales, key) -> params``
        Post-processing; `key` is the solver's.
    """

    statistics: Callable[[Any], Callable[[Record], Mapping[str, Contribution]]]
    blocks: Mapping[str, Block]
    update: Callable[[Any, Mapping[str, Any], Mapping[str, jax.Array], jax.Array], Any]


@runtime_checkable
class CentredModel(ConjugateModel, Protocol):
    """Conjugate model whose statistics can be released about their mean."""

    def range_of_means(self) -> tuple[Number, Number]:
        """Range of the mean of `statistic`, within which each entry may lie."""

    def rows_about(self, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of the entries of `statistic` less their mean, and probabilities.

        Parameters
        ----------
        centre : array of shape (n_statistics,)
            The mean.

        Returns
        -------
        values, shares : arrays of shape (n_statistics, g)
            Values are evenly spaced.
        """


def released_count(sums: Mapping[str, Any], scales: Mapping[str, jax.Array]) -> jax.Array:
    """Number of records by the block ``"count"``; one below twice its noise counts as that."""
    count, noise = double((sums["count"][0], scales["count"]))
    return jnp.maximum(count, jnp.maximum(2 * noise, 1))


@runtime_checkable
class StatisticsModel(Protocol):
    """Conjugate-exponential model with local latent variables, fitted by variational Bayes.

    `solver="vips"` releases its expected sufficient statistics in rounds. Parameters are those of
    the variational posterior. The norm of a block is declared in `blocks` and enforced by clipping:
    a wrong declaration costs utility, never privacy.
    """

    def init(self) -> Params:
        """Parameters before any release (a pytree of float32 arrays, like all parameters)."""

    def openings(self) -> tuple[Opening, ...]:
        """Releases that lead to a start; empty if `init` is one."""

    def statistics(self, params: Params) -> Callable[[Record], Mapping[str, Contribution]]:
        """Function from one record to its expected sufficient statistics, by block (E-step)."""

    def blocks(self) -> Mapping[str, Block]:
        """Clipping norm and budget share of each block."""

    def zeros(self) -> Mapping[str, Any]:
        """Sums over no records."""

    def carry(self, sums: Mapping[str, Any], old: Params, new: Params) -> Mapping[str, Any]:
        """Sums taken at old parameters, translated to new ones.

        Equal to `sums` unless statistics are relative to the parameters.
        """

    def m_step(
        self, params: Params, sums: Mapping[str, Any], scales: Mapping[str, jax.Array]
    ) -> Params:
        """Parameters given noisy sums over all records and the noise's standard deviations."""

    def posterior(self, params: Params) -> Posterior:
        """Posterior described by the final parameters."""


class TopicModel(StatisticsModel, Protocol):
    """`StatisticsModel` of counts, with a guide to draw from."""

    @property
    def topic_word_prior(self) -> Number:
        """Concentration of the Dirichlet prior of topics."""

    def collapsed_statistics(
        self, params: Params
    ) -> Callable[[Record], Mapping[str, Contribution]]:
        """As `statistics`, with a record's own latent variables integrated out."""

    def drawn_topics(self, params: Params, key: jax.Array) -> Params:
        """Parameters at a draw of the posterior that they describe."""

    def observed(self, params: Params, key: jax.Array) -> jax.Array:
        """Share of the information about each count that records leave."""

    def expected_counts(self, params: Params, released: jax.Array, noise: jax.Array) -> jax.Array:
        """Counts of these topics, as many in each topic as in a release."""


class MarginalModel(Model, Protocol):
    """Model without latent variables, in coordinates about a start."""

    def natural(self, posterior: Any) -> Posterior:
        """Posterior of the usual parameters, given one of the coordinates."""


class OpenedModel(Protocol):
    """Model whose openings find the start or the scale of a `MarginalModel`."""

    def init(self) -> Params:
        """Parameters before any release."""

    def openings(self) -> tuple[Opening, ...]:
        """Releases made once, before the rounds of the gradient solver."""

    def marginal(self, params: Params) -> MarginalModel:
        """Model about the start held by `params`."""


@runtime_checkable
class LooksAgain(OpenedModel, Protocol):
    """Model whose opening is made once more, where rounds have arrived."""

    def looked_at(self, params: Params, centre: jax.Array) -> Params:
        """Parameters for the opening at `centre`, a point of `marginal`, ravelled."""


def curvature_unit(model: Model) -> jax.Array:
    """Norm of scores whose square is the unit of curvatures: the model's own, or `score_unit`."""
    if isinstance(model, HasCurvatureUnit):
        return jnp.asarray(model.curvature_unit, jnp.float32)
    return score_unit(model)


def score_unit(model: Any) -> jax.Array:
    """Unit of clipping norms: the model's typical score, found by a release; else one."""
    unit = model.score_unit if isinstance(model, HasScoreUnit) else 1
    return jnp.asarray(unit, jnp.float32)


def score_scale(model: Any, params: Params) -> jax.Array:
    """Factor of the unit of clipping norms at these parameters: 1 unless the model predicts it."""
    scale = model.score_scale(params) if isinstance(model, HasScoreScale) else 1
    return jnp.asarray(scale, jnp.float32)


def double(tree: Tree) -> Tree:
    """Arrays in double precision, where that is enabled (as it is inside the driver)."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), tree)


def single(tree: Tree) -> Tree:
    """Arrays in single precision."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def flat_start(model: Model) -> tuple[jax.Array, Callable[[jax.Array], Params]]:
    """Starting point as a float32 vector, and the function from such vectors to parameters."""
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), model.init()))
    return flat, unravel


def random_start(model: Model, key: jax.Array) -> jax.Array:
    """Starting point of one chain as a vector: a draw if the model asks for one, else `init`."""
    if isinstance(model, HasRandomStart):
        return ravel_pytree(model.start(key))[0]
    return flat_start(model)[0]


def with_latent_noise(model: Model, key: jax.Array) -> Model:
    """Model of one round, its latent noise drawn if it has any."""
    return model.drawn(key) if isinstance(model, HasLatentNoise) else model


def score(model: Model, params: Params, record: Record) -> Contribution:
    """Gradient of one record's log-likelihood, in closed form or by automatic differentiation.

    Returns
    -------
    pytree
        Arrays shaped as `params`, or a structured contribution (`RankOne`) that stands for one.
    """
    if isinstance(model, HasScore):
        return model.score(params, record)
    return jax.grad(model.log_likelihood)(params, record)


def curvature(model: Model, params: Params, record: Record) -> Contribution:
    """Negative Hessian of one record's log-likelihood over the ravelled parameters, (P, P)."""
    if isinstance(model, HasCurvature):
        return model.curvature(params, record)
    flat, unravel = ravel_pytree(params)
    return -jax.hessian(lambda v: model.log_likelihood(unravel(v), record))(flat)


def unbiased_weight(model: Model, params: Params, record: Record, norm: jax.Array) -> jax.Array:
    """Factor that shortens a record's score to `norm` whatever its response; 1 without a bound.

    Clipping a score by its own norm shortens surprising records most, which biases the zero of the
    summed scores. A factor that depends on covariates and parameters alone leaves each record's
    expected score zero at the truth (conditionally unbiased estimating equations: Künsch,
    Stefanski and Carroll 1989). It is at most the model's `largest_weight`.
    """
    if not isinstance(model, HasScoreBound):
        return jnp.ones((), jnp.float32)
    bound = model.score_bound(params, record)
    weight = norm / jnp.maximum(bound, jnp.finfo(bound.dtype).tiny)
    return jnp.minimum(weight, largest_weight(model, record))


def largest_weight(model: Model, record: Record) -> jax.Array:
    """Weight that a record has where its score need not be shortened: 1 unless the model says."""
    if not isinstance(model, HasLargestWeight):
        return jnp.ones((), jnp.float32)
    return model.largest_weight(record)


def weighted_score(
    model: Model, params: Params, record: Record, norm: jax.Array
) -> tuple[Contribution, jax.Array]:
    """A record's score times its `unbiased_weight`, and the part of the weight due to `norm`.

    Where the model knows what other responses were possible, the score is a `fair_score`.
    """
    if knows_responses(model):
        fair = fair_score(model, params, record, norm)
        return ravel_pytree(params)[1](fair.score), fair.weight
    params = like_vector(params, record)
    weight = unbiased_weight(model, params, record, norm)
    shortened = weight / largest_weight(model, record)
    return scaled(score(model, params, record), weight), shortened


def like_vector(params: Params, record: Record) -> Params:
    """Parameters in the precision in which a record's own vector is handed out.

    Once, before they are used twice: the compiler would convert them twice, and multiply twice.
    """
    if grid_of(record) is None:
        return params
    return jax.tree.map(lambda leaf: leaf.astype(record[VECTOR].dtype), params)


def unbiased_total(model: Model, params: Params, total: Params, norm: jax.Array) -> jax.Array:
    """Sum of clipped scores as a vector, less the bias of clipping where the model predicts it.

    A sum that has expectation zero at the truth has its zero near the truth (Fisher consistency).
    """
    total = ravel_pytree(total)[0]
    if not isinstance(model, HasClippingBias):
        return total
    return total - ravel_pytree(model.clipping_bias(params, norm))[0].astype(total.dtype)


def prior_score(model: Model) -> Callable[[jax.Array], jax.Array]:
    """Gradient of the log prior, as a function of the parameters as a vector."""
    _, unravel = flat_start(model)
    return jax.grad(lambda flat: model.log_prior(unravel(flat)))


def prior_precision(model: Model) -> jax.Array:
    """Diagonal of the prior precision, ravelled.

    Raises
    ------
    TypeError
        If the model does not declare an independent normal prior.
    """
    if not isinstance(model, HasNormalPrior):
        raise TypeError(
            f"dpvi needs a model with an independent normal prior, which says so by a method "
            f"prior_precision(); {type(model).__name__} has none. SGLD takes any prior."
        )
    return ravel_pytree(model.prior_precision())[0].astype(jnp.float32)


def prior_mean(model: Model) -> jax.Array:
    """Mean of the normal prior, ravelled: the starting point unless the model gives another."""
    mean = model.prior_mean() if isinstance(model, HasPriorMean) else model.init()
    return ravel_pytree(mean)[0].astype(jnp.float64)


def prior_degrees(model: Model) -> jax.Array | None:
    """Degrees of freedom of Student t priors, ravelled; None if the priors are normal."""
    degrees = model.prior_degrees() if isinstance(model, HasPriorDegrees) else None
    return None if degrees is None else ravel_pytree(degrees)[0].astype(jnp.float64)


def prior_common_scale(model: Model) -> jax.Array | None:
    """Mask of the parameters whose priors have a common scale factor, ravelled; None: none."""
    mask = model.prior_common_scale() if isinstance(model, HasCommonScale) else None
    return None if mask is None else ravel_pytree(mask)[0].astype(jnp.float64)


def parameter_blocks(model: Model) -> tuple[slice, ...]:
    """Slices of the parameters between which the curvature is zero."""
    return model.parameter_blocks() if isinstance(model, HasParameterBlocks) else (slice(None),)


def identified(model: Model) -> jax.Array | None:
    """Orthonormal basis of the directions along which the likelihood varies, (P, n); None: all."""
    basis = model.identified() if isinstance(model, HasIdentified) else None
    return None if basis is None else jnp.asarray(basis)


def identified_part(model: Model, matrix: jax.Array) -> jax.Array:
    """Released (P, P) matrix without its noise in directions along which the likelihood is flat."""
    basis = identified(model)
    if basis is None:
        return matrix
    basis = basis.astype(matrix.dtype)
    return basis @ (basis.T @ matrix @ basis) @ basis.T


def prior_variance(model: Model) -> jax.Array:
    """Diagonal of the prior covariance, ravelled; for Student t priors, their squared scales."""
    return 1 / prior_precision(model).astype(jnp.float64)


def prior_axes(model: Model) -> jax.Array | None:
    """Matrix that takes the parameters to those with the independent prior; None: the identity."""
    return model.prior_axes() if isinstance(model, HasPriorAxes) else None


def prior_matrix(model: Model, factors: jax.Array | float = 1.0) -> jax.Array:
    """Prior precision of the parameters, (P, P).

    Parameters
    ----------
    model : Model
    factors : array of shape (P,) or float
        Multiples of the precisions of the independent prior.
    """
    own, axes = jnp.diag(factors / prior_variance(model)), prior_axes(model)
    return own if axes is None else axes.T @ own @ axes
