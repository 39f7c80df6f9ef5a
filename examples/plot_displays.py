"""
Pictures in one line each
=========================

Draw fits, guarantees and checks with one call each, as with scikit-learn's displays. This page has
three of them; the last cell names the pages that have the others.
"""

# %%
# Coefficients with intervals
# ---------------------------
# Who has an affair? Answers of married women to a survey, scaled from public ranges to [-1, 1].
# Intervals include the noise of privacy. The ticks are coefficients without privacy; do not compute
# them for rows to protect. Seeds make the page the same on every machine. A seeded fit is not
# private, and its report says so: never set a seed for a release.

import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.datasets import load_fair
from skdpbayes.displays import AuditDisplay, PosteriorIntervalDisplay, PrivacyUtilityDisplay
from skdpbayes.preprocessing import BoundedScaler

data = load_fair()
scale = BoundedScaler(data.bounds, feature_range=(-1, 1)).set_output(transform="pandas")
X_train, X_test = (scale.fit_transform(X[list(data.bounds)]) for X in (data.X_train, data.X_test))
y_train, y_test = ((y == "affair").astype(int) for y in (data.y_train, data.y_test))

model = DPBayesianLogisticRegression(
    epsilon=1.0, classes=[0, 1], data_norm=6**0.5, solver="na-dpvi", random_state=0
).fit(X_train, y_train)
known = LogisticRegression().fit(X_train, y_train)
PosteriorIntervalDisplay.from_estimator(model, reference=known.coef_.ravel())

# %%
# What privacy costs
# ------------------
# The picture shows the mean and the range of five fits at each epsilon, scored on held-out rows. On
# rows to protect each of these fits would spend budget, and the scores would leak: do this on
# public or simulated rows that resemble yours.

PrivacyUtilityDisplay.from_estimator(
    model,
    X_train,
    y_train,
    X_test,
    y_test,
    scoring="roc_auc",
    n_repeats=5,
    reference=LogisticRegression(),
)

# %%
# What the best attack finds
# --------------------------
# An audit attacks fits to a table with one row and fits without it, and compares its success with
# the claim. The attack's curve must stay below the claimed curve.

AuditDisplay.from_estimator(
    DPBayesianLogisticRegression(epsilon=8.0, classes=[0, 1], data_norm=2.0, solver="vips"),
    X_train.to_numpy()[:50, :2], y_train.to_numpy()[:50], n_trials=1000,
)  # fmt: skip
plt.show()

# %%
# Elsewhere in the gallery: guarantees (``PrivacyProfileDisplay``, ``TradeOffDisplay``) in *What an
# epsilon means*, a ledger (``LedgerDisplay``) in *A budget for a whole study*, coverage, ranks and
# reliability (``CoverageDisplay``, ``RankDisplay``, ``ReliabilityDisplay``) in the pages on
# calibration and *From raw columns to calibrated predictions*.
