"""
A budget for a whole study
==========================

Share one budget among all fits of a study. Each model fitted to the same patients reveals a little
more. A `PrivacyLedger` charges every fit before it draws any noise, and refuses a fit that would
exceed the budget. The bound holds even if each fit is chosen after looking at the results of the
earlier ones.
"""

# %%
# The plan
# --------
# The patients are simulated. The study may spend epsilon 2 at delta 1e-5 in total. One ledger holds
# this budget for two models, a private search for parameters, and later ideas.

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
# The first look is a mixture, then comes a regression. Each asks for its own epsilon; ranges are
# public. No seed is set, so the guarantee holds. The page prints the cost of the fits, which does
# not depend on the noise.

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
# The search draws candidates, scores them with noise and shows only the best. It is charged once,
# before it runs, for the whole selection. A ledger has a looser bound for a search than the
# search's own report, so the search takes a larger share than a fit of the same epsilon.

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
# One more fit would exceed the budget and is refused. Nothing ran, and nothing was spent.

try:
    DPBayesianLinearRegression(epsilon=1.0, bounds=((18, 100), (80, 220)), ledger=ledger).fit(
        patients[:, [0]], patients[:, 1]
    )
except BudgetError as error:
    print(error)

# %%
# Bars are shares of the budget. Shares add up, and epsilons do not: noise adds by its squares, so
# the fits of 0.5 and 0.6 together take less than a quarter of a budget of 2.

LedgerDisplay.from_ledger(ledger)

# %%
# The record
# ----------
# Keep the cost of the study, as JSON, with its publications. Nothing in it depends on a patient's
# values. The page shows how many noisy sums each fit has released.

record = json.loads(ledger.to_json())
for entry in record["entries"]:
    n_releases = sum(step["steps"] for step in entry["steps"])
    print(
        f"{entry['label']}: {'one selection' if 'selection' in entry else f'{n_releases} releases'}"
    )

plt.show()
