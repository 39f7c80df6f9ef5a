"""Does an estimator keep its promise? White-box checks of what it runs, and a lower bound on epsilon by attack.

Everything here looks at releases, noise and batches of an estimator's own fit, as an adversary
never could; it is for test data. The checks say where a mechanism is wrong, the lower bound how
much it gives away.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from skdpbayes.audit.attack import epsilon_lower_bound, log_likelihood_ratios
from skdpbayes.audit.checks import Check, run_checks
from skdpbayes.audit.fit import Fit
from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.privacy.accounting import compose
from skdpbayes.privacy.report import rounded


@dataclass(frozen=True)
class AuditReport:
    """What `audit` found.

    Attributes
    ----------
    estimator : str
    checks : tuple of Check
        ``conditions``, ``norm``, ``inclusion``, ``noise`` and ``replay``.
    epsilon, delta : float
        Claimed by `privacy_spent_`.
    adjacency : str
    epsilon_lower_bound : float
        With confidence `confidence` the fit is not (epsilon', delta)-private for a lower epsilon',
        *if* it is a sampled Gaussian mechanism of the claimed rounds whose noise may be wrong by a
        factor: the attack's rates are compared with the trade-off curves of these.
    pure_lower_bound : float
        The same without any such assumption, ``log((tpr - delta) / fpr)``; it cannot exceed
        ``log(n_trials)`` by much, however bad the mechanism.
    fpr, tpr : float
        Of the attack, in trials that did not choose its threshold: upper and lower confidence
        limits.
    n_trials : int
        Fits with the record, and as many without.
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
    >>> report = audit(DPGammaExponential(), np.full((20, 1), 10.0), n_trials=0)  # the checks without the attack
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
    curve: Any = field(repr=False, compare=False)  # PrivacyCurve of the claim

    @property
    def passed(self) -> bool:
        """Whether every check passed and the lower bound is not above the claim."""
        return (
            all(check.passed for check in self.checks) and self.epsilon_lower_bound <= self.epsilon
        )

    def __str__(self) -> str:
        lines = [f"{self.estimator}: {'passed' if self.passed else 'FAILED'}"]
        lines += [
            f"  {check.name:10} {'ok  ' if check.passed else 'FAIL'} {check.detail}"
            for check in self.checks
        ]
        kept = (
            "FAIL"
            if self.epsilon_lower_bound > self.epsilon
            else "ok  "
            if self.epsilon_lower_bound
            else "?   "
        )
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
    estimator, X, y=None, *, record=0, n_trials=5000, confidence=0.95, random_state=0
) -> AuditReport:
    """Audit what an estimator runs when it is fitted, on data that need not be protected.

    **The audit itself is not private**: it looks at batches, noise and contributions. Take test
    data.

    Checks, of the estimator's own fit on ``(X, y)``:

    - *conditions*: its report says that the guarantee holds;
    - *norm*: each row's contribution to each release, rows of infinities, huge and denormal numbers
      among them, is finite and at most as long as the clipping norm, all blocks of a release
      together;
    - *inclusion*: rows enter batches independently, with the probability that is accounted for;
    - *noise*: on a table of missing values, what is released is noise of the scale that is
      accounted for, normal, and independent between values and rounds;
    - *replay*: a fit on a table of missing values that is given the releases of the fit on ``X``
      has the same fitted attributes, bit for bit: nothing else of the data is in them.

    The lower bound is a distinguishing attack on whole fits: all rows but one are null, and the
    adversary, who sees all releases, computes the likelihood ratio of "the row is there" (as in
    Nasr et al. 2023, white box). Rates of error are bounded by Clopper and Pearson's intervals and
    compared with trade-off curves.

    Parameters
    ----------
    estimator : estimator of this package
        Not fitted, and not changed. Its ``random_state`` and ``ledger`` are not used.
    X : array-like of shape (n_samples, n_features)
        Numbers. Some tens of rows are enough, and make it fast.
    y : array-like of shape (n_samples,), optional
    record : int, default=0
        The row that the attack looks for. The bound is close to the claim if its contribution is as
        long as the clipping norm in every round, so take an extreme row, or a small clipping norm.
    n_trials : int, default=5000
        Fits with that row, and as many without. A quarter of them choose the threshold. 1000 show
        gross errors; epsilon near one needs 100 000. With 0 there are the checks alone.
    confidence : float, default=0.95
    random_state : int, default=0
        Trials take the seeds that follow.

    Returns
    -------
    AuditReport
        ``print`` shows it; `passed` sums it up.

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
            f"audit takes one private estimator of this package (a step of a pipeline), got {estimator!r}."
        )
    X = np.array(X.toarray() if hasattr(X, "toarray") else X, float)
    y = None if y is None else np.array(y)
    if X.ndim != 2 or not 0 <= record < len(X):
        raise ValueError(
            f"record must be a row of X, a table, got record={record!r} and shape {X.shape}."
        )
    if not ((n_trials == 0 or n_trials >= 40) and 0 < confidence < 1):
        raise ValueError(
            f"n_trials must be 0 or at least 40, confidence in (0, 1), got {n_trials} and {confidence}."
        )
    null = np.full_like(X, np.nan)
    nearly_null = null.copy()
    nearly_null[record] = X[record]
    # An audit draws its own randomness; the estimators that it fits are thrown away.
    given = clone(estimator).set_params(random_state=None, ledger=None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with_it, without = Fit(given, nearly_null, y), Fit(given, null, y)
        claim = with_it.plan.report
        if not math.isfinite(claim.epsilon):
            raise ValueError("epsilon is infinite: there is nothing to audit.")
        holds = Check(
            "conditions",
            not claim.voided_by,
            "; ".join(claim.voided_by) or "nothing voids the guarantee",
        )
        found = (holds, *run_checks(given, X, y, without, random_state))
        fpr, tpr, lower, statistics = 1.0, 0.0, 0.0, (np.zeros(0), np.zeros(0))
        if n_trials:
            statistics = tuple(
                log_likelihood_ratios(side, with_it, record, n_trials, random_state + i * n_trials)
                for i, side in enumerate((without, with_it))
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
