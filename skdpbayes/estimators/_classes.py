"""What classifiers share: their set of labels, declared or (which is not private) taken, and predictions by draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skdpbayes.checks import check_number
from skdpbayes.intake.labels import codes


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    """Probabilities of all classes, last, from logits: of each class, or of the second of two alone."""
    if logits.shape[-1] == 1:
        return np.concatenate([expit(-logits), expit(logits)], axis=-1)
    return softmax(logits, axis=-1)


class BayesianClassifierMixin(ClassifierMixin):
    """Predictions of a classifier that gives class probabilities for each of its posterior draws.

    It has ``_over_rows(X, summary, draws=None)``: ``summary(p)`` for blocks of rows, p being the
    class probabilities of each draw (rows, draws, classes); and `sample_posterior`.
    """

    _scorings: tuple[str, ...] = ("log_loss", "accuracy")

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of `predict_proba`, of shape (n_samples, n_classes)."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the posterior predictive probability, so that its sign agrees with `predict`.

        Returns
        -------
        scores : array of shape (n_samples,) for two classes, else the log probabilities, (n_samples, n_classes)
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
        # Of few draws, which `method="weibull"` takes for what they are: a new one falls inside as
        # often as it says.
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
        """Labels drawn from the posterior predictive: a posterior draw each, then labels given it.

        Returns
        -------
        labels : array of shape (n_samples, n_rows)
        """
        rng = np.random.default_rng(random_state)
        draws = self.sample_posterior(n_samples, rng)
        proba = self._over_rows(X, lambda p: p, draws)  # (n_rows, n_samples, n_classes)
        cumulative = proba.cumsum(axis=-1)[..., :-1]
        return self.classes_[(rng.random(proba.shape[:2])[..., None] > cumulative).sum(axis=-1)].T
