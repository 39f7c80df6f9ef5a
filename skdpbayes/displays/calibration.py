"""Pictures of calibration: coverage, ranks and reliability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from skdpbayes.calibration._coverage import Coverage, tarp_coverage
from skdpbayes.calibration._model_check import CalibrationCheck
from skdpbayes.calibration._predictive import Reliability, reliability
from skdpbayes.calibration._ranks import RankHistogram, simulation_based_calibration
from skdpbayes.displays.axes import BAND, COLOURS, DIAGONAL, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike


class CoverageDisplay(Display):
    """Coverage against the level of credible regions, with the band of exact posteriors.

    Parameters
    ----------
    coverage : Coverage
    names : sequence of str, optional
        Names of the curves.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        One for each curve.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import tarp_coverage
    >>> from skdpbayes.displays import CoverageDisplay
    >>> rng = np.random.default_rng(0)
    >>> truth, draws = rng.normal(size=(300, 2)), rng.normal(size=(300, 100, 2))
    >>> found = tarp_coverage(draws, truth, random_state=0)
    >>> len(CoverageDisplay.from_coverage(found, names=["prior"]).lines_)
    1
    """

    lines_: list[Line2D]

    def __init__(self, coverage: Coverage, *, names: Sequence[str] | None = None) -> None:
        self.coverage = coverage
        n_curves = len(np.atleast_2d(coverage.coverage))
        if names is None:
            names = [f"parameter {j}" for j in range(n_curves)] if n_curves > 1 else ["coverage"]
        if len(names) != n_curves:
            raise ValueError(
                f"names must hold one name for each of the {n_curves} curves, got {len(names)}."
            )
        self.names = names

    @classmethod
    def from_coverage(
        cls, coverage: Coverage, *, names: Sequence[str] | None = None, ax: Axes | None = None
    ) -> Self:
        """Draw a result of `tarp_coverage`.

        Parameters
        ----------
        coverage : Coverage
        names : sequence of str, optional
        ax : matplotlib Axes, optional

        Returns
        -------
        CoverageDisplay
        """
        return cls(coverage, names=names).plot(ax)

    @classmethod
    def from_draws(
        cls,
        draws: ArrayLike,
        truth: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Run `tarp_coverage` and draw its result.

        Parameters
        ----------
        draws : array-like of shape (n_replicates, n_draws, n_parameters)
        truth : array-like of shape (n_replicates, n_parameters)
        names : sequence of str, optional
        ax : matplotlib Axes, optional
        **options
            Passed to `tarp_coverage`.

        Returns
        -------
        CoverageDisplay
        """
        return cls.from_coverage(tarp_coverage(draws, truth, **options), names=names, ax=ax)

    def _draw(self, ax: Axes) -> None:
        shown = self.coverage
        levels = _with_ends(shown.levels)
        label = f"exact posteriors, {shown.confidence:.0%}"
        ax.fill_between(
            levels, _with_ends(shown.lower), _with_ends(shown.upper), label=label, **BAND
        )
        ax.plot([0, 1], [0, 1], **DIAGONAL)
        self.lines_ = [
            ax.plot(levels, _with_ends(curve), label=str(name))[0]
            for curve, name in zip(np.atleast_2d(shown.coverage), self.names, strict=True)
        ]
        ax.set(xlabel="credible level", ylabel="expected coverage", xlim=(0, 1), ylim=(0, 1))
        ax.set_aspect("equal")
        ax.legend(loc="upper left", frameon=False)


class CheckDisplay(Display):
    """Coverage of each coordinate in a `skdpbayes.calibration.check`, with confidence intervals.

    The curve of all coordinates together is ``CoverageDisplay.from_coverage(check.tarp)``.

    Parameters
    ----------
    check : CalibrationCheck

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    points_ : matplotlib ErrorbarContainer

    Examples
    --------
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.calibration import check
    >>> from skdpbayes.displays import CheckDisplay
    >>> found = check(DPBetaBernoulli(epsilon=1.0), n_rows=500, n_fits=20, random_state=0)
    >>> len(CheckDisplay.from_check(found).points_.lines[0].get_xdata())
    1
    """

    points_: ErrorbarContainer

    def __init__(self, check: CalibrationCheck) -> None:
        self.check = check

    @classmethod
    def from_check(cls, check: CalibrationCheck, *, ax: Axes | None = None) -> Self:
        """Draw a result of `check`.

        Parameters
        ----------
        check : CalibrationCheck
        ax : matplotlib Axes, optional

        Returns
        -------
        CheckDisplay
        """
        return cls(check).plot(ax)

    def _figsize(self) -> tuple[float, float]:
        return 6.4, 1.4 + 0.25 * len(self.check.names)

    def _draw(self, ax: Axes) -> None:
        found, places = self.check.coverage, np.arange(len(self.check.names))
        share = found.coverage
        ax.axvline(found.level, **DIAGONAL)
        self.points_ = ax.errorbar(
            share, places, xerr=[share - found.lower, found.upper - share], fmt="o"
        )
        ax.set_yticks(places, self.check.names)
        ax.invert_yaxis()
        ax.set(xlim=(-0.02, 1.02), xlabel=f"coverage of {found.level:.0%} intervals")
        ax.set_title(f"{self.check.estimator}, {self.check.n_fits} fits")


class RankDisplay(Display):
    """Histogram of the ranks of one parameter, with the band of exact posteriors.

    Parameters
    ----------
    histogram : RankHistogram
    parameter : int, default=0
    name : str, optional
        Name of the parameter.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import simulation_based_calibration
    >>> from skdpbayes.displays import RankDisplay
    >>> rng = np.random.default_rng(0)
    >>> truth, draws = rng.normal(size=(300, 1)), rng.normal(size=(300, 99, 1))
    >>> found = simulation_based_calibration(draws, truth)
    >>> len(RankDisplay.from_histogram(found, name="mean").bars_) == found.counts.shape[1]
    True
    """

    bars_: BarContainer

    def __init__(
        self, histogram: RankHistogram, *, parameter: int = 0, name: str | None = None
    ) -> None:
        if not 0 <= parameter < len(histogram.counts):
            raise ValueError(
                f"parameter must be from 0 to {len(histogram.counts) - 1}, got {parameter!r}."
            )
        self.histogram = histogram
        self.parameter = parameter
        self.name = f"parameter {parameter}" if name is None else name

    @classmethod
    def from_histogram(
        cls,
        histogram: RankHistogram,
        *,
        parameter: int = 0,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw a result of `simulation_based_calibration`.

        Parameters
        ----------
        histogram : RankHistogram
        parameter : int, default=0
        name : str, optional
        ax : matplotlib Axes, optional

        Returns
        -------
        RankDisplay
        """
        return cls(histogram, parameter=parameter, name=name).plot(ax)

    @classmethod
    def from_draws(
        cls,
        draws: ArrayLike,
        truth: ArrayLike,
        *,
        parameter: int = 0,
        name: str | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Run `simulation_based_calibration` and draw its result.

        Parameters
        ----------
        draws : array-like of shape (n_replicates, n_draws, n_parameters)
        truth : array-like of shape (n_replicates, n_parameters)
        parameter : int, default=0
        name : str, optional
        ax : matplotlib Axes, optional
        **options
            Passed to `simulation_based_calibration`.

        Returns
        -------
        RankDisplay
        """
        histogram = simulation_based_calibration(draws, truth, **options)
        return cls.from_histogram(histogram, parameter=parameter, name=name, ax=ax)

    def _draw(self, ax: Axes) -> None:
        shown = self.histogram
        edges = shown.edges / (shown.n_draws + 1)
        # Counts are divided by their expectations, because bins may hold unequal numbers of ranks.
        heights, lower, upper = (
            counts / shown.expected
            for counts in (shown.counts[self.parameter], shown.lower, shown.upper)
        )
        ax.fill_between(
            edges,
            np.append(lower, lower[-1]),
            np.append(upper, upper[-1]),
            step="post",
            label=f"exact posteriors, {shown.confidence:.0%}",
            **BAND,
        )
        self.bars_ = ax.bar(
            edges[:-1],
            heights,
            np.diff(edges),
            align="edge",
            fill=False,
            edgecolor=COLOURS[0],
            label="replicates",
        )
        ax.axhline(1.0, **DIAGONAL)
        ax.set(ylabel="count / expected count", xlim=(0, 1))
        ax.set_xlabel(f"rank of {self.name} among the draws (as a fraction)")
        ax.set_ylim(0, 1.3 * max(heights.max(), upper.max()))  # room for the legend
        ax.legend(loc="upper center", frameon=False, ncols=2)


class ReliabilityDisplay(Display):
    """Observed frequency against predicted probability, with the band of calibrated predictions.

    Parameters
    ----------
    reliability : Reliability
    name : str, optional
        Name of the model.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.displays import ReliabilityDisplay
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.random(1000)
    >>> happened = rng.random(1000) < proba
    >>> display = ReliabilityDisplay.from_predictions(happened, proba, name="oracle")
    >>> display.line_.get_label()
    'oracle'
    """

    line_: Line2D

    def __init__(self, reliability: Reliability, *, name: str | None = None) -> None:
        self.reliability = reliability
        self.name = "predictions" if name is None else name

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        proba: ArrayLike,
        *,
        name: str | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Run `reliability` and draw its result.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Outcomes, 0 or 1.
        proba : array-like of shape (n_samples,)
            Predicted probability of the outcome 1.
        name : str, optional
        ax : matplotlib Axes, optional
        **options
            Passed to `reliability`.

        Returns
        -------
        ReliabilityDisplay
        """
        return cls(reliability(y_true, proba, **options), name=name).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        name: str | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Draw the reliability of a fitted classifier of two classes.

        Not private when `X` and `y` are records to protect.

        Parameters
        ----------
        estimator : classifier
            Fitted, with `predict_proba`; its probability of ``classes_[1]`` is drawn.
        X : array-like or data frame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels of the two classes.
        name : str, optional
            By default the class of the estimator.
        ax : matplotlib Axes, optional
        **options
            Passed to `reliability`.

        Returns
        -------
        ReliabilityDisplay

        Raises
        ------
        ValueError
            If the classifier does not have two classes, or `y` holds other labels.
        """
        if not is_classifier(estimator):
            raise ValueError(
                f"{type(estimator).__name__} is no classifier: for regressions see "
                "skdpbayes.calibration.marginal_coverage."
            )
        classes = np.asarray(estimator.classes_)
        if len(classes) != 2:
            raise ValueError(
                f"the estimator must have two classes, got {len(classes)}; use from_predictions."
            )
        labels = np.asarray(y)
        if not np.isin(labels, classes).all():
            raise ValueError(f"y must hold the labels {list(classes)} only.")
        name = type(estimator).__name__ if name is None else name
        proba = np.asarray(estimator.predict_proba(X))[:, 1]
        return cls.from_predictions(labels == classes[1], proba, name=name, ax=ax, **options)

    def _draw(self, ax: Axes) -> None:
        shown = self.reliability
        filled = shown.count > 0
        predicted = shown.predicted[filled]
        label = f"calibrated, {shown.confidence:.0%}"
        ax.fill_between(predicted, shown.lower[filled], shown.upper[filled], label=label, **BAND)
        ax.plot([0, 1], [0, 1], **DIAGONAL)
        (self.line_,) = ax.plot(predicted, shown.observed[filled], "o-", label=self.name)
        ax.set(xlabel="mean predicted probability", ylabel="fraction observed", aspect="equal")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ax.legend(loc="upper left", frameon=False)


def _with_ends(curve: np.ndarray) -> np.ndarray:
    """The curve with its ends: coverage at the levels 0 and 1 is 0 and 1."""
    return np.concatenate([[0.0], curve, [1.0]])
