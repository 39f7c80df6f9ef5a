"""A walk through a pipeline that names every step which learns from the rows without spending budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator

from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.preprocessing._public import BoundedScaler, CategoryEncoder, NormClipper

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
        total = f"total: ({self.epsilon:.4g}, {self.delta:.3g})" if self.passed else "no guarantee: mend what leaks"
        return "\n".join([*lines, total])


def check_pipeline(pipeline: Any) -> PipelineReport:
    """Name every step of a pipeline that learns from the rows without spending budget, and add up what others spend.

    Steps of `Pipeline`, `ColumnTransformer` and `FeatureUnion` are looked into, at any depth. What is not known to
    learn nothing is said to leak. Steps of this package are private; of scikit-learn's, those are known that depend on
    names and numbers of columns only (such as `OneHotEncoder` with declared categories).

    Parameters
    ----------
    pipeline : estimator
        Fitted or not; it is not fitted and not changed.

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
    steps, private = [], []
    for name, step in _walk("", pipeline):
        if step is None or isinstance(step, str):
            continue
        report = StepReport(name or type(step).__name__, type(step).__name__, *_judged(step))
        steps.append(report)
        if report.verdict == PRIVATE:
            private.append(step)
    return PipelineReport(tuple(steps), *_total(private))


def _walk(name, step):
    """Steps that are not made of others, with their names."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(step, Pipeline):
        parts = [part[:2] for part in step.steps]
    elif isinstance(step, ColumnTransformer):
        fitted = getattr(step, "transformers_", None)
        parts = [part[:2] for part in (step.transformers if fitted is None else fitted)]
    elif isinstance(step, FeatureUnion):
        parts = [part[:2] for part in step.transformer_list]
    else:
        yield name, step
        return
    for own, part in parts:
        yield from _walk(f"{name}__{own}" if name else own, part)


def _judged(step):
    """Verdict and reason."""
    if isinstance(step, BoundedScaler | CategoryEncoder | NormClipper):
        return PUBLIC, "public bounds or categories"
    if isinstance(step, PrivateEstimator | DPRandomizedSearchCV):
        return _judged_private(step)
    if type(step).__module__.split(".")[0] == "sklearn" and type(step).__name__ in _KNOWN:
        return _KNOWN[type(step).__name__](step)
    if hasattr(step, "best_estimator_") or hasattr(step, "param_grid") or hasattr(step, "param_distributions"):
        return LEAKS, "a search scores candidates on the rows themselves, and fits many times"
    if not isinstance(step, BaseEstimator):
        return LEAKS, "not an estimator: it may do anything with the rows"
    return LEAKS, "not known to learn nothing; see skdpbayes.preprocessing for private ones"


def _judged_private(step):
    spent = getattr(step, "privacy_spent_", None)
    if spent is None:
        inner = step.estimator if isinstance(step, DPRandomizedSearchCV) else step
        undeclared = inner._undeclared()
        if undeclared:
            return LEAKS, f"{undeclared[0]}=None is taken from the rows: declare it"
        if step.epsilon == float("inf"):
            return LEAKS, "epsilon is infinite"
        return PRIVATE, f"will spend epsilon={step.epsilon:g} at delta={step.delta:g}"
    if not spent.guarantee_holds:
        return LEAKS, f"the guarantee does not hold: {'; '.join(spent.voided_by)}"
    return PRIVATE, f"spent epsilon={spent.epsilon:.4g} at delta={spent.delta:g}"


def _unless(condition, reason):
    return (PUBLIC, "public parameters") if condition else (LEAKS, reason)


def _encoder(step, unknown):
    declared = not isinstance(step.categories, str)
    return _unless(
        declared and step.handle_unknown in unknown and getattr(step, "max_categories", None) is None
        and getattr(step, "min_frequency", None) is None,
        f"learns categories, or raises on unknown ones: declare categories, and handle_unknown={unknown[0]!r}",
    )  # fmt: skip


_KNOWN = {
    name: lambda step: (PUBLIC, "each row by itself")
    for name in ("Binarizer", "FeatureHasher", "HashingVectorizer", "Normalizer", "PolynomialFeatures")
} | {
    "FunctionTransformer": lambda step: (PUBLIC, "if its function treats each row by itself: that is yours to see to"),
    "OneHotEncoder": lambda step: _encoder(step, ("ignore", "warn")),
    "OrdinalEncoder": lambda step: _encoder(step, ("use_encoded_value",)),
    "CountVectorizer": lambda step: _unless(step.vocabulary is not None, "learns a vocabulary: declare it"),
    "MissingIndicator": lambda step: _unless(
        step.features == "all" and not step.error_on_new, "learns which columns miss values: features='all'"
    ),
    "SimpleImputer": lambda step: _unless(
        step.strategy == "constant" and step.keep_empty_features and not step.add_indicator,
        "learns what to fill in: strategy='constant' with fill_value and keep_empty_features=True does not",
    ),
    "RBFSampler": lambda step: _unless(not isinstance(step.gamma, str), "gamma='scale' is the rows' variance"),
    "GaussianRandomProjection": lambda step: _unless(
        step.n_components != "auto" and not step.compute_inverse_components, "declare n_components"
    ),
}


def _total(private):
    """Epsilon and delta of all private steps together."""
    from skdpbayes.privacy import compose

    if not private:
        return 0.0, 0.0
    delta = float(sum(step.delta for step in private))
    fits = [step.estimator if isinstance(step, DPRandomizedSearchCV) else step for step in private]
    if len({(fit.adjacency, fit._record) for fit in fits}) > 1:
        raise ValueError("The private steps have different adjacencies or units: no total can be given.")
    spent = [step.privacy_spent_ for step in private if hasattr(step, "privacy_spent_")]
    simple = sum(report.epsilon for report in spent)
    if len(spent) < len(private):
        return float(simple + sum(step.epsilon for step in private if not hasattr(step, "privacy_spent_"))), delta
    if fits != private:  # a selection is no sum of steps
        return float(simple), delta
    curve = compose([block for report in spent for block in report.steps], private[0].adjacency)
    more = sum(report.epsilon_overhead for report in spent)
    together = curve.epsilon(delta - sum(report.delta_overhead for report in spent)) + more
    return float(min(simple, together)), delta
