"""
Many small hospitals, one private model
=======================================

Hospitals differ in what raises the risk of their patients, and most have too few patients to say by how much.
A private hierarchical model lets them borrow from each other; separate private fits and one pooled fit do not.
"""

# %%
# Forty hospitals, simulated
# --------------------------
# A patient's risk depends on age and on severity, both scaled to [-1, 1]. Weights vary between hospitals about a
# common mean with standard deviation 0.6. Sizes go from 25 patients to 2500. Which hospital a patient is in is private;
# the list of hospitals is public. Seeds are set for the pictures, never in a fit that is released.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression, DPHierarchicalLogisticRegression

HOSPITALS, EPSILON, SPREAD = 40, 1.0, 0.6
rng = np.random.default_rng(0)
sizes = np.geomspace(25, 2500, HOSPITALS).astype(int)
truth = np.array([1.5, 1.0, -0.5]) + SPREAD * rng.normal(size=(HOSPITALS, 3))  # age, severity, intercept


def patients(sizes, rng):
    """Columns age, severity and hospital, and whether the patient was readmitted."""
    hospital = np.repeat(np.arange(HOSPITALS), sizes)
    x = rng.uniform(-1, 1, size=(len(hospital), 2))
    chance = expit((x * truth[hospital, :2]).sum(axis=1) + truth[hospital, 2])
    return np.column_stack([x, hospital]), (rng.random(len(hospital)) < chance).astype(int)


X, y = patients(sizes, rng)
new_X, new_y = patients(np.full(HOSPITALS, 500), rng)  # as many of each hospital
print(f"{len(y)} patients in {HOSPITALS} hospitals; half of the hospitals have fewer than {int(np.median(sizes))}")

# %%
# Three private models at the same epsilon
# ----------------------------------------
# - The hierarchical one, of all patients.
# - One fit for each hospital. A patient is in one of them only, so the forty fits together cost no more than one: this
#   is parallel composition, which needs the hospital and the number of patients of each to be public. It is an argument
#   about the fits that no report makes for you.
# - One fit to all patients, as if hospitals were alike.

common = {"epsilon": EPSILON, "classes": [0, 1], "data_norm": 2**0.5}
hierarchical = DPHierarchicalLogisticRegression(
    HOSPITALS, group_scale=None, prior_scale=2.0, random_state=0, **common
).fit(X, y)
pooled = DPBayesianLogisticRegression(prior_scale=2.0, random_state=1, **common).fit(X[:, :2], y)
separate = [
    DPBayesianLogisticRegression(prior_scale=2.0, random_state=2 + k, **common).fit(X[X[:, 2] == k, :2], y[X[:, 2] == k])
    for k in range(HOSPITALS)
]
print(hierarchical.privacy_spent_)
spread = hierarchical.posterior_samples_["group_scale"]
print(f"spread between hospitals: {spread.mean():.2f} ({spread.std():.2f}), in truth {SPREAD}")

# %%
# Shrinkage
# ---------
# The weight of age in each hospital, smallest hospital first, with 90% credible intervals. Where a hospital is small, its
# own fit knows next to nothing and falls back on its prior, zero; the hierarchical model falls back on the mean of all
# hospitals, and leaves it where there are enough patients to tell.

draws = {
    "hierarchical": hierarchical.posterior_samples_["weights"][:, :, 0],
    "one fit each": np.column_stack([model.posterior_samples_["coef"][:, 0, 0] for model in separate]),
    "pooled": np.repeat(pooled.posterior_samples_["coef"][:, 0, :1], HOSPITALS, axis=1),
}
colours = {"hierarchical": "C0", "one fit each": "C1", "pooled": "C2"}
fig, panels = plt.subplots(3, 1, figsize=(11, 9), sharex=True, sharey=True, layout="constrained")
place = np.arange(HOSPITALS)
for ax, (name, found) in zip(panels, draws.items(), strict=True):
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    held = np.mean((low < truth[:, 0]) & (truth[:, 0] < high))
    ax.vlines(place, low, high, color=colours[name], lw=4, alpha=0.35)
    ax.plot(place, found.mean(axis=0), "o", color=colours[name], ms=4, label="posterior mean, 90% interval")
    ax.plot(place, truth[:, 0], "x", color="0.1", ms=5, label="truth")
    ax.axhline(truth[:, 0].mean(), color="0.6", lw=0.8, ls=":", label="mean of the truths")
    error = np.sqrt(np.mean((found.mean(axis=0) - truth[:, 0]) ** 2))
    ax.set_title(f"{name}: root mean square error {error:.2f}, intervals that hold the truth {held:.0%}", loc="left")
    ax.set_ylabel("weight of age")
    ax.spines[["top", "right"]].set_visible(False)
panels[0].legend(frameon=False, ncols=3, loc="upper right")
panels[-1].set_xticks(place[::3], sizes[::3])
panels[-1].set_xlabel("number of patients of the hospital")

# %%
# New patients
# ------------
# Log-loss on 500 new patients of each hospital, as excess over the true probabilities.


def excess(proba):
    """Mean excess log-loss of each hospital."""
    true = expit((new_X[:, :2] * truth[new_X[:, 2].astype(int), :2]).sum(axis=1) + truth[new_X[:, 2].astype(int), 2])
    loss = lambda p: -np.log(np.where(new_y == 1, p, 1 - p))  # noqa: E731
    return (loss(proba) - loss(true)).reshape(HOSPITALS, -1).mean(axis=1)


losses = {
    "hierarchical": excess(hierarchical.predict_proba(new_X)[:, 1]),
    "one fit each": excess(
        np.concatenate([model.predict_proba(new_X[new_X[:, 2] == k, :2])[:, 1] for k, model in enumerate(separate)])
    ),
    "pooled": excess(pooled.predict_proba(new_X[:, :2])[:, 1]),
}
quarters = np.array_split(place, 4)
fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for shift, (name, loss) in zip((-0.25, 0, 0.25), losses.items(), strict=True):
    ax.bar(np.arange(4) + shift, [loss[part].mean() for part in quarters], 0.23, color=colours[name], label=name)
ax.set_xticks(range(4), [f"{sizes[part[0]]} to {sizes[part[-1]]}" for part in quarters])
ax.set(xlabel="patients of the hospital", ylabel="excess log-loss (nats)", title=f"New patients, epsilon {EPSILON:g}")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()
