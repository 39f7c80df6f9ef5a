"""Shared by classifiers: public labels, bounded rows, and predictions from posterior draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from skdpbayes.checks import check_number, warn_user
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import LONGEST_ROW, norm_of
from skdpbayes.intake.labels import codes, codes_of_labels
from skdpbayes.intake.rows import bounded_rows


def warn_if_rows_weigh_little(diagnostics: Mapping[str, Any], little: float) -> None:
    """Warn if rows weigh less than `little`, unless noise alone could make it seem so."""
    if diagnostics.get("mean_weight_at_most", 1.0) < little:
        warn_user(
            f"Rows weigh {diagnostics['mean_weight']:.0%} of what they could (`diagnostics_`): "
            "most are far longer than `data_norm`, or cannot be used, and intervals may be wrong. "
            "Centre and scale columns (BoundedScaler, DPStandardScaler); check_data counts both.",
            UserWarning,
        )


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    """Class probabilities along the last axis; a single logit is that of the second class."""
    if logits.shape[-1] > 1:
        return softmax(logits, axis=-1)
    logits = logits[..., 0]
    # Of minus the absolute value, which is exact at both ends, and by one exponential for both.
    with np.errstate(under="ignore"):
        odds, positive = np.exp(-np.abs(logits)), logits > 0
    out = np.empty((2, *logits.shape))  # by class, so that means over draws read memory in order
    np.divide(np.where(positive, odds, 1), 1 + odds, out=out[0])
    np.divide(np.where(positive, 1, odds), 1 + odds, out=out[1])
    return np.moveaxis(out, 0, -1)


class BayesianClassifierMixin(ClassifierMixin):
    """Predictions of a classifier with class probabilities for each posterior draw.

    A subclass has the parameters `classes` and `data_norm`, `sample_posterior` and `_over_rows`.
    """

    classes_: np.ndarray
    data_norm_: float
    _scorings: tuple[str, ...] = ("log_loss", "accuracy")
    _declared: tuple[str, ...] = ("classes",)
    _longest: float = LONGEST_ROW  # norm to which longer rows are scaled down, over `data_norm`

    def _over_rows(
        self, X: Any, summary: Callable[[np.ndarray], np.ndarray], draws: Any = None
    ) -> np.ndarray:
        """``summary(p)`` of each block of rows, joined.

        Parameters
        ----------
        X : array-like
        summary : callable
            Takes class probabilities of shape (rows, draws, classes).
        draws : optional
            As `sample_posterior` returns them; None stands for `posterior_samples_`.
        """
        raise NotImplementedError

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("data_norm", self.data_norm, 1e-6, 1e6, none=True, closed=True)

    def _norm(self, facts: Facts) -> float:
        """Bound on the norm of a row."""
        return norm_of(self.data_norm, facts.n_features)

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del model
        return {
            "classes": [str(label) for label in facts.own_labels()],
            "data_norm": self._norm(facts),
        }

    def _set_classes(self, facts: Facts) -> None:
        self.classes_, self.data_norm_ = facts.own_labels(), self._norm(facts)

    def _bounded(self, X: Any, *, intercept: bool = False) -> Any:
        """Rows to predict, cut as in fits; null rows become zero, with a warning."""
        rows, null = bounded_rows(X, self._longest * self.data_norm_, intercept=intercept)
        if null.any():
            warn_user(
                f"{null.sum()} of these rows hold NaN or infinity (a missing cell, or a category "
                "that an encoder with `drop` does not know): predicted as all-zero rows."
            )
        return rows

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of `predict_proba`, of shape (n_samples, n_classes)."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the posterior predictive probability; its sign agrees with `predict`.

        Returns
        -------
        scores : array of shape (n_samples,) or (n_samples, n_classes)
            With more than two classes, the log probabilities.
        """
        log_proba = self.predict_log_proba(X)
        if log_proba.shape[1] > 2:
            return log_proba
        largest = np.finfo(np.float64).max
        return np.clip(log_proba[:, 1] - log_proba[:, 0], -largest, largest)

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class of each row, of shape (n_samples,)."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior predictive probability of each class, averaged over the posterior draws.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected. Rows with NaN or infinity are predicted as all-zero rows, with a warning.

        Returns
        -------
        probabilities : array of shape (n_samples, n_classes)
        """
        return self._over_rows(X, lambda p: p.mean(axis=1))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, as scikit-learn's; not private.

        It warns of labels that are not in `classes_`: no prediction is right for them.
        """
        check_is_fitted(self)
        check_consistent_length(X, y)
        labels, own = codes_of_labels(self.classes, y, self.classes_)
        if (own < 0).any():
            warn_user(
                f"{(own < 0).sum()} of {len(own)} labels are not in classes_, such as "
                f"{labels[own < 0].tolist()[0]!r}: their rows count as wrong."
            )
        right = own == codes(self.predict(X), self.classes_)
        return float(np.average(right, weights=sample_weight))

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Equal-tailed credible interval of each class probability.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        level : float, default=0.95
            Posterior mass of the interval, in (0, 1).

        Returns
        -------
        lower, upper : arrays of shape (n_samples, n_classes)
        """
        check_number("level", level, 0, 1, open_above=True)
        # "weibull" is unbiased with few draws: a new draw falls inside with probability `level`.
        tails = [(1 - level) / 2, (1 + level) / 2]
        bounds = self._over_rows(
            X, lambda p: np.moveaxis(np.quantile(p, tails, axis=1, method="weibull"), 0, -1)
        )
        return bounds[..., 0], bounds[..., 1]

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log posterior predictive probability of each label, of shape (n_samples,).

        Raises
        ------
        ValueError
            If `y` holds a label outside `classes_`.
        """
        log_proba = self.predict_log_proba(X)
        code = codes(column_or_1d(y), self.classes_)
        if (code < 0).any():
            raise ValueError(f"y holds labels that are not in classes_ = {self.classes_.tolist()}.")
        return log_proba[np.arange(len(code)), code]

    def sample_posterior_predictive(
        self, X: Any, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Labels of all rows from the posterior predictive, one set for each posterior draw.

        Returns
        -------
        labels : array of shape (n_samples, n_rows)
        """
        rng = np.random.default_rng(random_state)
        draws = self.sample_posterior(n_samples, rng)
        proba = self._over_rows(X, lambda p: p, draws)  # (n_rows, n_samples, n_classes)
        cumulative = proba.cumsum(axis=-1)[..., :-1]
        return self.classes_[(rng.random(proba.shape[:2])[..., None] > cumulative).sum(axis=-1)].T
