"""Models that users write in NumPyro: what they are made of, and their likelihood as a function of one record.

A model is traced on shapes alone, and on records of zeros: user code never sees a real record outside of the private
sum. Latent sites get coordinates in which their prior is standard normal: exactly where a site is normal given its
parents (``loc + scale z``, which also decentres hierarchies), and about so elsewhere (the unconstrained value, less the
centre of its prior and over its spread, both from draws of the prior). Clipping norms and steps then mean the same for
all sites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

_KNOWN_TYPES = ("sample", "deterministic", "plate")
_PRIOR_DRAWS = 2000
_MOST_RESPONSES = 10
_MORE_THAN_ONE_RECORD = re.compile(r".*callback.*|debug_.*|.*ffi_call|infeed|outfeed|while|custom_vmap_call")


class Site(NamedTuple):
    """A latent site; `shape` is that of its coordinates, `normal` whether it is normal given its parents."""

    name: str
    shape: tuple[int, ...]
    normal: bool


@contextmanager
def traced(*handlers_: Any) -> Iterator[dict[str, Any]]:
    """Sites of what runs inside, under handlers: without validation and in single precision, as NumPyro's users do."""
    with jax.enable_x64(False), validation_enabled(False), handlers.trace() as sites, ExitStack() as stack:
        for handler in handlers_:
            stack.enter_context(handler)
        yield sites


@dataclass(frozen=True)
class Program:
    """A NumPyro model, how it is called, and what it is made of; hashable and public.

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
    few : bool
        Whether there is one observed site and it has few values.
    """

    model: Callable[..., Any]
    fields: tuple[tuple[str, tuple[int, ...], str], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    sites: tuple[Site, ...] = ()
    derived: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    few: bool = False

    def call(self, batch: Mapping[str, Any], public: Mapping[str, Any]):
        """Call the model on a batch of records."""
        return self.called(self.model, batch, public)

    def called(self, function, batch, public):
        """Call a function as the model is called."""
        positional = [batch[name] for name, *_ in self.fields if name.isdigit() and name in batch]
        named = {name: batch[name] for name, *_ in self.fields if not name.isdigit() and name in batch}
        return function(*positional, **named, **dict(self.constants), **public)

    def example(self, n: int) -> dict[str, Any]:
        """A batch of `n` made-up records: zeros and, in fields of floats, one half, which most responses may be."""
        return {
            name: np.full((n, *shape), 0.5 if dtype == "float32" else 0, dtype) for name, shape, dtype in self.fields
        }


class _Placed(Messenger):
    """Gives latent sites the values that their coordinates stand for, and sums the log density of the coordinates."""

    def __init__(self, sites, params, affine):
        super().__init__()
        self._sites, self._params, self._affine = {site.name: site for site in sites}, params, affine
        self.values, self.log_prior = {}, jnp.zeros((), jnp.float32)

    def process_message(self, msg):
        """Put the value in place of a draw."""
        site = self._sites.get(msg["name"])
        if site is None or msg["type"] != "sample":
            return
        z, law = self._params[site.name], _law(msg)
        if site.normal:
            value, log_density = _normal_value(law, z), -jnp.sum(z**2) / 2
        else:
            centre, spread = self._affine[site.name]
            free, transform = centre + spread * z, biject_to(law.support)
            value = transform(free)
            log_density = jnp.sum(law.log_prob(value)) + jnp.sum(transform.log_abs_det_jacobian(free, value))
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


class _Improper(Messenger):
    """Gives sites that cannot be drawn some value, so that a trace gets to its end."""

    def process_message(self, msg):
        """Put zeros in the place of a draw."""
        if msg["type"] == "sample" and msg["value"] is None and _improper(msg["fn"]):
            msg["value"] = jnp.zeros(msg["fn"].shape(), jnp.float32)


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


def _law(site):
    """Distribution of a site, of the shape of its value."""
    shape = site["kwargs"].get("sample_shape", ())
    return site["fn"].expand_by(shape) if shape else site["fn"]


def _normal_value(law, z):
    """Value of a distribution made of normal ones, at standard normal coordinates; None for another one."""
    if isinstance(law, dist.Independent | dist.ExpandedDistribution):
        return _normal_value(law.base_dist, z)
    if isinstance(law, dist.Normal):
        return law.loc + law.scale * z
    if isinstance(law, dist.MultivariateNormal):
        return law.loc + jnp.einsum("...ij,...j->...i", law.scale_tril, z)
    if isinstance(law, dist.TransformedDistribution):
        value = _normal_value(law.base_dist, z)
        for transform in law.transforms if value is not None else ():
            value = transform(value)
        return value
    return None


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


def _normal_shape(law):
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NumPyroModel:
    """A user's model as a function of coordinates: a dict of arrays, by latent site.

    Attributes
    ----------
    program : Program
    public : dict of arrays
        Arguments that are no records.
    affine : dict of (centre, spread)
        Of the unconstrained prior of sites that are not normal given their parents.
    score_unit : float
        Norm of a usual score, which clipping norms are relative to.
    """

    program: Program = field(metadata={"static": True})
    public: Any
    affine: Any
    score_unit: Any = 1.0

    def init(self):
        """Centre of the prior."""
        return {site.name: jnp.zeros(site.shape, jnp.float32) for site in self.program.sites}

    def log_prior(self, params):
        """Log density of the coordinates, up to a constant."""
        placed, _ = self._traced(params, self.program.example(1))
        return placed.log_prior

    def log_likelihood(self, params, record):
        """Log-likelihood of one record: of the observed sites, with a batch that holds nothing else."""
        _, sites = self._traced(params, jax.tree.map(lambda x: x[None], record))
        return log_probability(sites)

    def score_norm(self, params, record):
        """Norm of a record's score."""
        return _norm(jax.grad(self.log_likelihood)(params, record))

    def score_bound(self, params, record):
        """Largest norm of a score over all responses, where those are few.

        Else the norm of the score itself, so that what is clipped has its weight in the curvature too.
        """
        if not self.program.few:
            return self.score_norm(params, record)
        batch = jax.tree.map(lambda x: x[None], record)

        (response,) = self.program.observed

        def norm(value):
            def log_likelihood(params):
                with _Observed(response, value):
                    return log_probability(self._traced(params, batch)[1])

            return _norm(jax.grad(log_likelihood)(params))

        law = self._traced(params, batch)[1][response]["fn"]
        values = law.enumerate_support(expand=False)
        return jnp.max(jax.vmap(norm)(values))

    def natural(self, posterior):
        """The posterior itself."""
        return posterior

    def prior_precision(self):
        """Ones."""
        return jax.tree.map(jnp.ones_like, self.init())

    def values(self, params):
        """Values of the latent sites, and of deterministic ones that are functions of them."""
        placed, sites = self._traced(params, self.program.example(1))
        return placed.values | {name: sites[name]["value"] for name in self.program.derived}

    def constrained(self, draws):
        """`values` of draws of shape (n, n_parameters), as NumPy arrays."""
        unravel = ravel_pytree(self.init())[1]
        return jax.tree.map(np.asarray, _values(self, jax.vmap(unravel)(jnp.asarray(draws, jnp.float32))))

    def _traced(self, params, batch):
        placed = _Placed(self.program.sites, params, self.affine)
        with traced(placed) as sites:
            self.program.call(batch, self.public)
        return placed, sites


@jax.jit
def _values(model, params):
    return jax.vmap(model.values)(params)


def log_probability(sites):
    """Log probability of the observed sites of a trace."""
    total = jnp.zeros((), jnp.float32)
    for site in sites.values():
        if site["type"] == "sample" and site["is_observed"]:
            own = jnp.sum(site["fn"].log_prob(site["value"]))
            total = total + (own if site["scale"] is None else site["scale"] * own)
    return total


def coordinates(model: NumPyroModel, values: Mapping[str, Any], key):
    """Coordinates of values of latent sites, and the log prior of those sites.

    Sites without a value are drawn from their prior given the others.
    """
    with traced(handlers.seed(rng_seed=key), handlers.substitute(data=values)) as sites:
        model.program.call(model.program.example(1), model.public)
    params, log_prior = {}, jnp.zeros((), jnp.float32)
    for site in model.program.sites:
        law, value = _law(sites[site.name]), sites[site.name]["value"]
        if site.normal:
            params[site.name] = _normal_coordinates(law, value)
        else:
            centre, spread = model.affine[site.name]
            params[site.name] = (biject_to(law.support).inv(value) - centre) / spread
        if site.name in values:
            log_prior = log_prior + jnp.sum(law.log_prob(value))
    return params, log_prior


# -------------------------------------------------------------------------- predictions


def _at_draws(model, draws, batch):
    """Sites of a trace at the values of latent sites of one draw."""
    latent = handlers.substitute(data={site.name: draws[site.name] for site in model.program.sites})
    with traced(handlers.seed(rng_seed=0), latent) as sites:
        model.program.call(batch, model.public)
    return sites


@jax.jit
def log_densities(model, draws, batch):
    """Log-likelihood of each record at each draw, (n_draws, n_records)."""

    def one(values):
        def of_record(record):
            return log_probability(_at_draws(model, values, jax.tree.map(lambda x: x[None], record)))

        return jax.vmap(of_record)(batch)

    return jax.lax.map(one, draws)


@jax.jit
def mean_response(model, draws, batch):
    """Posterior mean of the response's probabilities (values last), if it has few values; else of its mean."""
    (name,) = model.program.observed

    def one(values):
        law = _at_draws(model, values, batch)[name]["fn"]
        if not model.program.few:
            return law.mean
        support = law.enumerate_support(expand=False)
        return jnp.exp(jnp.moveaxis(law.log_prob(support), 0, -1))

    total = jax.lax.fori_loop(
        0,
        len(jax.tree.leaves(draws)[0]),
        lambda i, total: total + one(jax.tree.map(lambda x: x[i], draws)),
        jnp.zeros(jax.eval_shape(one, jax.tree.map(lambda x: x[0], draws)).shape),
    )
    return total / len(jax.tree.leaves(draws)[0])


# ---------------------------------------------------------------------- reading a model


def read_model(program: Program, public: Mapping[str, Any]) -> NumPyroModel:
    """Find out what a model is made of, from shapes and made-up records alone.

    Parameters
    ----------
    program : Program
        Without its sites.
    public : dict of arrays

    Raises
    ------
    ValueError
        If the model cannot be private, or is no sum over records; the message names the site.
    """
    two, three = (_shapes(program, public, n) for n in (2, 3))
    plates = {name: (size[0], three.plates[name][0]) for name, size in two.plates.items() if name in three.plates}
    subsampled = [name for name, size in three.plates.items() if size[1] not in (None, size[0])]
    if subsampled:
        raise ValueError(
            f"Plate {subsampled[0]!r} has a size of its own and a subsample: batches are drawn by the fit, with the "
            f"records of a batch as arguments. Write numpyro.plate({subsampled[0]!r}, len(x))."
        )
    data = {name for name, sizes in plates.items() if sizes == (2, 3)}
    if not data:
        raise ValueError(
            "No plate of the model is as large as the batch of records that it is called with. Put the sites of the "
            "records into `with numpyro.plate('data', len(x)):`, where x is an argument."
        )
    for unknown in three.unknown:
        raise ValueError(unknown)
    latent: dict[str, tuple[int, ...]] = {}
    observed: list[str] = []
    for name, site in three.sites.items():
        own = [plate for plate in site.plates if plate in data]
        if len(own) > 1:
            raise ValueError(f"Site {name!r} is in two plates of records, {own}: each site may belong to one record.")
        if site.observed and not own:
            raise ValueError(
                f"Site {name!r} is observed (or a factor) outside of the plate of records, {_listed(data)}: what is "
                "no sum over records cannot be made private. If it is public, make it part of a prior."
            )
        if not site.observed and own:
            raise ValueError(
                f"Site {name!r} is a latent variable in the plate of records, {_listed(data)}: one for each record. "
                "Integrate it out (a mixture: numpyro.distributions.MixtureSameFamily). If it is the response, "
                "pass it to fit."
            )
        if site.observed:
            observed.append(name)
        else:
            latent[name] = _shape_of_latent(name, site, two.sites.get(name))
    if not observed:
        raise ValueError("The model observes nothing: give an argument as `obs` to a site in the plate of records.")
    if not latent:
        raise ValueError("The model has no latent site outside of the plate of records: there is nothing to learn.")
    sites = tuple(Site(name, shape, three.sites[name].normal) for name, shape in latent.items())
    few = len(observed) == 1 and three.sites[observed[0]].few
    program = replace(program, sites=sites, observed=tuple(observed), few=few)
    affine = _centred(program, public) if not all(site.normal for site in sites) else {}
    model = NumPyroModel(program, public, affine)
    _refuse_what_sees_more(model)
    derived = _check_sum(model, three.derived)
    return replace(model, program=replace(program, derived=derived))


def _programs(model):
    """What is compiled of the likelihood: of one record, with its derivatives."""
    record = jax.tree.map(lambda x: x[0], model.program.example(1))
    flat, unravel = ravel_pytree(model.init())

    def of_flat(flat, record):
        return model.log_likelihood(unravel(flat), record)

    functions = [of_flat, jax.grad(of_flat), jax.hessian(of_flat), lambda x, r: model.score_bound(unravel(x), r)]
    return [jax.make_jaxpr(function)(flat, record) for function in functions]


def _primitives(jaxpr):
    """Names of the operations, those inside of others included."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _primitives(inner)


def constants_of(model: NumPyroModel):
    """Arrays that the model's code holds itself."""
    return [x for x in _programs(model)[0].consts if np.ndim(x)]


def _refuse_what_sees_more(model):
    """Raise if the compiled likelihood would hand out values, run for as long as a record says, or see a batch."""
    found = {name for program in _programs(model) for name in _primitives(program.jaxpr)}
    for name in sorted(found):
        if _MORE_THAN_ONE_RECORD.fullmatch(name):
            raise ValueError(
                f"The model has an operation {name!r}: callbacks see records, loops of no fixed length run for as long "
                "as a record says, and rules for batches see other records. Use jax.lax.fori_loop with a fixed number "
                "of steps, or jax.lax.scan, and print what was released."
            )


class _SiteShape(NamedTuple):
    observed: bool
    plates: tuple[str, ...]
    shape: tuple[int, ...] | None  # of the coordinates; None: the prior cannot be had in coordinates
    normal: bool
    law: str
    few: bool = False  # values that it may take


class _Shapes(NamedTuple):
    """What one trace tells."""

    sites: dict[str, _SiteShape]
    plates: dict[str, tuple[int, int | None]]
    derived: list[str]
    unknown: list[str]


def _shapes(program, public, n) -> _Shapes:
    """Trace a model on `n` records of which only the shapes exist."""
    found = _Shapes({}, {}, [], [])

    def trace(batch, public):
        with traced(handlers.seed(rng_seed=0), _Improper()) as sites:
            program.call(batch, public)
        for name, site in sites.items():
            kind = site["type"]
            if kind == "plate":
                found.plates[name] = site["args"]
            elif kind == "deterministic":
                found.derived.append(name)
            elif kind == "sample":
                found.sites[name] = _site_shape(site)
            else:
                found.unknown.append(_UNKNOWN.get(kind, _UNKNOWN["other"]).format(name=name, kind=kind))

    try:
        jax.eval_shape(trace, program.example(n), public)
    except jax.errors.JAXTypeError as error:
        raise ValueError(
            "The model looks at values (as `if x > 0` or `float(x)` do), but it is compiled, and sees shapes alone. "
            f"Use jax.numpy.where or jax.lax. JAX says: {str(error).splitlines()[0]}"
        ) from error
    return found


_UNKNOWN = {
    "param": "Site {name!r} is a numpyro.param, of the model itself: it has no prior. Give it one by numpyro.sample.",
    "other": "Site {name!r} is of a kind, {kind!r}, that cannot be taken apart into records. Allowed are sample, "
    "deterministic and plate.",
}


def _site_shape(site):
    law, plates = _law(site), tuple(frame.name for frame in site["cond_indep_stack"])
    if site["is_observed"]:
        return _SiteShape(True, plates, None, False, type(law).__name__, _few(law))
    shape = _normal_shape(law) if site["scale"] is None else None
    normal = shape is not None
    if not normal and not law.support.is_discrete and not _improper(law) and site["scale"] is None:
        shape = biject_to(law.support).inverse_shape(law.shape())
    return _SiteShape(False, plates, shape, normal, type(law).__name__)


def _few(law):
    """Whether a distribution of single numbers has few possible values."""
    if law.event_shape or not law.has_enumerate_support:
        return False
    try:
        return law.enumerate_support(expand=False).shape[0] <= _MOST_RESPONSES
    except (jax.errors.JAXTypeError, NotImplementedError):  # a number of values that depends on the record
        return False


def _improper(law):
    while hasattr(law, "base_dist"):
        law = law.base_dist
    return isinstance(law, dist.ImproperUniform)


def _shape_of_latent(name, site, other):
    """Shape of the coordinates; raises if there are none, or if it depends on the number of records."""
    if site.shape is None:
        raise ValueError(
            f"Latent site {name!r} ({site.law}) is discrete, improper or scaled: solvers take gradients, and private "
            "ones need a proper prior. Integrate a discrete one out, give an improper one a wide normal prior."
        )
    if other is None or other.shape != site.shape:
        raise ValueError(f"Latent site {name!r} has a shape that depends on the number of records.")
    return tuple(site.shape)


def _listed(names):
    return ", ".join(map(repr, sorted(names)))


@jax.jit
def _prior_draws(model, keys):
    """Unconstrained values of sites that are not normal, of draws of the prior."""

    def one(key):
        with traced(handlers.seed(rng_seed=key)) as sites:
            model.program.call(model.program.example(1), model.public)
        free = [site.name for site in model.program.sites if not site.normal]
        return {name: biject_to(_law(sites[name]).support).inv(sites[name]["value"]) for name in free}

    return jax.vmap(one)(keys)


def _centred(program, public):
    """Centre and spread of the normal distribution with the 5% and 95% quantiles of each unconstrained prior."""
    keys = jax.random.split(jax.random.key(0), _PRIOR_DRAWS)
    quantile = 1.6448536

    def affine(name, draws):
        low, high = np.nanquantile(np.asarray(draws, float), [0.05, 0.95], axis=0).astype(np.float32)
        if not (np.isfinite(low) & (high > low)).all():
            raise ValueError(f"The prior of site {name!r} cannot be drawn from: draws are not finite, or all equal.")
        return (low + high) / 2, (high - low) / (2 * quantile)

    draws = _prior_draws(NumPyroModel(program, public, {}), keys)
    return {name: affine(name, values) for name, values in draws.items()}


@jax.jit
def _of_two(model, one, other):
    """What two made-up records, and each alone, say at a draw of the prior."""
    leaves, treedef = jax.tree.flatten(model.init())
    keys = jax.random.split(jax.random.key(0), len(leaves))
    draws = [jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, leaves, strict=True)]
    params = jax.tree.unflatten(treedef, draws)

    def said(batch):
        placed, sites = model._traced(params, batch)
        return log_probability(sites), placed.log_prior, {n: s["value"] for n, s in sites.items() if _derived(s)}

    both = jax.tree.map(lambda *x: jnp.concatenate(x), one, other)
    return said(both), said(one), said(other)


def _derived(site):
    return site["type"] == "deterministic"


def _check_sum(model, derived):
    """Raise unless the likelihood is a sum over records and the prior does not depend on them.

    Returns
    -------
    names : tuple of str
        Deterministic sites that do not depend on records either.
    """
    rng = np.random.default_rng(0)

    def made_up(example):
        if example.dtype.kind == "f":
            return rng.uniform(0.1, 0.9, example.shape).astype(example.dtype)
        return rng.integers(0, 2, example.shape).astype(example.dtype)

    one, other = (jax.tree.map(made_up, model.program.example(1)) for _ in range(2))
    both, *alone = jax.device_get(_of_two(model, one, other))
    together, apart, priors = both[0], alone[0][0] + alone[1][0], [x[1] for x in (both, *alone)]
    if np.isfinite(together) and np.isfinite(apart) and abs(together - apart) > 1e-3 * (1 + abs(apart)):
        raise ValueError(
            f"The log-likelihood of two records ({together:.6g}) is not the sum of theirs ({apart:.6g}): a record's "
            "likelihood depends on other records, as it does when arguments are centred by their mean."
        )
    if not np.allclose(priors, priors[0], rtol=1e-4, atol=1e-4):
        raise ValueError("The prior depends on records; make what it needs a public argument.")
    values = [x[2] for x in (both, *alone)]
    same = [n for n in derived if all(np.shape(v[n]) == np.shape(values[0][n]) for v in values)]
    return tuple(n for n in same if all(np.allclose(v[n], values[0][n], atol=1e-6) for v in values))
