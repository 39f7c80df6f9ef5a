"""A walk through a pipeline that names every step which learns from the rows without spending budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from skdpbayes.estimators._base import SEEDED, PrivateEstimator
from skdpbayes.model_selection import DPRandomizedSearchCV, SelectionSpent
from skdpbayes.preprocessing._public import BoundedScaler, CategoryEncoder, NormClipper
from skdpbayes.privacy.report import rounded

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
    >>> from skdpbayes.preprocessing import NormClipper, check_pipeline
    >>> report = check_pipeline(make_pipeline(NormClipper(2.0), DPBayesianLogisticRegression(classes=[0, 1])))
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
        Of all private steps together, each with its parameters fixed in advance: a valid total if no step leaks. Of
        fitted steps it is what they spent, of others what they are going to spend.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.preprocessing import check_pipeline
    >>> report = check_pipeline(make_pipeline(StandardScaler(), DPBayesianLogisticRegression(classes=[0, 1])))
    >>> report.passed, report.epsilon
    (False, 1.0)
    """

    steps: tuple[StepReport, ...]
    epsilon: float
    delta: float

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
        lines = [f"{step.name:{width}}  {step.verdict:14}  {step.estimator}: {step.reason}" for step in self.steps]
        total = (
            f"total: ({rounded(self.epsilon)}, {rounded(self.delta, 3)})"
            if self.passed
            else "no guarantee: mend what leaks"
        )
        return "\n".join([*lines, total])


def check_pipeline(pipeline: Any, *, trusted: Iterable[str] = ()) -> PipelineReport:
    """Name every step of a pipeline that learns from the rows without spending budget, and add up what others spend.

    Steps of `Pipeline`, `ColumnTransformer` and `FeatureUnion` are looked into, at any depth. Whatever is not of this
    package is said to leak: to learn nothing is not enough, as most transformers raise or warn if a single cell is
    missing or unknown, and an error tells of its row. What you have made sure of may be `trusted`.

    Under ``adjacency="zero_out"`` a null row is one that no step looks at, not one of missing cells: a transformer may
    make ordinary numbers of those.

    Parameters
    ----------
    pipeline : estimator
        Fitted or not; it is not fitted and not changed.
    trusted : iterable of str
        Names of steps, as the report has them, that map each row by itself, learn nothing, and neither raise nor warn
        whatever a cell holds. In a `ColumnTransformer` they must return dense arrays, or set ``sparse_threshold=0``:
        else the type of its output tells how many zeros there are.

    Returns
    -------
    PipelineReport
        ``print`` shows it; `passed` sums it up.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.preprocessing import DPStandardScaler, check_pipeline
    >>> model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1])
    >>> check_pipeline(make_pipeline(StandardScaler(), model)).leaks[0].name
    'standardscaler'
    >>> report = check_pipeline(make_pipeline(DPStandardScaler(bounds=(-5, 5), epsilon=0.5), model))
    >>> report.passed and report.epsilon <= 1.5
    True
    """
    if isinstance(trusted, str) or not hasattr(pipeline, "get_params"):
        raise ValueError(
            f"Give a pipeline or an estimator, and trusted as a list of names; got {pipeline!r}, {trusted!r}."
        )
    steps, private, trusted = [], [], set(trusted)
    for name, step in _walk("", pipeline):
        if step is None or isinstance(step, str):
            continue
        verdict = (PUBLIC, "trusted") if name in trusted else _judged(step)
        steps.append(StepReport(name or type(step).__name__, type(step).__name__, *verdict))
        if verdict[0] == PRIVATE:
            private.append(step)
    unknown = trusted - {step.name for step in steps}
    if unknown:
        raise ValueError(f"trusted names no step: {sorted(unknown)}; there are {[step.name for step in steps]}.")
    return PipelineReport(tuple(steps), *_total(private))


def _walk(name, step):
    """Steps that are not made of others, with their names; selectors of columns count as steps."""
    from sklearn.compose import ColumnTransformer, make_column_selector
    from sklearn.pipeline import FeatureUnion, Pipeline

    if type(step) is Pipeline:
        parts = [part[:2] for part in step.steps]
    elif type(step) is ColumnTransformer:
        parts = [part[:2] for part in getattr(step, "transformers_", step.transformers)]
        if "remainder" not in [own for own, _ in parts]:
            parts.append(("remainder", step.remainder))
        parts += [
            (f"{own}'s columns", columns)
            for own, _, columns in step.transformers
            if callable(columns) and type(columns) is not make_column_selector  # which reads names and dtypes
        ]
    elif type(step) is FeatureUnion:
        parts = [part[:2] for part in step.transformer_list]
    else:
        yield name, step
        return
    for own, part in parts:
        yield from _walk(f"{name}__{own}" if name else own, part)


def _judged(step):
    """Verdict and reason; of the very classes of this package, as a subclass may do anything."""
    if type(step) in (BoundedScaler, CategoryEncoder, NormClipper):
        return PUBLIC, "public bounds or categories"
    if type(step).__module__.startswith("skdpbayes.") and isinstance(step, PrivateEstimator | DPRandomizedSearchCV):
        return _judged_private(step)
    if hasattr(step, "param_grid") or hasattr(step, "param_distributions"):
        return LEAKS, "a search scores candidates on the rows themselves, without noise"
    return LEAKS, (
        "not known to be safe: most learn from the rows, or raise on single cells; see skdpbayes.preprocessing, or "
        "name it in `trusted`"
    )


def _judged_private(step):
    spent = getattr(step, "privacy_spent_", None)
    if spent is None:
        inner = step.estimator if isinstance(step, DPRandomizedSearchCV) else step
        undeclared = inner._undeclared()
        if undeclared:
            return LEAKS, f"{undeclared[0]}=None is taken from the rows: declare it"
        if step.epsilon == float("inf"):
            return LEAKS, "epsilon is infinite"
        if step.random_state is not None:
            return LEAKS, SEEDED
        caveats = _caveats(inner.numerics)
        return PRIVATE, f"will spend epsilon={step.epsilon:g} at delta={step.delta:g}{caveats}"
    if not spent.guarantee_holds:
        return LEAKS, f"the guarantee does not hold: {'; '.join(spent.voided_by)}"
    epsilon, again = _spent(step), ""
    if epsilon > spent.epsilon:
        again = f" in the last of several fits, {rounded(epsilon)} in all"
    return (
        PRIVATE,
        f"spent epsilon={rounded(spent.epsilon)} at delta={rounded(spent.delta)}{again}"
        + _caveats(spent.numerics),
    )


def _caveats(numerics):
    return " (in idealised arithmetic)" if numerics == "fast" else ""


def _spent(step):
    """Epsilon of all fits of a step, at the delta of one (of all, for a search)."""
    spent = step.privacy_spent_
    return spent.total_epsilon if isinstance(spent, SelectionSpent) else spent.cumulative_epsilon


def _total(private):
    """Epsilon and delta of all private steps together."""
    from skdpbayes.privacy import compose

    if not private:
        return 0.0, 0.0
    fits = [step.estimator if isinstance(step, DPRandomizedSearchCV) else step for step in private]
    if len({(fit.adjacency, fit._record) for fit in fits}) > 1:
        raise ValueError("The private steps have different adjacencies or units: no total can be given.")
    fitted = [step for step in private if hasattr(step, "privacy_spent_")]
    simple = sum(_spent(step) if hasattr(step, "privacy_spent_") else step.epsilon for step in private)
    delta = float(sum(_delta(step) for step in private))
    if fits != private or len(fitted) < len(private):  # a selection is no sum of steps
        return float(simple), delta
    reports = [step.privacy_spent_ for step in fitted]
    curve = compose([block for own in reports for block in own.cumulative + own.steps], private[0].adjacency)
    more = sum(own.epsilon_overhead for own in reports)
    together = curve.epsilon(delta - sum(own.delta_overhead for own in reports)) + more
    return float(min(simple, together)), delta


def _delta(step):
    spent = getattr(step, "privacy_spent_", None)
    return spent.total_delta if isinstance(spent, SelectionSpent) else step.delta
