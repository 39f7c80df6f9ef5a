"""Gaussian mixtures by d3p 0.2.0, in d3p's own environment, for ``benchmarks.d3p_mixture``.

The data are ``rows``, of shape (sets, n, d); what d3p released are medians and draws.

The model is that of d3p's paper (appendix A): ``d3p.gmm.GaussianMixture`` with labels summed out, a
Dirichlet prior of the weights, normal means and inverse gamma scales; the guide is NumPyro's
diagonal normal, as in the authors' script.
"""

from __future__ import annotations

import functools

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from d3p.gmm import GaussianMixture
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from d3p_runs import run
from numpyro import plate, sample
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.optim import Adam

SITES = ("weights", "means", "scales")
N_DRAWS = 50


def model(rows, k, n, prior):
    """Spherical mixture of k components; `rows` is a batch of n, `prior` the scale of the means."""
    weights = sample("weights", dist.Dirichlet(jnp.ones(k)))
    means = sample("means", dist.Normal(0.0, prior).expand((k, rows.shape[1])).to_event(2))
    scales = sample("scales", dist.InverseGamma(1.0, 1.0).expand((k,)).to_event(1))
    with plate("rows", n, len(rows)):
        sample("observed", GaussianMixture(means, scales, weights), obs=rows)


@functools.cache
def fitter(k, n, iterations, batch, clip, rate, prior):
    """The guide, and its compiled fit: rows, key and noise to parameters; noise is traced."""
    guide = AutoDiagonalNormal(model)

    @jax.jit
    def fit(rows, key, noise):
        start, batches = d3p.random.split(key, 2)
        svi = DPSVI(model, guide, Adam(rate), Trace_ELBO(), clip, noise, k=k, n=n, prior=prior)
        state = svi.init(start, rows[:1])
        _, fetch = subsample_batchify_data((rows,), batch)  # without replacement within a batch

        def step(i, state):
            return svi.update(state, *fetch(i, batches))[0]

        return svi.get_params(jax.lax.fori_loop(0, iterations, step, state))

    return guide, fit


def lists(sites):
    """Arrays of the model's sites, for JSON."""
    return {name: np.asarray(sites[name], float).tolist() for name in SITES}


def fit_one(entry, arrays, i):
    """Parameters of the guide; their median and draws."""
    rows = jnp.asarray(arrays["rows"], jnp.float32)
    settings = (entry[name] for name in ("iterations", "batch", "clip", "rate", "prior"))
    guide, fit = fitter(entry["k"], len(rows), *settings)
    params = fit(rows, d3p.random.PRNGKey(i), entry["noise"])

    def release():
        draws = guide.sample_posterior(jax.random.PRNGKey(i), params, sample_shape=(N_DRAWS,))
        return {"median": lists(guide.median(params)), "draws": lists(draws)}

    return params, release


if __name__ == "__main__":
    run(fit_one)
