"""Tables larger than memory: seconds of a round and peak memory, beside the same fit in memory.

Each fit runs in a process of its own, so that peaks are its own. The peak is that of the resident
set, pages of mapped files included, above that of the process after a fit to a small table.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

_BLOCK = 2**20


def _resident() -> int:
    """Bytes of the resident set."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class _Peak:
    """Largest resident set while a block runs (the kernel's own mark is of the whole process)."""

    def __enter__(self) -> _Peak:
        self.bytes, self._over = _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.bytes = max(self.bytes, _resident())

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def write_table(folder: Path, n: int, d: int, seed: int = 0) -> tuple[Path, Path]:
    """A table of a logistic regression, written block by block."""
    rng, weights = np.random.default_rng(seed), np.linspace(-1, 1, d)
    paths = folder / f"x{n}.npy", folder / f"y{n}.npy"
    x = np.lib.format.open_memmap(paths[0], "w+", np.float32, (n, d))
    y = np.lib.format.open_memmap(paths[1], "w+", np.int8, (n,))
    for low in range(0, n, _BLOCK):
        part = rng.standard_normal((min(_BLOCK, n - low), d), np.float32)
        chance = 1 / (1 + np.exp(-part @ weights))
        rows = slice(low, low + len(part))
        x[rows], y[rows] = part, rng.uniform(size=len(part)) < chance
    return paths


def _fit(paths: list[str], in_memory: bool, settings: dict, rounds: list[int]) -> dict:
    """Peak above the baseline, and seconds of a round: the difference of two fits."""
    from skdpbayes import DPBayesianLogisticRegression

    X, y = (np.load(path, mmap_mode=None if in_memory else "r") for path in paths)
    small = np.random.default_rng(1).standard_normal((1000, X.shape[1]), np.float32)
    how = dict(epsilon=1.0, classes=[0, 1], random_state=1, delta=1e-9, **settings)

    def fitted(X, y, n_steps):
        own = {} if n_steps is None else {"n_steps": n_steps}
        start = time.perf_counter()
        model = DPBayesianLogisticRegression(**how, **own).fit(X, y)
        return model, time.perf_counter() - start

    fitted(small, np.arange(1000) % 2, rounds[0])
    baseline = _resident()
    with _Peak() as peak:
        fitted(X, y, rounds[0])  # compiles
        model, seconds = fitted(X, y, rounds[-1])
        few = fitted(X, y, rounds[0])[1] if len(rounds) > 1 else 0.0
    steps = rounds[-1] - rounds[0] if len(rounds) > 1 else model.n_iter_
    return {
        "round_ms": 1e3 * (seconds - few) / steps,
        "fit_s": seconds,
        "peak_mb": (peak.bytes - baseline) / 2**20,
        "batch": model.privacy_spent_.steps[0].sampling_rate * len(X),
        "rounds": model.n_iter_,
        "coef": np.asarray(model.coef_).ravel().round(3).tolist(),
    }


def _in_process(*how: object) -> dict:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.large", "--one", json.dumps(how)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, nargs=2, default=[600, 2600])
    parser.add_argument("--folder", type=Path, help="where tables are written, and kept")
    parser.add_argument(
        "--no-full", action="store_true", help="leave out fits with default settings"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.one:
        print(json.dumps(_fit(*json.loads(own.one))))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = own.folder or Path(made)
        print("rows      where   settings        batch     rounds  ms a round   fit s   peak MB")
        for n in map(int, own.rows):
            paths = folder / f"x{n}.npy", folder / f"y{n}.npy"
            if not all(path.exists() for path in paths):
                paths = write_table(folder, n, own.columns)
            small = {"solver": "dpvi", "sampling_rate": own.batch / n}
            kinds = [("a batch", small, own.rounds)]
            kinds += [] if own.no_full else [("defaults", {}, [None])]
            for name, settings, rounds in kinds:
                for in_memory in (True, False) if n <= 10**6 else (False,):
                    found = _in_process(list(map(str, paths)), in_memory, settings, rounds)
                    print(
                        f"{n:<9.0e} {'memory' if in_memory else 'disk':<7} {name:<15} "
                        f"{found['batch']:<9.3g} {found['rounds']:<7} {found['round_ms']:<12.3f} "
                        f"{found['fit_s']:<7.2f} {found['peak_mb']:.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
