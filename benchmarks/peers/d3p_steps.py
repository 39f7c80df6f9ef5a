"""Steps of logistic regression by d3p 0.2.0, in its own environment, for ``benchmarks.speed``.

``python d3p_steps.py data.npz`` has ``x``, of shape (n, d), and ``y``; each line of JSON on
standard input, such as ``{"n_steps": 1000, "batch": 326}``, is answered with the seconds of that
many steps. The first answer compiles. Batches are those of `subsample_batchify_data`: of fixed
size, by a Feistel network. It is the only sampler of 0.2.0.
"""

import functools
import json
import sys
import time

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from numpyro import plate, sample
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.optim import Adam


def model(x, y, n):
    """Logistic regression of a batch out of n."""
    w = sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with plate("records", n, len(x)):
        sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@functools.cache
def stepper(data, n_steps, batch):
    """A compiled loop of steps, and its start."""
    with np.load(data) as arrays:
        rows = jnp.asarray(arrays["x"], jnp.float32), jnp.asarray(arrays["y"], jnp.float32)
    svi = DPSVI(
        model, AutoDiagonalNormal(model), Adam(1e-3), Trace_ELBO(), 1.0, 1.0, n=len(rows[0])
    )
    start, key = d3p.random.split(d3p.random.PRNGKey(0), 2)
    state = svi.init(start, *(part[:batch] for part in rows))

    @jax.jit
    def run(rows, state, key):
        _, fetch = subsample_batchify_data(rows, batch)
        return jax.lax.fori_loop(
            0, n_steps, lambda i, state: svi.update(state, *fetch(i, key))[0], state
        )

    return lambda: run(rows, state, key)


for line in sys.stdin:
    request = json.loads(line)
    loop = stepper(sys.argv[1], request["n_steps"], request["batch"])
    begin = time.perf_counter()
    jax.block_until_ready(loop().optim_state)
    print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
