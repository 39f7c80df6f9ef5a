"""Hierarchical logistic regression by d3p 0.2.0: runs in d3p's own environment, and is started by
``benchmarks.d3p_hierarchical``.

The data are ``x``, of shape (sets, n, d), ``y`` and ``group``, of shape (sets, n), and ``features``
of the groups, of shape (sets, n_groups, k). What d3p released is the location of the effects, which
is what the authors' script scores.

The model is that of d3p's paper (equation 5, listing 4). The guide, too, has a normal distribution
for each effect and none for the groups' weights, which are drawn about their mean; it starts at
standard normal draws, as in the script.
"""

from __future__ import annotations

import functools
import warnings

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from d3p_runs import run
from numpyro import param, plate, sample
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import Adam


def model(x, y, group, features, n):
    """Logistic regression with weights by group; `x`, `y` and `group` are a batch of n."""
    shape = x.shape[1], features.shape[1]
    effects = sample("effects", dist.Normal(0.0, 4.0).expand(shape).to_event(2))
    with plate("groups", len(features)):
        weights = sample("weights", dist.Normal(features @ effects.T, 1.0).to_event(1))
    with plate("rows", n, len(x)):
        sample("y", dist.BernoulliLogits(jnp.einsum("nd,nd->n", x, weights[group])), obs=y)


def guide(x, y, group, features, n):
    """Independent normal distributions of the effects."""
    shape = x.shape[1], features.shape[1]

    def start(key):
        return jax.random.normal(key, shape)

    location, log_scale = param("location", start), param("log_scale", start)
    sample("effects", dist.Normal(location, jnp.exp(log_scale)).to_event(2))


@functools.cache
def fitter(n, iterations, batch, clip, rate, private):
    """A compiled fit: rows, features, key and noise to parameters; noise is traced."""

    @jax.jit
    def fit(rows, features, key, noise):
        start, batches = d3p.random.split(key, 2)
        if private:
            svi = DPSVI(model, guide, Adam(rate), Trace_ELBO(), clip, noise, features=features, n=n)
        else:
            svi = SVI(model, guide, Adam(rate), Trace_ELBO(), features=features, n=n)
            start = d3p.random.convert_to_jax_rng_key(start)
        state = svi.init(start, *(x[:1] for x in rows))
        _, fetch = subsample_batchify_data(rows, batch)  # without replacement within a batch

        def step(i, state):
            return svi.update(state, *fetch(i, batches))[0]

        return svi.get_params(jax.lax.fori_loop(0, iterations, step, state))

    return fit


def fit_one(entry, arrays, i):
    """Parameters of the guide; the location. Noise of null is none, and no clipping either."""
    rows = (
        jnp.asarray(arrays["x"], jnp.float32),
        jnp.asarray(arrays["y"], jnp.float32),
        jnp.asarray(arrays["group"]),
    )
    private = entry["noise"] is not None
    settings = (entry[name] for name in ("iterations", "batch", "clip", "rate"))
    fit = fitter(len(arrays["x"]), *settings, private)
    features = jnp.asarray(arrays["features"], jnp.float32)
    params = fit(rows, features, d3p.random.PRNGKey(i), entry["noise"] if private else 0.0)
    return params, lambda: {"location": np.asarray(params["location"], float).tolist()}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Found vars in model but not guide")  # as in the paper
    run(fit_one)
