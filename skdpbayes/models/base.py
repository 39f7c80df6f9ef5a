"""What a solver needs to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import scaled

NORM = np.float32(
    1 + 2**-8
)  # of blocks of norm 1: above what rounding, and shortening for rounding's sake, may add


class Model(Protocol):
    """A prior and a likelihood that factorises over records. Holds no data and no keys; what it knows is public.

    A model is a frozen dataclass registered as a pytree: sizes are static, hyper-parameters traced.

    Some more members are optional:

    * ``score(params, record)`` and ``curvature(params, record)``, closed forms of the first two
      derivatives of the log-likelihood, which may be structured contributions (`RankOne`,
      `Quadratic`);
    * ``score_bound(params, record)``, a bound on the norm of a record's score that does not depend
      on its response: with it clipping no longer biases the fit (`unbiased_weight`); or else
      ``clipping_bias(params, norm)``, what clipping to a norm is expected to add to the sum of the
      scores of all records (`unbiased_total`);
    * ``prior_precision()``, the diagonal of the prior's precision if the prior is an independent
      normal one, which `solver="dpvi"` needs (another prior gives the curvature of its logarithm at
      `init`), ``prior_mean()``, if that is not `init` (another prior gives what its slope there
      asks for), and an attribute ``prior_df``: None, or the degrees of freedom of Student t priors
      of which this is the squared inverse scale.

    `solver="na-dpvi"` asks for two more, of models whose slopes depend on the parameters in a known
    way: ``precondition(params)``, public factors by which `score`, and the rows and columns of
    `curvature`, are to be multiplied; and ``working_point(params, curvature, covariance)``, where
    to ask for a score while the parameters are unknown. And it uses ``blocks()``, slices of the
    ravelled parameters between which the curvature is zero. A model that is a distribution of whole
    records may say what curvature to expect, ``information(params, norm)``, and how well `init` is
    known already, ``start_variance()``; then no curvature is released.
    """

    def init(self) -> Any:
        """Starting point: a pytree of unconstrained parameters, independent of any data."""

    def log_prior(self, params) -> jax.Array:
        """Log density of the prior, up to a constant."""

    def log_likelihood(self, params, record) -> jax.Array:
        """Log-likelihood of one record."""


class ConjugateModel(Model, Protocol):
    """A model of which a bounded statistic of each record tells all: `solver="vips"` releases its sum, once."""

    n_statistics: int

    def statistic(self, record) -> jax.Array:
        """Statistic of one record, of shape (n_statistics,)."""

    def statistic_bound(self) -> float:
        """Largest norm of a statistic."""

    def noisy_posterior(self, total, scale: float, n_records: int) -> Any:
        """Exact posterior given the sum of the statistics with normal noise of standard deviation `scale`."""


class Opening(NamedTuple):
    """A release that is made once, before the rounds of a `StatisticsModel`, to find a start.

    Attributes
    ----------
    statistics : callable ``params -> (record -> {block: contribution})``
    blocks : mapping of str to Block
    update : callable ``(params, sums, scales, key) -> params``
        Post-processing; `key` is the solver's.
    """

    statistics: Callable[..., Any]
    blocks: Mapping[str, Any]
    update: Callable[..., Any]


class StatisticsModel(Protocol):
    """A conjugate-exponential model with local latents: `solver="vips"` releases expected statistics in rounds.

    Parameters are those of the variational posterior. The norm of a block is declared in `blocks`,
    and the clip enforces it: a wrong declaration costs utility, never privacy.
    """

    def init(self) -> Any:
        """Parameters before anything is released (a pytree of float32 arrays, like all parameters)."""

    def openings(self) -> tuple[Opening, ...]:
        """Releases that lead to a start; empty if `init` is one."""

    def statistics(self, params) -> Callable[..., Mapping[str, Any]]:
        """Function of one record: its expected sufficient statistics, by block."""

    def blocks(self) -> Mapping[str, Any]:
        """Clipping norm and budget share of each block."""

    def zeros(self) -> Mapping[str, Any]:
        """Sums of no records."""

    def carry(self, sums, old, new) -> Mapping[str, Any]:
        """What sums taken with old parameters are for new ones (the same, unless statistics are relative to them)."""

    def m_step(self, params, sums, scales) -> Any:
        """Parameters given noisy sums, of all records, and the standard deviation of the noise in each block."""

    def posterior(self, params) -> Any:
        """The posterior that final parameters describe."""


class OpenedModel(StatisticsModel, Protocol):
    """A `StatisticsModel` that gradient solvers take too, once its openings have found a start."""

    def marginal(self, params) -> Any:
        """A `Model` without latents, about the start that `params` hold.

        It has one more method, ``natural(posterior)``: a posterior of the usual parameters, given
        one of its own.
        """


def score_unit(model: Model):
    """What clipping norms are relative to: one, or the model's attribute `score_unit`, found by a release."""
    return jnp.asarray(getattr(model, "score_unit", 1), jnp.float32)


def double(tree):
    """In double precision where that is enabled, as it is inside of the driver."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), tree)


def single(tree):
    """In single precision."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def flat_start(model: Model):
    """Starting point as a float32 vector, and the function that gives such a vector the shape of the parameters."""
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), model.init()))
    return flat, unravel


def random_start(model: Model, key):
    """Starting point as a vector, of models that do not start anywhere else each time `init`."""
    return ravel_pytree(model.start(key))[0] if hasattr(model, "start") else flat_start(model)[0]


def score(model: Model, params, record):
    """Gradient of one record's log-likelihood: the model's closed form where it has one, else autodiff.

    Returns
    -------
    pytree
        Arrays shaped as `params`, or a structured contribution (`RankOne`) that stands for one.
    """
    if hasattr(model, "score"):
        return model.score(params, record)
    return jax.grad(model.log_likelihood)(params, record)


def curvature(model: Model, params, record):
    """Negative Hessian of one record's log-likelihood over the ravelled parameters (P x P), or its closed form."""
    if hasattr(model, "curvature"):
        return model.curvature(params, record)
    flat, unravel = ravel_pytree(params)
    return -jax.hessian(lambda v: model.log_likelihood(unravel(v), record))(flat)


def unbiased_weight(model: Model, params, record, norm):
    """Factor that brings a record's score below `norm` without looking at its response; 1 if the model has no bound.

    Clipping by a score's own norm shortens the surprising records most, which biases the zero of
    the summed scores. A factor that depends on covariates and parameters only leaves each record's
    expected score zero at the truth (conditionally unbiased estimating equations: Künsch, Stefanski
    and Carroll 1989).
    """
    if not hasattr(model, "score_bound"):
        return jnp.ones((), jnp.float32)
    bound = model.score_bound(params, record)
    return jnp.minimum(1, norm / jnp.maximum(bound, jnp.finfo(bound.dtype).tiny))


def weighted_score(model: Model, params, record, norm):
    """A record's score times its `unbiased_weight`, and the weight."""
    weight = unbiased_weight(model, params, record, norm)
    return scaled(score(model, params, record), weight), weight


def unbiased_total(model: Model, params, total, norm):
    """Sum of clipped scores, as a vector, without what clipping is expected to add if the model knows (else as it is).

    A sum that has expectation zero at the truth has its zero near the truth (Fisher consistency).
    """
    total = ravel_pytree(total)[0]
    if not hasattr(model, "clipping_bias"):
        return total
    return total - ravel_pytree(model.clipping_bias(params, norm))[0].astype(total.dtype)


def prior_score(model: Model):
    """Gradient of the log prior, as a function of the parameters as a vector."""
    _, unravel = flat_start(model)
    return jax.grad(lambda flat: model.log_prior(unravel(flat)))


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


def prior_mean(model: Model):
    """Mean of the normal prior, ravelled: the starting point, unless the model has another one."""
    return ravel_pytree(model.prior_mean() if hasattr(model, "prior_mean") else model.init())[
        0
    ].astype(jnp.float64)


def prior_variance(model: Model):
    """Diagonal of the prior's covariance, ravelled; for Student t priors, the square of their scale."""
    return 1 / prior_precision(model).astype(jnp.float64)
