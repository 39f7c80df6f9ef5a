"""Li et al. (2019, DP-SGLD) with exact accounting: ``make bench-dp-sgld``.

* ``steps``: Figures 1 and 2, the largest first step that a budget allows, constant and decreasing,
  beside the bound of Wang, Fienberg and Smola (2015); in the paper's units (``N h``).
* ``adult``: Figure 3, accuracy of logistic regression by ``sgld`` against epsilon at delta 1e-4, on
  the test split.
* ``mnist``: Table 1, accuracy of networks at epsilon 1 and 3, delta 1e-5, with log-loss and
  expected calibration error (15 bins); ``point`` is DP-SGD with Adam, not Bayesian, of the same
  network by the same code. Figures of others are quoted from the paper. "histograms" is a network
  without hidden layers on histograms of gradients, which are public functions of an image.
  ``--networks convolutional`` is a small convolutional network (an hour on a core).

The folder that ``SKDPBAYES_DATA_HOME`` names holds the data. With ``--holdout`` the rows that are
scored are training rows which fits do not see, for those who choose defaults.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np

from benchmarks import _log, _mnist

SOLVERS: dict[str, dict[str, Any]] = {
    "point": {"solver": "dpvi", "guide": "point"},
    "dpvi": {"solver": "dpvi"},
    "sgld": {"solver": "sgld"},
    "sghmc": {"solver": "sgld", "sampler": "sghmc"},
    "sgnht": {"solver": "sgld", "sampler": "sgnht"},
}
# Chosen on held-out training images (`--holdout`), at epsilon 1.
NETWORKS: dict[str, dict[str, Any]] = {
    "784-100-10": {"hidden_layer_sizes": (100,)},
    "histograms": {"hidden_layer_sizes": (), "prior_scale": 3.0, "clipping_norm": 0.3},
    "convolutional": {
        "convolutions": [(16, 8, 2), (32, 4, 2)],
        "image_shape": (28, 28),
        "hidden_layer_sizes": (32,),
        "clipping_norm": 0.3,
    },
}
BATCHES = {"histograms": 8192}  # expected rows; of the others 2048
QUOTED = [("DP-SGD", "0.5", "90.00%"), ("DP-SGD", "8", "97.00%"), ("CGNMax", "1.97", "98.51%")]


def steps() -> list[list[str]]:
    """Largest first steps in the paper's setting: N=50 000, T=10 000, L=1, full batch."""
    from skdpbayes.privacy import step_size_bound, wang_step_size_bound

    n, own = 50_000, {"n_steps": 10_000}
    rows = []
    for epsilon in (0.02, 0.1, 0.5, 1.0, 1.7):
        ours = [
            n * step_size_bound(epsilon, 1e-5, sampling_rate=rate, schedule=schedule, **own)
            for rate in (1.0, 0.01)
            for schedule in ("constant", "decreasing")
        ]
        rows.append(
            [
                f"{epsilon:g}",
                *(f"{h:.3g}" for h in (*ours, n * wang_step_size_bound(epsilon, 1e-5, **own))),
            ]
        )
    return rows


def paper_setting() -> tuple[float, float]:
    """Noise multiplier and epsilon of the paper's MNIST setting (step .3, batch 128, clip .3)."""
    from skdpbayes.privacy import GaussianSteps, compose

    n, batch, eta, clip = 60_000, 128, 0.3, 0.3
    # Noise of variance eta/N is added to eta times a mean of clipped gradients.
    sigma = math.sqrt(eta / n) / (eta * clip / batch)
    return sigma, compose((GaussianSteps(sigma, batch / n, 20 * n // batch),), "zero_out").epsilon(
        1e-5
    )


def adult(seeds: int, holdout: bool) -> list[list[str]]:
    """Accuracy against epsilon."""
    from sklearn.pipeline import make_pipeline

    from skdpbayes import DPBayesianLogisticRegression
    from skdpbayes.datasets import adult_preprocessor, load_adult

    data = load_adult()
    X, y, X_test, y_test = data.X_train, data.y_train, data.X_test, data.y_test
    if holdout:
        order = np.random.default_rng(0).permutation(len(y))
        kept, held = order[8000:], order[:8000]
        X, y, X_test, y_test = X.iloc[kept], y[kept], X.iloc[held], y[held]
    rows = []
    for epsilon in (0.02, 0.08, 0.3, 1.0, math.inf):
        found = []
        for seed in range(seeds):
            model = DPBayesianLogisticRegression(
                epsilon, 1e-4, solver="sgld", classes=np.unique(y).tolist(), random_state=seed
            )
            try:
                fitted = make_pipeline(adult_preprocessor(), model).fit(X, y)
            except ValueError as error:  # budgets that are too small for its rounds
                print(f"epsilon {epsilon:g}: {error}", flush=True)
                break
            found.append((fitted.score(X_test, y_test), fitted[-1].privacy_spent_.epsilon))
        accuracy, spent = np.mean(found, axis=0) if found else (math.nan, math.nan)
        cells = [f"{spent:.3g}", f"{accuracy:.4f}"] if found else ["", "refused"]
        rows.append([f"{epsilon:g}", *cells])
        print(": ".join(rows[-1]), flush=True)
    return rows


def features(name: str, X: np.ndarray) -> np.ndarray:
    """Inputs of a network: pixels standardised by constants, or histograms of gradients."""
    if name == "histograms":
        # Rows of norm below 36, the root of 1296.
        return _mnist.gradient_histograms(X) * np.float32(6)
    return (X / np.float32(255) - 0.13) / 0.31


def scores(proba: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy, log-loss, and expected calibration error of the most probable class (15 bins)."""
    from skdpbayes.calibration import calibration_error

    right = proba.argmax(axis=1) == y
    return {
        "accuracy": float(right.mean()),
        "loss": float(-np.mean(np.log(np.maximum(proba[np.arange(len(y)), y], 1e-30)))),
        "ece": calibration_error(right, proba.max(axis=1), n_bins=15),
    }


def mnist(
    holdout: bool, epsilons: list[float], solvers: list[str], networks: list[str], epochs: int
) -> list[list[str]]:
    """Networks on MNIST."""
    from skdpbayes import DPBayesianMLPClassifier

    train, y, test, y_test = _mnist.load(holdout)
    rows = []
    for name in networks:
        X, X_test, batch = features(name, train), features(name, test), BATCHES.get(name, 2048)
        for epsilon in epsilons:
            for solver in solvers:
                start = time.perf_counter()
                model = DPBayesianMLPClassifier(
                    activation="tanh",
                    epsilon=epsilon,
                    classes=range(10),
                    data_norm=60.0,
                    numerics="fast",
                    sampling_rate=batch / len(y),
                    n_steps=epochs * len(y) // batch,
                    random_state=0,
                    **NETWORKS[name],
                    **SOLVERS[solver],
                )
                model.fit(X, y)
                seconds = time.perf_counter() - start
                found = scores(model.predict_proba(X_test), y_test)
                rows.append([
                    f"{name}, {solver}", f"{epsilon:g}", f"{model.privacy_spent_.epsilon:.3g}",
                    f"{found['accuracy']:.2%}", f"{found['loss']:.3f}", f"{found['ece']:.3f}",
                    f"{seconds:.0f}",
                ])  # fmt: skip
                print(": ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Run what the command line asks for, print the tables, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["steps", "adult", "mnist"],
        choices=["steps", "adult", "mnist"],
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="fits of Adult at each level (default: %(default)s)"
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0], help="of MNIST")
    parser.add_argument(
        "--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS), help="of MNIST"
    )
    parser.add_argument("--epochs", type=int, default=40, help="of MNIST (default: %(default)s)")
    default = ["784-100-10", "histograms"]
    parser.add_argument(
        "--networks", nargs="+", default=default, choices=list(NETWORKS), help="of MNIST"
    )
    parser.add_argument(
        "--holdout", action="store_true", help="score held-out training rows, not the test rows"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"holdout": options.holdout}
    if "steps" in options.parts:
        record["steps"] = steps()
        header = [
            "epsilon",
            "constant",
            "decreasing",
            "constant, q=.01",
            "decreasing, q=.01",
            "Wang et al.",
        ]
        print(
            "Largest first step, N h:\n\n" + _log.table(header, record["steps"]) + "\n", flush=True
        )
    if "adult" in options.parts:
        record["adult"] = adult(options.seeds, options.holdout)
        print(
            "\n"
            + _log.table(["epsilon", "spent", "accuracy of sgld on Adult"], record["adult"])
            + "\n",
            flush=True,
        )
    if "mnist" in options.parts:
        sigma, epsilon = paper_setting()
        print(
            f"The paper's MNIST setting has noise multiplier {sigma:.2f}, epsilon {epsilon:.3f} "
            "(claimed .99; 99.21%)"
        )
        record["paper"] = sigma, epsilon
        record["mnist"] = mnist(
            options.holdout, options.epsilons, options.solvers, options.networks, options.epochs
        )  # fmt: skip
        quoted = [[f"{name}, quoted", e, "", accuracy, "", "", ""] for name, e, accuracy in QUOTED]
        header = ["MNIST", "epsilon", "spent", "accuracy", "log-loss", "ECE", "s"]
        print("\n" + _log.table(header, [*record["mnist"], *quoted]))
    print(f"\nWritten to {_log.append('dp_sgld', record).relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
