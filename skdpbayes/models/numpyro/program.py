"""NumPyro models of users: the program, and the coordinates of its latent sites.

A model is traced on shapes alone, and on records of zeros: user code never sees a real record
outside the private sum. Latent sites get coordinates in which their prior is standard normal:
exactly where a site is normal given its parents (``loc + scale z``, which also decentres
hierarchies), and about so elsewhere (the unconstrained value, less the centre of its prior and over
its spread, both from draws of the prior). Clipping norms and steps then mean the same for all
sites.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from skdpbayes.models.numpyro.laws import inner_law

MOST_RESPONSES = 10
"""Values of a response up to which a score is bounded over all of them."""

_TINY = 1e-30
_OF_LEVELS = (
    "Numbers of a record are of single precision, unless they are integers or Booleans. Where a "
    "distribution counts levels or an array is indexed, write `y.astype(int)` in the model, with "
    "levels from 0; a record with NaN is left out."
)


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
    alone : bool
        Whether a record has one observed number.
    weighed : bool
        Whether the laws of the observed numbers are some of those of `laws`, and independent.
    censored : bool
        Whether the one observed number has such a law, censored.
    declared : tuple of (name, number)
        Plates of the records that say how many there are in all, as ``plate(name, N, len(x))``.
    local : tuple of str
        Latent sites of single records, which an amortised guide draws.
    code : str
        Digest of what the model and the guide compute. A function that reads a global is another
        program once it computes something else: programs compiled before do not run.
    """

    model: Callable[..., Any]
    fields: tuple[tuple[str, tuple[int, ...], str], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    sites: tuple[Site, ...] = ()
    derived: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    alone: bool = False
    weighed: bool = False
    censored: bool = False
    declared: tuple[tuple[str, int], ...] = ()
    local: tuple[str, ...] = ()
    code: str = ""

    @property
    def support(self) -> tuple[float, ...]:
        """Values of the one observed number, if few: scores are bounded over all of them."""
        return self.values if self.alone and len(self.values) <= MOST_RESPONSES else ()

    @property
    def unbiased(self) -> bool:
        """Whether clipped scores have mean zero at the truth."""
        return bool(self.support) or self.weighed or self.censored

    def call(self, batch: Mapping[str, Any], public: Mapping[str, Any]):
        """Call the model on a batch of records."""
        return self.called(self.model, batch, public)

    def called(self, function, batch, public):
        """Call a function as the model is called: with arrays of JAX, never of NumPy.

        A response that is not there is None, where its argument has no default.
        """
        given, public = jax.tree.map(jnp.asarray, (dict(batch), dict(public)))
        names = [name for name, *_ in self.fields]
        own = [name for name in names if name in given]
        if len(own) < len(given):
            raise ValueError(
                f"The model was fitted to records of {self._listed(names)}, not of "
                f"{self._listed(given)}: pass them in the form that fit was given."
            )
        positional = [given[name] for name in own if name.isdigit()]
        named = {name: given[name] for name in own if not name.isdigit()}
        arguments = inspect.signature(function).parameters
        by_place = {str(place): name for place, name in enumerate(arguments)}
        missing = [name for name in names if name not in given]
        for name in missing:
            argument = arguments.get(by_place.get(name, name))
            if argument is not None and argument.default is inspect.Parameter.empty:
                named[argument.name] = None
        with _AllOfTheBatch(len(given[own[0]])):
            try:
                return function(*positional, **named, **dict(self.constants), **public)
            except Exception as error:  # of the user's code: None may raise anything
                if not missing or isinstance(error, NotImplementedError):
                    raise
                raise ValueError(
                    f"The model raises an error without {self._listed(missing)}: {error} Records "
                    "need all that it takes but the response, which is None where it is missing."
                ) from error

    @staticmethod
    def _listed(names: Iterable[str]) -> str:
        """Arguments as a message names them."""
        return ", ".join(("X", "y")[int(x)] if x in ("0", "1") else repr(x) for x in names)

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
        floats = any(kind == "float32" for _, _, kind in self.fields)
        hint = _OF_LEVELS if floats and "integer" in str(error) else self.hint
        return ValueError(
            f"The function {name!r} raises an error if it is called with {n} made-up records, "
            f"arrays of shapes {shapes}: {error}\n{hint}"
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
        return self._filled(n, lambda shape: rng.uniform(0, 0.2, shape))

    def made_up_normal(self, n: int = 128) -> dict[str, Any]:
        """Batch of `n` public records: sizes of standard normal numbers, zero in other fields.

        Positive, since a model may take their logarithms.
        """
        rng = np.random.default_rng(0)
        return self._filled(n, lambda shape: np.abs(rng.standard_normal(shape)))

    def _filled(self, n: int, numbers: Callable[[tuple[int, ...]], np.ndarray]) -> dict[str, Any]:
        return {
            name: (numbers((n, *shape)) * (dtype == "float32")).astype(dtype)
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


class Observed(Messenger):
    """Gives an observed site another value."""

    def __init__(self, name, value):
        super().__init__()
        self._name, self._value = name, value

    def process_message(self, msg):
        """Put the value in place."""
        if msg["name"] == self._name:
            msg["value"] = jnp.broadcast_to(self._value, jnp.shape(msg["value"]))


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


def normal_coordinates(law, value):
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
    return normal_coordinates(law.base_dist, value)


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


def log_probability(sites):
    """Log probability of the observed sites of a trace."""
    total = jnp.zeros((), jnp.float32)
    for site in sites.values():
        if site["type"] == "sample" and site["is_observed"]:
            with validation_enabled(False):
                log = site["fn"].log_prob(site["value"])
            total = total + jnp.sum(log if site["scale"] is None else site["scale"] * log)
    return total


def one_if_possible(log: jax.Array, sites: Mapping[str, Any], record: Any) -> jax.Array:
    """One; NaN if a record of this log-likelihood can have none, and then adds to no sum.

    A record with NaN or infinity has none, whatever the model makes of it: cast to an integer it
    would be a level. Beyond their support, many laws go on to a finite density. A count may be a
    fraction, as in quasi-likelihoods, and a positive number zero, if its density is finite there.
    """
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(record)]
    possible = reduce(jnp.logical_and, finite, jnp.isfinite(log))
    for site in sites.values():
        if site["type"] == "sample" and site["is_observed"]:
            possible &= _in_support(site["fn"], site["value"])
    return jnp.where(possible, 1, jnp.nan)


def _in_support(law, value):
    law = inner_law(law)
    support = None if isinstance(law, dist.MaskedDistribution) else law.support
    if support is None or law.event_shape:
        return True
    if support.is_discrete:
        return jnp.all(support(jnp.floor(value)))
    near = (jnp.where(value == 0, tiny, value) for tiny in (0, _TINY, -_TINY))
    return jnp.all(reduce(jnp.logical_or, map(support, near)))
