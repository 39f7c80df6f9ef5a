"""Picture of an audit's attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from skdpbayes.audit import AuditReport
from skdpbayes.displays.axes import DIAGONAL, axes
from skdpbayes.privacy.card import rounded


class AuditDisplay:
    """The attack's rates of true and false positives beside the largest that the claim allows.

    Parameters
    ----------
    report : AuditReport
        With trials.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        The attack's curve, and the claim's.

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

    def __init__(self, report: AuditReport) -> None:
        self.report = report

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any = None, *, ax: Any = None, **options: Any
    ) -> AuditDisplay:
        """Run `audit` and draw what it finds.

        Parameters
        ----------
        estimator, X, y
            As `audit`'s.
        ax : matplotlib Axes, optional
        **options
            Of `audit`.

        Returns
        -------
        AuditDisplay
        """
        from skdpbayes.audit import audit

        return cls(audit(estimator, X, y, **options)).plot(ax)

    def plot(self, ax: Any = None) -> AuditDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the report has no trials.
        """
        without, with_it = self.report.statistics
        if not len(without):
            raise ValueError("There were no trials: audit with n_trials > 0.")
        self.ax_, self.figure_ = axes(ax)
        rates = np.linspace(0, 1, 101)
        thresholds = np.quantile(without, 1 - rates)
        attack = self.ax_.plot(rates, [np.mean(with_it >= t) for t in thresholds], label="attack")
        claim = self.ax_.plot(
            rates,
            self.report.curve.tpr(rates),
            label=f"claim: epsilon {rounded(self.report.epsilon, 3)}",
            **DIAGONAL,
        )
        self.ax_.plot(
            self.report.fpr,
            self.report.tpr,
            "o",
            color=attack[0].get_color(),
            label="confidence limits",
        )
        self.ax_.set(
            xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01)
        )
        self.ax_.set_title(
            f"epsilon is at least {rounded(self.report.epsilon_lower_bound, 3, up=False)}"
        )
        self.ax_.legend(loc="lower right", frameon=False)
        self.lines_ = [*attack, *claim]
        return self
