"""Models of NumPyro in the coordinates that the likelihood depends on.

In a hierarchy the likelihood depends on the lowest level alone. If the hierarchy is normal and
linear, that level is a linear function of the standard normal coordinates, and the directions
orthogonal to it keep their prior exactly. A score without these directions has fewer entries, and
less privacy noise.

If the slopes depend on hyper-parameters, such as a learnt spread, these are fixed in the rounds, in
which they only set the prior. The final posterior has the others integrated out, given each of
them (`skdpbayes.posteriors.hierarchy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.flatten_util import ravel_pytree
from scipy.linalg import polar

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.models.base import flat_start
from skdpbayes.models.numpyro.model import NumPyroModel, ProgramLikelihood
from skdpbayes.models.numpyro.predict import at_draw
from skdpbayes.models.numpyro.program import Placed, Program, log_probability
from skdpbayes.models.protocols import Array, Number, Params
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior, Posterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.posteriors.hierarchy import Levels, given, likelihood_of, with_hyper_parameters
from skdpbayes.pytrees import pytree

MOST_COORDINATES = 2000
_MOST_HYPER = 5  # which importance sampling can cover
_POINTS = 50  # points at which linearity is checked
_WIDE = 0.95  # quantile of the widths of priors: that of the rounds
_CHUNK = 100  # hyper-parameters at which levels are computed together


@pytree
@dataclass(frozen=True)
class Reduced(ProgramLikelihood):
    """Model without some directions of its coordinates; see `NumPyroModel` for its methods.

    Attributes
    ----------
    model : NumPyroModel
    basis : array of shape (n_coordinates, n_left)
        Orthonormal columns: those of `seen` first.
    offset : array of shape (n_coordinates,)
        Hyper-parameters in the rounds; zero elsewhere.
    parts : Parts
    score_unit : float
    axes, starts_at : arrays, optional
        Of these coordinates, as `NumPyroModel` has them.
    """

    model: NumPyroModel
    basis: Array
    offset: Array
    parts: Parts = field(metadata={"static": True})
    score_unit: Number = 1.0
    curvature_unit: Number = 1.0
    axes: Array | None = None
    starts_at: Array | None = None

    @property  # read-only, where the base has a field
    def program(self) -> Program:  # type: ignore[override]
        """Program of the model."""
        return self.model.program

    def prior_mean(self) -> Params:
        """Zeros."""
        return jnp.zeros(self.basis.shape[1], jnp.float32)

    def has_independent_priors(self) -> bool:
        """Whether the prior of no site of the model depends on another site."""
        return self.model.has_independent_priors()

    def traced(self, params: Params, batch: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Latent sites at their coordinates, and all sites of a batch of records."""
        every = jnp.asarray(self.offset + self.basis @ self.coordinates(params))
        return self.model.traced(flat_start(self.model)[1](every), batch)

    def foreseen_shares(self, params: Params) -> jax.Array:
        """Zeros: made-up records are all of one group, and coordinates mix groups."""
        return jnp.zeros_like(params)

    def natural(self, posterior: GaussianPosterior | DrawsPosterior) -> Posterior:
        """Posterior of all coordinates: those left out have their prior."""
        posterior = self.in_coordinates(posterior)
        if not self.parts.hyper:
            return posterior.among_others(np.asarray(self.basis, np.float64))
        assert isinstance(posterior, GaussianPosterior)  # `reduced` for `sgld` has hyper=False
        fixed, scale = self._in_rounds()

        def seen(hyper: np.ndarray) -> Levels:
            at = self.levels(hyper)
            centre = np.linalg.solve(scale, (at.centre - fixed.centre).T).T
            return at._replace(centre=centre, slope=np.linalg.solve(scale, at.slope))

        return self.given_levels(likelihood_of(posterior), seen)

    def given_levels(
        self, told: NormalLikelihood, levels: Callable[[np.ndarray], Levels]
    ) -> Posterior:
        """Posterior of all coordinates, given what records tell of functions of the normal ones."""
        normal, hyper = list(self.parts.normal), list(self.parts.hyper)
        if not hyper:
            (centre,), (slope,), _ = levels(np.zeros((1, 0)))
            precision = np.eye(slope.shape[1]) + slope.T @ told.reported @ slope
            return GaussianPosterior.from_precision(given(told, centre, slope)[0], precision)
        order = np.empty(len(self.offset), int)
        order[hyper + normal] = np.arange(len(order))
        return with_hyper_parameters(told, levels, len(hyper), order)

    def levels(self, hyper: np.ndarray) -> Levels:
        """Normal values read, given hyper-parameters, of shape (n, k)."""
        return _levels(self.model, self.parts, hyper)

    def priors(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Priors of the first coordinates, given the only hyper-parameter.

        Parameters
        ----------
        nodes : array of shape (n,)

        Returns
        -------
        slope : array of shape (m, m)
            Of the normal values read, in these coordinates.
        covariances : array of shape (n, m, m)
            For one hyper-parameter; without any, n is 1.
        log_weights : array of shape (n,)
        """
        _, scale = self._in_rounds()
        if not self.parts.hyper:
            return scale, np.eye(len(scale))[None], np.zeros(1)
        if len(self.parts.hyper) > 1:
            raise ValueError("A grid is for one hyper-parameter.")
        found = self.levels(nodes[:, None])
        slope = np.linalg.solve(scale, found.slope)
        covariances = slope @ slope.transpose(0, 2, 1)
        return scale, covariances, found.log_prior - found.log_prior.max()

    def _in_rounds(self) -> tuple[Levels, np.ndarray]:
        """Values read at the hyper-parameters of the rounds; their slope in the coordinates."""
        own = np.asarray(self.offset, np.float64)[list(self.parts.hyper)]
        fixed = self.levels(own[None])
        basis = np.asarray(self.basis, np.float64)[list(self.parts.normal)]
        return fixed, fixed.slope[0] @ basis[:, : len(fixed.slope[0])]


class Parts(NamedTuple):
    """Coordinates of a model, as `ravel_pytree` has them.

    Attributes
    ----------
    read : tuple of str
        Sites that the likelihood reads.
    seen : tuple of str
        Those of them that are normal.
    normal, hyper, rest : tuples of int
        Places of normal coordinates, of others that the likelihood does not read, and of others.
        Sites that are functions of normal numbers, as log-normal ones, are among the others.
    """

    read: tuple[str, ...]
    seen: tuple[str, ...]
    normal: tuple[int, ...]
    hyper: tuple[int, ...]
    rest: tuple[int, ...]


def reduced(model: NumPyroModel, *, hyper: bool = True) -> NumPyroModel | Reduced:
    """The model without the directions that the likelihood ignores, where they are found.

    They are the directions of normal coordinates orthogonal to the slopes of the normal sites that
    the likelihood reads, and the sites that are not normal and that it does not read. What is
    assumed of the values read and of the prior is checked at random points.

    Parameters
    ----------
    model : NumPyroModel
    hyper : bool
        Whether slopes may depend on the sites that are not normal and not read.
    """
    size = sum(int(np.prod(site.shape)) for site in model.program.sites)
    if size > MOST_COORDINATES:
        return model
    read, of_normal = _read_sites(model), {site.name for site in model.program.sites if site.normal}
    if not read & of_normal or read == {site.name for site in model.program.sites}:
        return model  # most models; nothing is compiled
    parts = _parts(model, read)
    if not parts.seen or len(parts.hyper) > (_MOST_HYPER if hyper else 0):
        return model
    if parts.hyper and parts.rest:
        return model  # under a wide prior, rounds find a noise and weights together too slowly
    offset = _usual(model, parts)
    slope = _levels(model, parts, offset[None, list(parts.hyper)]).slope[0]
    kept = len(slope) + len(parts.rest)
    if kept >= size or np.linalg.matrix_rank(slope, rtol=1e-4) < len(slope):
        return model
    # The polar factor: each coordinate is near one of the values read.
    basis = np.zeros((size, kept), np.float32)
    basis[list(parts.normal), : len(slope)] = polar(slope.T)[0]
    basis[list(parts.rest), range(len(slope), kept)] = 1
    return Reduced(model, basis, offset, parts) if _as_assumed(model, parts) else model


def _parts(model, read):
    """`Parts`, given the sites that are read."""
    sites = sorted(model.program.sites, key=lambda site: site.name)
    linear = {name for name, bend in jax.device_get(_bends(model)).items() if bend < 1e-4}
    sizes = [int(np.prod(site.shape)) for site in sites]
    of = np.repeat(np.arange(len(sites)), sizes)
    normal = np.array([site.name in linear for site in sites])[of]
    seen = np.array([site.name in read for site in sites])[of]
    places = (np.flatnonzero(x).tolist() for x in (normal, ~normal & ~seen, ~normal & seen))
    names = tuple(site.name for site in sites if site.name in read)
    of_normal = tuple(name for name in names if name in linear)
    return Parts(names, of_normal, *map(tuple, places))


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _bends(model):
    """How far normal sites are from linear in their own coordinates, as log-normal ones are."""
    start = model.init()

    def value(name, shift):
        return model.values(start | {name: start[name] + shift})[name]

    def bend(name):
        low, middle, high = (value(name, shift) for shift in (-1, 0, 1))
        size = jnp.max(jnp.abs(high - low), initial=0) + 1e-30
        return jnp.max(jnp.abs(high + low - 2 * middle), initial=0) / size

    return {site.name: bend(site.name) for site in model.program.sites if site.normal}


def _usual(model, parts):
    """Hyper-parameters whose prior of the values read is as wide as most, among zeros."""
    offset = np.zeros(flat_start(model)[0].size, np.float32)
    if parts.hyper:
        draws = np.random.default_rng(0).standard_normal((_CHUNK, len(parts.hyper)))
        widths = np.square(_levels(model, parts, draws).slope).sum(axis=(1, 2))
        offset[list(parts.hyper)] = draws[np.argsort(widths)[int(_WIDE * _CHUNK)]]
    return offset


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
    return ravel_pytree([sites[name] for name in names])[0] if names else jnp.zeros(0)


def _levels(model, parts, hyper):
    """`Levels` of the values read, at hyper-parameters of shape (n, k), others at their centre."""
    n_chunks, k = -(-len(hyper) // _CHUNK), hyper.shape[1]
    padded = np.zeros((n_chunks * _CHUNK, k), np.float32)
    padded[: len(hyper)] = hyper
    chunks = padded.reshape(n_chunks, _CHUNK, k)
    found = zip(*(jax.device_get(_levels_of(model, parts, x)) for x in chunks), strict=True)
    return Levels(*(np.concatenate(x)[: len(hyper)].astype(np.float64) for x in found))


@partial(jax.jit, static_argnums=1, compiler_options=LITTLE_EFFORT)
def _levels_of(model, parts, hyper):
    start, unravel = flat_start(model)
    normal = jnp.array(parts.normal)

    def one(own):
        at = start.at[jnp.array(parts.hyper, int)].set(own)

        def values(z):
            return _values(model, parts.seen, at.at[normal].set(z))

        zero = jnp.zeros(len(normal), jnp.float32)
        return values(zero), jax.jacobian(values)(zero), model.log_prior(unravel(at))

    return jax.lax.map(one, hyper)


def _as_assumed(model, parts):
    """Whether values read are linear in the normal coordinates, given hyper-parameters alone.

    And whether log priors are sums: of the normal coordinates' own, of the hyper-parameters' and of
    the others'.
    """
    size = flat_start(model)[0].size
    # Points far from the centre vary the normal coordinates alone.
    scales = np.ones((_POINTS, size))
    scales[:, list(parts.normal)] = np.geomspace(0.1, 10, _POINTS)[:, None]
    points = (scales * np.random.default_rng(0).standard_normal(scales.shape)).astype(np.float32)
    told, expected, priors, sums = jax.device_get(_told(model, parts, points))
    close = np.allclose(told, expected, rtol=0, atol=1e-4 * np.abs(told).max(axis=0))
    return close and np.allclose(priors, sums, rtol=1e-3, atol=1e-3)


@partial(jax.jit, static_argnums=1, compiler_options=LITTLE_EFFORT)
def _told(model, parts, points):
    """Values read, and log priors over those at the centre, at points; and as they should be."""
    start, unravel = flat_start(model)
    normal, hyper, rest = (jnp.array(places, int) for places in parts[2:])
    others = tuple(name for name in parts.read if name not in parts.seen)

    def at(x):
        z, own = x[normal], start.at[hyper].set(x[hyper])

        def seen(z):
            return _values(model, parts.seen, own.at[normal].set(z))

        def log_prior(x):
            return model.log_prior(unravel(x)) - model.log_prior(unravel(start))

        kept = start.at[rest].set(x[rest])
        centre, slope = seen(jnp.zeros_like(z)), jax.jacobian(seen)(jnp.zeros_like(z))
        told = _values(model, parts.seen, x), _values(model, others, x)
        expected = centre + slope @ z, _values(model, others, kept)
        sums = log_prior(own) + log_prior(kept) - jnp.sum(z**2) / 2
        return jnp.concatenate(told), jnp.concatenate(expected), log_prior(x), sums

    return jax.lax.map(at, points)
