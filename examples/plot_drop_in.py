"""
Swap the class name: three examples of scikit-learn
===================================================

Run three examples of scikit-learn privately: logistic regression of iris, a Gaussian mixture
density, and topics of documents. Add only the facts that a private fit may not look up: labels,
ranges and a vocabulary.
"""

# %%
# Logistic regression: iris
# -------------------------
# Scikit-learn's example classifies three kinds of flower by length and width of the sepals. The
# private version changes the class name and declares two public facts: the labels, and the ranges
# of the columns, by a scaler that learns nothing. Seeds make the page the same on every machine. A
# seeded fit is not private, and its report says so: never set a seed for a release.

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from sklearn.datasets import load_iris
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline

from skdpbayes import DPBayesianLogisticRegression, DPGaussianMixture, DPLatentDirichletAllocation
from skdpbayes.preprocessing import BoundedScaler

iris = load_iris()
X, y = iris.data[:, :2], iris.target
bounds = ([4.0, 1.5], [8.5, 5.0])  # centimetres, from a flora


def private_logistic(epsilon):
    """A private classifier of flowers."""
    return make_pipeline(
        BoundedScaler(bounds, feature_range=(-1, 1)),
        DPBayesianLogisticRegression(
            epsilon, classes=[0, 1, 2], data_norm=2**0.5, prior_scale=5.0, random_state=0
        ),
    )


# %%
# A hundred and fifty flowers are few. To show the effect of more data, a hundred times as many are
# simulated: for each kind, normal sepals with the moments of the real ones.

rng = np.random.default_rng(0)
many_y = np.repeat([0, 1, 2], 5000)
many_X = np.concatenate(
    [rng.multivariate_normal(X[y == k].mean(0), np.cov(X[y == k].T), 5000) for k in range(3)]
)

fits = {
    "scikit-learn, 150 flowers": LogisticRegression().fit(X, y),
    "private (epsilon 1), 150 flowers": private_logistic(1.0).fit(X, y),
    "private (epsilon 1), 15,000 flowers": private_logistic(1.0).fit(many_X, many_y),
}
colours = ["tab:blue", "tab:orange", "tab:green"]
fig, panels = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True, layout="constrained")
for ax, (name, model) in zip(panels, fits.items(), strict=True):
    DecisionBoundaryDisplay.from_estimator(
        model,
        X,
        ax=ax,
        response_method="predict",
        plot_method="pcolormesh",
        multiclass_colors=colours,
        alpha=0.4,
    )
    ax.scatter(X[:, 0], X[:, 1], c=np.array(colours)[y], s=18, edgecolors="k", linewidths=0.5)
    ax.set_title(
        f"{name}:\n{np.mean(model.predict(X) == y):.0%} of the real flowers right", fontsize=10
    )
    ax.set_xlabel("sepal length (cm)")
panels[0].set_ylabel("sepal width (cm)")

# %%
# With 150 rows one flower has much influence, so at epsilon 1 the noise must be large, and the map
# is worse than scikit-learn's. With a hundred times as many rows privacy costs little.
#
# Gaussian mixture: a density
# ---------------------------
# Scikit-learn's example has a round cloud and a stretched one, and draws the predicted negative
# log-likelihood. The private version adds the ranges, and has ten times as many points.

shifted = 20 + rng.standard_normal((3000, 2))
stretched = rng.standard_normal((3000, 2)) @ [[0.0, -0.7], [3.5, 0.7]]
points = np.concatenate([shifted, stretched])

mixtures = {
    "GaussianMixture": GaussianMixture(n_components=2, random_state=0).fit(points),
    "DPGaussianMixture, epsilon 1": DPGaussianMixture(
        n_components=2, epsilon=1.0, bounds=(-30, 40), random_state=0
    ).fit(points),
}
grid = np.stack(np.meshgrid(np.linspace(-20, 30, 120), np.linspace(-20, 40, 120)), axis=-1)
fig, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
for ax, (name, model) in zip(panels, mixtures.items(), strict=True):
    surface = -model.score_samples(grid.reshape(-1, 2)).reshape(120, 120)
    lines = ax.contour(
        grid[..., 0], grid[..., 1], surface, norm=LogNorm(1, 1000), levels=np.logspace(0, 3, 10)
    )
    ax.plot(points[::5, 0], points[::5, 1], ".", ms=1.5, color="0.4")
    ax.set_title(name)
    ax.set_xlabel("first column")
panels[0].set_ylabel("second column")
fig.colorbar(lines, ax=panels, label="negative log-likelihood")

# %%
# The two pictures are nearly the same, because six thousand points are many for two clouds.
#
# Topics
# ------
# Scikit-learn's example draws the top words of topics. These documents about four themes are
# simulated, so the truth is known. The vocabulary is public: it is written down here. The page
# *Topics of documents* has ten topics, with intervals.

themes = {
    "sport": "game team season player coach score league goal win match".split(),
    "space": "orbit launch moon nasa shuttle satellite rocket earth mission solar".split(),
    "health": "patient doctor disease drug hospital treatment pain diet virus clinic".split(),
    "money": "price market stock trade bank tax profit sale budget loan".split(),
}
common = "make new time day people work long part end case".split()
words = np.array([word for theme in themes.values() for word in theme] + common)
truth = np.zeros((4, len(words)))
for k in range(4):
    truth[k, 10 * k : 10 * k + 10] = 0.7 * rng.dirichlet(np.full(10, 2.0))
    truth[k, 40:] = 0.3 * rng.dirichlet(np.full(10, 5.0))
# 5000 documents of about forty words.
counts = rng.poisson(40 * rng.dirichlet(np.full(4, 0.25), 5000) @ truth)

models = {
    "LatentDirichletAllocation": LatentDirichletAllocation(4, random_state=0).fit(counts),
    "DPLatentDirichletAllocation,\nepsilon 1": DPLatentDirichletAllocation(
        4, epsilon=1.0, random_state=0
    ).fit(counts),
}
fig, panels = plt.subplots(2, 4, figsize=(12, 6), sharex=True, layout="constrained")
for row, (name, model) in zip(panels, models.items(), strict=True):
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    about = [
        int(np.argmax([topic[10 * k : 10 * k + 10].sum() for k in range(4)])) for topic in topics
    ]
    for ax, k in zip(row, np.argsort(about), strict=True):
        top = np.argsort(-topics[k])[:8][::-1]
        ax.barh(
            words[top], topics[k, top], color="C0" if name.startswith("DP") else "0.6", alpha=0.6
        )
        ax.plot(truth[about[k], top], words[top], "k|", ms=9)
        ax.spines[["top", "right"]].set_visible(False)
    row[0].set_title(name, loc="left", fontsize=10)
fig.supxlabel("probability of the word (marks: the truth)", fontsize=10)
plt.show()

# %%
# Both find the four themes; with noise the word frequencies are a little too even. So declare what
# a private fit may not look up, and change the class name. Each private model also has posterior
# draws, and `privacy_spent_` reports its cost.
