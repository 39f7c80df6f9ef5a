"""Predictions of NumPyro models at posterior draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpyro import handlers

from skdpbayes.models.numpyro.program import log_probability, traced

_AT_A_TIME = 10  # values whose probabilities are computed together


def at_draw(model, draws, batch):
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
            return log_probability(at_draw(model, values, jax.tree.map(lambda x: x[None], record)))

        return jax.vmap(of_record)(batch)

    return jax.lax.map(one, draws)


@jax.jit
def mean_response(model, draws, batch):
    """Posterior mean of the response's probabilities (values last axis) or of its mean."""

    def one(values):
        return _told(model, values, batch)

    shape = jax.eval_shape(one, jax.tree.map(lambda x: x[0], draws)).shape
    total, _ = jax.lax.scan(
        lambda total, values: (total + one(values), None), jnp.zeros(shape), draws
    )
    return total / len(next(iter(draws.values())))


@jax.jit
def probabilities(model, draws, batch):
    """Probabilities of the response's values at each draw, (n_draws, n_records, n_values)."""
    return jax.lax.map(lambda values: _told(model, values, batch), draws)


@jax.jit
def responses(model, draws, batch, seed):
    """A response of each record at each draw, (n_draws, n_records, ...).

    All records share the random numbers, so that a record's draws do not depend on other records.
    """
    (name,) = model.program.observed

    def one(values, key):
        def of_record(record):
            law = at_draw(model, values, jax.tree.map(lambda x: x[None], record))[name]["fn"]
            return law.sample(key)[0]

        return jax.vmap(of_record)(batch)

    keys = jax.random.split(jax.random.key(seed), len(next(iter(draws.values()))))
    return jax.lax.map(lambda args: one(*args), (draws, keys))


def _told(model, values, batch):
    """Probabilities of the response's values, last axis, or its mean, at one draw."""
    (name,) = model.program.observed
    law = at_draw(model, values, batch)[name]["fn"]
    if not model.program.values:
        return law.mean
    support = law.enumerate_support(expand=False)
    log = jax.lax.map(law.log_prob, support, batch_size=min(len(support), _AT_A_TIME))
    return jnp.exp(jnp.moveaxis(log, 0, -1))
