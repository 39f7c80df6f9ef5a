"""Models of NumPyro in the coordinates that the likelihood depends on.

In a hierarchy the likelihood depends on the lowest level alone. If the hierarchy is normal and
linear, that level is a linear function of the standard normal coordinates, and the directions
orthogonal to it keep their prior exactly. A score without these directions has fewer entries, and
less privacy noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.flatten_util import ravel_pytree
from scipy.linalg import polar

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.base import flat_start
from skdpbayes.models.numpyro.predict import at_draw
from skdpbayes.models.numpyro.program import NumPyroModel, log_probability
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record, Response

_MOST_COORDINATES = 2000
_POINTS = 50  # points at which linearity is checked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reduced:
    """Model without some directions of its coordinates; see `NumPyroModel` for its methods.

    Attributes
    ----------
    model : NumPyroModel
    basis : array of shape (n_coordinates, n_left)
        Orthonormal columns.
    score_unit : float
    """

    model: NumPyroModel
    basis: Array
    score_unit: Number = 1.0

    @property
    def program(self):
        """Program of the model."""
        return self.model.program

    def init(self) -> Params:
        """Centre of the prior."""
        return jnp.zeros(self.basis.shape[1], jnp.float32)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the coordinates, up to a constant."""
        return self.model.log_prior(self._all(params))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record."""
        return self.model.log_likelihood(self._all(params), record)

    def score_norm(self, params: Params, record: Record) -> jax.Array:
        """Norm of a record's score; the directions left out add nothing to it."""
        return self.model.score_norm(self._all(params), record)

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all responses, where those are few."""
        return self.model.score_bound(self._all(params), record)

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Curvature of a record in these coordinates."""
        whole = self.model.curvature(self._all(params), record)
        if isinstance(whole, Quadratic):
            return Quadratic(whole.weight, whole.vector @ self.basis)
        return self.basis.T @ whole @ self.basis

    def score_scale(self, params: Params) -> jax.Array:
        """Length of typical scores of made-up records, over that at `init`."""
        return self.model.score_scale(self._all(params))

    @property
    def one_response(self) -> bool:
        """Whether `response` is known."""
        return self.model.one_response

    def response(self, params: Params, record: Record) -> Response:
        """A record's response, and those that it might have had."""
        response = self.model.response(self._all(params), record)
        return response._replace(slope=response.slope @ self.basis)

    def prior_precision(self) -> Params:
        """Ones."""
        return jnp.ones_like(self.init())

    def natural(self, posterior):
        """Posterior of all coordinates: those left out have their prior."""
        return posterior.among_others(np.asarray(self.basis, np.float64))

    def _all(self, params):
        return flat_start(self.model)[1](self.basis @ params)


def reduced(model: NumPyroModel) -> NumPyroModel | Reduced:
    """The model without the directions that the likelihood ignores, where they are found.

    They are the directions of normal coordinates orthogonal to the slopes of the normal sites that
    the likelihood reads. The values it reads, and the prior, are compared with and without them at
    random points.
    """
    size = sum(int(np.prod(site.shape)) for site in model.program.sites)
    if size > _MOST_COORDINATES:
        return model
    read, of_normal = _read_sites(model), {site.name for site in model.program.sites if site.normal}
    seen = tuple(sorted(read & of_normal))
    if not seen or of_normal <= read:  # most models; nothing is compiled
        return model
    normal = np.concatenate([np.full(int(np.prod(s.shape)), s.normal) for s in _in_order(model)])
    slope = np.asarray(_slope(model, seen), np.float64) * normal
    kept = len(slope) + np.count_nonzero(~normal)
    if kept >= size or np.linalg.matrix_rank(slope, rtol=1e-4) < len(slope):
        return model
    # The polar factor: each coordinate is near one of the values read.
    basis = np.concatenate([polar(slope.T)[0], np.eye(size)[:, ~normal]], axis=1).astype(np.float32)
    # Points far from the centre vary the normal coordinates alone.
    scales = np.where(normal, np.geomspace(0.1, 10, _POINTS)[:, None], 1)
    points = (scales * np.random.default_rng(0).standard_normal(scales.shape)).astype(np.float32)
    told, without, prior, own_prior = jax.device_get(
        _told(model, tuple(sorted(read)), basis, points)
    )
    unseen = np.allclose(told, without, rtol=0, atol=1e-4 * np.abs(told).max(axis=0))
    return (
        Reduced(model, basis)
        if unseen and np.allclose(prior, own_prior, rtol=1e-3, atol=1e-3)
        else model
    )


def _in_order(model):
    """Sites as `ravel_pytree` has them."""
    return sorted(model.program.sites, key=lambda site: site.name)


def _read_sites(model):
    """Names of the latent sites that the likelihood of a record reads directly."""
    values = jax.eval_shape(model.values, model.init())
    values = {site.name: values[site.name] for site in model.program.sites}

    def log_likelihood(values, batch):
        return log_probability(at_draw(model, values, batch))

    program = jax.make_jaxpr(log_likelihood)(values, model.program.example(1)).jaxpr
    needed = set(program.outvars)
    for equation in reversed(program.eqns):
        if not needed.isdisjoint(equation.outvars):
            needed.update(x for x in equation.invars if not isinstance(x, Literal))
    # Records come last among the inputs.
    return {name for name, x in zip(sorted(values), program.invars, strict=False) if x in needed}


def _values(model, names, x):
    """Values of sites at given coordinates, ravelled."""
    sites = model.values(flat_start(model)[1](x))
    return ravel_pytree([sites[name] for name in names])[0]


@partial(jax.jit, static_argnums=1)
def _slope(model, names):
    """Slope of the values of sites at the centre of the prior."""
    return jax.jacobian(partial(_values, model, names))(flat_start(model)[0])


@partial(jax.jit, static_argnums=1)
def _told(model, names, basis, points):
    """Values of sites and log priors at points, with and without the other directions."""
    unravel = flat_start(model)[1]

    def at(x):
        without = basis @ (x @ basis)
        prior = model.log_prior(unravel(x)) - model.log_prior(unravel(without))
        values, values_without = _values(model, names, x), _values(model, names, without)
        return values, values_without, prior, -jnp.sum((x - without) ** 2) / 2

    return jax.lax.map(at, points)
