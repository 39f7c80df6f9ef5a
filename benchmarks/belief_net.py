"""Private sigmoid belief networks on MNIST (VIPS paper, section 7): ``make bench-belief-net``.

Images are black and white at a threshold of one half; the folder that ``SKDPBAYES_DATA_HOME`` names
holds them as ``mnist.npz``. Fits see the training images and are scored on the test images, or,
with ``--holdout``, on 10 000 training images that fits do not see, for those who choose defaults.
Scores are the bound of the log-likelihood in nats per image and the share of pixels that are
reconstructed. The paper prints its figures (8 and 9) without numbers, so no column holds them; what
privacy its settings have, by its accounting, is a table of its own.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _log, _mnist, vips_accounting

DELTA, SIDE = 1e-5, 28


@dataclass(frozen=True)
class Images:
    """Zeros and ones, of shapes (n, 784)."""

    train: np.ndarray
    test: np.ndarray


def mnist(holdout: bool) -> Images:
    """Binarised MNIST; with `holdout` the test images are training images."""
    train, _, test, _ = _mnist.load(holdout)
    return Images(*((rows > 127).astype(np.float32) for rows in (train, test)))


def private(images: Images, hidden: int, epsilon: float, seed: int, solver: str = "vips") -> Any:
    """The estimator under test: default parameters."""
    from skdpbayes import DPSigmoidBeliefNet

    return DPSigmoidBeliefNet(
        hidden, solver=solver, epsilon=epsilon, delta=DELTA, random_state=seed
    ).fit(images.train)


def independent(images: Images) -> tuple[float, float]:
    """Log-likelihood and share of right pixels, if pixels are independent; not private."""
    p = np.clip(images.train.mean(axis=0), 0.5 / len(images.train), 1 - 0.5 / len(images.train))
    nats = images.test @ np.log(p) + (1 - images.test) @ np.log1p(-p)
    return float(nats.mean()), float(((p > 0.5) == images.test).mean())


def restricted_boltzmann(images: Images, hidden: int, seed: int) -> tuple[float, float]:
    """Share of pixels that scikit-learn's BernoulliRBM reconstructs (ten passes), and seconds."""
    from scipy.special import expit
    from sklearn.neural_network import BernoulliRBM

    start = time.perf_counter()
    model = BernoulliRBM(
        hidden, learning_rate=0.05, n_iter=10, batch_size=100, random_state=seed
    ).fit(images.train)
    seconds = time.perf_counter() - start
    pixels = expit(model.transform(images.test) @ model.components_ + model.intercept_visible_)
    return float(((pixels > 0.5) == images.test).mean()), seconds


def run(
    images: Images,
    hidden: int,
    epsilons: tuple[float, ...],
    seeds: int,
    fit=private,
    solver: str = "vips",
) -> tuple[list[dict[str, Any]], dict[float, Any]]:
    """Fit and score at each level with each noise seed; records, and last model of each level."""
    records, models = [], {}
    for epsilon in epsilons:
        record: dict[str, Any] = {
            "solver": solver, "hidden": hidden, "epsilon": f"{epsilon:g}",
            "nats": [], "pixels": [], "seconds": [],
        }  # fmt: skip
        for seed in range(seeds):
            start = time.perf_counter()
            model = fit(images, hidden, epsilon, seed, solver)
            record["seconds"].append(time.perf_counter() - start)
            record["nats"].append(float(model.score(images.test)))
            record["pixels"].append(
                float(((model.reconstruct(images.test) > 0.5) == images.test).mean())
            )
            models[epsilon] = model
        records.append(record)
        print(": ".join(row_of(record)), flush=True)
    return records, models


def row_of(record: dict[str, Any]) -> list[str]:
    """Table row: means, and half of the range where there are several fits."""
    nats, pixels = np.array(record["nats"]), np.array(record["pixels"])
    return [
        f"{record['hidden']} hidden, {record['solver']}, epsilon {record['epsilon']}",
        f"{nats.mean():.2f} ±{np.ptp(nats) / 2:.2f}",
        f"{pixels.mean():.4f} ±{np.ptp(pixels) / 2:.4f}", f"{np.median(record['seconds']):.1f}",
    ]  # fmt: skip


def paper_table() -> str:
    """Epsilon that the paper claims, and epsilon of its noise (one pass, delta 1e-4)."""
    rows = []
    for hidden in (50, 100):
        for batch in (50, 100, 200):
            for epsilon in (0.5, 1.0):
                setting = vips_accounting.sbn(epsilon, batch, hidden)
                holds = vips_accounting.holds_text(setting, vips_accounting.TableOne(setting).joint)
                rows.append([f"{hidden} hidden, batches of {batch}", f"{epsilon:g}", holds])
    return _log.table(["the paper's", "claimed", "holds"], rows)


def weights_figure(models: dict[float, Any]) -> Any:
    """Weights of 40 hidden units at each level as images, largest weights first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.9 * len(models)))
    axes = figure.subplots(len(models), 1, squeeze=False)
    for axis, (epsilon, model) in zip(axes[:, 0], models.items(), strict=True):
        weights = model.components_[np.argsort(-np.square(model.components_).sum(axis=1))[:40]]
        grid = np.full((4 * (SIDE + 1), 10 * (SIDE + 1)), np.nan)
        for i, unit in enumerate(weights):
            row, column = (SIDE + 1) * (i // 10), (SIDE + 1) * (i % 10)
            grid[row : row + SIDE, column : column + SIDE] = unit.reshape(SIDE, SIDE)
        largest = np.quantile(np.abs(weights), 0.995)
        axis.imshow(grid, cmap="RdBu_r", vmin=-largest, vmax=largest)
        axis.set_title("not private" if math.isinf(epsilon) else f"epsilon {epsilon:g}")
        axis.set_axis_off()
    figure.tight_layout()
    return figure


def draw(models: dict[float, Any], path: Path) -> Path:
    """Write `weights_figure`."""
    path.parent.mkdir(exist_ok=True)
    weights_figure(models).savefig(path, dpi=110)
    return path


def main() -> None:
    """Run what the command line asks for, print the tables, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--hidden", nargs="+", type=int, default=[50, 100], help="hidden units (default: 50 100)"
    )
    parser.add_argument(
        "--epsilons", nargs="+", type=float, default=[0.5, 1.0, 8.0, math.inf], help="levels"
    )
    parser.add_argument(
        "--solvers",
        nargs="+",
        default=["vips"],
        choices=["dpvi", "na-dpvi", "sgld", "vips"],
        help="solvers (default: vips)",
    )
    parser.add_argument(
        "--seeds", type=int, default=2, help="fits per level (default: %(default)s)"
    )
    parser.add_argument(
        "--holdout", action="store_true", help="score held-out training images, not the test images"
    )
    parser.add_argument(
        "--no-rbm", action="store_true", help="leave out scikit-learn's BernoulliRBM"
    )
    parser.add_argument(
        "--picture",
        action="store_true",
        help="write weights to results/belief_net_<hidden>_<solver>.png",
    )
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    warnings.simplefilter("ignore")

    images = mnist(options.holdout)
    nats, pixels = independent(images)
    rows, records, pictures = (
        [["independent pixels, not private", f"{nats:.2f}", f"{pixels:.4f}", ""]],
        [],
        [],
    )
    for hidden in options.hidden:
        if not options.no_rbm:
            share, seconds = restricted_boltzmann(images, hidden, 0)
            name = f"{hidden} hidden, BernoulliRBM, not private"
            rows.append([name, "", f"{share:.4f}", f"{seconds:.1f}"])
        for solver in options.solvers:
            found, models = run(
                images, hidden, tuple(options.epsilons), options.seeds, solver=solver
            )
            records += found
            rows += [row_of(record) for record in found]
            if options.picture:
                name = f"belief_net_{hidden}_{solver}.png"
                pictures.append(draw(models, _log.ROOT / "results" / name))
    scored = (
        "10 000 training images that were held out" if options.holdout else "the 10 000 test images"
    )
    print(f"\nOn {scored}, delta {DELTA:g}: mean and half of the range of {options.seeds} fits.\n")
    print(_log.table(["model", "bound, nats", "pixels right", "s/fit"], rows))
    print(
        "\nEpsilon at the paper's settings, one pass over the images, delta "
        f"1e-4.\n\n{paper_table()}"
    )
    record = {
        "seeds": options.seeds,
        "holdout": options.holdout,
        "independent": [nats, pixels],
        "records": records,
    }
    path = _log.append("belief_net", record)
    for written in [*pictures, path]:
        print(f"\nWritten to {written.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
