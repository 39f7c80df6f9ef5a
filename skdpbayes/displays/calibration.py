"""Pictures of the checks, in the manner of scikit-learn's displays."""

from __future__ import annotations

from typing import Any

import numpy as np

from skdpbayes.calibration._coverage import Coverage, tarp_coverage
from skdpbayes.calibration._predictive import Reliability, reliability
from skdpbayes.calibration._ranks import RankHistogram, simulation_based_calibration
from skdpbayes.displays.axes import BAND, COLOURS, DIAGONAL, axes


class CoverageDisplay:
    """Coverage against the level of credible regions, with the band of right posteriors.

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
    >>> found = tarp_coverage(rng.normal(size=(300, 100, 2)), rng.normal(size=(300, 2)), random_state=0)
    >>> len(CoverageDisplay.from_coverage(found, names=["prior"]).lines_)
    1
    """

    def __init__(self, coverage: Coverage, *, names: Any = None) -> None:
        self.coverage = coverage
        self.names = names

    @classmethod
    def from_coverage(
        cls, coverage: Coverage, *, names: Any = None, ax: Any = None
    ) -> CoverageDisplay:
        """Draw what `tarp_coverage` has found.

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
        cls, draws: Any, truth: Any, *, names: Any = None, ax: Any = None, **options: Any
    ) -> CoverageDisplay:
        """Run `tarp_coverage` and draw what it finds.

        Parameters
        ----------
        draws : array-like of shape (n_replicates, n_draws, n_parameters)
        truth : array-like of shape (n_replicates, n_parameters)
        names : sequence of str, optional
        ax : matplotlib Axes, optional
        **options
            Of `tarp_coverage`.

        Returns
        -------
        CoverageDisplay
        """
        return cls.from_coverage(tarp_coverage(draws, truth, **options), names=names, ax=ax)

    def plot(self, ax: Any = None) -> CoverageDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there are not as many names as curves.
        """
        shown = self.coverage
        curves = np.atleast_2d(shown.coverage)
        names = self.names
        if names is None:
            names = (
                [f"parameter {j}" for j in range(len(curves))] if len(curves) > 1 else ["coverage"]
            )
        if len(names) != len(curves):
            raise ValueError(
                f"names must hold one name for each of the {len(curves)} curves, got {len(names)}."
            )
        self.ax_, self.figure_ = axes(ax)
        levels = np.concatenate([[0.0], shown.levels, [1.0]])  # coverage at 0 and 1 is 0 and 1

        def full(curve):
            return np.concatenate([[0.0], curve, [1.0]])

        self.ax_.fill_between(
            levels,
            full(shown.lower),
            full(shown.upper),
            label=f"right posteriors, {shown.confidence:.0%}",
            **BAND,
        )
        self.ax_.plot([0, 1], [0, 1], **DIAGONAL)
        self.lines_ = [
            self.ax_.plot(levels, full(curve), label=str(name))[0]
            for curve, name in zip(curves, names, strict=True)
        ]
        self.ax_.set(
            xlabel="credible level",
            ylabel="expected coverage",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
        self.ax_.legend(loc="upper left", frameon=False)
        return self


class RankDisplay:
    """Histogram of the ranks of one parameter, with the band of right posteriors.

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
    >>> found = simulation_based_calibration(rng.normal(size=(300, 99, 1)), rng.normal(size=(300, 1)))
    >>> len(RankDisplay.from_histogram(found, name="mean").bars_) == found.counts.shape[1]
    True
    """

    def __init__(
        self, histogram: RankHistogram, *, parameter: int = 0, name: str | None = None
    ) -> None:
        self.histogram = histogram
        self.parameter = parameter
        self.name = name

    @classmethod
    def from_histogram(
        cls,
        histogram: RankHistogram,
        *,
        parameter: int = 0,
        name: str | None = None,
        ax: Any = None,
    ) -> RankDisplay:
        """Draw what `simulation_based_calibration` has found.

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
        draws: Any,
        truth: Any,
        *,
        parameter: int = 0,
        name: str | None = None,
        ax: Any = None,
        **options: Any,
    ) -> RankDisplay:
        """Run `simulation_based_calibration` and draw what it finds.

        Parameters
        ----------
        draws : array-like of shape (n_replicates, n_draws, n_parameters)
        truth : array-like of shape (n_replicates, n_parameters)
        parameter : int, default=0
        name : str, optional
        ax : matplotlib Axes, optional
        **options
            Of `simulation_based_calibration`.

        Returns
        -------
        RankDisplay
        """
        histogram = simulation_based_calibration(draws, truth, **options)
        return cls.from_histogram(histogram, parameter=parameter, name=name, ax=ax)

    def plot(self, ax: Any = None) -> RankDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there is no such parameter.
        """
        shown = self.histogram
        if not 0 <= self.parameter < len(shown.counts):
            raise ValueError(
                f"parameter must be from 0 to {len(shown.counts) - 1}, got {self.parameter!r}."
            )
        self.ax_, self.figure_ = axes(ax)
        edges = shown.edges / (shown.n_draws + 1)
        # Heights are counts over what is expected, so that bins of unequal numbers of ranks
        # compare.
        heights = shown.counts[self.parameter] / shown.expected

        def step(values):
            return np.append(values, values[-1]) / np.append(shown.expected, shown.expected[-1])

        self.ax_.fill_between(
            edges,
            step(shown.lower),
            step(shown.upper),
            step="post",
            label=f"right posteriors, {shown.confidence:.0%}",
            **BAND,
        )
        self.bars_ = self.ax_.bar(
            edges[:-1],
            heights,
            np.diff(edges),
            align="edge",
            fill=False,
            edgecolor=COLOURS[0],
            label="replicates",
        )
        self.ax_.axhline(1.0, **DIAGONAL)
        name = f"parameter {self.parameter}" if self.name is None else self.name
        self.ax_.set(
            xlabel=f"rank of {name} among the draws (as a fraction)",
            ylabel="count / expected count",
            xlim=(0, 1),
        )
        self.ax_.set_ylim(
            0, 1.3 * max(heights.max(), (shown.upper / shown.expected).max())
        )  # room for the legend
        self.ax_.legend(loc="upper center", frameon=False, ncols=2)
        return self


class ReliabilityDisplay:
    """Observed frequency against predicted probability, with the band of calibrated predictions.

    Parameters
    ----------
    reliability : Reliability
    name : str, optional
        Name of what predicts.

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
    >>> ReliabilityDisplay.from_predictions(rng.random(1000) < proba, proba, name="oracle").line_.get_label()
    'oracle'
    """

    def __init__(self, reliability: Reliability, *, name: str | None = None) -> None:
        self.reliability = reliability
        self.name = name

    @classmethod
    def from_predictions(
        cls, y_true: Any, proba: Any, *, name: str | None = None, ax: Any = None, **options: Any
    ) -> ReliabilityDisplay:
        """Run `reliability` and draw what it finds.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Outcomes, 0 or 1.
        proba : array-like of shape (n_samples,)
            Predicted probability of the outcome 1.
        name : str, optional
        ax : matplotlib Axes, optional
        **options
            Of `reliability`.

        Returns
        -------
        ReliabilityDisplay
        """
        return cls(reliability(y_true, proba, **options), name=name).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        name: str | None = None,
        ax: Any = None,
        **options: Any,
    ) -> ReliabilityDisplay:
        """Predict with a fitted classifier of two classes and draw how reliable it is.

        Not private when `X` and `y` are records to protect.

        Parameters
        ----------
        estimator : classifier
            Fitted, with `predict_proba`; the probability is that of ``classes_[1]``.
        X : array-like or data frame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels, of the two classes.
        name : str, optional
            The class of the estimator by default.
        ax : matplotlib Axes, optional
        **options
            Of `reliability`.

        Returns
        -------
        ReliabilityDisplay

        Raises
        ------
        ValueError
            If the classifier does not have two classes, or `y` holds other labels.
        """
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

    def plot(self, ax: Any = None) -> ReliabilityDisplay:
        """Draw into `ax`, or into a new figure, and return the display.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        shown = self.reliability
        self.ax_, self.figure_ = axes(ax)
        filled = shown.count > 0
        predicted = shown.predicted[filled]
        self.ax_.fill_between(
            predicted,
            shown.lower[filled],
            shown.upper[filled],
            label=f"calibrated, {shown.confidence:.0%}",
            **BAND,
        )
        self.ax_.plot([0, 1], [0, 1], **DIAGONAL)
        name = "predictions" if self.name is None else self.name
        (self.line_,) = self.ax_.plot(predicted, shown.observed[filled], "o-", label=name)
        self.ax_.set(
            xlabel="mean predicted probability", ylabel="fraction observed", aspect="equal"
        )
        self.ax_.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        self.ax_.legend(loc="upper left", frameon=False)
        return self
