"""What a solver needs to know of a model."""

from __future__ import annotations

from typing import Any, Protocol

import jax
from jax.flatten_util import ravel_pytree


class Model(Protocol):
    """A prior and a likelihood that factorises over records. Holds no data, no keys and no number of records.

    A model is a frozen dataclass registered as a pytree: sizes are static, hyper-parameters traced.
    """

    def init(self) -> Any:
        """Starting point: a pytree of unconstrained parameters, independent of any data."""

    def log_prior(self, params) -> jax.Array:
        """Log density of the prior, up to a constant."""

    def log_likelihood(self, params, record) -> jax.Array:
        """Log-likelihood of one record."""


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
