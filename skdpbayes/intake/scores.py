"""Scores of single records, in [0, 1], by which a private search compares models.

A search adds noise for the most that one record may move the sum of all scores, which is 1. So a
score must depend on its own record alone. The named ones do. A callable is shown one record at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from skdpbayes.intake.labels import codes_of_labels

LONGEST_LOSS = 3.0  # nats of log-loss beyond which a row counts as wholly wrong


def scores(
    scoring: str | Callable[..., Any], model: Any, X: Any, y: Any, log_volume: float = 0.0
) -> np.ndarray:
    """Score of each record, in [0, 1]; NaN for one on which `scoring` raises.

    Parameters
    ----------
    scoring : {"log_loss", "accuracy", "log_density"} or callable
    model : fitted estimator
    X, y : records
    log_volume : float
        Log of the range with whose uniform density ``"log_density"`` compares the model's.
    """
    n = _num_samples(X)
    named = {
        "log_loss": _bounded_log_loss,
        "accuracy": _accuracy,
        "log_density": lambda model, X, y: expit(model._log_density(X, y) + log_volume),
    }
    call = scoring if callable(scoring) else named[scoring]
    with np.errstate(all="ignore"):
        if not callable(scoring):
            try:
                return np.asarray(call(model, X, y), np.float32).reshape(n)
            except Exception:  # caused by one record
                pass
        return np.array([_score_of_one(call, model, X, y, i) for i in range(n)], np.float32)


def _score_of_one(call: Callable[..., Any], model: Any, X: Any, y: Any, i: int) -> Any:
    own = (None if data is None else _safe_indexing(data, [i]) for data in (X, y))
    try:
        return np.float32(np.asarray(call(model, *own), float).reshape(1)[0])
    except Exception:  # an error would tell of this record
        return np.nan


def _probability_of_label(model: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each record's own label, NaN if it is unknown, and the largest one."""
    _, code = codes_of_labels(model.classes, y, model.classes_)
    probability = model.predict_proba(X)
    own = np.where(code >= 0, probability[np.arange(len(code)), code], np.nan)
    return own, probability.max(axis=1)


def _accuracy(model: Any, X: Any, y: Any) -> np.ndarray:
    own, most = _probability_of_label(model, X, y)
    return np.where(np.isnan(own), np.nan, own >= most)


def _bounded_log_loss(model: Any, X: Any, y: Any) -> np.ndarray:
    own, _ = _probability_of_label(model, X, y)
    return 1 + np.maximum(np.log(own), -LONGEST_LOSS) / LONGEST_LOSS
