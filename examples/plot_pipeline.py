"""
From raw columns to calibrated predictions with intervals
=========================================================

Build a pipeline from the raw columns of a survey, text and numbers, to private probabilities of an
extramarital affair. A second pipeline spends a fifth of the budget on learning the scales of its
numeric columns.
"""

# %%
# The table, and a schema of what is public about it
# --------------------------------------------------
# Women answered the survey in 1974. One row is one woman, so the fits below protect one woman. A
# `Schema` holds the public facts: column names, bounds, categories and labels. They come from the
# documentation of the table, not from the rows.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline

from skdpbayes import DPBayesianLogisticRegression, Schema
from skdpbayes.calibration import calibration_error
from skdpbayes.datasets import load_fair
from skdpbayes.displays import ReliabilityDisplay
from skdpbayes.pipelines import check_pipeline
from skdpbayes.preprocessing import BoundedScaler, CategoryEncoder, DPStandardScaler, NormClipper

jobs = ["student", "farm or unskilled", "white-collar", "teacher, nurse or skilled"]
jobs += ["manager", "professional"]
schema = Schema(
    {
        "rate_marriage": {"bounds": [1, 5]},
        "age": {"bounds": [17.5, 42], "unit": "years"},
        "yrs_married": {"bounds": [0.5, 23], "unit": "years"},
        "children": {"bounds": [0, 5.5]},
        "religious": {"bounds": [1, 4]},
        "educ": {"bounds": [9, 20], "unit": "years"},
        "occupation": {"categories": jobs},
        "occupation_husb": {"categories": jobs},
    },
    outcome={"name": "affair", "labels": ["no affair", "affair"]},
)
data = load_fair()
print(f"{len(data.y_train)} women to learn from, {len(data.y_test)} to test on")
data.X_train.head(3)

# %%
# A pipeline in which every step keeps the promise
# ------------------------------------------------
# The encoder and the scaler before the model take categories and bounds from the schema, so they
# learn nothing and cost nothing. `check_pipeline` checks all steps before anything is fitted, and
# computes the total cost. A row has norm at most the square root of 8, since it consists of six
# numbers in [-1, 1], two ones and zeros.

numbers, texts = schema.names[:6], schema.names[6:]


def pipeline(scaler, *steps):
    """Scale the numbers, encode the texts, then run these steps."""
    columns = [
        ("numbers", scaler, list(numbers)),
        ("texts", CategoryEncoder(schema.select(texts)), list(texts)),
    ]
    return make_pipeline(ColumnTransformer(columns), *steps)


def logistic(**parameters):
    """Private logistic regression of the outcome."""
    return DPBayesianLogisticRegression(classes=schema.outcome, solver="na-dpvi", **parameters)


scaler = BoundedScaler(schema.select(numbers), feature_range=(-1, 1))
plain = pipeline(scaler, logistic(epsilon=1.0, delta=1e-5, data_norm=8**0.5))
print(check_pipeline(plain))

# %%
# Is a private scaler worth its budget?
# -------------------------------------
# `DPStandardScaler` learns means and standard deviations with noise. Here it replaces
# `BoundedScaler`, at epsilon 0.2; the model gets the remaining 0.8. Deltas add up too, so each has
# half. A standardised column has no bound, so rows are scaled down to norm 4 before the model.

learning = DPStandardScaler(schema.select(numbers), epsilon=0.2, delta=5e-6)
clipped = (NormClipper(4.0), logistic(epsilon=0.8, delta=5e-6, data_norm=4.0))
scaled = pipeline(learning, *clipped)
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


private = seeded(plain, 0).fit(data.X_train, data.y_train)
learned = seeded(scaled, 10).fit(data.X_train, data.y_train)
open_ = pipeline(scaler, LogisticRegression(max_iter=1000)).fit(data.X_train, data.y_train)
models = {"public bounds": private, "private scaler": learned, "not private": open_}
event = np.asarray(data.y_test == "affair")


def probability(model, X):
    """Probability of an affair."""
    return model.predict_proba(X)[:, list(model.classes_).index("affair")]


def metrics(model):
    """Scores on the women that no model has seen."""
    predicted = probability(model, data.X_test)
    return {
        "accuracy": model.score(data.X_test, data.y_test),
        "area under the ROC curve": roc_auc_score(event, predicted),
        "log-loss": log_loss(event, predicted),
        "calibration error": calibration_error(event, predicted, strategy="quantile"),
    }


found = {name: metrics(model) for name, model in models.items()}
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
# Left: women whom no model has seen, in ten bins of predicted probability. The grey band contains
# calibrated predictions with probability 95%. Right: sixty of them, with a 95% credible interval of
# each probability. An interval describes the uncertainty of the *coefficients*, privacy noise
# included, and not the outcome, which is yes or no.

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
curves = []
for name in ("public bounds", "not private"):
    predicted = probability(models[name], data.X_test)
    display = ReliabilityDisplay.from_predictions(event, predicted, name=name, ax=left)
    curves.append(display.line_)
left.legend(handles=curves, loc="upper left", frameon=False)
left.set(xlabel="predicted probability of an affair", title="Are they honest?")

shown = np.linspace(0, len(event) - 1, 60).astype(int)
women = data.X_test.iloc[shown]
mean = probability(private, women)
affair = list(private.classes_).index("affair")
low, high = (
    ends[:, affair] for ends in private[-1].predict_interval(private[:-1].transform(women))
)
order = np.argsort(mean)
happened = event[shown][order]
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
    xlabel="sixty women, sorted", ylabel="probability of an affair", title="How sure are they?"
)
right.set(ylim=(-0.08, 1.08))
right.legend(loc="upper left", frameon=False, bbox_to_anchor=(0, 0.93))
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
