"""Models of NumPyro in the coordinates that records tell of.

In a hierarchy the records see the lowest level alone. Where all is normal and linear, that level is a linear function
of the standard normal coordinates, and what the likelihood does not see keeps its prior, exactly. Released without
these directions a score has as many entries as there is something to learn: privacy noise grows with their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.flatten_util import ravel_pytree
from scipy.linalg import null_space, polar

from skdpbayes.models.base import flat_start
from skdpbayes.models.numpyro_model import NumPyroModel, log_probability
from skdpbayes.models.numpyro_predict import at_draw
from skdpbayes.posteriors import DrawsPosterior, GaussianPosterior

_MOST_COORDINATES = 2000
_POINTS = 50  # at which what looks linear is tried


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reduced:
    """A model of which some directions of the coordinates are left out; see `NumPyroModel` for its methods.

    Attributes
    ----------
    model : NumPyroModel
    basis : array of shape (n_coordinates, n_left)
        Orthonormal columns.
    score_unit : float
    """

    model: NumPyroModel
    basis: Any
    score_unit: Any = 1.0

    @property
    def program(self):
        """Of the model."""
        return self.model.program

    def init(self):
        """Centre of the prior."""
        return jnp.zeros(self.basis.shape[1], jnp.float32)

    def log_prior(self, params):
        """Log density of the coordinates, up to a constant."""
        return self.model.log_prior(self._all(params))

    def log_likelihood(self, params, record):
        """Log-likelihood of one record."""
        return self.model.log_likelihood(self._all(params), record)

    def score_norm(self, params, record):
        """Norm of a record's score: that in all coordinates, as it has no part in the others."""
        return self.model.score_norm(self._all(params), record)

    def score_bound(self, params, record):
        """Largest norm of a score over all responses, where those are few."""
        return self.model.score_bound(self._all(params), record)

    def prior_precision(self):
        """Ones."""
        return jnp.ones_like(self.init())

    def natural(self, posterior):
        """Posterior of all coordinates: those left out have their prior."""
        basis = np.asarray(self.basis, np.float64)
        others = null_space(basis.T)
        if isinstance(posterior, GaussianPosterior):
            factor = basis * posterior.factor if posterior.factor.ndim == 1 else basis @ posterior.factor
            return GaussianPosterior(basis @ posterior.mean, np.concatenate([factor, others], axis=1))
        draws = posterior.draws
        seed = np.ascontiguousarray(draws.ravel()[:64], np.float32).view(np.uint32)  # so that no two fits share it
        noise = np.random.default_rng(seed).standard_normal((*draws.shape[:2], others.shape[1]))
        return DrawsPosterior(draws @ basis.T + noise @ others.T)

    def _all(self, params):
        return flat_start(self.model)[1](self.basis @ params)


def reduced(model: NumPyroModel) -> NumPyroModel | Reduced:
    """The model without the directions that no record tells of, where they are found; else itself.

    They are found where latent sites that the likelihood does not read have their part in normal ones that it reads,
    and these are linear in the coordinates. All of it is seen in the program and at draws of the prior.
    """
    size = sum(int(np.prod(site.shape)) for site in model.program.sites)
    if size > _MOST_COORDINATES:
        return model
    read = _read_sites(model)
    seen = {site.name for site in model.program.sites if site.normal and site.name in read}
    unseen = {site.name for site in model.program.sites if site.normal} - seen
    if not seen or not unseen:
        return model
    slopes, prior_slopes, points = jax.device_get(_slopes(model, tuple(sorted(seen))))
    slope = slopes[0].astype(np.float64)
    normal = np.concatenate([np.full(int(np.prod(s.shape)), s.normal) for s in _in_order(model)])
    linear = np.allclose(slopes, slope, rtol=1e-4, atol=1e-5 * np.abs(slope).max())
    own_prior = np.allclose(prior_slopes[:, normal], -points[:, normal], rtol=1e-4, atol=1e-4)
    if not linear or not own_prior or slope[:, ~normal].any():
        return model
    if np.linalg.matrix_rank(slope, rtol=1e-4) < len(slope):
        return model
    basis = np.concatenate([polar(slope.T)[0], np.eye(size)[:, ~normal]], axis=1)
    return Reduced(model, basis.astype(np.float32)) if basis.shape[1] < size else model


def _in_order(model):
    """Sites as `ravel_pytree` has them."""
    return sorted(model.program.sites, key=lambda site: site.name)


def _read_sites(model):
    """Names of the latent sites whose values the likelihood of a record reads itself, and not for others' priors."""
    values = jax.eval_shape(model.values, model.init())
    values = {site.name: values[site.name] for site in model.program.sites}

    def log_likelihood(values, batch):
        return log_probability(at_draw(model, values, batch))

    program = jax.make_jaxpr(log_likelihood)(values, model.program.example(1)).jaxpr
    needed = set(program.outvars)
    for equation in reversed(program.eqns):
        if not needed.isdisjoint(equation.outvars):
            needed.update(x for x in equation.invars if not isinstance(x, Literal))
    return {name for name, x in zip(sorted(values), program.invars, strict=False) if x in needed}  # records come last


@partial(jax.jit, static_argnums=1)
def _slopes(model, names):
    """At draws of the coordinates: slopes of the values of sites, and of the log prior; the draws."""
    flat, unravel = ravel_pytree(model.init())

    def values(x):
        sites = model.values(unravel(x))
        return ravel_pytree([sites[name] for name in names])[0]

    def at(x):
        return jax.jacobian(values)(x), jax.grad(lambda x: model.log_prior(unravel(x)))(x), x

    scales = jnp.geomspace(0.1, 10, _POINTS)[:, None]
    return jax.lax.map(at, scales * jax.random.normal(jax.random.key(0), (_POINTS, flat.size), flat.dtype))
