"""Rounds on an accelerator, beside the processor of the same machine: ``make bench-devices``.

Seconds of an epoch of d3p's auto-encoder (688 884 weights, batches of 128, made-up images) beside
NumPyro's without privacy; of a round of all rows of a table as large as Adult, and of one of ten
million rows; and nanoseconds for a noise variable, by the host and by the device. The seconds of a
round are the difference of two fits of the same programs, by the number of rounds between them;
those of a fit include packing the rows and sending them. Each platform has processes of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import _log

_TABLES = {"adult": (32_561, 105), "1e6": (10**6, 20), "1e7": (10**7, 20)}
_PARTS = ("noise", "autoencoder", *_TABLES)


def _fastest(run: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _slope(fit: Callable[[int], object], few: int, many: int, times: int = 2) -> float:
    """Seconds of a round, of fits of so many."""
    fit(many)  # compiles
    fewer, more = (_fastest(partial(fit, k), times) for k in (few, many))
    return (more - fewer) / (many - few)


def noise(platform: str) -> Iterator[tuple[str, float]]:
    """Nanoseconds for a variable of the noise of one release of a million values."""
    import jax

    from skdpbayes.mechanism.draws import noise_of_steps
    from skdpbayes.mechanism.on_device import DeviceNoise

    size, key = 10**6, os.urandom(32)
    with jax.enable_x64(True):
        if platform == "cpu":
            yield "noise", 1e3 * _fastest(lambda: noise_of_steps(key, 4, 0, [size]), 3)
            return
        own = jax.device_put(DeviceNoise.of(key, 4))

        @jax.jit
        def total(own: Any, steps: int) -> Any:
            none = jax.numpy.zeros(size, jax.numpy.int64)
            return jax.lax.fori_loop(
                0, steps, lambda t, sums: sums + own.at(t, steps).values(size), none
            )

        if not (np.asarray(total(own, 1)) == noise_of_steps(key, 4, 0, [size])).all():
            raise AssertionError("The device draws other integers than the host.")
        many = 100
        yield "noise", 1e3 * _fastest(lambda: total(own, many).block_until_ready(), 3) / many


def autoencoder(platform: str) -> Iterator[tuple[str, float]]:
    """Seconds of an epoch."""
    from benchmarks.autoencoder import BATCH, PAPER, N, numpyro_seconds_per_epoch, private

    images = np.random.default_rng(0).uniform(size=(N, 784)).astype(np.float32)
    images *= images > 0.8
    epoch = N // BATCH
    yield "NumPyro", numpyro_seconds_per_epoch(images)
    for numerics in ("fast", "secure"):

        def fit(n_steps: int, numerics: str = numerics) -> None:
            private(images, 0.5, n_steps, BATCH, numerics=numerics, **PAPER)

        # A GPU's epoch is short beside what else a fit does, which varies.
        many, times = (160, 2) if platform == "cpu" else (100 + 10 * epoch, 5)
        yield numerics, _slope(fit, 100, many, times) * epoch


def table(name: str, platform: str) -> Iterator[tuple[str, float]]:
    """Milliseconds of a round of all rows, and seconds of a fit with default settings."""
    from skdpbayes import DPBayesianLogisticRegression

    n, d = _TABLES[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), np.float32)
    y = (X[:, 0] + rng.logistic(size=n) > 0).astype(np.int8)

    def fit(n_steps: int | None = None, **settings: Any) -> None:
        own = {} if n_steps is None else {"n_steps": n_steps, "sampling_rate": 1.0}
        model = DPBayesianLogisticRegression(
            epsilon=1.0, delta=1e-9, classes=[0, 1], random_state=1, **own, **settings
        )
        model.fit(X, y)

    for numerics in ("secure", "fast"):
        few, many = (2, 6) if platform == "cpu" else (100, 100 + 5 * 10**10 // (n * d))
        if n < 10**6:
            few, many = (100, 200) if platform == "cpu" else (1000, 3000)
        how: dict[str, Any] = {"solver": "dpvi", "numerics": numerics}
        yield f"dpvi {numerics}", 1e3 * _slope(partial(fit, **how), few, many)
    yield "default, first fit", 1e3 * _fastest(fit, 1)
    yield "default", 1e3 * _fastest(fit, 1)


def _measured(part: str, platform: str) -> Iterator[tuple[str, float]]:
    warnings.simplefilter("ignore")
    own: dict[str, Callable[[str], Iterator[tuple[str, float]]]] = {
        "noise": noise,
        "autoencoder": autoencoder,
    }
    return own[part](platform) if part in own else table(part, platform)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=list(_PARTS), choices=_PARTS)
    parser.add_argument("--platforms", nargs="+", default=["cuda", "cpu"])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.one:
        for found in _measured(*own.one):
            print(json.dumps(found), flush=True)
        return
    units = {"noise": "ns a variable", "autoencoder": "s an epoch"}
    for part in own.parts:
        of_part = {}
        for platform in own.platforms:
            command = [sys.executable, "-m", "benchmarks.devices", "--one", part, platform]
            platforms = ",".join(dict.fromkeys([platform, "cpu"]))
            environment = {**os.environ, "JAX_PLATFORMS": platforms}
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(f"{part} on {platform} failed: {done.stderr[-3000:]}", flush=True)
                continue
            of_part[platform] = dict(json.loads(line) for line in done.stdout.splitlines())
        names = list(dict.fromkeys(name for of in of_part.values() for name in of))
        rows = [
            [name, *(f"{of[name]:.4g}" if name in of else "" for of in of_part.values())]
            for name in names
        ]
        title = f"{part}, {units.get(part, 'ms')}"
        print(_log.table([title, *of_part], rows), flush=True)
        _log.append("devices", {"part": part, **of_part})


if __name__ == "__main__":
    main()
