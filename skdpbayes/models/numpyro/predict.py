"""Predictions of NumPyro models at posterior draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpyro import handlers

from skdpbayes.models.numpyro.program import log_probability, traced


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
    (name,) = model.program.observed

    def one(values):
        law = at_draw(model, values, batch)[name]["fn"]
        if not model.program.support:
            return law.mean
        return jnp.exp(jnp.moveaxis(law.log_prob(law.enumerate_support(expand=False)), 0, -1))

    shape = jax.eval_shape(one, jax.tree.map(lambda x: x[0], draws)).shape
    total, _ = jax.lax.scan(
        lambda total, values: (total + one(values), None), jnp.zeros(shape), draws
    )
    return total / len(next(iter(draws.values())))
