"""
Pictures in one line each
=========================

Displays draw what fits, guarantees and checks say, as scikit-learn's do. Three of them are here; the others are on the
pages of the gallery named below.
"""

# %%
# What a fit says of its coefficients
# -----------------------------------
# Intervals include the noise of privacy. The ticks are coefficients without privacy, which one has for a public table
# like this only.

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.inspection import PosteriorIntervalDisplay, PrivacyUtilityDisplay
from skdpbayes.privacy import AuditDisplay

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X = X[["mean radius", "mean texture", "mean smoothness", "mean symmetry", "worst concavity"]]
X = StandardScaler().set_output(transform="pandas").fit_transform(X)  # the table is public: else this would leak
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

model = DPBayesianLogisticRegression(epsilon=3.0, classes=[0, 1], solver="na-dpvi", random_state=0)
model.fit(X_train, y_train)
known = LogisticRegression().fit(X_train, y_train)
PosteriorIntervalDisplay.from_estimator(model, reference=known.coef_.ravel())

# %%
# What privacy costs
# ------------------
# The mean and the range of five fits at each epsilon, scored on rows that were held out. On a table that is not public
# each of these fits would spend, and scores would leak: do this on simulated rows that resemble yours.

PrivacyUtilityDisplay.from_estimator(
    model, X_train, y_train, X_test, y_test, scoring="roc_auc", n_repeats=5, reference=LogisticRegression()
)

# %%
# What the best attack finds
# --------------------------
# An audit attacks fits to a table with one row and fits without it, and compares its success with the claim. The curve
# of the attack has to stay below that of the claim.

AuditDisplay.from_estimator(
    DPBayesianLogisticRegression(epsilon=8.0, classes=[0, 1], data_norm=2.0, solver="vips"),
    X.to_numpy()[:50, :2], y.to_numpy()[:50], n_trials=1000,
)  # fmt: skip
plt.show()

# %%
# Elsewhere in the gallery: guarantees (``PrivacyProfileDisplay``, ``TradeOffDisplay``) in *What an epsilon means*, a
# ledger (``LedgerDisplay``) in *A budget for a whole study*, coverage, ranks and reliability (``CoverageDisplay``,
# ``RankDisplay``, ``ReliabilityDisplay``) in the pages on calibration and on Adult.
