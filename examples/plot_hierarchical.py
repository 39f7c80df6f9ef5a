"""
Many small hospitals
====================

Estimate how risk factors differ between hospitals, most of which have few patients. This page
compares four private ways: a hierarchical model, one fit for each hospital, one fit for all, and
separate fits shrunk afterwards.
"""

# %%
# Twenty-four hospitals, simulated
# --------------------------------
# A patient's risk depends on age and on severity, both scaled to [-1, 1]. Weights vary between
# hospitals about a common mean with standard deviation 0.6. Six hospitals each have 50, 200, 800
# and 3200 patients. Seeds make the page the same on every machine. A seeded fit is not private, and
# its report says so: never set a seed for a release.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression, DPHierarchicalLogisticRegression

EPSILON, SPREAD, PRIOR = 1.0, 0.6, 2.0
sizes = np.repeat([50, 200, 800, 3200], 6)
K = len(sizes)
rng = np.random.default_rng(0)
truth = np.array([1.5, 1.0, -0.5]) + SPREAD * rng.normal(size=(K, 3))  # age, severity, intercept


def patients(sizes):
    """Columns age, severity and hospital, and whether the patient was readmitted."""
    hospital = np.repeat(np.arange(K), sizes)
    x = rng.uniform(-1, 1, size=(len(hospital), 2))
    chance = expit((x * truth[hospital, :2]).sum(axis=1) + truth[hospital, 2])
    return np.column_stack([x, hospital]), (rng.random(len(hospital)) < chance).astype(int)


X, y = patients(sizes)

# %%
# Four ways, at the same epsilon
# ------------------------------
# **Hierarchical**: one model with weights for each hospital about a common mean. The hospital of a
# patient is private; the list of hospitals is public.

common = {"epsilon": EPSILON, "classes": [0, 1], "data_norm": 2**0.5, "prior_scale": PRIOR}
hierarchical = DPHierarchicalLogisticRegression(
    K, group_scale=SPREAD, random_state=0, **common
).fit(X, y)

# %%
# **One fit each.** Each patient is in one fit only, so all fits together cost no more than one.
# This is parallel composition. It requires that the hospital of each patient and the number of
# patients per hospital are public. No report makes this argument for you. **Pooled**: one fit to
# all, as if hospitals were alike.

each = [
    DPBayesianLogisticRegression(random_state=1 + k, **common).fit(
        X[X[:, 2] == k, :2], y[X[:, 2] == k]
    )
    for k in range(K)
]
pooled = DPBayesianLogisticRegression(random_state=100, **common).fit(X[:, :2], y)

# %%
# **Each, then shrunk.** Releases may be used in any way, so a second model can combine the
# posteriors of the fits: hospitals vary about a mean with a learnt spread. This is a random-effects
# meta-analysis, and costs no budget. Each posterior is approximated as normal, and its prior is
# removed to leave the noisy information of the hospital's patients. The posteriors include the
# noise, so the meta-analysis weights each correctly.

known = np.linalg.inv([model.posterior_.covariance for model in each])
told = np.einsum("kij,kj->ki", known, [model.posterior_.mean for model in each])
values, vectors = np.linalg.eigh(known - np.eye(3) / PRIOR**2)
precisions = np.einsum("kij,kj,klj->kil", vectors, values.clip(0), vectors)  # no less than nothing

mean, spread, shrunk, spreads = np.zeros(3), 1.0, [], []
for _ in range(2000):  # a Gibbs sampler
    covariance = np.linalg.inv(precisions + np.eye(3) / spread**2)
    centre = np.einsum("kij,kj->ki", covariance, told + mean / spread**2)
    weights = centre + np.einsum(
        "kij,kj->ki", np.linalg.cholesky(covariance), rng.normal(size=(K, 3))
    )
    mean = weights.mean(axis=0) + spread / K**0.5 * rng.normal(size=3)
    spread = np.sqrt(np.sum((weights - mean) ** 2) / rng.chisquare(3 * K - 1))
    shrunk.append(weights)
    spreads.append(spread)
shrunk = np.array(shrunk[500:])
print(
    f"spread between hospitals, found by the meta-analysis: {np.mean(spreads[500:]):.2f} (in truth "
    f"{SPREAD})"
)

# %%
# The weight of age
# -----------------
# The picture shows its posterior mean in each hospital, with 90% credible intervals.


def stacked(models):
    """Draws of all weights of each hospital, of shape (n_draws, K, 3)."""
    samples = [model.posterior_samples_ for model in models]
    return np.stack([np.column_stack([s["coef"][:, 0], s["intercept"]]) for s in samples], axis=1)


draws = {
    "hierarchical": hierarchical.posterior_samples_["weights"],
    "one fit each": stacked(each),
    "pooled": stacked([pooled] * K),
    "each, then shrunk": shrunk,
}
colours = dict(zip(draws, ("C0", "C1", "C2", "C3"), strict=True))
place = np.arange(K) + np.arange(K) // 6  # a gap between sizes
fig, panels = plt.subplots(4, 1, figsize=(10, 10), sharex=True, sharey=True, layout="constrained")
for ax, (name, found) in zip(panels, draws.items(), strict=True):
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    held = np.mean((low < truth) & (truth < high))
    error = np.sqrt(np.mean((found.mean(axis=0) - truth) ** 2))
    ax.vlines(place, low[:, 0], high[:, 0], color=colours[name], lw=5, alpha=0.35)
    ax.plot(
        place,
        found[:, :, 0].mean(axis=0),
        "o",
        color=colours[name],
        ms=4,
        label="posterior mean, 90% interval",
    )
    ax.plot(place, truth[:, 0], "x", color="0.1", ms=5, label="truth")
    ax.set_title(
        f"{name}: of all weights, error {error:.2f} (rms), intervals that hold the truth "
        f"{held:.0%}",
        loc="left",
    )
    ax.set_ylabel("weight of age (log odds)")
    ax.spines[["top", "right"]].set_visible(False)
panels[0].legend(frameon=False, ncols=2, loc="upper right")
panels[-1].set_xticks(place.reshape(4, 6).mean(axis=1), [f"{n} patients" for n in sizes[::6]])

# %%
# New patients
# ------------
# The bars show the log-loss in excess of the true probabilities, in expectation over patients and
# labels, by size of hospital.

x = np.column_stack([rng.uniform(-1, 1, size=(1000, 2)), np.ones(1000)])
true = expit(truth @ x.T)
fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for shift, (name, found) in zip((-0.3, -0.1, 0.1, 0.3), draws.items(), strict=True):
    proba = np.mean([expit(weights @ x.T) for weights in found[::5]], axis=0)
    excess = true * np.log(true / proba) + (1 - true) * np.log((1 - true) / (1 - proba))
    ax.bar(
        np.arange(4) + shift,
        excess.reshape(4, -1).mean(axis=1),
        0.18,
        color=colours[name],
        label=name,
    )
ax.set_xticks(range(4), [f"{n} patients" for n in sizes[::6]])
ax.set(ylabel="excess log-loss (nats)", title=f"New patients, epsilon {EPSILON:g}")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Separate fits are honest, but of little use for the smallest hospitals: they fall back on their
# prior. The pooled fit is overconfident, and wrong about most hospitals. The hierarchical model
# borrows strength and its intervals cover, but with this many weights its noise is not small, and
# its error is hardly less than the error of separate fits. Shrinking the separate fits has the
# smallest error, and its intervals cover too. Take it if the hospital of each patient is public,
# and the hierarchical model if it is not.
