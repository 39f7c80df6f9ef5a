"""Logistic regression by diffprivlib 0.6.6, in its own environment, for comparison.

``python diffprivlib_fits.py data.npz`` has ``X``, ``y``, ``X_test``, ``y_test`` and ``norm``; each
line of JSON on standard input, ``{"epsilons": [...], "cs": [...], "seed": 0}``, is answered with
accuracy and AUC by epsilon and C, on the test split: the other side takes the best C, which is
optimistic for diffprivlib. Its guarantee is pure epsilon.
"""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression
from sklearn.metrics import roc_auc_score

warnings.simplefilter("ignore")
with np.load(sys.argv[1]) as archive:
    X, y, X_test, y_test = (archive[name] for name in ("X", "y", "X_test", "y_test"))
    norm = float(archive["norm"])
norm *= 1 + 1e-9  # it refuses rows whose norm rounds to more


def fit(epsilon, c, seed):
    model = LogisticRegression(epsilon=epsilon, data_norm=norm, C=c, random_state=seed).fit(X, y)
    return model.score(X_test, y_test), roc_auc_score(y_test, model.decision_function(X_test))


for line in sys.stdin:
    request = json.loads(line)
    found = [
        [fit(epsilon, c, request["seed"]) for c in request["cs"]] for epsilon in request["epsilons"]
    ]
    print(json.dumps({"accuracy_auc": found}), flush=True)
