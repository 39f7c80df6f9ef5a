"""Scores of single records, in [0, 1], by which a private search compares models.

A search adds noise for the most that one record may move the sum of all scores, which is 1. So a
score must depend on its own record alone. The named ones do. A function of a user's is shown one
record at a time.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy.special import expit
from sklearn.base import is_classifier
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from skdpbayes._labels import as_labels, codes
from skdpbayes._rows import as_numeric, counted, parsed
from skdpbayes.estimators import (
    DPBayesianLinearRegression,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPSigmoidBeliefNet,
    DPVariationalAutoencoder,
)
from skdpbayes.estimators._classes import classes_of

LONGEST_LOSS = 3.0  # nats of log-loss beyond which a row counts as wholly wrong
_REGRESSIONS = DPBayesianLinearRegression, DPBayesianMLPRegressor
_BINARY = DPBetaBernoulli, DPSigmoidBeliefNet, DPVariationalAutoencoder
_DENSITIES = (
    *_REGRESSIONS, *_BINARY, DPDirichletCategorical, DPGammaExponential, DPGaussianMixture,
    DPLatentDirichletAllocation, DPNumPyroModel,
)  # fmt: skip


def scorings(estimator):
    """Names of the scores that there are for an estimator, the default first."""
    if is_classifier(estimator):
        return ("log_loss", "accuracy")
    return ("log_density",) if isinstance(estimator, _DENSITIES) else ()


def scores(scoring, model, X, y, log_volume=0.0):
    """Score of each record, in [0, 1] or NaN; one that makes `scoring` raise is NaN, and changes no other.

    Parameters
    ----------
    scoring : {"log_loss", "accuracy", "log_density"} or callable
    model : fitted estimator
    X, y : records
    log_volume : float
        As `log_volume` has it, for ``"log_density"``.
    """
    n, of_user = _num_samples(X), callable(scoring)
    call = scoring if of_user else partial(_NAMED[scoring], log_volume)
    with np.errstate(all="ignore"):
        if not of_user:
            try:
                return np.asarray(call(model, X, y), np.float32).reshape(n)
            except Exception:  # whatever one record brought about
                pass
        return np.array([_score_of_one(call, model, X, y, i) for i in range(n)], np.float32)


def _score_of_one(call, model, X, y, i):
    own = (None if data is None else _safe_indexing(data, [i]) for data in (X, y))
    try:
        return np.float32(np.asarray(call(model, *own), float).reshape(1)[0])
    except Exception:  # an error would tell of this record
        return np.nan


def _probability_of_label(model, X, y):
    labels, _, _ = classes_of(model.classes, y, np.asarray(as_labels(y)))  # as in its fit
    probability, code = model.predict_proba(X), codes(labels, model.classes_)
    return np.where(code >= 0, probability[np.arange(len(code)), code], np.nan), probability.max(axis=1)


def _accuracy(log_volume, model, X, y):
    del log_volume
    own, most = _probability_of_label(model, X, y)
    return np.where(np.isnan(own), np.nan, own >= most)


def _bounded_log_loss(log_volume, model, X, y):
    del log_volume
    return 1 + np.maximum(np.log(_probability_of_label(model, X, y)[0]), -LONGEST_LOSS) / LONGEST_LOSS


def _bounded_log_density(log_volume, model, X, y):
    return expit(_log_density(model, X, y) + log_volume)


_NAMED = {"log_loss": _bounded_log_loss, "accuracy": _accuracy, "log_density": _bounded_log_density}


def _log_density(model, X, y):
    """Log predictive density of each record, per column; of documents per word, of regressions of the response."""
    if isinstance(model, DPLatentDirichletAllocation):
        return _log_density_of_words(model, X)
    if isinstance(model, _REGRESSIONS):
        return model.log_predictive_density(X, parsed(np.asarray(as_labels(y))))
    if isinstance(model, DPNumPyroModel):
        return model.log_predictive_density(X, y)
    return model.score_samples(X) / model.n_features_in_


def _log_density_of_words(model, X):
    """Per word of half of each document, given its other half; NaN for one without words.

    Counts are halved; of an odd one the larger half is taken from columns of even number.
    """
    X, _ = counted(as_numeric(X))
    given = X.copy()
    given.data = np.floor((X.data + 1 - X.indices % 2) / 2)
    left = X.data - given.data
    proportions = model.transform(given)
    row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    log = np.log(np.einsum("ik,ki->i", proportions[row], model.topics_[:, X.indices]))
    total, words = (np.bincount(row, values, X.shape[0]) for values in (left * log, left))
    return total / words


def log_volume(estimator, n_features):
    """Log of the range that `log_density` is compared with, from public parameters: uniform there scores 1/2.

    Parameters
    ----------
    estimator : estimator
        Whose `fit` was planned, with the parameters that all candidates are compared by.
    n_features : int
    """
    if isinstance(estimator, DPGaussianMixture):
        (_, half), _ = estimator._scaling(np.zeros((1, n_features)))
        return float(np.log(2 * half).mean())
    if isinstance(estimator, _REGRESSIONS):
        scales, _ = estimator._scaling(np.zeros((1, n_features)), np.zeros(1))
        return float(np.log(2 * scales[3]).mean())
    if isinstance(estimator, DPGammaExponential):
        upper = estimator.upper or 2 * estimator.prior_rate / estimator.prior_shape
        return math.log(upper)
    if isinstance(estimator, _BINARY):
        return math.log(2)
    if isinstance(estimator, DPDirichletCategorical):
        return math.log(len(estimator.privacy_spent_.public["categories"]))
    if isinstance(estimator, DPLatentDirichletAllocation):
        return math.log(n_features)
    return 0.0
