"""
From raw columns to calibrated predictions with intervals
=========================================================

Build a pipeline from the raw columns of a survey, text and numbers, to private probabilities of an
extramarital affair. A second pipeline spends a fifth of the budget on learning the scales of its
numeric columns.
"""

# %%
# The table, and what is public about it
# --------------------------------------
# Women answered the survey in 1974. One row is one woman, so the fits below protect one woman.
# Column names, categories, bounds and labels come from the documentation of the table, not from the
# rows.

import matplotlib.pyplot as plt
import numpy as np
from demo import event_column, event_probability, fair, metrics, outcome
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.displays import ReliabilityDisplay
from skdpbayes.pipelines import check_pipeline
from skdpbayes.preprocessing import BoundedScaler, DPStandardScaler, NormClipper

task = fair()
print(f"{task.title}: {len(task.y_train)} women to learn from, {len(task.y_test)} to test on")
task.X_train.head(3)

# %%
# A pipeline in which every step keeps the promise
# ------------------------------------------------
# The encoder and the scaler before the model have public categories and bounds, so they learn
# nothing and cost nothing. `check_pipeline` checks all steps before anything is fitted, and
# computes the total cost.

plain = make_pipeline(
    task.preprocessor,
    DPBayesianLogisticRegression(
        epsilon=1.0, delta=1e-5, classes=task.classes, data_norm=task.data_norm, solver="na-dpvi"
    ),
)
print(check_pipeline(plain))

# %%
# Is a private scaler worth its budget?
# -------------------------------------
# `DPStandardScaler` learns means and standard deviations with noise. Here it replaces each
# `BoundedScaler`, at epsilon 0.2; the model gets the remaining 0.8. Deltas add up too, so each has
# half. A standardised column has no bound, so rows are scaled down to norm 4 before the model.


def with_private_scaler(columns):
    """The same columns, with every scaler of public bounds replaced by one that learns."""
    return ColumnTransformer(
        [
            (
                name,
                DPStandardScaler(step.bounds, epsilon=0.2, delta=5e-6)
                if isinstance(step, BoundedScaler)
                else step,
                names,
            )
            for name, step, names in columns.transformers
        ],
        verbose_feature_names_out=False,
    )


scaled = make_pipeline(
    with_private_scaler(task.preprocessor),
    NormClipper(4.0),
    DPBayesianLogisticRegression(
        epsilon=0.8, delta=5e-6, classes=task.classes, data_norm=4.0, solver="na-dpvi"
    ),
)
print(check_pipeline(scaled))  # the sum of the parts

# %%
# Three fits
# ----------
# The third model is scikit-learn's, without privacy, on the same columns as the first. Seeds make
# this page print the same on every machine. A seeded fit is not private, and its report says so:
# **never set a seed for a release.**


def seeded(pipeline, seed):
    """A copy whose figures can be had again, for this page only."""
    names = sorted(name for name in pipeline.get_params() if name.endswith("random_state"))
    return clone(pipeline).set_params(**{name: seed + k for k, name in enumerate(names)})


private = seeded(plain, 0).fit(task.X_train, task.y_train)
learned = seeded(scaled, 10).fit(task.X_train, task.y_train)
open_ = make_pipeline(task.preprocessor, LogisticRegression(max_iter=1000)).fit(
    task.X_train, task.y_train
)
models = {"public bounds": private, "private scaler": learned, "not private": open_}
found = {name: metrics(task, model) for name, model in models.items()}
print(f"{'':26}" + "".join(f"{name:>16}" for name in found))
for figure in found["not private"]:
    print(f"{figure:26}" + "".join(f"{scores[figure]:16.3f}" for scores in found.values()))

# %%
# The three are equally good, up to the noise of a fit: with four thousand rows and epsilon 1
# privacy costs next to nothing here. The scaler does not pay either. The answers fill the ranges of
# the survey, so public bounds fit them well, and learned scales are worth about the budget that
# they cost. A scaler pays if a column is bounded by 99,999 and mostly zero, like sums of money: see
# :doc:`/preprocessing`.
#
# Probabilities, and how sure they are
# ------------------------------------
# Left: women whom no model has seen, in ten bins of predicted probability, with the band of
# calibrated predictions by chance. Right: sixty of them, with a 95% credible interval of each
# probability. An interval describes the uncertainty of the *coefficients*, privacy noise included,
# and not the outcome, which is yes or no.

event = outcome(task)
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
probability = event_probability(task, private, task.X_test)
ReliabilityDisplay.from_predictions(event, probability, name="public bounds", ax=left)
predicted = event_probability(task, open_, task.X_test)
bins = np.minimum((predicted * 10).astype(int), 9)
left.plot(
    *np.transpose([(predicted[bins == b].mean(), event[bins == b].mean()) for b in np.unique(bins)]),
    "s:", color="C1", ms=5, label="not private",
)  # fmt: skip
left.set(
    xlabel=f"predicted probability of {task.event}",
    ylabel="observed share",
    title="Are they honest?",
)
left.legend(loc="upper left", frameon=False)

shown = np.linspace(0, len(event) - 1, 60).astype(int)
women = task.X_test.iloc[shown]
mean = event_probability(task, private, women)
prepared = private[:-1].transform(women)
low, high = (
    ends[:, event_column(task, private)] for ends in private[-1].predict_interval(prepared)
)
order = np.argsort(mean)
happened = event[shown][order].astype(bool)
places = np.arange(60)
right.vlines(places, low[order], high[order], color="C0", lw=3, alpha=0.4)
right.plot(places, mean[order], "o", color="C0", ms=4, label="probability, with 95% interval")
right.plot(
    places[happened], np.full(happened.sum(), 1.03), "|", color="0.2", ms=9, label="it happened"
)
right.plot(
    places[~happened], np.full((~happened).sum(), -0.03), "|", color="0.6", ms=9, label="it did not"
)
right.set(
    xlabel="sixty women, sorted", ylabel=f"probability of {task.event}", title="How sure are they?"
)
right.set(ylim=(-0.08, 1.08))
right.legend(loc="upper left", frameon=False, bbox_to_anchor=(0, 0.93))
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
