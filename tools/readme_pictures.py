"""Draw the two pictures of README.md: ``make pictures``."""

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


def _save(figure: matplotlib.figure.Figure, name: str) -> None:
    HERE.mkdir(exist_ok=True)
    figure.set_size_inches(5.2, 3.9)
    figure.savefig(HERE / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    attacks()
    price()
