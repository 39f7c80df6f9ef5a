"""
Choosing parameters: what a search costs
========================================

Choose the prior and the solver of a private model by `GridSearchCV` and by `DPRandomizedSearchCV`,
and compare. The first shows its scores and has no guarantee. The second costs little more than one
fit, and shows less.
"""

# %%
# A table with something to choose
# --------------------------------
# Two of twenty coefficients are large: a narrow prior shrinks them, and a wide one leaves noise in
# the others. Seeds make the page the same on every machine. A seeded fit is not private, and its
# report says so: never set a seed for a release.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit
from sklearn.model_selection import GridSearchCV

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.pipelines import search_spent

rng = np.random.default_rng(0)
coef = np.concatenate([[3.0, -2.0], np.zeros(18)])
X = rng.uniform(-1, 1, size=(8000, 20))
y = (rng.random(8000) < expit(X @ coef)).astype(int)
# The second half is held out for the comparison.
(X, X_new), (y, y_new) = np.split(X, [4000]), np.split(y, [4000])

model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1], data_norm=20**0.5, random_state=0)
grid = {"prior_scale": [0.01, 0.1, 1.0, 10.0], "solver": ["dpvi", "vips"]}


def quality(fitted):
    """Log-loss on new rows."""
    return -np.mean(np.log(fitted.predict_proba(X_new)[np.arange(len(y_new)), y_new]))


# %%
# Scikit-learn's grid search
# --------------------------
# Every fit in it is private, and the search is not: it scores candidates on the rows without noise,
# and `cv_results_` shows the scores. `search_spent` says so, and adds up the cost of the fits
# alone.

search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=3).fit(X, y)
print("GridSearchCV chose", search.best_params_)
print(search_spent(search))

# %%
# The private search
# ------------------
# A random number of times, five on average, it draws a candidate, fits it to four fifths of the
# rows and scores it, with noise, on the others. It shows only the best run, and hides the number of
# runs and their scores. The whole search has epsilon 1, and each of its runs has far more than a
# fifth of it.

private = DPRandomizedSearchCV(model, grid, epsilon=1.0, n_iter=5, random_state=0).fit(X, y)
print("DPRandomizedSearchCV chose", private.best_params_)
print(f"the whole search costs epsilon {private.privacy_spent_.epsilon:.3f} if no seed is set")

# %%
# What each costs, and what each gets
# -----------------------------------
# Left: the sum of the epsilons of all fits of the grid search, and epsilon of a whole private
# search. Right: log-loss on rows that no search has seen, for each candidate fitted once to all
# rows, for twelve private searches with different seeds, and for the grid search.

known = [
    quality(model.set_params(prior_scale=s, solver=v).fit(X, y))
    for s in grid["prior_scale"]
    for v in grid["solver"]
]
again = [
    DPRandomizedSearchCV(model, grid, epsilon=1.0, n_iter=5, random_state=r).fit(X, y)
    for r in range(1, 13)
]
losses = [quality(found) for found in again]
n_fits = len(search.cv_results_["params"]) * search.n_splits_ + 1

fig, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=[1, 1.3], layout="constrained"
)
left.barh(
    ["one fit", "DPRandomizedSearchCV", "GridSearchCV:\nits fits alone"],
    [1.0, private.privacy_spent_.epsilon, n_fits * 1.0],
    color=["0.6", "C0", "C3"],
)
left.set(xlabel="epsilon", xscale="log", title="What it costs")
left.annotate(
    "and no guarantee\nfor its scores",
    (n_fits, 2),
    (-6, 0),
    textcoords="offset points",
    ha="right",
    va="center",
    color="w",
)

places = {
    "each candidate": (known, "0.6"),
    "private searches": (losses, "C0"),
    "GridSearchCV": ([quality(search)], "C3"),
}
for place, (values, colour) in enumerate(places.values()):
    right.plot(values, place + rng.uniform(-0.12, 0.12, len(values)), "o", color=colour, alpha=0.6)
right.axvline(
    -np.mean(np.log(np.where(y_new == 1, expit(X_new @ coef), expit(-X_new @ coef)))),
    color="0.3",
    ls="--",
    lw=1,
)
right.set_yticks(range(3), places)
right.set(
    xlabel="log-loss on new rows (dashed: of the true probabilities)",
    title="What it gets",
    ylim=(-0.5, 2.5),
)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

chosen = [found.best_params_["prior_scale"] for found in again]
print(
    "prior scales that twelve private searches chose:",
    {s: chosen.count(s) for s in grid["prior_scale"]},
)
plt.show()

# %%
# Most private searches end near the best candidate. Some end with the worst: the number of runs is
# random, often one, and a single run *is* the result, whatever its score. So leave candidates that
# you would not accept out of a private grid; `eta=1` makes single runs rarer, at a smaller epsilon
# for each run. `GridSearchCV` chooses well because it looks without noise, so it has no guarantee.
# Run it on public or simulated rows.
