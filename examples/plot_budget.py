"""
A budget for a whole study
==========================

A study fits several models to the same patients, and each of them tells a little more. A
`PrivacyLedger` holds the budget of all: every fit is charged before it draws any noise, and one
that would exceed the budget is refused. That holds even if each fit is chosen after looking at the
results of the earlier ones.
"""

# %%
# The plan
# --------
# The patients are simulated. The study may spend epsilon 2 at delta 1e-5 in all. One ledger holds that budget: for two
# models, for a private search for parameters, and for whatever comes to mind later.

import json

import matplotlib.pyplot as plt
import numpy as np

from skdpbayes import DPBayesianLinearRegression, DPBayesianLogisticRegression, DPGaussianMixture
from skdpbayes.displays import LedgerDisplay
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.privacy import BudgetError, PrivacyLedger

rng = np.random.default_rng(0)
group = rng.random(4000) < 0.4
age = np.clip(np.where(group, 35, 70) + 6 * rng.normal(size=4000), 18, 100)
pressure = np.clip(95 + 0.6 * age + 8 * rng.normal(size=4000), 80, 220)
ill = np.where((age - 55) / 10 + rng.logistic(size=4000) > 0, "ill", "well")
patients = np.column_stack([age, pressure])

ledger = PrivacyLedger(epsilon=2.0, delta=1e-5)

# %%
# Two models on the ledger
# ------------------------
# A mixture, for a first look, then a regression. Each asks for its own epsilon; ranges are public. No seed is set, so
# the guarantee holds; the page prints what the fits cost, which is the same for all noise.

with ledger:
    mixture = DPGaussianMixture(epsilon=0.5, n_components=2, bounds=([18, 80], [100, 220])).fit(
        patients
    )

    regression = DPBayesianLinearRegression(epsilon=0.6, bounds=((18, 100), (80, 220)))
    regression.fit(patients[:, [0]], patients[:, 1])

for fitted in (mixture, regression):
    print(fitted.privacy_spent_)

# %%
# A search on the same ledger
# ---------------------------
# The search draws candidates, scores them with noise and shows the best alone. It is charged once, before it runs, for
# the whole selection. A ledger counts a search as dearer than its own report does, so it takes a larger share than a
# fit of the same epsilon.

scaled = (patients - [59, 150]) / [41, 70]
search = DPRandomizedSearchCV(
    DPBayesianLogisticRegression(classes=["ill", "well"], solver="vips", data_norm=2**0.5),
    {"prior_scale": [0.1, 1.0, 10.0]},
    epsilon=0.8,
    n_iter=3,
    ledger=ledger,
).fit(scaled, ill)
print(search.privacy_spent_)

# %%
# The end of the budget
# ---------------------
# One more idea, and it is refused. Nothing was run, and nothing was spent.

try:
    DPBayesianLinearRegression(epsilon=1.0, bounds=((18, 100), (80, 220)), ledger=ledger).fit(
        patients[:, [0]], patients[:, 1]
    )
except BudgetError as error:
    print(error)

# %%
# Bars are shares of the budget. They add up, which epsilons do not: noise adds by its squares, so
# the fits of 0.5 and 0.6 together take less than a quarter of a budget of 2.

LedgerDisplay.from_ledger(ledger)

# %%
# The record
# ----------
# What the study has cost, as JSON, to be kept with what it publishes. Nothing in it depends on a patient's values. The
# page shows how many noisy sums each fit has released.

record = json.loads(ledger.to_json())
for entry in record["entries"]:
    n_releases = sum(step["steps"] for step in entry["steps"])
    print(
        f"{entry['label']}: {'one selection' if 'selection' in entry else f'{n_releases} releases'}"
    )

plt.show()
