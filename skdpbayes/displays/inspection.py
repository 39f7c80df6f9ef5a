"""Pictures of fitted models: credible intervals of parameters, and scores against epsilon."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.metrics import check_scoring
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skdpbayes.displays.axes import COLOURS, DIAGONAL, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.lines import Line2D

__all__ = ["PosteriorIntervalDisplay", "PrivacyUtilityDisplay"]

Scorer: TypeAlias = Callable[[BaseEstimator, ArrayLike, ArrayLike | None], float]


class PosteriorIntervalDisplay(Display):
    """Credible intervals of parameters, largest medians first.

    Parameters
    ----------
    draws : array-like of shape (n_draws, ...)
        Draws; all axes but the first are parameters.
    names : sequence of str, optional
        One for each parameter.
    level : float or pair of float, default=(0.5, 0.95)
        Probability of the thick and of the thin intervals, which are equal-tailed.
    reference : array-like, optional
        One value for each parameter to compare with: the truth, or an estimate without privacy.
    max_shown : int, default=20
        Largest number of parameters shown.
    quantity : str, default="value"
        Label of the axis: the quantity and its unit.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib LineCollection
        Intervals of each level, the narrowest first.
    medians_ : matplotlib Line2D
    reference_ : matplotlib Line2D or None
    shown_ : array of int
        Indices of the parameters shown, from the top.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.displays import PosteriorIntervalDisplay
    >>> draws = np.random.default_rng(0).normal([0.1, -3.0], size=(500, 2))
    >>> display = PosteriorIntervalDisplay.from_draws(draws, names=["age", "smoker"])
    >>> display.shown_
    array([1, 0])
    """

    lines_: list[LineCollection]
    medians_: Line2D
    reference_: Line2D | None
    shown_: np.ndarray

    def __init__(
        self,
        draws: ArrayLike,
        *,
        names: Iterable[str] | None = None,
        level: float | Sequence[float] = (0.5, 0.95),
        reference: ArrayLike | None = None,
        max_shown: int = 20,
        quantity: str = "value",
    ) -> None:
        draws = np.asarray(draws, dtype=float)
        if draws.ndim < 2 or not draws.size:
            raise ValueError(f"draws must have shape (n_draws, n_parameters), got {draws.shape}.")
        self.draws = draws.reshape(len(draws), -1)
        n = self.draws.shape[1]
        names = [f"parameter {j}" for j in range(n)] if names is None else names
        self.names = [str(name) for name in names]
        self.level = tuple(sorted(np.atleast_1d(level).tolist()))
        self.reference = None if reference is None else np.asarray(reference, dtype=float).ravel()
        self.max_shown = max_shown
        self.quantity = quantity
        if len(self.names) != n:
            raise ValueError(
                f"names must hold one name for each of the {n} parameters, got {len(self.names)}."
            )
        if self.reference is not None and len(self.reference) != n:
            raise ValueError(f"reference must hold one value for each of the {n} parameters.")
        if not self.level or not 0 < self.level[0] <= self.level[-1] < 1:
            raise ValueError(f"level must be in (0, 1), got {level!r}.")
        if max_shown < 1:
            raise ValueError(f"max_shown must be at least 1, got {max_shown!r}.")

    @classmethod
    def from_draws(
        cls,
        draws: ArrayLike,
        *,
        names: Iterable[str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Draw intervals of draws.

        Parameters
        ----------
        draws : array-like of shape (n_draws, ...)
        names : sequence of str, optional
        ax : matplotlib Axes, optional
        **options
            Other parameters of the class.

        Returns
        -------
        PosteriorIntervalDisplay
        """
        return cls(draws, names=names, **options).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        parameter: str | None = None,
        names: Iterable[str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Self:
        """Draw intervals of a fitted estimator's ``posterior_samples_``.

        Coefficients of a pipeline are in units of the columns that its model was given, so that
        they can be compared; its ``summary(units="steps")`` is the table of these numbers.

        Parameters
        ----------
        estimator : estimator of this package, or a pipeline that ends in one
            Fitted.
        parameter : str, default=None
            Key of ``posterior_samples_``, where that is a dict. None: ``"coef"``, or the only one.
        names : sequence of str, optional
            By default made from the axes of the draws: columns, classes, components and others.
        ax : matplotlib Axes, optional
        **options
            Other parameters of the class.

        Returns
        -------
        PosteriorIntervalDisplay

        Raises
        ------
        ValueError
            If there are no draws of that name, or several of which none is ``"coef"``.
        """
        check_is_fitted(estimator)
        final = _final(estimator)
        samples = getattr(final, "posterior_samples_", None)
        if samples is None:
            raise ValueError(f"{type(final).__name__} has no posterior draws.")
        if not isinstance(samples, dict):
            samples = {final._draws_name: samples}
            parameter = final._draws_name
        elif parameter is None:
            parameter = next(iter(samples)) if len(samples) == 1 else "coef"
        if parameter not in samples:
            raise ValueError(
                f"{type(final).__name__} has no posterior draws of {parameter!r}: pass as "
                f"parameter one of {sorted(samples)}."
            )
        draws = np.asarray(samples[parameter])
        if draws.ndim == 1:
            draws = draws[:, None]
        names = _names(estimator, final, parameter, draws.shape[1:]) if names is None else names
        if parameter == "coef":
            prepared = isinstance(estimator, Pipeline) and len(estimator) > 1
            parameter = "coefficient of prepared columns" if prepared else "coefficient"
        options.setdefault("quantity", parameter)
        return cls(draws, names=names, **options).plot(ax)

    def _figsize(self) -> tuple[float, float]:
        return 6.4, 1.6 + 0.28 * min(len(self.names), self.max_shown)

    def _draw(self, ax: Axes) -> None:
        medians = np.median(self.draws, axis=0)
        self.shown_ = np.argsort(-np.abs(medians), kind="stable")[: self.max_shown]
        places = np.arange(len(self.shown_))
        ax.axvline(0, **DIAGONAL)
        self.lines_ = []
        widths = np.linspace(5, 1.5, len(self.level)) if len(self.level) > 1 else [3]
        for level, width in zip(self.level, widths, strict=True):
            low, high = np.quantile(
                self.draws[:, self.shown_], [(1 - level) / 2, (1 + level) / 2], axis=0
            )
            label = f"{100 * level:.3g}% interval"
            self.lines_.append(
                ax.hlines(places, low, high, linewidth=width, color=COLOURS[0], label=label)
            )
        (self.medians_,) = ax.plot(
            medians[self.shown_],
            places,
            "o",
            markersize=5,
            markeredgecolor=COLOURS[0],
            color="white",
            label="median",
        )
        self.reference_ = None
        if self.reference is not None:
            (self.reference_,) = ax.plot(
                self.reference[self.shown_],
                places,
                linestyle="none",
                marker="|",
                markersize=12,
                markeredgewidth=2,
                color=COLOURS[1],
                label="reference",
            )
        ax.set_yticks(places, [self.names[j] for j in self.shown_])
        ax.set(ylim=(len(places) - 0.4, -0.6), xlabel=self.quantity)
        if len(places) < len(medians):
            ax.set_title(
                f"the {len(places)} largest of {len(medians)}", loc="left", fontsize="medium"
            )
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


class PrivacyUtilityDisplay(Display):
    """Scores of private fits against epsilon.

    **For public or simulated data.** Each fit spends its epsilon, and scores are computed from raw
    rows without noise: on records to protect, neither the scores nor a choice of epsilon by them is
    private.

    Parameters
    ----------
    epsilons : array-like of shape (n_epsilons,)
        Above 0.
    scores : array-like of shape (n_epsilons, n_repeats)
    reference : float, optional
        Score without privacy.
    score_name : str, default="score"
    name : str, default="private"
        Name of the estimator.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
        Mean scores.
    band_ : matplotlib PolyCollection
        From the lowest to the highest score.
    reference_line_ : matplotlib Line2D or None

    Examples
    --------
    >>> from skdpbayes.displays import PrivacyUtilityDisplay
    >>> scores = [[0.6, 0.7], [0.8, 0.8]]
    >>> display = PrivacyUtilityDisplay.from_scores([0.1, 1.0], scores, reference=0.82)
    >>> display.line_.get_ydata()
    array([0.65, 0.8 ])
    """

    line_: Line2D
    band_: PolyCollection
    reference_line_: Line2D | None

    def __init__(
        self,
        epsilons: ArrayLike,
        scores: ArrayLike,
        *,
        reference: float | None = None,
        score_name: str = "score",
        name: str = "private",
    ) -> None:
        self.epsilons = np.asarray(epsilons, dtype=float)
        self.scores = np.asarray(scores, dtype=float)
        if self.epsilons.ndim != 1 or not np.all((self.epsilons > 0) & np.isfinite(self.epsilons)):
            raise ValueError(
                f"epsilons must be a list of finite numbers above 0, got {epsilons!r}."
            )
        n_epsilons, shape = len(self.epsilons), self.scores.shape
        if len(shape) != 2 or shape[0] != n_epsilons or not self.scores.size:
            raise ValueError(f"scores must have shape ({n_epsilons}, n_repeats), got {shape}.")
        self.reference = reference
        self.score_name = score_name
        self.name = name

    @classmethod
    def from_scores(
        cls, epsilons: ArrayLike, scores: ArrayLike, *, ax: Axes | None = None, **options: Any
    ) -> Self:
        """Draw given scores.

        Parameters
        ----------
        epsilons : array-like of shape (n_epsilons,)
        scores : array-like of shape (n_epsilons, n_repeats)
        ax : matplotlib Axes, optional
        **options
            Other parameters of the class.

        Returns
        -------
        PrivacyUtilityDisplay
        """
        return cls(epsilons, scores, **options).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike | None,
        X_test: ArrayLike,
        y_test: ArrayLike | None,
        *,
        epsilons: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
        scoring: str | Scorer | None = None,
        n_repeats: int = 3,
        reference: BaseEstimator | None = None,
        param_name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Fit clones at each epsilon, score them on held-out rows, and draw.

        **Not private**: this makes ``len(epsilons) * n_repeats`` fits, and scores them on raw rows.
        Take public or simulated data. Each fit is charged to the estimator's ledger, or to an open
        one.

        Parameters
        ----------
        estimator : estimator of this package, or a pipeline that ends in one
            Not changed. With an integer as ``random_state``, repeats count up from it.
        X, y
            Training rows; `y` may be None.
        X_test, y_test
            Rows to score on.
        epsilons : sequence of float, default=(0.1, 0.3, 1.0, 3.0, 10.0)
        scoring : str or callable, optional
            As in scikit-learn; None takes the estimator's ``score``.
        n_repeats : int, default=3
            Fits at each epsilon.
        reference : estimator, optional
            Estimator without privacy; a clone of it is fitted and scored once.
        param_name : str, optional
            Name of the parameter epsilon, such as ``"step__epsilon"``; by default that of the
            estimator, or of a pipeline's last step.
        ax : matplotlib Axes, optional

        Returns
        -------
        PrivacyUtilityDisplay

        Raises
        ------
        ValueError
            If the estimator has no such parameter, or there are no repeats.
        """
        if n_repeats < 1:
            raise ValueError(f"n_repeats must be at least 1, got {n_repeats!r}.")
        final = _final(estimator)
        if param_name is None:
            step = f"{estimator.steps[-1][0]}__" if isinstance(estimator, Pipeline) else ""
            param_name = f"{step}epsilon"
        parameters = estimator.get_params()
        if param_name not in parameters:
            raise ValueError(
                f"{type(estimator).__name__} has no parameter {param_name!r}: pass param_name."
            )
        seed_name = param_name.removesuffix("epsilon") + "random_state"
        seed = parameters.get(seed_name)

        def score(model: BaseEstimator) -> float:
            return check_scoring(model, scoring)(model.fit(X, y), X_test, y_test)

        def private(epsilon: float, repeat: int) -> BaseEstimator:
            model = clone(estimator).set_params(**{param_name: epsilon})
            if isinstance(seed, numbers.Integral):  # else all repeats would be the same fit
                model.set_params(**{seed_name: seed + repeat})
            return model

        scores = [
            [score(private(float(epsilon), repeat)) for repeat in range(n_repeats)]
            for epsilon in epsilons
        ]
        return cls.from_scores(
            epsilons,
            scores,
            reference=None if reference is None else score(clone(reference)),
            score_name=_score_name(scoring, final),
            name=type(final).__name__,
            ax=ax,
        )

    def _draw(self, ax: Axes) -> None:
        order = np.argsort(self.epsilons)
        epsilons, scores = self.epsilons[order], self.scores[order]
        n_repeats = scores.shape[1]
        label = f"{self.name}, mean and range of {n_repeats} fits" if n_repeats > 1 else self.name
        (self.line_,) = ax.plot(epsilons, scores.mean(axis=1), "o-", label=label)
        self.band_ = ax.fill_between(
            epsilons,
            scores.min(axis=1),
            scores.max(axis=1),
            color=self.line_.get_color(),
            alpha=0.2,
            linewidth=0,
        )
        self.reference_line_ = None
        if self.reference is not None:
            self.reference_line_ = ax.axhline(self.reference, label="without privacy", **DIAGONAL)
        ax.set_xscale("log")
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        ax.set_xticks([], minor=True)
        ax.set(xlabel="epsilon", ylabel=self.score_name)
        ax.legend(frameon=False, loc="lower right")


def _final(estimator: BaseEstimator) -> BaseEstimator:
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _names(
    estimator: BaseEstimator, final: BaseEstimator, parameter: str, shape: tuple[int, ...]
) -> list[str]:
    """Names of the entries of a parameter, from its axes; a single row of classes has no name."""
    dims = final._dims.get(parameter, ())
    if len(dims) != len(shape):
        n = int(np.prod(shape))
        return [parameter] if n == 1 else [f"{parameter} {j}" for j in range(n)]
    columns = _columns(estimator)
    labels = final._coordinates() | {"feature": columns, "other_feature": columns}
    axes = []
    for dim, size in zip(dims, shape, strict=True):
        if (dim, size) != ("class", 1):
            known = labels.get(dim)
            known = [f"{dim} {j}" for j in range(size)] if known is None else known
            axes.append([str(label) for label in known])
    return [": ".join(each) for each in itertools.product(*axes)] if axes else [parameter]


def _columns(estimator: BaseEstimator) -> list[str] | None:
    try:
        if isinstance(estimator, Pipeline) and len(estimator) > 1:
            return list(estimator[:-1].get_feature_names_out())
    except (AttributeError, ValueError):  # a step that names no columns
        return None
    names = getattr(estimator, "feature_names_in_", None)
    width = getattr(estimator, "n_features_in_", None)
    if names is None and width is not None:
        names = [f"x{j}" for j in range(width)]
    return None if names is None else list(names)


def _score_name(scoring: str | Scorer | None, final: BaseEstimator) -> str:
    if scoring is not None:
        name = scoring if isinstance(scoring, str) else getattr(scoring, "__name__", "score")
        return name.replace("_", " ")
    if is_classifier(final):
        return "accuracy"
    return "R squared" if is_regressor(final) else "mean log density"
