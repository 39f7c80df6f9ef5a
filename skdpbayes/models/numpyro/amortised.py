"""NumPyro models with latent variables of single records, or with parameters without a prior.

The guide draws the latent variables z of a record from a law that is a function of the record (an
amortised guide, as the encoder of an auto-encoder is: Kingma and Welling 2014). Sites that are
`numpyro.param`, of the model and of the guide, are fitted as points. A record contributes the
gradient of its term of the evidence lower bound at one draw,

    log p(x | z, theta) + log p(z | theta) - log q(z | x, theta),

in the coordinates of the latent sites theta outside of the plate of records, and in those
parameters that the term depends on. Nothing of a record outlives its round: its z is drawn anew,
with a key that is a function of the round and of the record alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from skdpbayes.models.latent_noise import record_key
from skdpbayes.models.numpyro.model import NumPyroModel, coordinates
from skdpbayes.models.numpyro.program import (
    one_if_possible,
    site_law,
    traced,
    transform_of,
    with_parameters,
)
from skdpbayes.models.protocols import Number, Params, Record
from skdpbayes.pytrees import pytree

Sites = Mapping[str, Any]


class _Keyed(Messenger):
    """Draws with keys that follow from the site's name, and whether it is one of records."""

    def __init__(self, plates, of_records, of_others):
        super().__init__()
        self._plates, self._of_records, self._of_others = plates, of_records, of_others

    def process_message(self, msg):
        """Set the key of a draw."""
        if msg["type"] == "prng_key":
            raise ValueError(
                "Model or guide asks for numpyro.prng_key(), as dropout does: a record's "
                "contribution would depend on other random numbers than those of its latent sites. "
                "Leave it out."
            )
        if msg["type"] == "sample" and msg["value"] is None:
            key = self._of_records if is_local(msg, self._plates) else self._of_others
            msg["kwargs"]["rng_key"] = jax.random.fold_in(key, zlib.crc32(msg["name"].encode()))


def is_local(site: Mapping[str, Any], plates) -> bool:
    """Whether a site is in a plate of records."""
    return any(frame.name in plates for frame in site["cond_indep_stack"])


def log_probability_of(site: Mapping[str, Any]) -> jax.Array:
    """Log probability of the value of a site, scaled as the site is."""
    with jax.enable_x64(False):
        log = jnp.sum(site_law(site).log_prob(site["value"]))
        return log if site["scale"] is None else site["scale"] * log


def total(terms: Iterable[jax.Array]) -> jax.Array:
    """Sum of terms in single precision."""
    return sum(terms, jnp.zeros((), jnp.float32))


@pytree
@dataclass(frozen=True)
class Amortised:
    """A model with its amortised guide, as a function of coordinates and parameters.

    Parameters of the fit are a dict of ``sites``, the coordinates of latent sites as of
    `NumPyroModel`, and ``points``, a list of the arrays of those `numpyro.param` that a record's
    term depends on, unconstrained and over their units. They have no prior.

    Attributes
    ----------
    guide : callable
        Called as the model is.
    plates : tuple of str
        Plates of the records, in model and guide.
    read : tuple of bool
        Whether the term of a record depends on each array in `start`.
    model : NumPyroModel
    start : dict of pytrees
        Unconstrained values of the parameters of model and guide, by name.
    unit : list of numbers
        Unit of each array in `start`; steps are relative to it.
    score_unit : float
        Norm of a typical score; clipping norms are relative to it.
    key : key or None
        Key of a round's latent variables; None: a fixed, public one.
    """

    guide: Callable[..., Any] = field(metadata={"static": True})
    plates: tuple[str, ...] = field(metadata={"static": True})
    read: tuple[bool, ...] = field(metadata={"static": True})
    model: NumPyroModel
    start: Any
    unit: Any
    score_unit: Number = 1.0
    key: Any = None

    @property
    def program(self):
        """Program of the model."""
        return self.model.program

    def init(self) -> Params:
        """Centre of the prior, and where the parameters start."""
        return self.point(self.model.init(), self.scaled_start())

    def scaled_start(self) -> list[jax.Array]:
        """Arrays of `start` over their units."""
        arrays = jax.tree.leaves(self.start)
        return [x / unit for x, unit in zip(arrays, self.unit, strict=True)]

    def point(self, sites: Params, scaled: list[jax.Array]) -> Params:
        """Parameters of the fit, from all arrays over their units."""
        return {"sites": sites, "points": [x for x, r in zip(scaled, self.read, strict=True) if r]}

    def named(self, scaled: list[jax.Array]) -> dict[str, Any]:
        """Unconstrained parameters by name, from all arrays over their units."""
        arrays = [x * unit for x, unit in zip(scaled, self.unit, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.start), arrays)

    def at(self, scaled: list[jax.Array]) -> Amortised:
        """The model at other parameters."""
        values = self.named(scaled)
        return replace(self, start=values, model=replace(self.model, fixed=values))

    def drawn(self, key):
        """The model, with the latent variables' key of one round."""
        return replace(self, key=key)

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Term of one record in the evidence lower bound, at one draw of its latent variables."""
        moved = iter(params["points"])
        arrays = self.scaled_start()
        own = self.at([next(moved) if r else x for x, r in zip(arrays, self.read, strict=True)])
        key = jax.random.key(0) if self.key is None else self.key
        batch = jax.tree.map(lambda x: x[None], record)
        return own.term(own.latent_values(params["sites"]), batch, own.key_of(record, key))

    def score_norm(self, params: Params, record: Record) -> jax.Array:
        """Norm of a record's score."""
        score = jax.grad(self.log_likelihood)(params, record)
        return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(score)))

    def natural(self, posterior):
        """The posterior itself, of the coordinates."""
        return posterior

    def latent_values(self, coordinates: Params) -> dict[str, jax.Array]:
        """Values of the latent sites outside of the plate of records."""
        if not self.program.sites:
            return {}
        values = self.model.values(coordinates)
        return {site.name: values[site.name] for site in self.program.sites}

    def key_of(self, record: Record, key: jax.Array) -> jax.Array:
        """Key of a record's latent variables."""
        return record_key(key, (record[name] for name, *_ in self.program.fields if name in record))

    def term(self, latent: Mapping[str, Any], batch: Record, key: jax.Array) -> jax.Array:
        """Term of a batch of one record in the evidence lower bound."""
        guide = self.guided(latent, batch, key)
        model = self.modelled(latent, batch, local_values(guide, self.program.local))
        gained = total(log_probability_of(site) for site in model.values() if self._counts(site))
        spent = [log_probability_of(guide[name]) for name in self.program.local]
        return (gained - total(spent)) * one_if_possible(gained, model, batch)

    def guided(self, latent: Mapping[str, Any], batch: Record, key: jax.Array) -> Sites:
        """Sites of the guide, its latent sites outside of the plate of records given."""
        with traced(
            _Keyed(self.plates, key, key),
            handlers.substitute(data=dict(latent)),
            with_parameters(self.start),
        ) as sites:
            self.program.called(self.guide, batch, self.model.public)
        return sites

    def modelled(self, latent: Mapping[str, Any], batch: Record, local: Mapping[str, Any]) -> Sites:
        """Sites of the model, all latent ones given."""
        given = handlers.substitute(data={**latent, **local})
        with traced(_Keyed(self.plates, None, None), given) as sites:  # no site is left to draw
            self.model.call(batch)
        return sites

    def _counts(self, site):
        local = site["name"] in self.program.local
        return site["type"] == "sample" and (site["is_observed"] or local)

    def constrained_parameters(self) -> dict[str, Any]:
        """Parameters in their own units, by name, as NumPy arrays."""
        batch, found = self.program.example(1), dict[str, Any]()
        latent = self.latent_values(self.model.init())
        guide = self.guided(latent, batch, jax.random.key(0))
        model = self.modelled(latent, batch, local_values(guide, self.program.local))
        for sites in (model, guide):
            found |= {n: transform_of(s) for n, s in sites.items() if s["type"] == "param"}
        values = {name: found[name](x) for name, x in self.start.items()}
        return jax.tree.map(np.asarray, values)


@pytree
@dataclass(frozen=True)
class AmortisedGuide:
    """The guide outside of the plate of records, and the parameters of model and guide.

    Attributes
    ----------
    model : Amortised
    """

    model: Amortised

    def init(self) -> Params:
        """All arrays of parameters over their units."""
        return self.model.scaled_start()

    def draw(self, parameters, key):
        """Point of `Amortised`, and ``log p - log q`` of the sites outside of the plate."""
        own = self.model.at(parameters)
        program = own.program
        if not program.sites:
            return own.point({}, parameters), jnp.zeros((), jnp.float32)
        of_guide, of_rest = jax.random.split(key)
        sites = own.guided({}, program.example(1), of_guide)
        drawn = [s for s in sites.values() if s["type"] == "sample" and not s["is_observed"]]
        drawn = [s for s in drawn if not is_local(s, own.plates)]
        known = {site.name for site in program.sites}
        values = {s["name"]: s["value"] for s in drawn if s["name"] in known}
        params, log_prior = coordinates(own.model, values, of_rest)
        log_guide = total(map(log_probability_of, drawn))
        return own.point(params, parameters), log_prior - log_guide

    def latents(self, params: Params) -> Params:
        """Coordinates of the latent sites, which have a posterior."""
        return params["sites"]


def local_values(sites: Sites, names) -> dict[str, jax.Array]:
    """Values of latent sites of single records."""
    return {name: sites[name]["value"] for name in names}
