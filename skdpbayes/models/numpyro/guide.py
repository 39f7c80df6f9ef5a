"""Guides that users write in NumPyro: draws of the coordinates of a `NumPyroModel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers

from skdpbayes.models.numpyro.model import NumPyroModel, coordinates
from skdpbayes.models.numpyro.program import traced, unconstrained, with_parameters
from skdpbayes.models.protocols import Params
from skdpbayes.pytrees import pytree

NOT_REPARAMETRISED = (
    "The guide draws {name!r} from a distribution without a reparametrised sampler, {law}: "
    "gradients cannot pass. Take a normal distribution, and transform it."
)


@pytree
@dataclass(frozen=True)
class NumPyroGuide:
    """A guide for the latent sites of a model; those that it leaves out are drawn from their prior.

    Attributes
    ----------
    guide : callable
        Called as the model is.
    model : NumPyroModel
    start : dict of arrays
        Unconstrained values of the guide's parameters.
    """

    guide: Callable[..., Any] = field(metadata={"static": True})
    model: NumPyroModel
    start: Any

    def init(self) -> Params:
        """Unconstrained parameters."""
        return self.start

    def draw(self, parameters, key):
        """Coordinates, and ``log p - log q`` of what the guide covers."""
        of_guide, of_rest = jax.random.split(key)
        sites = _trace(self.guide, self.model, of_guide, parameters)
        drawn = {name: site for name, site in sites.items() if site["type"] == "sample"}
        known = {site.name for site in self.model.program.sites}
        values = {name: site["value"] for name, site in drawn.items() if name in known}
        params, log_prior = coordinates(self.model, values, of_rest)
        log_guide = sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in drawn.values())
        return params, log_prior - log_guide

    def latents(self, params: Params) -> Params:
        """The coordinates themselves: all have a posterior."""
        return params


def _trace(guide, model, key, parameters):
    """Sites of the guide, given unconstrained values of its parameters."""
    with traced(handlers.seed(rng_seed=key), with_parameters(parameters)) as sites:
        model.program.called(guide, model.program.example(1), model.public)
    return sites


def read_guide(guide: Callable[..., Any], model: NumPyroModel) -> NumPyroGuide:
    """Find a guide's parameters, from made-up records alone.

    Raises
    ------
    ValueError
        If the guide has a site that the model has not, a latent site of single records, or one
        without a gradient; the message names it.
    """
    try:
        sites = _trace(guide, model, jax.random.key(0), {})
    except (TypeError, ValueError) as error:
        raise model.program.failed(guide, 1, error) from error
    known = {site.name for site in model.program.sites}
    for name, site in sites.items():
        if site["type"] != "sample":
            continue
        if name not in known and not site["infer"].get("is_auxiliary"):
            raise ValueError(
                f"The guide draws {name!r}, which is no latent site of the model outside of the "
                "plate of records: "
                f"those are {', '.join(map(repr, sorted(known)))}."
            )
        if not site["is_observed"] and not site["fn"].has_rsample:
            law = type(site["fn"]).__name__
            raise ValueError(NOT_REPARAMETRISED.format(name=name, law=law))
    parameters = {name: site for name, site in sites.items() if site["type"] == "param"}
    if not parameters:
        raise ValueError("The guide has no numpyro.param: there is nothing to fit.")
    start = {name: unconstrained(site) for name, site in parameters.items()}
    return NumPyroGuide(guide, model, start)
