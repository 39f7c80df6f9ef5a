"""Pipelines that refuse to leak, and a walk that names every step that does.

A step leaks if it learns from the rows without spending budget.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number
from skdpbayes.estimators._arviz import names_columns
from skdpbayes.estimators._base import PrivateEstimator, diagram_and_card
from skdpbayes.estimators._foreign import refuse_foreign
from skdpbayes.intake.sources import Converted, RecordSource, loaded
from skdpbayes.intake.stored import source_of
from skdpbayes.intake.tables import is_sequence
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.plans.settings import SEEDED
from skdpbayes.preprocessing._public import (
    BoundedScaler,
    CategoryEncoder,
    NormClipper,
    rows_to_predict,
)
from skdpbayes.preprocessing._scaler import DPStandardScaler
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.json_values import told
from skdpbayes.privacy.report import BEFORE_THE_MODEL
from skdpbayes.privacy.spent import Spent, Total
from skdpbayes.schema import Schema

_LEARN_NOTHING = (BoundedScaler, CategoryEncoder, NormClipper)
PUBLIC, PRIVATE, LEAKS = "learns nothing", "private", "LEAKS"


class StepReport(NamedTuple):
    """One step of a pipeline.

    Attributes
    ----------
    name : str
        With the names of what it is part of, joined by ``__``.
    estimator : str
        Its class.
    verdict : {"learns nothing", "private", "LEAKS"}
    reason : str

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.pipelines import check_pipeline
    >>> from skdpbayes.preprocessing import NormClipper
    >>> model = DPBayesianLogisticRegression(classes=[0, 1])
    >>> report = check_pipeline(make_pipeline(NormClipper(2.0), model))
    >>> [(step.name, step.verdict) for step in report.steps]
    [('normclipper', 'learns nothing'), ('dpbayesianlogisticregression', 'private')]
    """

    name: str
    estimator: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class PipelineReport:
    """What `check_pipeline` found.

    Attributes
    ----------
    steps : tuple of StepReport
    epsilon, delta : float
        Of all private steps together, each with its parameters fixed in advance: a valid total if
        no step leaks. Of fitted steps it is what they spent, of others what they are going to
        spend.
    unit : {"row", "person"}
        Whose data are protected by that total.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.pipelines import check_pipeline
    >>> model = DPBayesianLogisticRegression(classes=[0, 1])
    >>> report = check_pipeline(make_pipeline(StandardScaler(), model))
    >>> report.passed, report.epsilon
    (False, 1.0)
    """

    steps: tuple[StepReport, ...]
    epsilon: float
    delta: float
    unit: str = "row"

    @property
    def passed(self) -> bool:
        """Whether no step leaks, and at least one is private."""
        verdicts = [step.verdict for step in self.steps]
        return LEAKS not in verdicts and PRIVATE in verdicts

    @property
    def leaks(self) -> tuple[StepReport, ...]:
        """The steps that learn from the rows without spending."""
        return tuple(step for step in self.steps if step.verdict == LEAKS)

    def __str__(self) -> str:
        width = max((len(step.name) for step in self.steps), default=0)
        lines = [
            f"{step.name:{width}}  {step.verdict:14}  {step.estimator}: {step.reason}"
            for step in self.steps
        ]
        total = (
            f"total: ({rounded(self.epsilon)}, {rounded(self.delta, 3)}) for each {self.unit}"
            if self.passed
            else "no guarantee: mend what leaks"
        )
        return "\n".join([*lines, total])


def check_pipeline(pipeline: Any, *, trusted: Iterable[str] = ()) -> PipelineReport:
    """Name every step of a pipeline that leaks, and add up what the others spend.

    A step leaks if it learns from the rows without spending budget.
    Steps of `Pipeline`, `ColumnTransformer` and `FeatureUnion` are looked into, at any depth.
    Whatever is not of this package is said to leak: to learn nothing is not enough, as most
    transformers raise or warn if a single cell is missing or unknown, and an error tells of its
    row. What you have made sure of may be `trusted`.

    Under ``adjacency="zero_out"`` a null row is one that no step looks at, not one of missing
    cells: a transformer may make ordinary numbers of those.

    Parameters
    ----------
    pipeline : estimator
        Fitted or not; it is not fitted and not changed.
    trusted : iterable of str
        Names of steps, as the report has them, that map each row by itself, learn nothing, and
        neither raise nor warn whatever a cell holds. In a `ColumnTransformer` they must return
        dense arrays, or set ``sparse_threshold=0``: else the type of its output tells how many
        zeros there are. (So it does where its rows are sparse.) Private estimators are judged, and
        counted, all the same.

    Returns
    -------
    PipelineReport
        ``print`` shows it; `passed` sums it up.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.pipelines import check_pipeline
    >>> from skdpbayes.preprocessing import DPStandardScaler
    >>> model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1])
    >>> check_pipeline(make_pipeline(StandardScaler(), model)).leaks[0].name
    'standardscaler'
    >>> report = check_pipeline(make_pipeline(DPStandardScaler(bounds=(-5, 5), epsilon=0.5), model))
    >>> report.passed and report.epsilon <= 1.5
    True
    """
    if isinstance(trusted, str) or not hasattr(pipeline, "get_params"):
        raise ValueError(
            "Give a pipeline or an estimator, and trusted as a list of names; "
            f"got {pipeline!r}, {trusted!r}."
        )
    steps, private, trusted = [], [], set(trusted)
    for name, step in _walk("", pipeline):
        if step is None or isinstance(step, str) or _is_identity(step):
            continue
        spends = isinstance(step, PrivateEstimator | DPRandomizedSearchCV)
        verdict = (PUBLIC, "trusted") if name in trusted and not spends else _judged(step)
        steps.append(StepReport(name or type(step).__name__, type(step).__name__, *verdict))
        if verdict[0] == PRIVATE:
            private.append(step)
    unknown = trusted - {step.name for step in steps}
    if unknown:
        raise ValueError(
            f"trusted names no step: {sorted(unknown)}; there are {[step.name for step in steps]}."
        )
    replaced = pipeline._replaced if isinstance(pipeline, PrivatePipeline) else ()
    parts = [_total_of(step) for step in private] + [report.total for report in replaced]
    if not private:
        return PipelineReport(tuple(steps), 0.0, 0.0)
    total = Total.composed(parts)
    return PipelineReport(tuple(steps), total.epsilon, total.delta, total.unit)


def _walk(name, step, fitted=True):
    """Steps that are not made of others, with their names; selectors of columns count as steps.

    Of a `ColumnTransformer` that is fitted those are copies of what it was given, or, on demand,
    the latter.
    """
    if type(step) in (Pipeline, PrivatePipeline):
        parts = [part[:2] for part in step.steps]
    elif type(step) is ColumnTransformer:
        parts = [
            part[:2]
            for part in (getattr(step, "transformers_", None) if fitted else None)
            or step.transformers
        ]
        if "remainder" not in [own for own, _ in parts]:
            parts.append(("remainder", step.remainder))
        parts += [
            (f"{own}'s columns", columns)
            for own, _, columns in step.transformers
            if callable(columns)
            and type(columns) is not make_column_selector  # which reads names and dtypes
        ]
    elif type(step) is FeatureUnion:
        parts = [part[:2] for part in step.transformer_list]
    else:
        yield name, step
        return
    for own, part in parts:
        yield from _walk(f"{name}__{own}" if name else own, part, fitted)


def _parts(pipeline):
    """A pipeline and all that it is made of."""
    return [
        pipeline,
        *(part for part in pipeline.get_params(deep=True).values() if hasattr(part, "get_params")),
    ]


def _is_identity(step):
    """Whether it is what fitted transformers of columns and unions have for "passthrough"."""
    return (
        type(step) is FunctionTransformer
        and step.func is None
        and step.inverse_func is None
        and not step.validate
    )


_INSTEAD = {
    "MinMaxScaler": "BoundedScaler of",
    "Normalizer": "NormClipper of",
    "OneHotEncoder": "CategoryEncoder of",
    "SimpleImputer": "BoundedScaler(bounds, missing=...) of",
    "StandardScaler": "BoundedScaler or DPStandardScaler of",
}


def _judged(step):
    """Verdict and reason; of the very classes of this package, as a subclass may do anything."""
    if type(step) in _LEARN_NOTHING:
        return PUBLIC, "public bounds or categories"
    if type(step).__module__.startswith("skdpbayes.") and isinstance(
        step, PrivateEstimator | DPRandomizedSearchCV
    ):
        return _judged_private(step)
    if hasattr(step, "param_grid") or hasattr(step, "param_distributions"):
        return LEAKS, "a search scores candidates on the rows themselves, without noise"
    instead = _INSTEAD.get(type(step).__name__, "a step of")
    return LEAKS, (
        f"not known to be safe: most learn from the rows, or raise on single cells; take {instead} "
        "skdpbayes.preprocessing, or name it in `trusted`"
    )


def _judged_private(step):
    spent = getattr(step, "privacy_spent_", None)
    if spent is None:
        inner = step.estimator if isinstance(step, DPRandomizedSearchCV) else step
        undeclared = inner._undeclared()
        if undeclared:
            return LEAKS, f"{undeclared[0]}=None is taken from the rows: declare it"
        check_number("epsilon", step.epsilon, 0)
        check_number("delta", step.delta, 0, 1, open_above=True)
        if step.epsilon == float("inf"):
            return LEAKS, (
                "epsilon is infinite: to fit without privacy, take sklearn.pipeline.Pipeline"
            )
        if step.random_state is not None:
            return LEAKS, SEEDED
        caveats = _caveats(inner.numerics)
        return PRIVATE, f"will spend epsilon={step.epsilon:g} at delta={step.delta:g}{caveats}"
    if not spent.guarantee_holds:
        return LEAKS, f"the guarantee does not hold: {'; '.join(spent.voided_by)}"
    epsilon, again = spent.total.epsilon, ""
    if epsilon > spent.epsilon:
        again = f" in the last of several fits, {rounded(epsilon)} in all"
    return (
        PRIVATE,
        f"spent epsilon={rounded(spent.epsilon)} at delta={rounded(spent.delta)}{again}"
        + _caveats(spent.numerics),
    )


def _caveats(numerics):
    return " (in idealised arithmetic)" if numerics == "fast" else ""


def _total_of(step) -> Total:
    """What a step has spent, in all of its fits; of one that is not fitted, what it will."""
    spent: Spent | None = getattr(step, "privacy_spent_", None)
    if spent is not None:
        return spent.total
    inner = step.estimator if isinstance(step, DPRandomizedSearchCV) else step
    return Total(step.epsilon, step.delta, inner.adjacency, inner._privacy_unit)


def _scaling(steps, width):
    """Slopes and offsets of the `width` columns that steps return; None unless all are known."""
    slopes = offsets = None  # of the columns that come in
    for step in steps:
        kind = type(step)
        if step is None or kind in (str, NormClipper) or _is_identity(step):
            continue
        if kind is CategoryEncoder:
            n = len(step.get_feature_names_out())
            slopes, offsets = np.ones(n), np.zeros(n)
        elif kind in (BoundedScaler, DPStandardScaler):
            own, shift = step._slopes()
            first = slopes is None
            slopes, offsets = (own, shift) if first else (own * slopes, own * offsets + shift)
        elif kind is ColumnTransformer and slopes is None:
            parts = [_scaling(*part) for part in _side_by_side(step)]
            if any(part is None for part in parts):
                return None
            slopes, offsets = (np.concatenate(own) for own in zip(*parts, strict=True))
        else:
            return None
    return (np.ones(width), np.zeros(width)) if slopes is None else (slopes, offsets)


def _side_by_side(transformer):
    """Steps of each part of a fitted transformer of columns, with the width of its output."""
    places = transformer.output_indices_
    for name, part, _ in sorted(transformer.transformers_, key=lambda own: places[own[0]].start):
        width = places[name].stop - places[name].start
        if width:
            yield [own for _, own in part.steps] if type(part) is Pipeline else [part], width


def _told(step):
    """Class and parameters of a step, as a report holds them."""
    own = step.get_params(deep=False).items()
    plain = {name: x.to_dict() if isinstance(x, Schema) else told(x) for name, x in own}
    return {"name": type(step).__name__, **plain}


def _takes_parts(step):
    """Whether a step may get some rows at a time: it learns nothing, or is the private scaler."""
    return type(step) is DPStandardScaler or all(
        own is None or isinstance(own, str) or type(own) in _LEARN_NOTHING or _is_identity(own)
        for _, own in _walk("", step, fitted=False)
    )


class _ByPart(TransformerMixin, BaseEstimator):
    """A step that takes parts, in a fit to rows on disk."""

    def __init__(self, step):
        self.step = step

    def fit(self, X, y=None, **params):
        """Fit the step; what learns nothing is shown one row, for names and types of columns."""
        some = X if isinstance(self.step, PrivateEstimator) else X[:1]
        self.step.fit(some, y, **params)
        return self

    def fit_transform(self, X, y=None, **params):
        """Fit the step, and transform rows when they are read."""
        return self.fit(X, y, **params).transform(X)

    def transform(self, X):
        """Rows that are transformed when they are read."""
        return Converted(X, self.step.transform)


def _last_step_has(name):
    return available_if(lambda pipeline: hasattr(pipeline.steps[-1][1], name))


def _telling(name):
    """Method of `Pipeline` whose steps tell of cells that are not as declared."""

    @functools.wraps(getattr(Pipeline, name))
    def method(self, X, *arguments, **named):
        with rows_to_predict():
            return getattr(super(PrivatePipeline, self), name)(loaded(X), *arguments, **named)

    # Scikit-learn's own text refers to pages of its guide.
    method.__doc__ = f"""As `{name}` of `sklearn.pipeline.Pipeline`.

    It warns of cells beyond declared bounds or without a declared category, since rows to predict
    are not protected.
    """
    return _last_step_has(name)(method)


class PrivatePipeline(Pipeline):
    """A pipeline that refuses to be fitted if a step leaks, and says what all of them spend.

    It is `sklearn.pipeline.Pipeline` with `check_pipeline` before every fit. When it predicts, it
    warns of cells that are not as declared: rows to predict are not protected.

    Parameters
    ----------
    steps : list of tuple (name, estimator)
        The last is a private estimator, or a private search.
    trusted : sequence of str, default=()
        Steps that `check_pipeline` does not know and you have made sure of.
    transform_input, verbose
        As in scikit-learn.
    memory : None
        Refused otherwise: it would keep rows on disk.

    See Also
    --------
    make_private_pipeline : Names the steps.

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.pipelines import PrivatePipeline
    >>> model = DPBayesianLogisticRegression(classes=[0, 1])
    >>> try:
    ...     pipeline = PrivatePipeline([("scale", StandardScaler()), ("model", model)])
    ...     pipeline.fit([[0.0], [1.0]], [0, 1])
    ... except ValueError as error:
    ...     print(str(error)[:48])
    The pipeline is not private: scale (StandardScal
    """

    def __init__(self, steps, *, trusted=(), transform_input=None, memory=None, verbose=False):
        self.trusted = trusted
        super().__init__(steps, transform_input=transform_input, memory=memory, verbose=verbose)

    _html_repr = diagram_and_card

    steps: list[tuple[str, Any]]
    _replaced: tuple[Spent, ...] = ()  # reports of steps whose places a later fit gave to copies

    def _refuse_leaks(self, X):
        if self.memory is not None:
            raise ValueError("memory keeps rows on disk: take memory=None.")
        transformers = [part for part in _parts(self) if type(part) is ColumnTransformer]
        if transformers and is_sequence(X):
            raise ValueError(
                "X is a list, and a ColumnTransformer raises on some rows of lists: pass an array."
            )
        if sparse.issparse(X) and any(part.sparse_threshold != 0 for part in transformers):
            raise ValueError(
                "X is sparse, and the number of its zeros would decide the type of a "
                "ColumnTransformer's output: set sparse_threshold=0."
            )
        report = check_pipeline(
            clone(self), trusted=self.trusted
        )  # what is about to run, whatever ran before
        if report.leaks:
            leaks = "; ".join(
                f"{step.name} ({step.estimator}): {step.reason}" for step in report.leaks
            )
            raise ValueError(f"The pipeline is not private: {leaks}")
        if not report.passed:
            raise ValueError("The pipeline is not private: none of its steps is.")
        stay = [step for _, step in _walk("", self, fitted=False)]
        fitted = [step for _, step in _walk("", self) if hasattr(step, "privacy_spent_")]
        copies = [step for step in fitted if not any(step is own for own in stay)]
        self._replaced += tuple(step.privacy_spent_ for step in copies)

    def _by_step(self, params):
        """Arguments of a fit, where `groups` are those of all private steps."""
        refuse_foreign(type(self.steps[-1][1]), params)
        if "groups" not in params:
            return params
        groups, spends = params["groups"], (PrivateEstimator, DPRandomizedSearchCV)
        own = {f"{name}__groups": groups for name, step in self.steps if isinstance(step, spends)}
        return own | {name: value for name, value in params.items() if name != "groups"}

    def fit(self, X, y=None, **params):
        """Fit all steps, unless one leaks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            A `numpy.memmap`, or what `open_table` returns, is read and transformed part by part.
        y : array-like of shape (n_samples,), optional
        **params
            As in scikit-learn; ``groups`` is given to each private step.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If `check_pipeline` does not pass it, or a step needs all rows of a table on disk at
            once; nothing was read and nothing spent.
        TypeError
            For `sample_weight`.
        """
        self._refuse_leaks(X)
        source = source_of(X)
        whole = [name for name, step in self.steps[:-1] if not _takes_parts(step)]
        if source is None or (whole and not isinstance(X, RecordSource)):
            return super().fit(X, y, **self._by_step(params))
        if whole:
            raise ValueError(
                f"The steps {whole} need all rows at once, and X is on disk: pass X[:] if it fits "
                "in memory. Rows are read part by part for steps of skdpbayes.preprocessing, and "
                "for a ColumnTransformer whose steps learn nothing."
            )
        with self._steps_by_part():
            return super().fit(source, y, **self._by_step(params))

    @contextmanager
    def _steps_by_part(self) -> Iterator[None]:
        """All steps but the last return rows that are transformed when they are read."""
        own = self.steps
        self.steps = [
            (name, step if step is None or isinstance(step, str) else _ByPart(step))
            for name, step in own[:-1]
        ] + own[-1:]
        try:
            yield
        finally:
            self.steps = own

    @_last_step_has("fit_transform")
    def fit_transform(self, X, y=None, **params):
        """Fit all steps, unless one leaks, and transform the rows; the result is not private."""
        self._refuse_leaks(X)
        return super().fit_transform(loaded(X), y, **self._by_step(params))

    @_last_step_has("fit_predict")
    def fit_predict(self, X, y=None, **params):
        """Fit all steps, unless one leaks, and predict the rows; the result is not private."""
        self._refuse_leaks(X)
        return super().fit_predict(loaded(X), y, **self._by_step(params))

    @property
    def privacy_spent_(self) -> Spent:
        """What all private steps spent together, in all of their fits.

        A `PrivacySpent`, or a `SelectionSpent` if the last step is a search. A step that is
        replaced between fits takes what it spent with it: for several objects open a
        `PrivacyLedger`.
        """
        steps = [own for name, step in self.steps for own in _walk(name, step)]
        reports: dict[str, Spent] = {
            name: step.privacy_spent_ for name, step in steps if hasattr(step, "privacy_spent_")
        }
        if not reports:
            raise AttributeError("This pipeline is not fitted: there is no privacy_spent_ yet.")
        learn_nothing = {name: _told(step) for name, step in steps if type(step) in _LEARN_NOTHING}
        *_, last = reports.values()
        return last.composed(
            reports,
            self._replaced,
            public=learn_nothing,
            covered=() if self.trusted else (BEFORE_THE_MODEL,),
        )

    def _transformed(self, X):
        with rows_to_predict():
            return X if len(self.steps) == 1 else self[:-1].transform(loaded(X))

    predict = _telling("predict")
    predict_proba = _telling("predict_proba")
    predict_log_proba = _telling("predict_log_proba")
    decision_function = _telling("decision_function")
    score_samples = _telling("score_samples")
    score = _telling("score")

    @_last_step_has("predict_interval")
    def predict_interval(self, X, level=0.95):
        """Credible intervals of the last step, for rows before the first.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        level : float, default=0.95

        Returns
        -------
        lower, upper : arrays
        """
        return self.steps[-1][1].predict_interval(self._transformed(X), level)

    @_last_step_has("summary")
    def summary(self, level=0.9, *, units="auto", **options):
        """Table of the posterior of the last step, with the names that the steps before it give.

        Parameters
        ----------
        level : float, default=0.9
        units : {"auto", "original", "steps"}, default="auto"
            Units of coefficients: "original" is those of the columns before the first step (within
            their bounds), "steps" those of the columns that the last step was given. "auto" is
            "original" for logistic and linear regression behind `BoundedScaler`,
            `DPStandardScaler`, `CategoryEncoder`, `NormClipper` and `ColumnTransformer`, and
            "steps" otherwise. The name of the table's columns says which it is, and so does
            ``table.attrs["units"]``. Sites of a NumPyro model are converted where ``linear`` names
            them.
        **options
            As the last step's `summary` takes them.

        Returns
        -------
        table : pandas.DataFrame

        Raises
        ------
        ValueError
            For ``units="original"`` where a step before the model is another one, or the model is.
        """
        check_choice("units", units, ("auto", "original", "steps"))
        last, before = self.steps[-1][1], self.steps[:-1]
        model = last.best_estimator_ if isinstance(last, DPRandomizedSearchCV) else last
        # Sites of a NumPyro model are those of columns only where `dims` says so.
        linear = model._linear or options.get("linear") is not None
        has_columns = linear or model._dims or names_columns(options.get("dims"))
        if before and has_columns and "feature_names" not in options:
            options["feature_names"] = self[:-1].get_feature_names_out()
        found = None
        if units != "steps" and linear:
            found = _scaling([step for _, step in before], model.n_features_in_)
        if found is None and units == "original":
            raise ValueError(
                "units='original' is for logistic and linear regression, and sites of a NumPyro "
                "model that `linear` names, behind scalers and encoders of "
                "skdpbayes.preprocessing, alone or in a ColumnTransformer: take units='steps'."
            )
        if found is not None and before:
            options["scaling"] = found
        table = last.summary(level, **options)
        table.attrs["units"] = "steps" if found is None else "original"
        if before:
            own = "original units" if found is not None else "units of the steps' columns"
            of = table.columns.name  # of ratios
            table.columns.name = f"in {own}" if of is None else f"{of}, in {own}"
        return table

    @_last_step_has("to_arviz")
    def to_arviz(self, coords=None, dims=None):
        """Posterior draws of the last step, with the names that the steps before it give.

        Coefficients are in units of the columns that the last step was given. Parameters and result
        are those of the last step's `to_arviz`.
        """
        last, own = self.steps[-1][1], {}
        if len(self.steps) > 1:
            axes = {**last._dimensions(), **(dims or {})}
            used = {axis for of_variable in axes.values() for axis in of_variable}
            names = self[:-1].get_feature_names_out()
            own = {axis: names for axis in ("feature", "other_feature") if axis in used}
        return last.to_arviz({**own, **(coords or {})}, dims)

    @_last_step_has("log_predictive_density")
    def log_predictive_density(self, X, y):
        """Log posterior predictive density of each response, of the last step."""
        return self.steps[-1][1].log_predictive_density(self._transformed(X), y)

    @_last_step_has("sample_posterior_predictive")
    def sample_posterior_predictive(self, X, n_samples=100, random_state=None):
        """Responses drawn from the posterior predictive of the last step."""
        return self.steps[-1][1].sample_posterior_predictive(
            self._transformed(X), n_samples, random_state
        )


def make_private_pipeline(*steps, trusted=(), verbose=False):
    """Pipeline that refuses what leaks, with names made from the steps' classes.

    Parameters
    ----------
    *steps : estimators
    trusted : sequence of str, default=()
        As in `check_pipeline`.
    verbose : bool, default=False

    Returns
    -------
    PrivatePipeline

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.pipelines import make_private_pipeline
    >>> from skdpbayes.preprocessing import DPStandardScaler
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(50, 10, size=(2000, 2))
    >>> y = (X[:, 0] + rng.normal(size=2000) > 50).astype(int)
    >>> model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1], solver="vips")
    >>> scaler = DPStandardScaler(bounds=(0, 100), epsilon=0.5)
    >>> pipeline = make_private_pipeline(scaler, model).fit(X, y)
    >>> 1.0 < pipeline.privacy_spent_.epsilon <= 1.5
    True
    >>> lower, upper = pipeline.predict_interval(X[:3])
    """
    return PrivatePipeline(make_pipeline(*steps).steps, trusted=trusted, verbose=verbose)


def search_spent(search: Any) -> str:
    """Say what a finished search of scikit-learn's has spent, and that it is not private.

    Each candidate was fitted once for each fold, and the best once more. What is said is the sum of
    all these fits' epsilons and deltas, a bound for a row that is in the training parts of all
    folds. The *scores* that chose among them were computed from the rows without noise, so that no
    epsilon holds for the search as a whole.

    Parameters
    ----------
    search : GridSearchCV or RandomizedSearchCV, fitted

    Returns
    -------
    str

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skdpbayes import DPGammaExponential
    >>> from skdpbayes.pipelines import search_spent
    >>> X = np.random.default_rng(0).exponential(size=(600, 1))
    >>> grid = {"epsilon": [0.5, 1.0]}
    >>> search = GridSearchCV(DPGammaExponential(), grid, cv=3, refit=False).fit(X)
    >>> print(search_spent(search))  # doctest: +ELLIPSIS
    no guarantee: scores were computed ... noise; the 6 fits alone spent (4.5, 6e-05)
    """
    check_is_fitted(search, "cv_results_")
    times, own = search.n_splits_, search.cv_results_["params"]
    fits = [(times, clone(search.estimator).set_params(**parameters)) for parameters in own]
    if hasattr(search, "best_estimator_"):
        fits.append((1, clone(search.best_estimator_)))
    reports = [(count, check_pipeline(model)) for count, model in fits]
    epsilon, delta = (
        sum(count * getattr(report, name) for count, report in reports)
        for name in ("epsilon", "delta")
    )
    n_fits = sum(count for count, _ in fits)
    return (
        "no guarantee: scores were computed from the rows without noise; "
        f"the {n_fits} fits alone spent ({epsilon:.4g}, {delta:.3g})"
    )
