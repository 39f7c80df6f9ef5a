"""Steps of d3p 0.2.0's auto-encoder, in its own environment, for ``benchmarks.papers``.

``python d3p_autoencoder.py data.npz`` has ``x``, rows between 0 and 1 of shape (n, d); each line of
JSON on standard input, such as ``{"what": "private", "batch": 128, "n_steps": 5}``, is answered
with the seconds of that many steps. The first answer of a kind compiles. ``private`` is DPSVI and
``floor`` SVI with the same batches, ``sampler`` draws the batches alone (a Feistel network, the
only sampler of 0.2.0). The network is d3p's: d-400-50 and back.
"""

import functools
import json
import sys
import time

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from jax.example_libraries import stax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import Adam

HIDDEN, LATENT, SIGMA = 400, 50, 1.5

with np.load(sys.argv[1]) as arrays:
    ROWS = jnp.asarray(arrays["x"], jnp.float32)
N, D = ROWS.shape
ENCODER = stax.serial(
    stax.Dense(HIDDEN), stax.Softplus, stax.FanOut(2),
    stax.parallel(stax.Dense(LATENT), stax.serial(stax.Dense(LATENT), stax.Exp)),
)  # fmt: skip
DECODER = stax.serial(stax.Dense(HIDDEN), stax.Softplus, stax.Dense(D), stax.Sigmoid)


def model(x, n):
    """Bernoulli pixels given normal latent variables."""
    decode = numpyro.module("decoder", DECODER, (len(x), LATENT))
    with numpyro.plate("rows", n, len(x)):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([LATENT]).to_event(1))
        numpyro.sample("x", dist.Bernoulli(decode(z)).to_event(1), obs=x)


def guide(x, n):
    """Independent normal distributions, by the encoder."""
    encode = numpyro.module("encoder", ENCODER, (len(x), D))
    mean, std = encode(x)
    with numpyro.plate("rows", n, len(x)):
        numpyro.sample("z", dist.Normal(mean, std).to_event(1))


@functools.cache
def loop(what, batch, n_steps):
    """A compiled loop, and its start."""
    start, key = d3p.random.split(d3p.random.PRNGKey(0), 2)
    _, fetch = subsample_batchify_data((ROWS,), batch)
    if what == "sampler":
        run = jax.jit(
            lambda key: jax.lax.fori_loop(0, n_steps, lambda i, s: s + fetch(i, key)[0].sum(), 0.0)
        )
        return lambda: run(key)
    if what == "private":
        svi = DPSVI(model, guide, Adam(1e-3), Trace_ELBO(), 1.0, SIGMA, n=N)
    else:
        svi = SVI(model, guide, Adam(1e-3), Trace_ELBO(), n=N)
        start = d3p.random.convert_to_jax_rng_key(start)
    state = svi.init(start, ROWS[:batch])

    @jax.jit
    def run(state, key):
        return jax.lax.fori_loop(
            0, n_steps, lambda i, state: svi.update(state, *fetch(i, key))[0], state
        )

    return lambda: run(state, key)


for line in sys.stdin:
    request = json.loads(line)
    timed = loop(request["what"], request["batch"], request["n_steps"])
    begin = time.perf_counter()
    jax.block_until_ready(jax.tree_util.tree_leaves(timed()))
    print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
