"""Reading a NumPyro model: its sites, and refusals, by site, of models that cannot be private.

A model is traced on shapes alone, and on made-up records: user code sees no real record here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoGuide
from numpyro.primitives import Messenger

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.models.numpyro.amortised import (
    Amortised,
    is_local,
    local_values,
    log_probability_of,
    total,
)
from skdpbayes.models.numpyro.guide import NOT_REPARAMETRISED
from skdpbayes.models.numpyro.laws import (
    is_binary,
    is_categorical,
    is_censored,
    n_responses,
    parted,
    points,
)
from skdpbayes.models.numpyro.model import NumPyroModel
from skdpbayes.models.numpyro.predict import axis_of_records
from skdpbayes.models.numpyro.program import (
    MOST_RESPONSES,
    Program,
    Site,
    log_probability,
    normal_shape,
    site_law,
    traced,
    unconstrained,
)
from skdpbayes.models.numpyro.traces import has_loops, known_by, refuse_primitives

_PRIOR_DRAWS = 2000
_MOST_TOGETHER = 16  # observed numbers of a record whose laws are known
_MOST_SCORES = (
    2**15
)  # entries of their possible scores, of which memory holds those of many records


class _Improper(Messenger):
    """Sets improper sites to zero, so that a trace completes."""

    def process_message(self, msg):
        """Replace a draw by zeros."""
        if msg["type"] == "sample" and msg["value"] is None and _improper(msg["fn"]):
            msg["value"] = jnp.zeros(msg["fn"].shape(), jnp.float32)


def read_model(
    program: Program, public: Mapping[str, Any], guide: Callable[..., Any] | None = None
) -> tuple[NumPyroModel | Amortised, list[Any]]:
    """Read the sites of a model, from shapes and made-up records alone.

    Parameters
    ----------
    program : Program
        Without its sites.
    public : dict of arrays
    guide : callable, optional
        The user's own, if there is one. The model may then have latent sites in the plate of
        records, and sites that are `numpyro.param`.

    Returns
    -------
    model : NumPyroModel or Amortised
    constants : list of arrays
        That the model's code holds itself.

    Raises
    ------
    ValueError
        If the model cannot be private, or is no sum over records; the message names the site.
    """
    two, three = (_shapes(program, public, n) for n in (2, 3))
    plates = {name: (two.plates[name], args) for name, args in three.plates.items()}
    data = {name for name, args in plates.items() if tuple(map(_places, args)) == (2, 3)}
    fixed = {name: size for name, ((other, _), (size, _)) in plates.items() if size == other}
    for name, (_, (size, subsample)) in plates.items():
        if subsample not in (None, size) and not (name in data and name in fixed):
            raise ValueError(
                f"Plate {name!r} takes a subsample of {subsample} out of {size}, but the fit draws "
                "the batches, with the records of a batch as arguments. For the plate of the "
                f"records write {program.plate_line(name)}."
            )
    if not data:
        raise ValueError(_without_a_plate(program, three))
    declared = tuple((name, fixed[name]) for name in fixed if name in data)
    for unknown in three.unknown:
        raise ValueError(unknown)
    for name, parameter in three.parameters.items():
        if guide is None:
            raise ValueError(_POINT.format(name=name))
        _refuse_parameter_of_records(name, parameter, two.parameters.get(name), data)
    local: list[str] = []
    latent: dict[str, tuple[int, ...]] = {}
    observed: list[str] = []
    for name, site in three.sites.items():
        own = [plate for plate in site.plates if plate in data]
        if len(own) > 1:
            raise ValueError(
                f"Site {name!r} is in two plates of records, {own}: each site may belong to one "
                "record."
            )
        if site.observed and not own:
            raise ValueError(
                f"Site {name!r} is observed (or a factor) outside of the plate of records, "
                f"{_listed(data)}: what is "
                "no sum over records cannot be made private. If it is public, make it part of a "
                "prior."
            )
        if not site.observed and own:
            if guide is None:
                raise ValueError(
                    f"Site {name!r} is a latent variable in the plate of records, "
                    f"{_listed(data)}: one for each record. Integrate it out (a mixture: "
                    "numpyro.distributions.MixtureSameFamily), or pass a guide that draws it given "
                    "the record, which solver='dpvi' takes (docs/amortised.md). If it is the "
                    "response, pass it to fit."
                )
            if not site.continuous:
                raise ValueError(
                    f"Latent site {name!r} ({site.law}) is discrete or improper: guides are fitted "
                    "by gradients. Integrate it out."
                )
            local.append(name)
        elif site.observed:
            observed.append(name)
        else:
            latent[name] = _shape_of_latent(name, site, two.sites.get(name))
    if not observed:
        raise ValueError(
            "The model observes nothing: give an argument as `obs` to a site in the plate of "
            "records."
        )
    amortised = bool(local or three.parameters)
    if not latent and not amortised:
        raise ValueError(
            "The model has no latent site outside of the plate of records: there is nothing to "
            "learn."
        )
    sites = tuple(
        Site(name, shape, three.sites[name].normal, three.sites[name].axes)
        for name, shape in latent.items()
    )
    values = three.sites[observed[0]].values if len(observed) == 1 else ()
    program = replace(
        program,
        sites=sites,
        observed=tuple(observed),
        values=values,
        declared=declared,
        local=tuple(local),
    )
    program = known_by(program, two.computed)
    if amortised:
        assert guide is not None
        return _read_amortised(program, public, guide, three, set(data))
    program = replace(program, **_responses_of(program, public)._asdict())
    model = NumPyroModel(program, public, {})
    if not all(site.normal for site in sites):
        model = replace(model, affine=_centred(model))
    programs, response = _programs(model), _response(model)
    if response is not None and has_loops(response):
        program = replace(program, weighed=False)  # it would take as long as a record says
    elif response is not None:
        programs.append(response)
    constants = refuse_primitives(programs)
    program = known_by(program, programs)
    model = replace(model, program=program)
    derived = _check_sums(model, _of_two, three.derived)
    return replace(model, program=replace(program, derived=derived)), constants


def _read_amortised(program, public, guide, found, plates):
    """Read the guide of a model that needs an amortised one; checks as of other models."""
    if program.local and isinstance(guide, AutoGuide):
        raise ValueError(
            f"{type(guide).__name__} has parameters for each record, of the sites "
            f"{_listed(program.local)}: what is fitted for one record cannot be released. Write a "
            "guide that draws them given the record (docs/amortised.md)."
        )
    two, three = (_shapes(replace(program, model=guide), public, n) for n in (2, 3))
    own = {
        n for n, args in three.plates.items() if (_places(two.plates[n]), _places(args)) == (2, 3)
    }
    plates = tuple(sorted(plates | own))
    program = known_by(program, two.computed)
    for unknown in three.unknown:
        raise ValueError(f"In the guide: {unknown}")
    for name, parameter in three.parameters.items():
        _refuse_parameter_of_records(name, parameter, two.parameters.get(name), plates)
    known = {site.name for site in program.sites}
    for name, site in three.sites.items():
        inside = any(plate in plates for plate in site.plates)
        if name in (program.local if inside else known):
            if not site.reparametrised:
                raise ValueError(NOT_REPARAMETRISED.format(name=name, law=site.law))
        elif not (site.auxiliary and not inside):
            raise ValueError(
                f"The guide draws {name!r} {'in' if inside else 'outside of'} the plate of records,"
                f" where the model has no such latent site: in it are {_listed(program.local)}, "
                f"outside of it {_listed(known)}."
            )
    missing = [name for name in program.local if name not in three.sites]
    if missing:
        raise ValueError(
            f"The guide does not draw {_listed(missing)}, latent in the plate of records: it must "
            "draw each such site given the record, in a plate as large as the batch."
        )
    start = _starts(program, public, guide)
    if not start:
        raise ValueError("Neither model nor guide has a numpyro.param: there is nothing to fit.")
    free = any(not site.normal for site in program.sites)
    model = NumPyroModel(program, public, {}, fixed=start)
    model = replace(model, affine=_centred(model) if free else {})
    arrays = jax.tree.leaves(start)
    unit = [_unit(x) for x in arrays]
    learnt = Amortised(guide, plates, (True,) * len(arrays), model, start, unit)
    learnt = replace(learnt, read=_read(learnt))
    functions = [
        lambda params, record: learnt.log_likelihood(params, record),
        jax.grad(learnt.log_likelihood),
    ]
    record = jax.tree.map(lambda x: x[0], program.example(1))
    programs = [jax.make_jaxpr(function)(learnt.init(), record) for function in functions]
    constants = refuse_primitives(programs)
    program = known_by(program, programs)
    learnt = replace(learnt, model=replace(model, program=program))
    derived = _check_sums(learnt, _terms_of_two, found.derived)
    program = replace(program, derived=derived)
    return replace(learnt, model=replace(learnt.model, program=program)), constants


def _starts(program, public, guide):
    """Unconstrained starting values of all parameters, of one call of guide and model."""
    start: dict[str, Any] = {}
    for function in (program.model, guide):  # a shared parameter starts where the guide says
        with traced(handlers.seed(rng_seed=0), _Improper()) as sites:
            program.called(function, program.example(1), public)
        own = {n: s for n, s in sites.items() if s["type"] == "param"}
        start |= {name: unconstrained(site) for name, site in own.items()}
    return start


def _unit(start):
    """Root mean square of a matrix at the start; 1 for other arrays."""
    size = np.sqrt(np.mean(np.square(np.asarray(start, float)))) if start.ndim > 1 else 0.0
    return np.float32(size if np.isfinite(size) and size > 0 else 1)


def _read(learnt):
    """Which arrays of parameters the term of a record depends on."""
    record = jax.tree.map(lambda x: x[0], learnt.program.example(1))
    point = learnt.init()

    def term(points, record):
        return learnt.log_likelihood({"sites": point["sites"], "points": points}, record)

    program = jax.make_jaxpr(term)(point["points"], record).jaxpr
    _, used = dce_jaxpr(program, [True])
    return tuple(used[: len(point["points"])])


def _refuse_parameter_of_records(name, parameter, other, plates):
    """Raise if a parameter has a value for each record."""
    if any(plate in plates for plate in parameter.plates) or (
        other is None or other.shapes != parameter.shapes
    ):
        raise ValueError(
            f"Parameter {name!r} has a value for each record: what is fitted for one record cannot "
            "be released. Make it a function of the record, as an encoder is (docs/amortised.md)."
        )
    if not all(kind == "f" for _, kind in parameter.shapes):
        raise ValueError(f"Parameter {name!r} must be made of floating-point arrays.")


def _places(args):
    """Places of a plate: its subsample, or all."""
    size, subsample = args
    return size if subsample is None else subsample


def _without_a_plate(program, shapes):
    """Error of a model without a plate of records; it names the plates that might be meant."""
    for site in shapes.sites.values():
        for name in site.plates if site.observed else ():
            return _of_fixed_size(program, name, _places(shapes.plates[name]))
    return (
        "No plate of the model is as large as the batch of records that it is called with. Put the "
        f"sites of the records into `with {program.plate_line('data')}:`."
    )


def _of_fixed_size(program, name, size):
    return (
        f"Plate {name!r} has {size} places, whatever the number of records that the model is "
        "called with, but the model is called with batches of records. Write "
        f"{program.plate_line(name)}."
    )


@jax.enable_x64(False)  # as the model's code is traced, and so the rules of its derivatives
def _programs(model):
    """Jaxprs of the likelihood of one record, of its derivatives, and of a bound of its own.

    Other bounds are the length of that gradient, or of the law of the response (`_response`).
    """
    record = jax.tree.map(lambda x: x[0], model.program.example(1))
    flat, unravel = ravel_pytree(model.init())
    likelihood = jax.make_jaxpr(lambda x, r: model.log_likelihood(unravel(x), r))(flat, record)

    def again(flat, record):  # and not the model's code, which takes longer
        return jaxpr_as_fun(likelihood)(flat, *jax.tree.leaves(record))[0]

    functions = [jax.grad(again), jax.hessian(again)]
    if model.program.support or model.program.censored:
        functions.append(lambda x, r: model.score_bound(unravel(x), r))
    return [likelihood, *(jax.make_jaxpr(function)(flat, record) for function in functions)]


def _response(model):
    """Jaxpr of what is asked of the laws of the responses, with means and variances; or None.

    It is traced anew: what was traced before may be of a global that has changed.
    """
    if not model.known_responses:
        return None
    record = jax.tree.map(lambda x: x[0], model.program.example(1))
    traced_anew = partial(type(model).response.__wrapped__, model)
    return jax.make_jaxpr(traced_anew)(model.init(), record)


class _SiteShape(NamedTuple):
    observed: bool
    plates: tuple[str, ...]
    shape: (
        tuple[int, ...] | None
    )  # of the coordinates; None: the prior cannot be had in coordinates
    normal: bool
    law: str
    values: tuple[float, ...] = ()  # whose probabilities are predictions
    axes: tuple[str, ...] = ()
    continuous: bool = True  # and proper
    reparametrised: bool = True
    auxiliary: bool = False


class _Parameter(NamedTuple):
    """A `numpyro.param`: its plates, and shapes and kinds of its arrays."""

    plates: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], str], ...]


class _Shapes(NamedTuple):
    """Result of one trace."""

    sites: dict[str, _SiteShape]
    plates: dict[str, tuple[int, int | None]]
    derived: list[str]
    unknown: list[str]
    parameters: dict[str, _Parameter]
    computed: list[ClosedJaxpr]  # one: of all that a program may take from the sites


class _Resized(Messenger):
    """Gives a plate as many places as there are records."""

    def __init__(self, name, n):
        super().__init__()
        self._name, self._n = name, n

    def process_message(self, msg):
        """Put other indices in place of the plate's."""
        if msg["type"] == "plate" and msg["name"] == self._name:
            msg["value"] = jnp.arange(self._n)


def _shapes(program, public, n) -> _Shapes:
    """Trace a model on the shapes of `n` records."""
    found = _Shapes({}, {}, [], [], {}, [])
    try:
        _trace(program, public, n, found)
    except jax.errors.JAXTypeError as error:
        raise ValueError(
            "The model looks at values (as `if x > 0` or `float(x)` do), but it is compiled, and "
            "sees shapes alone. "
            f"Use jax.numpy.where or jax.lax. JAX says: {str(error).splitlines()[0]}"
        ) from error
    except Exception as error:  # the user's own, with what they cannot know
        for name, args in found.plates.items():
            if _fits(program, public, n, name):
                raise ValueError(_of_fixed_size(program, name, _places(args))) from error
        if isinstance(error, TypeError | ValueError):  # of shapes, most of them
            raise program.failed(program.model, n, error) from error
        error.add_note(program.hint)
        raise
    return found


def _trace(program, public, n, found, *handlers_):
    """Trace a model, and fill in what is found; plates also if the model raises."""

    def call(batch, public):
        with traced(handlers.seed(rng_seed=0), _Improper(), *handlers_) as sites:
            try:
                program.call(batch, public)
            finally:
                plates = {n: site["args"] for n, site in sites.items() if site["type"] == "plate"}
                found.plates.update(plates)
        for name, site in sites.items():
            _tell(found, name, site)
        return {name: _computed(site) for name, site in sites.items()}

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "subsample_size", UserWarning)  # such a plate is refused
        found.computed.append(jax.make_jaxpr(call)(program.example(n), public))


def _computed(site):
    """Value of a site, and its log density."""
    if site["type"] != "sample" or _improper(site["fn"]):
        return [x for x in jax.tree.leaves(site["value"]) if isinstance(x, jax.Array)]
    return site["value"], log_probability_of(site)


def _fits(program, public, n, name):
    """Whether the model can be traced once one of its plates has a place for each record."""
    try:
        _trace(program, public, n, _Shapes({}, {}, [], [], {}, []), _Resized(name, n))
    except Exception:
        return False
    return True


def _tell(found: _Shapes, name: str, site: Mapping[str, Any]) -> None:
    """Add a traced site."""
    kind = site["type"]
    if kind == "plate":
        return
    if kind == "deterministic":
        found.derived.append(name)
    elif kind == "sample":
        found.sites[name] = _site_shape(name, site)
    elif kind == "param":
        arrays = jax.tree.leaves(site["value"])
        shapes = tuple((jnp.shape(x), np.dtype(jnp.result_type(x)).kind) for x in arrays)
        plates = tuple(frame.name for frame in site["cond_indep_stack"])
        found.parameters[name] = _Parameter(plates, shapes)
    elif kind != "prng_key":  # which other calls than those for parameters refuse
        found.unknown.append(_UNKNOWN.format(name=name, kind=kind))


_POINT = (
    "Site {name!r} is a numpyro.param, of the model itself: it has no prior. Give it one by "
    "numpyro.sample, or pass a guide of your own, and solver='dpvi' fits it as a point "
    "(docs/amortised.md)."
)
_UNKNOWN = (
    "Site {name!r} is of a kind, {kind!r}, that cannot be taken apart into records. Allowed "
    "are sample, deterministic, plate and param."
)


class _Responses(NamedTuple):
    """What is known of the laws of the observed numbers: fields of `Program`."""

    alone: bool
    weighed: bool
    censored: bool


def _responses_of(program, public):
    """What is known of the laws of the observed numbers.

    Several are independent given the rest of a record only if no law reads one of them, and none
    is known that is a function of latent sites.
    """
    static, batch = [], program.example(1)

    def observed(key, batch, public):
        with traced(handlers.seed(rng_seed=key)) as sites:
            program.call(batch, public)
        own = [sites[name] for name in program.observed]
        static.append(_responses_at(own))
        return [site["value"] for site in own], [jax.tree.leaves(site["fn"]) for site in own]

    key = jax.random.key(0)
    jaxpr, (values, _) = jax.make_jaxpr(observed, return_shape=True)(key, batch, public)
    (found,), records = static, slice(1, 1 + len(jax.tree.leaves(batch)))
    of_values = _inputs_read(jaxpr.jaxpr, slice(len(values)))
    of_laws = _inputs_read(jaxpr.jaxpr, slice(len(values), None))
    shared = not found.alone and np.any(np.logical_and(of_values[records], of_laws[records]))
    latent = of_values[0]  # latent sites are drawn with the key
    return found._replace(weighed=found.weighed and not shared and not latent)


def _responses_at(sites):
    """What the laws of the observed sites of a trace say, each by itself."""
    laws = [site["fn"] for site in sites]
    plain = all(site["scale"] is None for site in sites)
    fits = all(np.shape(site["value"]) == site["fn"].shape() for site in sites)
    many = [n_responses(law) for law in laws]
    alone = len(sites) == 1 and np.size(sites[0]["value"]) == 1
    known = plain and fits and min(many) > 0 and sum(many) <= _MOST_TOGETHER
    if known:
        # Of shapes alone: what a law computes of its moments is looked at elsewhere.
        values = sum(many) * max(len(jax.eval_shape(points, law)[0]) for law in laws)
        known = values * sum(parted(law)[0].size for law in laws) <= _MOST_SCORES
    # The score of a single label is bounded over both values, and intervals are narrower.
    known = known and not (alone and is_binary(laws[0]))
    return _Responses(alone, known, alone and plain and is_censored(laws[0]))


def _inputs_read(jaxpr, outputs):
    """Which inputs some outputs depend on."""
    asked = np.zeros(len(jaxpr.outvars), bool)
    asked[outputs] = True
    return dce_jaxpr(jaxpr, asked.tolist())[1]


def _site_shape(name, site):
    law, plates = site_law(site), tuple(frame.name for frame in site["cond_indep_stack"])
    if site["is_observed"]:
        return _SiteShape(True, plates, None, False, type(law).__name__, _values(law))
    shape = normal_shape(law) if site["scale"] is None else None
    normal, continuous = shape is not None, not law.support.is_discrete and not _improper(law)
    if not normal and continuous and site["scale"] is None:
        shape = biject_to(law.support).inverse_shape(law.shape())
    axes = _axes(name, law, site["cond_indep_stack"])
    return _SiteShape(
        False,
        plates,
        shape,
        normal,
        type(law).__name__,
        axes=axes,
        continuous=continuous,
        reparametrised=law.has_rsample,
        auxiliary=bool(site["infer"].get("is_auxiliary")),
    )


def _axes(name, law, frames):
    """Names of the first axes of a site, up to the last one of a plate."""
    of_plates = {frame.dim: frame.name for frame in frames}
    n, last = len(law.batch_shape), max(of_plates, default=-len(law.batch_shape) - 1)
    dims = range(-n, last + 1)
    return tuple(of_plates.get(dim, f"{name}_dim_{n + dim}") for dim in dims)


def _values(law):
    """Values that a distribution of single numbers may take; none if many, unless categories."""
    if law.event_shape or not law.has_enumerate_support:
        return ()
    try:
        with jax.ensure_compile_time_eval():
            values = np.ravel(law.enumerate_support(expand=False))
    except (jax.errors.JAXTypeError, NotImplementedError):  # they depend on the record
        return ()
    few = len(values) <= MOST_RESPONSES
    return tuple(values.tolist()) if few or is_categorical(law) else ()


@runtime_checkable
class _Wrapper(Protocol):
    """Distribution made of another one."""

    base_dist: Any


def _improper(law: Any) -> bool:
    while isinstance(law, _Wrapper):
        law = law.base_dist
    return isinstance(law, dist.ImproperUniform)


def _shape_of_latent(name, site, other):
    """Shape of the coordinates; raises if there are none, or if it depends on the batch size."""
    if site.shape is None:
        raise ValueError(
            f"Latent site {name!r} ({site.law}) is discrete, improper or scaled: solvers take "
            "gradients, and private "
            "ones need a proper prior. Integrate a discrete one out, give an improper one a wide "
            "normal prior."
        )
    if other is None or other.shape != site.shape:
        raise ValueError(f"Latent site {name!r} has a shape that depends on the number of records.")
    return tuple(site.shape)


def _listed(names):
    return ", ".join(map(repr, sorted(names)))


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _prior_draws(model, keys):
    """Unconstrained values of sites that are not normal, of draws of the prior."""

    def one(key):
        with traced(handlers.seed(rng_seed=key)) as sites:
            model.call(model.program.example(1))
        free = [site.name for site in model.program.sites if not site.normal]
        return {
            name: biject_to(site_law(sites[name]).support).inv(sites[name]["value"])
            for name in free
        }

    return jax.vmap(one)(keys)


def _centred(model):
    """Normal centre and spread with the 5% and 95% quantiles of each unconstrained prior."""
    keys = jax.random.split(jax.random.key(0), _PRIOR_DRAWS)
    quantile = 1.6448536

    def affine(name, draws):
        low, high = np.nanquantile(np.asarray(draws, float), [0.05, 0.95], axis=0).astype(
            np.float32
        )
        if not (np.isfinite(low) & (high > low)).all():
            raise ValueError(
                f"The prior of site {name!r} cannot be drawn from: draws are not finite, or all "
                "equal."
            )
        return (low + high) / 2, (high - low) / (2 * quantile)

    draws = _prior_draws(model, keys)
    return {name: affine(name, values) for name, values in draws.items()}


def _made_up_pairs(program):
    """Pairs of batches of one made-up record each: of fractions, and of zeros and ones."""
    rng = np.random.default_rng(0)

    def fractions(example):
        if example.dtype.kind == "f":
            return rng.uniform(0.1, 0.9, example.shape).astype(example.dtype)
        return whole(example)

    def whole(example):
        return rng.integers(0, 2, example.shape).astype(example.dtype)

    for made_up in (fractions, whole):
        yield [jax.tree.map(made_up, program.example(1)) for _ in range(2)]


def _somewhere(model):
    """A draw of the coordinates from a standard normal law."""
    leaves, treedef = jax.tree.flatten(model.init())
    rng = np.random.default_rng(0)
    draws = [jnp.asarray(rng.standard_normal(np.shape(x), np.float32)) for x in leaves]
    return jax.tree.unflatten(treedef, draws)


def _of_two(model, two, one, other):
    """Facts of two made-up records, together and each alone, at a draw of the prior."""
    return tuple(_facts(model, batch) for batch in (two, one, other))


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _facts(model, batch):
    """Log-likelihood of a batch, log prior, and values of deterministic sites."""
    placed, sites = model.traced(_somewhere(model), batch)
    return log_probability(sites)[None], placed.log_prior, _values_of_derived(sites)


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _terms_of_two(learnt, two, one, other):
    """As `_of_two`, with one draw of the latent sites of each record, and their laws."""
    coordinates = _somewhere(learnt.model)
    latent, local = learnt.latent_values(coordinates), learnt.program.local
    keys = jax.random.split(jax.random.key(0))

    def drawn(batch, key):
        guide = learnt.guided(latent, batch, key)
        axes = {name: axis_of_records(guide[name], learnt.plates) for name in local}
        return local_values(guide, local), axes

    def said(batch, own):
        guide = learnt.guided(latent | own, batch, keys[0])
        model = learnt.modelled(latent, batch, own)
        of_records = [site for site in model.values() if site["type"] == "sample"]
        of_records = [site for site in of_records if is_local(site, learnt.plates)]
        of_model = total(map(log_probability_of, of_records))
        of_guide = total(log_probability_of(guide[name]) for name in local)
        others = [model[name] for name in latent]
        others += [guide[name] for name in latent if name in guide]
        prior = total(map(log_probability_of, others))
        return jnp.stack([of_model, of_guide]), prior, _values_of_derived(model)

    (first, axes), (second, _) = drawn(one, keys[0]), drawn(other, keys[1])
    both = {n: jnp.concatenate([first[n], second[n]], axis=axes[n]) for n in local}
    return said(two, both), said(one, first), said(other, second)


def _values_of_derived(sites):
    return {name: site["value"] for name, site in sites.items() if _derived(site)}


def _derived(site):
    return site["type"] == "deterministic"


def _check_sums(model, of_two, derived):
    """`_check_sum` of each made-up pair; outside of a law's support nothing can be seen."""
    for pair in _made_up_pairs(model.program):
        two = jax.tree.map(lambda *x: np.concatenate(x), *pair)
        derived = _check_sum(of_two(model, two, *pair), derived)
    return derived


def _check_sum(facts, derived):
    """Raise unless the likelihood is a sum over records and the prior does not depend on them.

    Returns
    -------
    names : tuple of str
        Deterministic sites that do not depend on records either.
    """
    both, *alone = jax.device_get(facts)
    with np.errstate(invalid="ignore"):  # densities of made-up records may be infinite
        together, apart = both[0], alone[0][0] + alone[1][0]
    priors = [x[1] for x in (both, *alone)]
    finite = np.isfinite(together) & np.isfinite(apart)
    for both_said, each_said in zip(together[finite], apart[finite], strict=True):
        if abs(both_said - each_said) <= 1e-3 * (1 + abs(each_said)):
            continue
        raise ValueError(
            f"The log-likelihood of two records ({both_said:.6g}) is not the sum of theirs "
            f"({each_said:.6g}): a record's likelihood, or the guide's law of its latent sites, "
            "depends on other records, as it does when arguments are centred by their mean."
        )
    if not np.allclose(priors, priors[0], rtol=1e-4, atol=1e-4):
        raise ValueError(
            "The prior depends on records, or the guide outside of their plate does; make what it "
            "needs a public argument."
        )
    values = [x[2] for x in (both, *alone)]
    same = [n for n in derived if all(np.shape(v[n]) == np.shape(values[0][n]) for v in values)]
    return tuple(n for n in same if all(np.allclose(v[n], values[0][n], atol=1e-6) for v in values))
