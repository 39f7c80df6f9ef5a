"""Predictions of NumPyro models at posterior draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr
from numpyro import handlers

from skdpbayes.models.numpyro.laws import CENSORED, inner_law
from skdpbayes.models.numpyro.program import log_probability, traced

_AT_A_TIME = 10  # values whose probabilities are computed together


DRAW = "index of the draw"
"""Entry of `draws`, beside the latent sites: one number for each draw."""


def at_draw(model, draws, batch, key=0):
    """Sites of a trace at the values of latent sites of one draw.

    Latent sites of single records are drawn from their prior.
    """
    with traced(handlers.seed(rng_seed=key), _latent(model, draws)) as sites:
        model.call(batch)
    return sites


def _latent(model, draws):
    return handlers.substitute(data={site.name: draws[site.name] for site in model.program.sites})


@jax.jit
def log_weights(learnt, draws, batch):
    """Log importance weight of each record at each draw, (n_draws, n_records).

    The joint density of a record and of latent variables drawn by the guide, over the guide's. The
    mean of the weights is an unbiased estimate of the record's density (Burda, Grosse and
    Salakhutdinov 2016), the mean of their logarithms one of the evidence lower bound.
    """

    def one(values):
        latent = {site.name: values[site.name] for site in learnt.program.sites}
        key = jax.random.fold_in(jax.random.key(0), values[DRAW])

        def of_record(record):
            batch = jax.tree.map(lambda x: x[None], record)
            return learnt.term(latent, batch, learnt.key_of(record, key))

        return jax.vmap(of_record)(batch)

    return jax.lax.map(one, draws)


@jax.jit
def local_means(learnt, draws, batch):
    """Means of the guide's laws of the latent sites of each record, averaged over draws."""

    def one(values):
        latent = {site.name: values[site.name] for site in learnt.program.sites}

        def of_record(record):
            batch = jax.tree.map(lambda x: x[None], record)
            sites = learnt.guided(latent, batch, jax.random.key(0))
            axes = {n: axis_of_records(sites[n], learnt.plates) for n in learnt.program.local}
            means = {
                n: jnp.broadcast_to(sites[n]["fn"].mean, sites[n]["value"].shape) for n in axes
            }
            return {n: jnp.squeeze(means[n], axis) for n, axis in axes.items()}

        return jax.vmap(of_record)(batch)

    return jax.tree.map(lambda x: x.mean(axis=0), jax.lax.map(one, draws))


def axis_of_records(site, plates):
    """Axis of a site's value along which records lie."""
    (dim,) = (frame.dim for frame in site["cond_indep_stack"] if frame.name in plates)
    return dim - site["fn"].event_dim


def synthetic(model, values, batch, key):
    """Observed sites of one new record, at one draw of the latent sites."""
    handlers_ = (handlers.seed(rng_seed=key), _latent(model, values), handlers.uncondition())
    with traced(*handlers_) as sites:
        model.call(batch)
    return {name: sites[name]["value"][0] for name in model.program.observed}


def reads_records(model, draws):
    """Whether the law of new records depends on the values of those that the model is given."""
    one = jax.tree.map(lambda x: x[0], draws)

    def drawn(batch):
        return synthetic(model, one, batch, jax.random.key(0))

    program = jax.make_jaxpr(drawn)(model.program.example(1)).jaxpr
    return any(dce_jaxpr(program, [True] * len(program.outvars))[1])


@jax.jit
def new_records(model, draws, keys):
    """A new record for each draw of the latent sites."""
    batch = model.program.example(1)
    return jax.lax.map(lambda args: synthetic(model, args[0], batch, args[1]), (draws, keys))


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
        return _predicted_apart(model, values, batch)

    shape = jax.eval_shape(one, jax.tree.map(lambda x: x[0], draws)).shape
    total, _ = jax.lax.scan(
        lambda total, values: (total + one(values), None), jnp.zeros(shape), draws
    )
    return total / len(next(iter(draws.values())))


@jax.jit
def probabilities(model, draws, batch):
    """Probabilities of the response's values at each draw, (n_draws, n_records, n_values)."""
    return jax.lax.map(lambda values: _predicted_apart(model, values, batch), draws)


@jax.jit
def responses(model, draws, batch, seed):
    """A response of each record at each draw, (n_draws, n_records, ...).

    All records share the random numbers, so that a record's draws do not depend on other records.
    """
    (name,) = model.program.observed

    def one(values, key):
        def of_record(record):
            batch = jax.tree.map(lambda x: x[None], record)
            law = at_draw(model, values, batch, _key_of(key))[name]["fn"]
            return law.sample(key)[0]

        return jax.vmap(of_record)(batch)

    keys = jax.random.split(jax.random.key(seed), len(next(iter(draws.values()))))
    return jax.lax.map(lambda args: one(*args), (draws, keys))


def _uncensored(law):
    """The law of a response itself, whether or not it would be seen; of its shape."""
    inner = inner_law(law)
    return inner.base_dist.expand(law.shape()) if isinstance(inner, CENSORED) else law


def _key_of(draw):
    """Key of the latent sites of records, from that of a draw."""
    return jax.random.fold_in(draw, 1)


def _predicted_apart(model, values, batch):
    """As `_predicted`; records share the random numbers, so that none depends on others."""
    if not model.program.local:
        return _predicted(model, values, batch, 0)
    key = _key_of(jax.random.fold_in(jax.random.key(0), values[DRAW]))

    def of_record(record):
        return _predicted(model, values, jax.tree.map(lambda x: x[None], record), key)[0]

    return jax.vmap(of_record)(batch)


def _predicted(model, values, batch, key):
    """Probabilities of the response's values, last axis, or its mean, at one draw."""
    (name,) = model.program.observed
    law = at_draw(model, values, batch, key)[name]["fn"]
    if not model.program.values:
        return _uncensored(law).mean
    support = law.enumerate_support(expand=False)
    log = jax.lax.map(law.log_prob, support, batch_size=min(len(support), _AT_A_TIME))
    return jnp.exp(jnp.moveaxis(log, 0, -1))
