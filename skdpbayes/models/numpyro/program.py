"""NumPyro models of users: their sites, and their likelihood as a function of one record.

A model is traced on shapes alone, and on records of zeros: user code never sees a real record
outside the private sum. Latent sites get coordinates in which their prior is standard normal:
exactly where a site is normal given its parents (``loc + scale z``, which also decentres
hierarchies), and about so elsewhere (the unconstrained value, less the centre of its prior and over
its spread, both from draws of the prior). Clipping norms and steps then mean the same for all
sites.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.numpyro.laws import cut_short, inner_law, parted, points, possible_scores
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record, Response
from skdpbayes.models.responses import (
    information,
    typical_length,
    typical_moments,
    typical_sizes,
)
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior

_POINTS = 8  # at which priors are compared
_MOST = 12.0  # by which the logarithm of typical lengths changes

MOST_RESPONSES = 10
"""Values of a response up to which a score is bounded over all of them."""


class Site(NamedTuple):
    """Latent site: name, shape of its coordinates, and whether it is normal given its parents.

    `axes` are the names of its first axes, those of plates.
    """

    name: str
    shape: tuple[int, ...]
    normal: bool
    axes: tuple[str, ...] = ()


@contextmanager
def traced(*handlers_: Any) -> Iterator[dict[str, Any]]:
    """Sites traced under handlers, without validation and in single precision."""
    with (
        jax.enable_x64(False),
        validation_enabled(False),
        handlers.trace() as sites,
        ExitStack() as stack,
    ):
        for handler in handlers_:
            stack.enter_context(handler)
        yield sites


def transform_of(site: Mapping[str, Any]) -> Any:
    """Transform to the values of a `numpyro.param` from unconstrained ones."""
    return biject_to(site["kwargs"].get("constraint", constraints.real))


def unconstrained(site: Mapping[str, Any]) -> Any:
    """Unconstrained value of a `numpyro.param`, which may be a pytree."""
    values = transform_of(site).inv(site["value"])
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), values)


def with_parameters(values: Mapping[str, Any]) -> handlers.substitute:
    """Handler that gives each `numpyro.param` its value, from unconstrained ones by name."""

    def value_of(site):
        own = site["type"] == "param" and site["name"] in values
        return transform_of(site)(values[site["name"]]) if own else None

    return handlers.substitute(substitute_fn=value_of)


@dataclass(frozen=True)
class Program:
    """NumPyro model, its arguments and its sites; hashable and public.

    Attributes
    ----------
    model : callable
    fields : tuple of (name, shape of one record, dtype)
        Of a record, in order; a name that is a number is a positional argument.
    constants : tuple of (name, value)
        Public arguments that are not arrays.
    sites : tuple of Site
        Latent sites.
    derived : tuple of str
        Deterministic sites that are functions of latent ones alone.
    observed : tuple of str
        Observed sites, in the plate of records.
    values : tuple of numbers
        Values whose probabilities are predictions: those of the observed site, if there is one and
        it has few or they are categories. Empty: the mean is the prediction.
    weighed : bool
        Whether the law of the observed site is one of those of `laws`.
    censored : bool
        Whether it is such a law, censored.
    declared : tuple of (name, number)
        Plates of the records that say how many there are in all, as ``plate(name, N, len(x))``.
    local : tuple of str
        Latent sites of single records, which an amortised guide draws.
    """

    model: Callable[..., Any]
    fields: tuple[tuple[str, tuple[int, ...], str], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    sites: tuple[Site, ...] = ()
    derived: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    weighed: bool = False
    censored: bool = False
    declared: tuple[tuple[str, int], ...] = ()
    local: tuple[str, ...] = ()

    @property
    def support(self) -> tuple[float, ...]:
        """Values of the observed site, if they are few: scores are bounded over all of them."""
        return self.values if len(self.values) <= MOST_RESPONSES else ()

    @property
    def unbiased(self) -> bool:
        """Whether clipped scores have mean zero at the truth."""
        return bool(self.support) or self.weighed or self.censored

    def call(self, batch: Mapping[str, Any], public: Mapping[str, Any]):
        """Call the model on a batch of records."""
        return self.called(self.model, batch, public)

    def called(self, function, batch, public):
        """Call a function as the model is called: with arrays of JAX, never of NumPy."""
        given, public = jax.tree.map(jnp.asarray, (dict(batch), dict(public)))
        own = [name for name, *_ in self.fields if name in given]
        positional = [given[name] for name in own if name.isdigit()]
        named = {name: given[name] for name in own if not name.isdigit()}
        with _AllOfTheBatch(len(given[own[0]])):
            return function(*positional, **named, **dict(self.constants), **public)

    def plate_line(self, name: str) -> str:
        """The plate of the records, as code that fits any batch."""
        first = self.fields[0][0]
        if first.isdigit():
            first = next(iter(inspect.signature(self.model).parameters), "x")
        return f"numpyro.plate({name!r}, len({first}))"

    def failed(self, function: Callable[..., Any], n: int, error: Exception) -> ValueError:
        """Error of a model or guide that raises `error` when it is called with `n` records."""
        shapes = ", ".join(
            f"{(n, *shape)}" if name.isdigit() else f"{name} {(n, *shape)}"
            for name, shape, _ in self.fields
        )
        name = getattr(function, "__name__", type(function).__name__)
        return ValueError(
            f"The function {name!r} raises an error if it is called with {n} made-up records, "
            f"arrays of shapes {shapes}: {error}\n{self.hint}"
        )

    @property
    def hint(self) -> str:
        """What a user's function that fails may have missed."""
        return (
            "A plate of the records takes its size from an argument, as in "
            f"`with {self.plate_line('data')}:`, and not the number of all records: batches are "
            "smaller."
        )

    def example(self, n: int) -> dict[str, Any]:
        """Batch of `n` made-up records: one half in float fields, zero in others."""
        return {
            name: np.full((n, *shape), 0.5 if dtype == "float32" else 0, dtype)
            for name, shape, dtype in self.fields
        }

    def made_up(self, n: int = 8) -> dict[str, Any]:
        """Batch of `n` public records: small positive numbers in float fields, zero in others."""
        rng = np.random.default_rng(0)
        return {
            name: rng.uniform(0, 0.2 * (dtype == "float32"), (n, *shape)).astype(dtype)
            for name, shape, dtype in self.fields
        }


class _AllOfTheBatch(Messenger):
    """Reads ``plate(name, N, n)`` as ``plate(name, n)`` in a call with a batch of n records.

    NumPyro would multiply log densities by N / n, to estimate a sum over N records. The private sum
    estimates it from its own batches.
    """

    def __init__(self, n):
        super().__init__()
        self._n, self._factors = n, {}

    def process_message(self, msg):
        """Take all records instead of a random part of them, and take the factor back."""
        if msg["type"] == "plate":
            size, subsample = msg["args"]
            if subsample == self._n != size:
                msg["value"] = jnp.arange(self._n)
                self._factors[msg["name"]] = size / self._n
            return
        if msg["type"] != "sample":
            return
        for frame in msg["cond_indep_stack"]:
            factor = self._factors.get(frame.name)
            if factor is not None and msg["scale"] is not None:
                alone = isinstance(msg["scale"], float) and msg["scale"] == factor
                msg["scale"] = None if alone else msg["scale"] / factor


class Placed(Messenger):
    """Sets latent sites to the values of their coordinates, and sums the log density of these."""

    def __init__(self, sites, params, affine):
        super().__init__()
        self._sites, self._params, self._affine = (
            {site.name: site for site in sites},
            params,
            affine,
        )
        self.values, self.log_prior = {}, jnp.zeros((), jnp.float32)

    def process_message(self, msg):
        """Put the value in place of a draw."""
        site = self._sites.get(msg["name"])
        if site is None or msg["type"] != "sample":
            return
        z, law = self._params[site.name], site_law(msg)
        if site.normal:
            value, log_density = _normal_value(law, z), -jnp.sum(z**2) / 2
        else:
            centre, spread = self._affine[site.name]
            free, transform = centre + spread * z, biject_to(law.support)
            value = transform(free)
            log_density = jnp.sum(law.log_prob(value)) + jnp.sum(
                transform.log_abs_det_jacobian(free, value)
            )
        msg["value"] = self.values[site.name] = value
        self.log_prior = self.log_prior + log_density


class _Observed(Messenger):
    """Gives an observed site another value."""

    def __init__(self, name, value):
        super().__init__()
        self._name, self._value = name, value

    def process_message(self, msg):
        """Put the value in place."""
        if msg["name"] == self._name:
            msg["value"] = jnp.broadcast_to(self._value, jnp.shape(msg["value"]))


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


def site_law(site):
    """Distribution of a site, of the shape of its value."""
    shape = site["kwargs"].get("sample_shape", ())
    return site["fn"].expand_by(shape) if shape else site["fn"]


def _normal_value(law, z):
    """Value of a distribution made of normal ones, at standard normal coordinates."""
    if isinstance(law, dist.Independent | dist.ExpandedDistribution):
        return _normal_value(law.base_dist, z)
    if isinstance(law, dist.Normal):
        return law.loc + law.scale * z
    if isinstance(law, dist.MultivariateNormal):
        return law.loc + jnp.einsum("...ij,...j->...i", law.scale_tril, z)
    if isinstance(law, dist.TransformedDistribution):
        value = _normal_value(law.base_dist, z)
        for transform in law.transforms:
            value = transform(value)
        return value
    raise TypeError(f"{type(law).__name__} is not made of normal distributions.")


def _normal_coordinates(law, value):
    """Inverse of `_normal_value`."""
    if isinstance(law, dist.TransformedDistribution):
        for transform in reversed(law.transforms):
            value = transform.inv(value)
    if isinstance(law, dist.Normal):
        return (value - law.loc) / law.scale
    if isinstance(law, dist.MultivariateNormal):
        off = (value - law.loc)[..., None]
        tril = jnp.broadcast_to(law.scale_tril, off.shape[:-1] + law.scale_tril.shape[-1:])
        return jax.scipy.linalg.solve_triangular(tril, off, lower=True)[..., 0]
    return _normal_coordinates(law.base_dist, value)


def normal_shape(law):
    """Shape of the coordinates of a distribution made of normal ones; None for another one."""
    shape, inner = law.shape(), law
    while not isinstance(inner, dist.Normal | dist.MultivariateNormal):
        if isinstance(inner, dist.TransformedDistribution):
            for transform in reversed(inner.transforms):
                shape = transform.inverse_shape(shape)
        elif not isinstance(inner, dist.Independent | dist.ExpandedDistribution):
            return None
        inner = inner.base_dist
    return shape


class ProgramLikelihood(ABC):
    """Likelihood of a program's records, and the prior, in a model's own parameters.

    Attributes
    ----------
    program : Program
    score_unit : float
        Norm of a typical score; clipping norms are relative to it.
    axes : array of shape (P,) or (P, P), or None
        Axes times the parameters are coordinates whose prior is standard normal; a vector stands
        for a diagonal. None: the identity.
    starts_at : array of shape (P,) or None
        Parameters at which rounds start. None: the centre of the prior.
    """

    program: Program
    score_unit: Number
    axes: Array | None
    starts_at: Array | None

    @abstractmethod
    def prior_mean(self) -> Params:
        """Centre of the prior."""

    @abstractmethod
    def traced(self, params: Params, batch: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Latent sites at their coordinates, and all sites of a batch of records."""

    def init(self) -> Params:
        """Where rounds start."""
        mean, start = self.prior_mean(), self.starts_at
        return mean if start is None else ravel_pytree(mean)[1](jnp.asarray(start))

    def prior_precision(self) -> Params:
        """Squares of the axes, if they are a vector; else ones."""
        mean, axes = self.prior_mean(), self.axes
        if axes is None or axes.ndim == 2:
            return jax.tree.map(jnp.ones_like, mean)
        return ravel_pytree(mean)[1](jnp.square(axes))

    def prior_axes(self) -> jax.Array | None:
        """Axes, if they are a matrix."""
        return None if self.axes is None or self.axes.ndim == 1 else jnp.asarray(self.axes)

    def coordinates(self, flat: jax.Array) -> jax.Array:
        """Axes times the ravelled parameters."""
        if self.axes is None:
            return flat
        axes = jnp.asarray(self.axes, flat.dtype)
        return axes * flat if axes.ndim == 1 else axes @ flat

    def in_coordinates(
        self, posterior: GaussianPosterior | DrawsPosterior
    ) -> GaussianPosterior | DrawsPosterior:
        """Posterior of `coordinates`."""
        if self.axes is None:
            return posterior
        return posterior.mapped(np.diag(self.axes) if self.axes.ndim == 1 else self.axes)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the coordinates, up to a constant."""
        return self.traced(params, self.program.example(1))[0].log_prior

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record: of the observed sites, for a batch of this record alone."""
        _, sites = self.traced(params, jax.tree.map(lambda x: x[None], record))
        if self.program.censored:
            (name,) = self.program.observed
            law, value = cut_short(sites[name]["fn"], sites[name]["value"])
            return jnp.sum(law.log_prob(value))
        return log_probability(sites)

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Fisher information of a response of few values; otherwise the negative Hessian."""
        batch = jax.tree.map(lambda x: x[None], record)
        sites = self.traced(params, batch)[1]
        site = sites[self.program.observed[0]]
        if not self.program.support or site["scale"] is not None:
            flat, unravel = ravel_pytree(params)
            return -jax.hessian(lambda v: self.log_likelihood(unravel(v), record))(flat)
        eta, law_of = parted(site["fn"])
        values = site["fn"].enumerate_support(expand=False)

        def log_density(eta, value):
            return jnp.sum(law_of(eta).log_prob(value))

        scores = jax.vmap(jax.grad(log_density), (None, 0))(eta, values)
        shares = jax.nn.softmax(jax.vmap(log_density, (None, 0))(eta, values))
        # Without a response a record has no score, and must have no curvature.
        known = jnp.isfinite(log_probability(sites))
        of_law = jnp.where(known, (scores * shares[:, None]).T @ scores, 0)
        return information(of_law, self._slope(params, batch))

    def score_norm(self, params: Params, record: Record) -> jax.Array:
        """Norm of a record's score: a typical one if the law of its response is known."""
        if self.one_response:
            return typical_length(self.response(params, record))
        return jnp.linalg.norm(self._score(params, record))

    def score_sizes(self, params: Params, record: Record) -> jax.Array:
        """Sizes of the entries of a record's score, (P,): typical ones if its law is known."""
        if self.one_response:
            return typical_sizes(self.response(params, record))
        return jnp.abs(self._score(params, record))

    def score_moments(self, params: Params, record: Record) -> Contribution:
        """Second moments of the entries of a record's score, (P, P), likewise."""
        if self.one_response:
            return typical_moments(self.response(params, record))
        return Quadratic(jnp.ones((1, 1), jnp.float32), self._score(params, record))

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all responses, if these are few or censored.

        Otherwise the norm of the score itself, so that the curvature of a clipped record has the
        same weight.
        """
        if not self.program.support and not self.program.censored:
            return self.score_norm(params, record)
        batch = jax.tree.map(lambda x: x[None], record)

        (response,) = self.program.observed
        if self.program.censored:
            law = self.traced(params, batch)[1][response]["fn"]
            scores = possible_scores(law) @ self._slope(params, batch)
            return jnp.max(jnp.linalg.norm(scores, axis=1))

        def norm(value):
            def log_likelihood(params):
                with _Observed(response, value):
                    return log_probability(self.traced(params, batch)[1])

            return _norm(jax.grad(log_likelihood)(params))

        law = self.traced(params, batch)[1][response]["fn"]
        values = law.enumerate_support(expand=False)
        return jnp.max(jax.vmap(norm)(values))

    def score_scale(self, params: Params) -> jax.Array:
        """Length of typical scores of made-up records, over that at `init`."""
        if not self.one_response:
            return jnp.ones((), jnp.float32)
        records = self.program.made_up()

        def length(params):
            each = jax.vmap(lambda record: typical_length(self.response(params, record)))(records)
            return jnp.mean(jnp.log(each))

        change = length(params) - length(self.init())
        return jnp.exp(jnp.clip(jnp.nan_to_num(change, posinf=0, neginf=0), -_MOST, _MOST))

    @property
    def one_response(self) -> bool:
        """Whether `response` is known."""
        return self.program.weighed

    def response(self, params: Params, record: Record) -> Response:
        """A record's response, and those that it might have had."""
        batch = jax.tree.map(lambda x: x[None], record)
        (name,) = self.program.observed
        own = self.traced(params, batch)[1][name]
        eta, law_of = parted(own["fn"])
        y, shares = points(own["fn"])
        score = jax.grad(lambda eta, y: jnp.sum(law_of(eta).log_prob(y)))
        others = jax.vmap(score, (None, 0))(eta, y)
        return Response(self._slope(params, batch), score(eta, own["value"]), others, shares)

    def _slope(self, params, batch):
        """Slope of the numbers that the law of the response depends on, in ravelled parameters."""
        flat, unravel = ravel_pytree(params)
        (name,) = self.program.observed

        def numbers(flat):
            law = self.traced(unravel(flat), batch)[1][name]["fn"]
            return parted(inner_law(law).base_dist if self.program.censored else law)[0]

        return jax.jacrev(numbers)(flat)

    def _score(self, params, record):
        return ravel_pytree(jax.grad(self.log_likelihood)(params, record))[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NumPyroModel(ProgramLikelihood):
    """A user's model as a function of coordinates: a dict of arrays, by latent site.

    Attributes
    ----------
    program : Program
    public : dict of arrays
        Arguments that are no records.
    affine : dict of (centre, spread)
        Centre and spread of the unconstrained prior, for sites not normal given their parents.
    score_unit : float
        Norm of a typical score; clipping norms are relative to it.
    fixed : dict of pytrees
        Unconstrained values of the sites that are `numpyro.param`.
    axes, starts_at : arrays, optional
        As of `ProgramLikelihood`.
    """

    program: Program = field(metadata={"static": True})
    public: Any
    affine: Any
    score_unit: Number = 1.0
    fixed: Any = field(default_factory=dict)
    axes: Array | None = None
    starts_at: Array | None = None

    def call(self, batch: Mapping[str, Any]):
        """Call the program on a batch of records."""
        with with_parameters(self.fixed):
            return self.program.call(batch, self.public)

    def prior_mean(self) -> Params:
        """Zeros."""
        return {site.name: jnp.zeros(site.shape, jnp.float32) for site in self.program.sites}

    def has_independent_priors(self) -> bool:
        """Whether no site's prior, in its coordinates, depends on another site, at random points.

        Those of normal sites are standard normal. A site that is not normal may depend on others,
        as ``Laplace(0, tau)`` does.
        """
        sites = self.program.sites
        odd = [site.name for site in sites if not site.normal]
        if not odd or len(sites) == 1:
            return True
        rng = np.random.default_rng(0)
        one, other = (
            {
                site.name: rng.normal(size=(_POINTS, *site.shape)).astype(np.float32)
                for site in sites
            }
            for _ in range(2)
        )
        pairs = [(one | {name: other[name]}, other | {name: one[name]}) for name in odd]
        sums = jax.device_get(_sums_of_priors(self, [(one, other), *pairs]))
        return bool(np.allclose(sums, sums[0], rtol=1e-3, atol=1e-3))

    def natural(
        self, posterior: GaussianPosterior | DrawsPosterior
    ) -> GaussianPosterior | DrawsPosterior:
        """Posterior of coordinates whose prior is standard normal."""
        return self.in_coordinates(posterior)

    def values(self, params):
        """Values of the latent sites, and of deterministic ones that are functions of them."""
        placed, sites = self.traced(params, self.program.example(1))
        return placed.values | {name: sites[name]["value"] for name in self.program.derived}

    def constrained(self, draws):
        """`values` of draws of shape (n, n_parameters), as NumPy arrays."""
        unravel = ravel_pytree(self.init())[1]
        if not self.program.sites:
            values = jax.tree.map(np.asarray, self.values({}))
            return {name: np.broadcast_to(x, (len(draws), *x.shape)) for name, x in values.items()}
        return jax.tree.map(
            np.asarray, _values(self, jax.vmap(unravel)(jnp.asarray(draws, jnp.float32)))
        )

    def traced(self, params: Params, batch: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Latent sites at their coordinates, and all sites of a batch of records."""
        if self.axes is not None:
            flat, unravel = ravel_pytree(params)
            params = unravel(self.coordinates(flat))
        placed = Placed(self.program.sites, params, self.affine)
        # No caller reads latent sites of single records.
        noise = [handlers.seed(rng_seed=0)] if self.program.local else []
        with traced(*noise, placed) as sites:
            self.call(batch)
        return placed, sites


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _values(model, params):
    return jax.vmap(model.values)(params)


def log_probability(sites):
    """Log probability of the observed sites of a trace."""
    total = jnp.zeros((), jnp.float32)
    for site in sites.values():
        if site["type"] == "sample" and site["is_observed"]:
            log = site["fn"].log_prob(site["value"])
            total = total + jnp.sum(log if site["scale"] is None else site["scale"] * log)
    return total


def coordinates(model: NumPyroModel, values: Mapping[str, Any], key):
    """Coordinates of values of latent sites, and the log prior of those sites.

    Sites without a value are drawn from their prior given the others.
    """
    with traced(handlers.seed(rng_seed=key), handlers.substitute(data=values)) as sites:
        model.call(model.program.example(1))
    params, log_prior = {}, jnp.zeros((), jnp.float32)
    for site in model.program.sites:
        law, value = site_law(sites[site.name]), sites[site.name]["value"]
        if site.normal:
            params[site.name] = _normal_coordinates(law, value)
        else:
            centre, spread = model.affine[site.name]
            params[site.name] = (biject_to(law.support).inv(value) - centre) / spread
        if site.name in values:
            log_prior = log_prior + jnp.sum(law.log_prob(value))
    return params, log_prior


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _sums_of_priors(model, pairs):
    """Sum of the log densities of each pair of points, of which there are several."""
    density = jax.vmap(model.log_prior)
    return jnp.stack([density(one) + density(other) for one, other in pairs])
