"""Draw the pictures of README.md and of the home page: ``make pictures``."""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.datasets import fair_preprocessor, load_fair
from skdpbayes.displays import PrivacyUtilityDisplay, TradeOffDisplay
from skdpbayes.preprocessing import BoundedScaler
from skdpbayes.privacy import PrivacyLeakWarning, calibrate_noise

HERE = Path(__file__).resolve().parents[1] / "docs" / "images"
EPSILONS = (0.1, 1.0, 3.0, 8.0)


def attacks() -> None:
    """What the best attack may find, at four budgets."""
    curves = [calibrate_noise(epsilon, 1e-5, 0.01, 500).curve for epsilon in EPSILONS]
    display = TradeOffDisplay.from_spent(
        curves, names=[f"epsilon {epsilon:g}" for epsilon in EPSILONS]
    )
    _save(display.figure_, "attacks.png")


def price() -> None:
    """Price of privacy on the survey. The seed makes the picture the same on every machine."""
    data = load_fair()
    model = DPBayesianLogisticRegression(
        classes=data.classes, data_norm=data.data_norm, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # of the seed; the table is public
        display = PrivacyUtilityDisplay.from_estimator(
            make_pipeline(fair_preprocessor(), model),
            data.X_train,
            data.y_train,
            data.X_test,
            data.y_test,
            scoring="roc_auc",
            n_repeats=10,
            reference=make_pipeline(fair_preprocessor(), LogisticRegression()),
        )
    display.ax_.set(ylabel=f"AUC, survey on affairs, {len(data.y_train)} rows")
    _save(display.figure_, "price.png")


def intervals() -> None:
    """Coefficients of the survey at three budgets, beside those without privacy."""
    data = load_fair()
    names = list(data.bounds)
    scale = BoundedScaler(data.bounds, feature_range=(-1, 1)).set_output(transform="pandas")
    rows = scale.fit_transform(data.X_train[names])
    labels = (data.y_train == "affair").astype(int)
    plain = LogisticRegression(C=1e6).fit(rows, labels).coef_.ravel()
    figure, ax = plt.subplots(layout="constrained")
    for i, epsilon in enumerate((0.3, 1.0, 3.0)):
        model = DPBayesianLogisticRegression(
            epsilon, classes=[0, 1], data_norm=len(names) ** 0.5, solver="na-dpvi", random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyLeakWarning)  # of the seed; the table is public
            table = model.fit(rows, labels).summary().loc[names]
        ends = table[["5%", "95%"]].to_numpy().T
        middle = ends.mean(axis=0)
        height = [place + 0.2 * (1 - i) for place in range(len(names))]
        ax.errorbar(
            middle, height, xerr=ends[1] - middle, fmt="none", lw=2.5, color=f"C{i}",
            label=f"epsilon {epsilon:g}",
        )  # fmt: skip
    ax.plot(plain, range(len(names)), "k|", ms=26, label="without privacy")
    ax.axvline(0, color="0.7", lw=1, zorder=0)
    ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    ax.invert_yaxis()
    ax.set_xlabel("log odds over half a column's range (90% intervals)")
    ax.legend(fontsize="small", markerscale=0.4)
    _save(figure, "intervals.png")


def _save(figure: matplotlib.figure.Figure, name: str) -> None:
    HERE.mkdir(exist_ok=True)
    figure.set_size_inches(5.2, 3.9)
    figure.savefig(HERE / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    attacks()
    price()
    intervals()
