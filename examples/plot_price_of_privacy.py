"""
The price of privacy
====================

See from which number of rows privacy is nearly free. The page draws log-loss, accuracy and interval
widths of private logistic regression against the number of rows, at four budgets, beside
scikit-learn's `LogisticRegression`.
"""

# %%
# Two sources of error
# --------------------
# A fit without privacy has an error of about one over the square root of the number of rows.
# Privacy adds an error of about one over epsilon *times* the number of rows. The second falls
# faster, so for each epsilon there is a number of rows beyond which it is negligible. The tables
# below are simulated, with five columns; figures are means over ten tables of each size. Seeds make
# the page the same on every machine. A seeded fit is not private, and its report says so: never set
# a seed for a release.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from skdpbayes import DPBayesianLogisticRegression

SIZES = [300, 1000, 3000, 10_000, 30_000]
BUDGETS = [0.1, 0.3, 1.0, 3.0]
REPEATS, COLUMNS = 10, 5


def people(n, rng, coef):
    """Columns in [-1, 1], and labels."""
    X = rng.uniform(-1, 1, size=(n, COLUMNS))
    return X, (rng.random(n) < expit(X @ coef)).astype(int)


def excess(proba, X, coef):
    """Mean excess log-loss over the true probabilities, in expectation over the labels."""
    true = expit(X @ coef)
    cross = -(true * np.log(proba) + (1 - true) * np.log1p(-proba))
    return np.mean(cross + true * np.log(true) + (1 - true) * np.log1p(-true))


def accuracy(proba, X, coef):
    """Expected share of right labels."""
    true = expit(X @ coef)
    return np.mean(np.where(proba > 0.5, true, 1 - true))


losses, accuracies = (
    {name: np.zeros((len(SIZES), REPEATS)) for name in ("open", *BUDGETS)} for _ in range(2)
)
widths = {name: np.zeros((len(SIZES), REPEATS)) for name in (*BUDGETS, np.inf)}
best = np.zeros(REPEATS)
for r in range(REPEATS):
    rng = np.random.default_rng(r)
    coef = rng.normal(size=COLUMNS) * 1.5
    X_test, _ = people(2000, rng, coef)
    best[r] = accuracy(expit(X_test @ coef), X_test, coef)
    for i, n in enumerate(SIZES):
        X, y = people(n, rng, coef)
        fits = {"open": LogisticRegression().fit(X, y)}
        for epsilon in widths:
            fits[epsilon] = DPBayesianLogisticRegression(
                epsilon,
                classes=[0, 1],
                data_norm=COLUMNS**0.5,
                solver="na-dpvi",
                n_posterior_samples=300,
                random_state=r,
            ).fit(X, y)
            low, high = fits[epsilon].predict_interval(X_test[:300], level=0.9)
            widths[epsilon][i, r] = np.mean(high[:, 1] - low[:, 1])
        for name in losses:
            proba = fits[name].predict_proba(X_test)[:, 1]
            losses[name][i, r] = excess(proba, X_test, coef)
            accuracies[name][i, r] = accuracy(proba, X_test, coef)

# %%
# What it costs
# -------------
# Left: log-loss in excess of the true probabilities. Middle: loss of accuracy against them. Right:
# mean width of the 90% intervals of predicted probabilities, which grows with the noise. The black
# line is the same posterior without noise, because scikit-learn's model has no intervals.

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
shades = plt.get_cmap("viridis")(np.linspace(0.85, 0.1, len(BUDGETS)))
for shade, epsilon in zip(shades, BUDGETS, strict=True):
    left.plot(SIZES, losses[epsilon].mean(axis=1), "o-", color=shade, label=f"epsilon {epsilon:g}")
    middle.plot(SIZES, (best - accuracies[epsilon]).mean(axis=1), "o-", color=shade)
    right.plot(SIZES, widths[epsilon].mean(axis=1), "o-", color=shade)
left.plot(SIZES, losses["open"].mean(axis=1), "k--", label="scikit-learn, not private")
middle.plot(SIZES, (best - accuracies["open"]).mean(axis=1), "k--")
right.plot(SIZES, widths[np.inf].mean(axis=1), "k--")
for ax, what in zip(
    (left, middle, right),
    ("excess log-loss (nats)", "accuracy lost", "width of 90% intervals of probabilities"),
    strict=True,
):
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel=what)
    ax.grid(color="0.92")
    ax.spines[["top", "right"]].set_visible(False)
left.legend(frameon=False)

# %%
# When is it free?
# ----------------
# The picture shows the same losses as a multiple of scikit-learn's, against epsilon times the
# square root of the number of rows. By the argument above only this product matters, and the points
# of all budgets and sizes fall near one curve, up to the chance of ten tables. (At the far left the
# posterior is little more than the prior.) If the product is large, privacy costs little beside the
# sampling error.

fig, ax = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
for shade, epsilon in zip(shades, BUDGETS, strict=True):
    ratio = losses[epsilon].mean(axis=1) / losses["open"].mean(axis=1)
    ax.plot(epsilon * np.sqrt(SIZES), ratio, "o", color=shade, label=f"epsilon {epsilon:g}")
ax.axhline(1, color="k", ls="--", lw=1, label="scikit-learn, not private")
ax.set(xscale="log", yscale="log", xlabel="epsilon times square root of the number of rows")
ax.set(ylabel="excess log-loss, over that without privacy")
ax.grid(color="0.92")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
for epsilon in BUDGETS:
    ratios = losses[epsilon].mean(axis=1) / losses["open"].mean(axis=1)
    print(
        f"epsilon {epsilon:g}: "
        + ", ".join(f"{n} rows {ratio:.1f}" for n, ratio in zip(SIZES, ratios, strict=True))
    )
plt.show()
