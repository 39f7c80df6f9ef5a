"""Audit of an estimator: white-box checks of its fit, and a lower bound on epsilon by an attack.

An audit sees the releases, noise and batches of a fit, which no adversary could; it is for test
data. The checks locate an error of a mechanism, and the lower bound measures its effect.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from skdpbayes.audit.attack import epsilon_lower_bound, log_likelihood_ratios
from skdpbayes.audit.checks import Check, run_checks
from skdpbayes.audit.fit import Fit
from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.intake.persons import codes_of_persons
from skdpbayes.intake.rows import dense
from skdpbayes.privacy.accounting import PrivacyCurve, compose
from skdpbayes.privacy.report import rounded


@dataclass(frozen=True)
class AuditReport:
    """Result of `audit`.

    Attributes
    ----------
    estimator : str
    checks : tuple of Check
        ``conditions``, ``norm``, ``inclusion``, ``noise`` and ``replay``.
    epsilon, delta : float
        Claimed by `privacy_spent_`.
    adjacency : str
    epsilon_lower_bound : float
        With confidence `confidence`, the fit is not (epsilon', delta)-private for any smaller
        epsilon'. This assumes a sampled Gaussian mechanism of the claimed rounds whose noise may be
        wrong by a factor: the attack's rates are compared with its trade-off curves.
    pure_lower_bound : float
        The same without this assumption, ``log((tpr - delta) / fpr)``. It cannot exceed
        ``log(n_trials)`` by much, however bad the mechanism is.
    fpr, tpr : float
        Upper and lower confidence limits of the attack's rates, in trials that did not choose its
        threshold.
    n_trials : int
        Number of fits with the record, and as many without.
    confidence : float
    random_state : int
        Seed of the first trial.
    statistics : arrays of shape (n_trials,)
        Log-likelihood ratios without the record, and with it.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> from skdpbayes.audit import audit
    >>> # The checks without the attack:
    >>> report = audit(DPGammaExponential(), np.full((20, 1), 10.0), n_trials=0)
    >>> report.passed, [check.name for check in report.checks]
    (True, ['conditions', 'norm', 'inclusion', 'noise', 'count', 'replay'])
    """

    estimator: str
    checks: tuple[Check, ...]
    epsilon: float
    delta: float
    adjacency: str
    epsilon_lower_bound: float
    pure_lower_bound: float
    fpr: float
    tpr: float
    n_trials: int
    confidence: float
    random_state: int
    statistics: tuple[np.ndarray, np.ndarray] = field(repr=False, compare=False)
    curve: PrivacyCurve = field(repr=False, compare=False)
    """Curve of the claim."""

    @property
    def passed(self) -> bool:
        """Whether every check passed and the lower bound is not above the claim."""
        kept = self.epsilon_lower_bound <= self.epsilon
        return kept and all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = [f"{self.estimator}: {'passed' if self.passed else 'FAILED'}"]
        lines += [
            f"  {check.name:10} {'ok  ' if check.passed else 'FAIL'} {check.detail}"
            for check in self.checks
        ]
        kept = "ok  " if self.epsilon_lower_bound else "?   "
        kept = "FAIL" if self.epsilon_lower_bound > self.epsilon else kept
        lines.append(
            f"  {'epsilon':10} {kept} at least {rounded(self.epsilon_lower_bound, 3, up=False)} "
            f"(without assumptions {rounded(self.pure_lower_bound, 3, up=False)}), "
            f"claimed {rounded(self.epsilon)} at delta={self.delta:g}, "
            f"{self.adjacency}; {self.n_trials} fits a side, seed {self.random_state}, "
            f"{self.confidence:.0%} confidence"
            + ("" if self.epsilon_lower_bound else ": too few to show anything")
        )
        return "\n".join(lines)


def audit(
    estimator: PrivateEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    record: int = 0,
    n_trials: int = 5000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> AuditReport:
    """Audit the fit of an estimator, on data that need no protection.

    **The audit itself is not private**: it looks at batches, noise and contributions. Take test
    data.

    The checks of the estimator's own fit on ``(X, y)``:

    - *conditions*: the report says that the guarantee holds;
    - *norm*: the contribution of each row to each release, all blocks together, is finite and at
      most as long as the clipping norm; rows of infinities, huge and denormal numbers are tried
      too;
    - *inclusion*: rows enter batches independently, with the probability that is accounted for;
    - *noise*: on a table of missing values, the releases are pure noise: normal, of the scale that
      is accounted for, and independent between values and rounds;
    - *count*: the number of usable records has the noise that is accounted for;
    - *replay*: a fit on a table of missing values that gets the releases of the fit on ``X`` has
      the same fitted attributes, bit for bit: they contain nothing else of the data.

    The lower bound comes from a distinguishing attack on whole fits. All rows but one are null. The
    adversary sees all releases and computes the likelihood ratio of "the row is there" (white box,
    as in Nasr et al. 2023). Clopper-Pearson limits of its error rates are compared with trade-off
    curves.

    Parameters
    ----------
    estimator : estimator of this package
        It is not changed. Its ``random_state`` and ``ledger`` are ignored.
    X : array-like of shape (n_samples, n_features)
        Numbers. A few tens of rows are enough, and fast.
    y : array-like of shape (n_samples,), optional
    groups : array-like of shape (n_samples,), optional
        Persons, if they are the estimator's unit of privacy; what is said of rows here is then said
        of persons.
    record : int, default=0
        The row, or a row of the person, that the attack looks for. The bound is close to the claim
        if its contribution is as long as the clipping norm in every round: take an extreme row, or
        a small norm.
    n_trials : int, default=5000
        Number of fits with that row, and as many without. A quarter of them choose the threshold.
        1000 show gross errors; epsilon near one needs 100 000. 0 leaves out the attack.
    confidence : float, default=0.95
    random_state : int, default=0
        Seed of the first trial; the others take the seeds that follow.

    Returns
    -------
    AuditReport
        ``print`` shows it; `passed` is the verdict.

    Raises
    ------
    ValueError
        If epsilon is infinite, or the shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> from skdpbayes.audit import audit
    >>> report = audit(DPGammaExponential(epsilon=4.0), np.full((20, 1), 10.0), n_trials=400)
    >>> report.passed
    True

    References
    ----------
    Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini and Terzis (2023), "Tight auditing of
    differentially private machine learning", USENIX Security.
    """
    if not isinstance(estimator, PrivateEstimator):
        raise ValueError(
            "audit takes one private estimator of this package (a step of a pipeline), got "
            f"{estimator!r}."
        )
    X = np.array(dense(X), float)
    y = None if y is None else np.array(y)
    if X.ndim != 2 or not 0 <= record < len(X):
        raise ValueError(
            f"record must be a row of X, a table, got record={record!r} and shape {X.shape}."
        )
    if not ((n_trials == 0 or n_trials >= 40) and 0 < confidence < 1):
        raise ValueError(
            "n_trials must be 0 or at least 40, confidence in (0, 1), got "
            f"{n_trials} and {confidence}."
        )
    person = np.arange(len(X)) if groups is None else codes_of_persons(groups, len(X))
    place = int(person[record])
    if place < 0:
        raise ValueError(f"groups names nobody for row {record}, which an attack would look for.")
    null = np.full_like(X, np.nan)
    nearly_null, own = null.copy(), person == place
    nearly_null[own] = X[own]
    # An audit draws its own randomness; the estimators that it fits are thrown away.
    given = clone(estimator).set_params(random_state=None, ledger=None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with_it, without = Fit(given, nearly_null, y, groups), Fit(given, null, y, groups)
        claim = with_it.plan.report
        if not math.isfinite(claim.epsilon):
            raise ValueError("epsilon is infinite: there is nothing to audit.")
        holds = Check(
            "conditions",
            not claim.voided_by,
            "; ".join(claim.voided_by) or "nothing voids the guarantee",
        )
        found = (holds, *run_checks(given, X, y, groups, without, random_state))
        fpr, tpr, lower, statistics = 1.0, 0.0, 0.0, (np.zeros(0), np.zeros(0))
        if n_trials:
            statistics = (
                log_likelihood_ratios(without, with_it, place, n_trials, random_state),
                log_likelihood_ratios(with_it, with_it, place, n_trials, random_state + n_trials),
            )
            fpr, tpr, lower = epsilon_lower_bound(claim, statistics, confidence)
    pure = math.log(max((tpr - claim.delta) / fpr, 1))
    return AuditReport(
        estimator=repr(estimator),
        checks=found,
        epsilon=claim.epsilon,
        delta=claim.delta,
        adjacency=claim.adjacency,
        epsilon_lower_bound=max(pure, lower),
        pure_lower_bound=pure,
        fpr=fpr,
        tpr=tpr,
        n_trials=n_trials,
        confidence=confidence,
        random_state=random_state,
        statistics=statistics,
        curve=compose(claim.steps, claim.adjacency),
    )
