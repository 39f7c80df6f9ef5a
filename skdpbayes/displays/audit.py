"""Picture of an audit's attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skdpbayes.displays.axes import DIAGONAL, Display
from skdpbayes.privacy.card import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike

    from skdpbayes.audit import AuditReport
    from skdpbayes.estimators._base import PrivateEstimator


class AuditDisplay(Display):
    """True and false positive rates of the attack, beside the largest that the claim allows.

    Parameters
    ----------
    report : AuditReport
        With trials.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        Curves of the attack and of the claim.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> from skdpbayes.displays import AuditDisplay
    >>> model = DPGammaExponential(epsilon=4.0)
    >>> display = AuditDisplay.from_estimator(model, np.full((20, 1), 10.0), n_trials=100)
    >>> len(display.lines_)
    2
    """

    lines_: list[Line2D]

    def __init__(self, report: AuditReport) -> None:
        if not len(report.statistics[0]):
            raise ValueError("There were no trials: audit with n_trials > 0.")
        self.report = report

    @classmethod
    def from_estimator(
        cls,
        estimator: PrivateEstimator,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Run `audit` and draw its result.

        Parameters
        ----------
        estimator, X, y
            As in `audit`.
        ax : matplotlib Axes, optional
        **options
            Passed to `audit`.

        Returns
        -------
        AuditDisplay

        Raises
        ------
        ValueError
            If the options leave no trials.
        """
        from skdpbayes.audit import audit

        return cls(audit(estimator, X, y, **options)).plot(ax)

    def _draw(self, ax: Axes) -> None:
        report, (without, with_it) = self.report, self.report.statistics
        rates = np.linspace(0, 1, 101)
        thresholds = np.quantile(without, 1 - rates)
        attack = ax.plot(rates, [np.mean(with_it >= t) for t in thresholds], label="attack")
        label = f"claim: epsilon {rounded(report.epsilon, 3)}"
        claim = ax.plot(rates, report.curve.tpr(rates), label=label, **DIAGONAL)
        colour = attack[0].get_color()
        ax.plot(report.fpr, report.tpr, "o", color=colour, label="confidence limits")
        ax.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1))
        ax.set_ylim(0, 1.01)
        ax.set_title(f"epsilon is at least {rounded(report.epsilon_lower_bound, 3, up=False)}")
        ax.legend(loc="lower right", frameon=False)
        self.lines_ = [*attack, *claim]
