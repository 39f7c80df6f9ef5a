"""Pictures of guarantees, and of what is left of a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from skdpbayes.displays.axes import COLOURS, DIAGONAL, UNUSED, Display
from skdpbayes.privacy.accounting import PrivacyCurve, baselines, compose
from skdpbayes.privacy.accounting._steps import check_delta
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.ledger import PrivacyLedger
from skdpbayes.privacy.report import PrivacySpent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike

Guarantee: TypeAlias = PrivacySpent | PrivacyCurve

_EARLIER = {
    "linear": "basic composition",
    "advanced": "advanced composition",
    "zcdp": "zCDP, without sampling",
    "moments": "the moments accountant",
    "rdp": "Renyi divergences",
}
_DELTA = 1e-5  # labels the curves that come without a delta


class _CurvesDisplay(Display):
    """Curves of one or several guarantees; subclasses draw them."""

    lines_: list[Line2D]
    points_: list[Line2D]

    def __init__(
        self,
        spent: Guarantee | Iterable[Guarantee],
        *,
        names: str | Sequence[str] | None = None,
    ) -> None:
        self.spent = [spent] if isinstance(spent, Guarantee) else list(spent)
        for given in self.spent:
            if not isinstance(given, Guarantee):
                raise ValueError(
                    "spent must be a PrivacySpent, a PrivacyCurve or a sequence of them, got "
                    f"{type(given).__name__}."
                )
        if not self.spent:
            raise ValueError("spent is empty: there is nothing to draw.")
        names = [names] if isinstance(names, str) else names
        if names is not None and len(names) != len(self.spent):
            raise ValueError(
                f"names must hold one name for each of the {len(self.spent)} curves, got "
                f"{len(names)}."
            )
        self.names = names

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        names: str | Sequence[str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Draw the ``privacy_spent_`` of a fitted estimator.

        If the estimator was fitted before, a second curve shows the total of all its fits.

        Parameters
        ----------
        estimator : estimator of this package, or a pipeline that ends in one
            Fitted.
        names : sequence of str, optional
        ax : matplotlib Axes, optional
        **options
            Other parameters of the class.

        Returns
        -------
        A display of this class.

        Raises
        ------
        ValueError
            If the estimator reports no curve.
        """
        spent, own = _of_estimator(estimator)
        return cls(spent, names=own if names is None else names, **options).plot(ax)

    @classmethod
    def from_spent(
        cls,
        spent: Guarantee | Iterable[Guarantee],
        *,
        names: str | Sequence[str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Draw reports or curves.

        Parameters
        ----------
        spent : PrivacySpent, PrivacyCurve or sequence of them
        names : sequence of str, optional
        ax : matplotlib Axes, optional
        **options
            Other parameters of the class.

        Returns
        -------
        A display of this class.
        """
        return cls(spent, names=names, **options).plot(ax)

    def _labels(self) -> list[str]:
        if self.names is None:
            return [_in_words(given) for given in self.spent]
        return [str(name) for name in self.names]


class PrivacyProfileDisplay(_CurvesDisplay):
    """Epsilon against delta: a guarantee is a whole curve, and a report names one point of it.

    Parameters
    ----------
    spent : PrivacySpent, PrivacyCurve or sequence of them
    names : sequence of str, optional
        Names of the curves; by default their epsilon and delta.
    earlier : bool, default=False
        Also draw the bounds of earlier accountants (`baselines`) for the first of `spent`.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        One for each curve.
    points_ : list of matplotlib Line2D
        The reported (delta, epsilon), one for each `PrivacySpent` with a finite epsilon.
    earlier_lines_ : dict of str to matplotlib Line2D
        By the names of `baselines`.

    Examples
    --------
    >>> from skdpbayes.displays import PrivacyProfileDisplay
    >>> from skdpbayes.privacy import calibrate_noise
    >>> curve = calibrate_noise(1.0, 1e-5, 0.01, 500).curve
    >>> display = PrivacyProfileDisplay.from_spent(curve)
    >>> display.ax_.get_xlabel()
    'delta'
    """

    earlier_lines_: dict[str, Line2D]

    def __init__(
        self,
        spent: Guarantee | Iterable[Guarantee],
        *,
        names: str | Sequence[str] | None = None,
        earlier: bool = False,
    ) -> None:
        super().__init__(spent, names=names)
        self.earlier = earlier

    def plot(self, ax: Axes | None = None, *, deltas: ArrayLike | None = None) -> Self:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        deltas : array-like, optional
            Deltas at which the curves are evaluated; from 1e-10 to 0.01 by default.

        Returns
        -------
        The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If a delta is not in (0, 1).
        """
        given = np.geomspace(1e-10, 1e-2, 41) if deltas is None else np.asarray(deltas)
        self._deltas = [check_delta(delta) for delta in given.tolist()]
        return super().plot(ax)

    def _draw(self, ax: Axes) -> None:
        deltas = self._deltas
        self.lines_, self.points_, self.earlier_lines_ = [], [], {}
        for given, label in zip(self.spent, self._labels(), strict=True):
            epsilons = [_epsilon_at(given, delta) for delta in deltas]
            (line,) = ax.plot(deltas, epsilons, label=label)
            self.lines_.append(line)
            if isinstance(given, PrivacySpent) and math.isfinite(given.epsilon):
                self.points_ += ax.plot(given.delta, given.epsilon, "o", color=line.get_color())
        if self.earlier:
            first = self.spent[0]
            steps = first.releases if isinstance(first, PrivacySpent) else first.steps
            tables = [baselines(steps, delta, first.adjacency) for delta in deltas]
            for (name, words), colour in zip(_EARLIER.items(), COLOURS[1:], strict=False):
                values = [table[name] for table in tables]
                (self.earlier_lines_[name],) = ax.plot(
                    deltas, values, "--", color=colour, linewidth=1, label=f"by {words}"
                )
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
        ax.set(xscale="log", xlabel="delta", ylabel="epsilon")
        ax.legend(frameon=False, fontsize="small")


class TradeOffDisplay(_CurvesDisplay):
    """The best attack that a guarantee allows: true positives against false positives.

    The attack decides whether one given record was used, and knows everything else. The curves are
    upper bounds: a fit may allow less.

    Parameters
    ----------
    spent : PrivacySpent, PrivacyCurve or sequence of them
    names : sequence of str, optional
        Names of the curves; by default their epsilon and delta.
    fpr : float or None, default=0.01
        False positive rate at which a point marks the largest true positive rate, and the legend
        states it.
    scale : {"linear", "log"}, default="linear"
        Scale of both axes. The logarithmic one shows the attacks that are hardly ever wrong.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        One for each curve.
    points_ : list of matplotlib Line2D
        At `fpr`, one for each curve.
    guessing_line_ : matplotlib Line2D
        The diagonal.

    Raises
    ------
    ValueError
        If a report has overheads that its curve cannot carry (`PrivacySpent.compose`).

    Examples
    --------
    >>> from skdpbayes.displays import TradeOffDisplay
    >>> from skdpbayes.privacy import GaussianSteps, compose
    >>> curves = [compose(GaussianSteps(noise, 1.0, 1)) for noise in (8.0, 2.0)]
    >>> display = TradeOffDisplay.from_spent(curves, names=["much noise", "less noise"])
    >>> len(display.lines_)
    2
    """

    guessing_line_: Line2D

    def __init__(
        self,
        spent: Guarantee | Iterable[Guarantee],
        *,
        names: str | Sequence[str] | None = None,
        fpr: float | None = 0.01,
        scale: Literal["linear", "log"] = "linear",
    ) -> None:
        super().__init__(spent, names=names)
        if fpr is not None and not 0 < fpr < 1:
            raise ValueError(f"fpr must be in (0, 1) or None, got {fpr!r}.")
        if scale not in ("linear", "log"):
            raise ValueError(f"scale must be 'linear' or 'log', got {scale!r}.")
        self.fpr = fpr
        self.scale = scale
        self._curves = [
            given.compose() if isinstance(given, PrivacySpent) else given for given in self.spent
        ]

    def _draw(self, ax: Axes) -> None:
        low = 1e-4 if self.scale == "log" else 0.0
        # Curves are steep near zero, in linear scale too.
        rates = np.unique([low, 1.0, *np.geomspace(1e-4, 1, 61), *np.linspace(low, 1, 61)])
        self.lines_, self.points_, title = [], [], None
        for curve, label in zip(self._curves, self._labels(), strict=True):
            if self.fpr is None:
                self.lines_ += ax.plot(rates, curve.tpr(rates), label=label)
                continue
            found = float(curve.tpr(self.fpr))
            label += f"; finds {rounded(100 * found, 3)}%"
            (line,) = ax.plot(rates, curve.tpr(rates), label=label)
            self.lines_.append(line)
            self.points_ += ax.plot(self.fpr, found, "o", color=line.get_color())
            title = f"best attack with {100 * self.fpr:.3g}% false positives"
        (self.guessing_line_,) = ax.plot([low, 1], [low, 1], label="guessing", **DIAGONAL)
        ax.set(xlabel="false positive rate of the attack", ylabel="true positive rate, at most")
        ax.set_aspect("equal")
        if self.scale == "log":
            ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
        else:
            ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ax.legend(
            loc="lower right", frameon=False, fontsize="small", title=title, title_fontsize="small"
        )


class LedgerDisplay(Display):
    """Share of a budget that each fit has taken, one below the other, and the share that is left.

    Parameters
    ----------
    ledger : PrivacyLedger
    max_shown : int, default=12
        Largest number of fits with a bar of their own; if there are more, the earliest share one.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer
        One for each fit shown, and the last one for what is left; widths in percent of the budget.

    Examples
    --------
    >>> from skdpbayes.displays import LedgerDisplay
    >>> from skdpbayes.privacy import GaussianSteps, PrivacyLedger
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> ledger.charge(GaussianSteps(10.0, 1.0, 2), label="first look")
    >>> display = LedgerDisplay.from_ledger(ledger)
    >>> round(display.bars_[0].get_width()) == round(100 * ledger.spent)
    True
    """

    bars_: BarContainer

    def __init__(self, ledger: PrivacyLedger, *, max_shown: int = 12) -> None:
        if max_shown < 1:
            raise ValueError(f"max_shown must be at least 1, got {max_shown!r}.")
        self.ledger = ledger
        self.max_shown = max_shown

    @classmethod
    def from_ledger(
        cls, ledger: PrivacyLedger, *, max_shown: int = 12, ax: Axes | None = None
    ) -> Self:
        """Draw a ledger as it is now.

        Parameters
        ----------
        ledger : PrivacyLedger
        max_shown : int, default=12
        ax : matplotlib Axes, optional

        Returns
        -------
        LedgerDisplay
        """
        return cls(ledger, max_shown=max_shown).plot(ax)

    def _figsize(self) -> tuple[float, float]:
        names, _ = self._shares()
        return 6.4, 1.4 + 0.36 * (len(names) + 1)

    def _shares(self) -> tuple[list[str], list[float]]:
        """Names and percentages of the bars of fits."""
        charges = self.ledger.shares
        # The label of a search, "Search(Estimator)", goes on two lines.
        names = [label.replace("(", "\n(") or "(no label)" for label, _ in charges]
        shares = [100 * share for _, share in charges]
        if len(shares) > self.max_shown:
            more = len(shares) - self.max_shown + 1  # their common bar counts too
            names[:more], shares[:more] = [f"{more} earlier fits"], [math.fsum(shares[:more])]
        return names, shares

    def _draw(self, ax: Axes) -> None:
        ledger, (names, shares) = self.ledger, self._shares()
        widths = [*shares, max(0.0, 100 - math.fsum(shares))]
        starts = np.concatenate([[0.0], np.cumsum(widths)[:-1]])
        places = range(len(widths))
        colours = [COLOURS[0]] * len(shares) + [UNUSED]
        self.bars_ = ax.barh(places, widths, left=starts, color=colours, height=0.7)
        for place, start, width in zip(places, starts, widths, strict=True):
            is_fit, inside = place < len(shares), width > 12
            x, side = (start + width / 2, "center") if inside else (start + width + 1, "left")
            if not inside and x > 88:  # no room on the right
                x, side = start - 1, "right"
            ax.text(
                x,
                place,
                f"{rounded(width, 3, up=is_fit)}%",
                ha=side,
                va="center",
                color="white" if inside and is_fit else "black",
                fontsize="small",
            )
        ax.set_yticks(places, [*names, "left"])
        ax.set(xlim=(0, 100), ylim=(len(widths) - 0.4, -0.6))
        budget = f"epsilon {rounded(ledger.epsilon)} at delta {rounded(ledger.delta, 3)}"
        ax.set_xlabel(f"percent of the budget: {budget}", loc="right")
        title = f"spent: epsilon {rounded(ledger.spent_epsilon)}"
        if ledger.plan is None:
            left = rounded(ledger.affordable_epsilon(), up=False)
            title += f"; a fit on all rows may take {left}"
        ax.set_title(title, loc="right", fontsize="medium")


def _of_estimator(estimator: BaseEstimator) -> tuple[list[Guarantee], list[str]]:
    """Guarantees of a fitted estimator, and their names."""
    estimator = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    spent = getattr(estimator, "privacy_spent_", None)
    if not isinstance(spent, PrivacySpent):
        raise ValueError(
            f"{type(estimator).__name__} has no privacy_spent_ with a curve: take a fitted "
            "estimator of this package, or a pipeline that ends in one."
        )
    if not spent.cumulative:
        return [spent], [_in_words(spent)]
    # Whoever has seen this fit may have seen the earlier ones of the same object.
    every = compose(spent.cumulative + spent.releases, spent.adjacency)
    whole = f"epsilon {rounded(spent.cumulative_epsilon, 3)} at delta {spent.delta:.3g}"
    return [spent, every], [f"this fit: {_in_words(spent)}", f"with earlier fits: {whole}"]


def _epsilon_at(given: Guarantee, delta: float) -> float:
    return given.epsilon_at(delta) if isinstance(given, PrivacySpent) else given.epsilon(delta)


def _in_words(given: Guarantee) -> str:
    if isinstance(given, PrivacyCurve):
        return f"epsilon {rounded(given.epsilon(_DELTA), 3)} at delta {_DELTA:g}"
    void = "" if given.guarantee_holds else " (guarantee void)"
    return f"epsilon {rounded(given.epsilon, 3)} at delta {rounded(given.delta, 3)}{void}"
