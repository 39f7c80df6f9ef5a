"""Private auto-encoders on MNIST, beside NumPyro without privacy: ``make bench-autoencoder``.

The network of d3p's Table 2 (784-400-50 and back, 688 884 weights; Prediger et al. 2021) and this
package's default. First the seconds of an epoch of batches of 128 (NumPyro without privacy, ours in
``fast`` and ``secure`` numerics) and peak memory; then how the loss after some steps compares with
that of gradients of records, all formed; and the held-out loss after 20 epochs, at the epsilon that
d3p's setting (noise multiplier 1.5, delta 1/60000) has by exact accounting. d3p prints a loss of
174.06 for it, and 99.63 without privacy. Last, a smaller network (196-100-10, images of 14 by 14)
beside the same one as a model and guide of NumPyro, fitted by `DPNumPyroModel`, which forms the
gradients of all weights and is slow.

The folder that ``SKDPBAYES_DATA_HOME`` names holds the images as ``mnist.npz``. With ``--holdout``
losses are of 10 000 training images that fits do not see, for those who choose defaults.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from typing import Any

import numpy as np

from benchmarks import _log, _mnist

N, BATCH, EPOCHS, SIGMA = 60_000, 128, 20, 1.5
PAPER = {"n_components": 50, "hidden_layer_sizes": (400,)}


def mnist(holdout: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images with values between 0 and 1 to fit, and binarised ones (drawn once) to score."""
    X, _, X_test, _ = _mnist.load(holdout)
    train, test = (rows.astype(np.float32) / 255 for rows in (X, X_test))
    return train, (np.random.default_rng(1).random(test.shape) < test).astype(np.float32)


def true_epsilon() -> float:
    """What d3p's setting spends, by exact accounting."""
    from skdpbayes.privacy import GaussianSteps, compose

    return compose((GaussianSteps(SIGMA, BATCH / N, EPOCHS * N // BATCH),), "zero_out").epsilon(
        1 / N
    )


def private(images: np.ndarray, epsilon: float, n_steps: int, batch: int, **parameters: Any) -> Any:
    """The estimator under test."""
    from skdpbayes import DPVariationalAutoencoder

    own = {
        "epsilon": epsilon,
        "delta": (1 - 1e-9) / N,
        "n_steps": n_steps,
        "sampling_rate": batch / len(images),
    }
    return DPVariationalAutoencoder(random_state=0, **own | parameters).fit(images)


def seconds_per_epoch(images: np.ndarray, numerics: str) -> float:
    """Seconds of a private epoch, all of `fit` included: the faster of two after a warm-up."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        private(images, 0.5, len(images) // BATCH, BATCH, numerics=numerics, **PAPER)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def in_numpyro(hidden: int, latent: int, d: int = 784) -> tuple[Any, Any]:
    """Model and guide of NumPyro's example of an auto-encoder, the one that d3p runs."""
    import numpyro
    import numpyro.distributions as dist
    from jax.example_libraries import stax

    encoder = stax.serial(
        stax.Dense(hidden), stax.Softplus, stax.FanOut(2),
        stax.parallel(stax.Dense(latent), stax.serial(stax.Dense(latent), stax.Exp)),
    )  # fmt: skip
    decoder = stax.serial(stax.Dense(hidden), stax.Softplus, stax.Dense(d))

    def model(batch: Any) -> None:
        decode = numpyro.module("decoder", decoder, (len(batch), latent))
        with numpyro.plate("batch", len(batch)):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([latent]).to_event(1))
            numpyro.sample("obs", dist.Bernoulli(logits=decode(z)).to_event(1), obs=batch)

    def guide(batch: Any) -> None:
        encode = numpyro.module("encoder", encoder, (len(batch), d))
        mean, std = encode(batch)
        with numpyro.plate("batch", len(batch)):
            numpyro.sample("z", dist.Normal(mean, std).to_event(1))

    return model, guide


def halved(images: np.ndarray) -> np.ndarray:
    """Images of 14 by 14, each pixel the mean of four."""
    return images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)


def own_model(
    images: np.ndarray, scored: np.ndarray, epsilon: float, n_steps: int, batch: int
) -> list[list[str]]:
    """Losses of `DPVariationalAutoencoder` and of the same auto-encoder as a NumPyro model.

    On binarised images: NumPyro's Bernoulli law has no density elsewhere.
    """
    from skdpbayes import DPNumPyroModel

    rng = np.random.default_rng(0)
    fitted, scored = (
        (rng.random((len(x), 196)) < halved(x)).astype(np.float32) for x in (images, scored)
    )
    how: dict[str, Any] = {"epsilon": epsilon, "delta": (1 - 1e-9) / N, "n_steps": n_steps}
    how |= {"sampling_rate": batch / len(images), "numerics": "fast", "random_state": 0}
    ours = private(fitted, epsilon, n_steps, batch, hidden_layer_sizes=(100,), numerics="fast")
    written = DPNumPyroModel(*in_numpyro(100, 10, 196), **how).fit(fitted)
    losses = -ours.score(scored), -float(written.evidence_lower_bound(scored).mean())
    names = "DPVariationalAutoencoder", "DPNumPyroModel"
    rows = [[name, f"{loss:.2f}"] for name, loss in zip(names, losses, strict=True)]
    return [*rows, ["ratio", f"{losses[1] / losses[0]:.3f}"]]


def numpyro_seconds_per_epoch(images: np.ndarray) -> float:
    """Seconds of an epoch of `numpyro_seconds`."""
    return numpyro_seconds(images, BATCH, len(images) // BATCH)


def numpyro_seconds(images: np.ndarray, batch: int, n_steps: int) -> float:
    """NumPyro's example of an auto-encoder of the same size, in one loop; not private.

    The faster of two runs after one that compiles.
    """
    import jax
    import jax.numpy as jnp
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.optim import Adam

    model, guide = in_numpyro(400, 50, images.shape[1])
    svi = SVI(model, guide, Adam(1e-3), Trace_ELBO())
    x = jnp.asarray(images)
    state = svi.init(jax.random.key(0), x[:batch])

    @jax.jit
    def run(state, key):
        order = jax.random.permutation(key, len(x))

        def body(i, state):
            rows = x[jax.lax.dynamic_slice(order, (i * batch % (len(x) - batch + 1),), (batch,))]
            binary = jax.random.bernoulli(jax.random.fold_in(key, i), rows).astype(x.dtype)
            return svi.update(state, binary)[0]

        return jax.lax.fori_loop(0, n_steps, body, state)

    times = []
    for i in range(3):
        start = time.perf_counter()
        state = jax.block_until_ready(run(state, jax.random.key(i)))
        times.append(time.perf_counter() - start)
    return min(times[1:])


def formed_gradients(images: np.ndarray, scored: np.ndarray, n_steps: int) -> tuple[float, float]:
    """Losses after a few steps: by implicit products, and by gradients of every record."""
    import jax

    from skdpbayes.models.networks.autoencoder import Autoencoder

    ours = private(images, 8.0, n_steps, BATCH, numerics="fast", **PAPER)
    original = Autoencoder.score
    Autoencoder.score = lambda self, params, record: jax.grad(self.log_likelihood)(params, record)  # type: ignore[method-assign]  # for this run
    try:
        jax.clear_caches()
        formed = private(images, 8.0, n_steps, BATCH, numerics="fast", **PAPER)
    finally:
        Autoencoder.score = original  # type: ignore[method-assign]  # as it was
        jax.clear_caches()
    return -ours.score(scored), -formed.score(scored)


def main() -> None:
    """Run what the command line asks for, print, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["speed", "formed", "loss", "own"],
        choices=["speed", "formed", "loss", "own"],
    )
    parser.add_argument("--images", type=int, default=N, help="images of the part `own`")
    parser.add_argument("--steps", type=int, default=1000, help="rounds of the part `own`")
    parser.add_argument("--batch", type=int, default=1024, help="batch size of the part `own`")
    parser.add_argument(
        "--holdout", action="store_true", help="score held-out training images, not the test images"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    train, test = mnist(options.holdout)
    epsilon, record = true_epsilon(), {"holdout": options.holdout}
    print(
        f"Noise multiplier {SIGMA}, batches of {BATCH}, {EPOCHS} epochs: epsilon {epsilon:.3f} at "
        f"delta 1/{N}"
    )
    if "speed" in options.parts:
        fast = seconds_per_epoch(train, "fast")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        floor, secure = numpyro_seconds_per_epoch(train), seconds_per_epoch(train, "secure")
        rows = [["NumPyro, not private", f"{floor:.2f}", "1.0"]]
        rows += [
            [f"ours, {name}", f"{s:.2f}", f"{s / floor:.1f}"]
            for name, s in (("fast", fast), ("secure", secure))
        ]
        print(_log.table(["batches of 128, 688 884 weights", "s/epoch", "ratio"], rows), flush=True)
        print(f"peak memory of the private fits: {memory:.2f} GB")
        record |= {"numpyro": floor, "fast": fast, "secure": secure, "gigabytes": memory}
    if "formed" in options.parts:
        record["formed"] = formed_gradients(train[:10_000], test, 40)
        print(
            "loss after 40 steps, products and formed gradients: {:.4f} {:.4f}".format(
                *record["formed"]
            ),
            flush=True,
        )
    if "loss" in options.parts:
        rows = []
        for name, own in (("784-400-50", PAPER), ("default", {})):
            model = private(
                train, epsilon, EPOCHS * len(train) // 1024, 1024, numerics="fast", **own
            )
            rows.append([name, f"{model.privacy_spent_.epsilon:.3f}", f"{-model.score(test):.2f}"])
        print(
            _log.table(
                [f"{EPOCHS} epochs", "epsilon", "loss"],
                [*rows, ["d3p, Table 2", f"{epsilon:.3f}", "174.06"]],
            )
        )
        record["loss"] = rows
    if "own" in options.parts:
        images = train[: options.images]
        rows = own_model(images, test[:1000], epsilon, options.steps, options.batch)
        print(_log.table([f"196-100-10, {len(images)} images", "loss"], rows))
        record["own"] = rows
    print(f"Written to {_log.append('autoencoder', record).relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
