"""Pictures of what was promised and of what is left, in the manner of scikit-learn's displays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skdpbayes.displays.axes import COLOURS, DIAGONAL, LEFT, axes
from skdpbayes.privacy.accounting import PrivacyCurve, baselines, compose
from skdpbayes.privacy.accounting._steps import check_delta
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.ledger import PrivacyLedger
from skdpbayes.privacy.report import PrivacySpent

_EARLIER = {
    "linear": "basic composition",
    "advanced": "advanced composition",
    "zcdp": "zCDP, without sampling",
    "moments": "the moments accountant",
    "rdp": "Renyi divergences",
}
_DELTA = 1e-5  # at which a curve that reports none is named


class _CurvesDisplay:
    """Curves of one or several guarantees; subclasses draw them."""

    def __init__(self, spent: Any, *, names: Any = None) -> None:
        self.spent = [spent] if isinstance(spent, (PrivacySpent, PrivacyCurve)) else list(spent)
        for given in self.spent:
            if not isinstance(given, (PrivacySpent, PrivacyCurve)):
                raise ValueError(
                    f"spent must be a PrivacySpent, a PrivacyCurve or a sequence of them, got {type(given).__name__}."
                )
        if not self.spent:
            raise ValueError("spent is empty: there is nothing to draw.")
        names = [names] if isinstance(names, str) else names
        if names is not None and len(names) != len(self.spent):
            raise ValueError(
                f"names must hold one name for each of the {len(self.spent)} curves, got {len(names)}."
            )
        self.names = names

    @staticmethod
    def _of_estimator(estimator: Any) -> tuple[list[Any], list[str]]:
        estimator = estimator[-1] if hasattr(estimator, "steps") else estimator
        spent = getattr(estimator, "privacy_spent_", None)
        if not isinstance(spent, PrivacySpent):
            raise ValueError(
                f"{type(estimator).__name__} has no privacy_spent_ with a curve: take a fitted estimator of this "
                "package, or a pipeline that ends in one."
            )
        if not spent.cumulative:
            return [spent], [_in_words(spent)]
        # Whoever has seen this fit may have seen the earlier ones of the same object.
        every = compose(spent.cumulative + spent.releases, spent.adjacency)
        whole = f"epsilon {rounded(spent.cumulative_epsilon, 3)} at delta {spent.delta:.3g}"
        return [spent, every], [f"this fit: {_in_words(spent)}", f"with earlier fits: {whole}"]

    def _labels(self) -> list[str]:
        return (
            [_in_words(given) for given in self.spent]
            if self.names is None
            else [str(name) for name in self.names]
        )


class PrivacyProfileDisplay(_CurvesDisplay):
    """Epsilon against delta: a guarantee is a whole curve, of which a report names one point.

    Parameters
    ----------
    spent : PrivacySpent, PrivacyCurve or sequence of them
    names : sequence of str, optional
        Names of the curves; by default what they promise.
    earlier : bool, default=False
        Draw also what the accountants of earlier papers say (`baselines`), for the first of
        `spent`.

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

    def __init__(self, spent: Any, *, names: Any = None, earlier: bool = False) -> None:
        super().__init__(spent, names=names)
        self.earlier = earlier

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, names: Any = None, earlier: bool = False, ax: Any = None
    ) -> PrivacyProfileDisplay:
        """Draw the ``privacy_spent_`` of a fitted estimator, and beside it that of all fits if there were earlier ones.

        Parameters
        ----------
        estimator : estimator of this package
            Fitted.
        names : sequence of str, optional
        earlier : bool, default=False
        ax : matplotlib Axes, optional

        Returns
        -------
        PrivacyProfileDisplay

        Raises
        ------
        ValueError
            If the estimator reports no curve.
        """
        spent, own = cls._of_estimator(estimator)
        return cls(spent, names=own if names is None else names, earlier=earlier).plot(ax)

    @classmethod
    def from_spent(
        cls, spent: Any, *, names: Any = None, earlier: bool = False, ax: Any = None
    ) -> PrivacyProfileDisplay:
        """Draw reports or curves.

        Parameters
        ----------
        spent : PrivacySpent, PrivacyCurve or sequence of them
        names : sequence of str, optional
        earlier : bool, default=False
        ax : matplotlib Axes, optional

        Returns
        -------
        PrivacyProfileDisplay
        """
        return cls(spent, names=names, earlier=earlier).plot(ax)

    def plot(self, ax: Any = None, *, deltas: Any = None) -> PrivacyProfileDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        deltas : array-like, optional
            At which the curves are evaluated; from 1e-10 to 0.01 by default.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If a delta is not in (0, 1).
        """
        deltas = (
            np.geomspace(1e-10, 1e-2, 41)
            if deltas is None
            else [check_delta(delta) for delta in deltas]
        )
        self.ax_, self.figure_ = axes(ax)
        self.lines_, self.points_, self.earlier_lines_ = [], [], {}
        for given, label in zip(self.spent, self._labels(), strict=True):
            epsilons = [_epsilon_at(given, delta) for delta in deltas]
            (line,) = self.ax_.plot(deltas, epsilons, label=label)
            self.lines_.append(line)
            if isinstance(given, PrivacySpent) and math.isfinite(given.epsilon):
                self.points_ += self.ax_.plot(
                    given.delta, given.epsilon, "o", color=line.get_color()
                )
        if self.earlier:
            first = self.spent[0]
            steps = first.releases if isinstance(first, PrivacySpent) else first.steps
            tables = [baselines(steps, delta, first.adjacency) for delta in deltas]
            for (name, words), colour in zip(_EARLIER.items(), COLOURS[1:], strict=False):
                values = [table[name] for table in tables]
                (self.earlier_lines_[name],) = self.ax_.plot(
                    deltas, values, "--", color=colour, linewidth=1, label=f"by {words}"
                )
            self.ax_.set_yscale("log")
        else:
            self.ax_.set_ylim(bottom=0)
        self.ax_.set(xscale="log", xlabel="delta", ylabel="epsilon")
        self.ax_.legend(frameon=False, fontsize="small")
        return self


class TradeOffDisplay(_CurvesDisplay):
    """The best attack that a guarantee leaves: true positives against false positives.

    The attack decides whether one given record was used, and knows everything else. A fit may well
    allow less than what is drawn; none allows more.

    Parameters
    ----------
    spent : PrivacySpent, PrivacyCurve or sequence of them
    names : sequence of str, optional
        Names of the curves; by default what they promise.
    fpr : float or None, default=0.01
        False positive rate at which the legend says the largest true positive rate, and a point
        marks it.
    scale : {"linear", "log"}, default="linear"
        Of both axes. The logarithmic one shows the attacks that are hardly ever wrong.

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

    Examples
    --------
    >>> from skdpbayes.displays import TradeOffDisplay
    >>> from skdpbayes.privacy import GaussianSteps, compose
    >>> curves = [compose(GaussianSteps(noise, 1.0, 1)) for noise in (8.0, 2.0)]
    >>> display = TradeOffDisplay.from_spent(curves, names=["much noise", "less noise"])
    >>> len(display.lines_)
    2
    """

    def __init__(
        self, spent: Any, *, names: Any = None, fpr: float | None = 0.01, scale: str = "linear"
    ) -> None:
        super().__init__(spent, names=names)
        if fpr is not None and not 0 < fpr < 1:
            raise ValueError(f"fpr must be in (0, 1) or None, got {fpr!r}.")
        if scale not in ("linear", "log"):
            raise ValueError(f"scale must be 'linear' or 'log', got {scale!r}.")
        self.fpr = fpr
        self.scale = scale

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        names: Any = None,
        fpr: float | None = 0.01,
        scale: str = "linear",
        ax: Any = None,
    ) -> TradeOffDisplay:
        """Draw the ``privacy_spent_`` of a fitted estimator, and beside it that of all fits if there were earlier ones.

        Parameters
        ----------
        estimator : estimator of this package
            Fitted.
        names : sequence of str, optional
        fpr : float or None, default=0.01
        scale : {"linear", "log"}, default="linear"
        ax : matplotlib Axes, optional

        Returns
        -------
        TradeOffDisplay

        Raises
        ------
        ValueError
            If the estimator reports no curve.
        """
        spent, own = cls._of_estimator(estimator)
        return cls(spent, names=own if names is None else names, fpr=fpr, scale=scale).plot(ax)

    @classmethod
    def from_spent(
        cls,
        spent: Any,
        *,
        names: Any = None,
        fpr: float | None = 0.01,
        scale: str = "linear",
        ax: Any = None,
    ) -> TradeOffDisplay:
        """Draw reports or curves.

        Parameters
        ----------
        spent : PrivacySpent, PrivacyCurve or sequence of them
        names : sequence of str, optional
        fpr : float or None, default=0.01
        scale : {"linear", "log"}, default="linear"
        ax : matplotlib Axes, optional

        Returns
        -------
        TradeOffDisplay
        """
        return cls(spent, names=names, fpr=fpr, scale=scale).plot(ax)

    def plot(self, ax: Any = None) -> TradeOffDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If a report has overheads that its curve cannot carry (`PrivacySpent.compose`).
        """
        curves = [
            given.compose() if isinstance(given, PrivacySpent) else given for given in self.spent
        ]
        self.ax_, self.figure_ = axes(ax)
        low = 1e-4 if self.scale == "log" else 0.0
        # Curves are steep near zero, in linear scale too.
        rates = np.unique([low, 1.0, *np.geomspace(1e-4, 1, 61), *np.linspace(low, 1, 61)])
        self.lines_, self.points_ = [], []
        for curve, label in zip(curves, self._labels(), strict=True):
            if self.fpr is not None:
                found = curve.tpr(self.fpr)
                label += f"; finds {rounded(100 * float(found), 3)}%"
            (line,) = self.ax_.plot(rates, curve.tpr(rates), label=label)
            self.lines_.append(line)
            if self.fpr is not None:
                self.points_ += self.ax_.plot(self.fpr, found, "o", color=line.get_color())
        (self.guessing_line_,) = self.ax_.plot([low, 1], [low, 1], label="guessing", **DIAGONAL)
        self.ax_.set(
            xlabel="false positive rate of the attack",
            ylabel="true positive rate, at most",
            aspect="equal",
        )
        if self.scale == "log":
            self.ax_.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
        else:
            self.ax_.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        title = (
            None if self.fpr is None else f"best attack with {100 * self.fpr:.3g}% false positives"
        )
        self.ax_.legend(
            loc="lower right", frameon=False, fontsize="small", title=title, title_fontsize="small"
        )
        return self


class LedgerDisplay:
    """What each fit has taken of a budget, one below the other, and what is left.

    Parameters
    ----------
    ledger : PrivacyLedger
    max_shown : int, default=12
        Most fits with a bar of their own; the earliest ones share one if there are more.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer
        One for each fit that is shown, and the last one for what is left; widths in percent of the
        budget.

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

    def __init__(self, ledger: PrivacyLedger, *, max_shown: int = 12) -> None:
        if max_shown < 1:
            raise ValueError(f"max_shown must be at least 1, got {max_shown!r}.")
        self.ledger = ledger
        self.max_shown = max_shown

    @classmethod
    def from_ledger(
        cls, ledger: PrivacyLedger, *, max_shown: int = 12, ax: Any = None
    ) -> LedgerDisplay:
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

    def plot(self, ax: Any = None) -> LedgerDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        ledger = self.ledger
        charges = ledger.shares
        names = [
            label.replace("(", "\n(") or "(no label)" for label, _ in charges
        ]  # of a search: what it fits, below
        shares = [100 * share for _, share in charges]
        more = max(len(shares) - self.max_shown, 0)
        if more:
            more += 1  # one bar is theirs
            names[:more], shares[:more] = [f"{more} earlier fits"], [math.fsum(shares[:more])]
        left = max(0.0, 100 - math.fsum(shares))
        widths = [*shares, left]
        starts = np.concatenate([[0.0], np.cumsum(widths)[:-1]])
        self.ax_, self.figure_ = axes(ax, figsize=(6.4, 1.4 + 0.36 * len(widths)))
        self.bars_ = self.ax_.barh(
            range(len(widths)),
            widths,
            left=starts,
            color=[COLOURS[0]] * len(shares) + [LEFT],
            height=0.7,
        )
        for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
            text, inside = f"{rounded(width, 3, up=place < len(shares))}%", width > 12
            x, side = (start + width / 2, "center") if inside else (start + width + 1, "left")
            if not inside and x > 88:  # there is no room on the right
                x, side = start - 1, "right"
            white = inside and place < len(shares)
            self.ax_.text(
                x,
                place,
                text,
                ha=side,
                va="center",
                color="white" if white else "black",
                fontsize="small",
            )
        self.ax_.set_yticks(range(len(widths)), [*names, "left"])
        self.ax_.set(xlim=(0, 100), ylim=(len(widths) - 0.4, -0.6))
        budget = f"epsilon {rounded(ledger.epsilon)} at delta {rounded(ledger.delta, 3)}"
        self.ax_.set_xlabel(f"percent of the budget: {budget}", loc="right")
        title = f"spent: epsilon {rounded(ledger.spent_epsilon)}"
        if ledger.plan is None:
            title += (
                f"; a fit on all rows may take {rounded(ledger.affordable_epsilon(), up=False)}"
            )
        self.ax_.set_title(title, loc="right", fontsize="medium")
        return self


def _epsilon_at(given: PrivacySpent | PrivacyCurve, delta: float) -> float:
    return given.epsilon_at(delta) if isinstance(given, PrivacySpent) else given.epsilon(delta)


def _in_words(given: PrivacySpent | PrivacyCurve) -> str:
    if isinstance(given, PrivacyCurve):
        return f"epsilon {rounded(given.epsilon(_DELTA), 3)} at delta {_DELTA:g}"
    void = "" if given.guarantee_holds else " (guarantee void)"
    return f"epsilon {rounded(given.epsilon, 3)} at delta {rounded(given.delta, 3)}{void}"
