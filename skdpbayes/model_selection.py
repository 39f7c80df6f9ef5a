"""Private choice of hyper-parameters.

`sklearn.model_selection.GridSearchCV` is not private: it fits many times, and publishes scores on
the rows themselves. `DPRandomizedSearchCV` is private: it makes a random number of private runs and
releases the best one by a private score, which costs little more than one run (Papernot and Steinke
2022). `choose_prior` costs nothing: it compares priors of one fitted model, by what the fit has
released.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.callback import CallbackSupportMixin
from sklearn.model_selection import ParameterGrid
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted

from skdpbayes.checks import check_choice, check_number
from skdpbayes.estimators._base import (
    PrivateEstimator,
    check_ledger,
    diagram_and_card,
    refuse_several_processes,
)
from skdpbayes.estimators._foreign import WithoutForeign
from skdpbayes.intake.persons import means_by_person
from skdpbayes.intake.scores import scores
from skdpbayes.intake.sources import loaded
from skdpbayes.plans.settings import SEEDED
from skdpbayes.privacy import GaussianSteps, PrivacyLedger, Selection
from skdpbayes.privacy.selection import SelectionSpent
from skdpbayes.privacy.spent import weaker_before

if TYPE_CHECKING:
    from skdpbayes.estimators._logistic import DPBayesianLogisticRegression
    from skdpbayes.plans.plan import Plan

_MOST_CANDIDATES = 200
_WORST = -math.inf
_SURELY = 4.0  # standard deviations
_NOT_FOR_ARITHMETIC = 1 - 1e-6  # share of epsilon; integer arithmetic needs far less than the rest


class DPRandomizedSearchCV(WithoutForeign, MetaEstimatorMixin, BaseEstimator):
    """Choose hyper-parameters under differential privacy.

    A random number of times, the search draws a candidate from a public grid, fits it to a random
    part of the rows and scores it, with noise, on the others. The best run *is* the result: its
    model is not fitted again. Only that model, its parameters and its score are exposed; the number
    of runs and the other models are not.

    The number of runs has a truncated negative binomial distribution. The privacy bound is that of
    Koskela, Redberg and Wang (2024), from the privacy profiles of the runs. Each row is either
    fitted or scored, so a run costs the larger of the costs of its fit and of its score.

    A fitted search has the public methods of its best model, such as ``predict``,
    ``predict_interval`` and ``sample_posterior``, and its fitted attributes, such as ``coef_``.

    Parameters
    ----------
    estimator : estimator of this package
        The search sets its ``epsilon``, ``delta``, ``ledger`` and ``random_state``.
    param_grid : dict or list of dicts
        Public candidates, as in `sklearn.model_selection.ParameterGrid`, with equal probabilities.
    epsilon : float, default=1.0
        Privacy budget of the whole search.
    delta : float, default=1e-5
        Probability with which the privacy bound of the whole search may fail.
    n_iter : float, default=10.0
        Expected number of runs, at most 1000.
    eta : float, default=0.0
        Shape of the distribution of the number of runs: 0 is logarithmic and cheapest, 1 is
        geometric and less dispersed.
    test_size : float, default=0.2
        Fraction of the rows that score.
    scoring : {"log_loss", "accuracy", "log_density"} or callable, default=None
        Score of each row, in [0, 1]; larger is better. None takes the estimator's first named
        score.

        - "log_loss", for classifiers: ``1 - min(loss, 3) / 3``, with the log-loss in nats.
        - "accuracy", for classifiers: whether the label is right.
        - "log_density", for all others: ``p / (p + u)``, where p is the model's density of the row
          and u the uniform density on the range that the estimator's parameters declare. For
          density models, both are geometric means over columns; for topics, means over the words of
          half of a document given the other half; for regressions, p is the predictive density of
          the response. (`DPNumPyroModel` declares no range, so u is 1.)

        A callable ``(estimator, X, y) -> float`` is called once for **each row**, with that row
        alone, so that no row can change the score of another. It must keep no state between calls
        and must not change the estimator. The result is clipped to [0, 1].
    ledger : PrivacyLedger, default=None
        Budget to charge with the search, as one private selection; it needs
        ``composition="renyi"``. None takes the estimator's ledger, or the open one.
    random_state : None or int, default=None
        None draws from the operating system. An integer makes everything reproducible, which voids
        the guarantee: for tests only.

    Attributes
    ----------
    best_estimator_ : estimator
        Best model; its ``privacy_spent_`` is that of the search.
    best_params_ : dict
        Parameters of the best model.
    best_score_ : float
        Mean score of the rows that were scored, with noise; rows that a fit would not use, such as
        those without a label, are left out. It is the best of the runs', so it tends to be too
        high, unless ``n_iter=1`` allows a single run.
    score_noise_std_ : float
        Standard deviation of the privacy noise in that score.
    privacy_spent_ : SelectionSpent
        Cost of the search.

    See Also
    --------
    skdpbayes.privacy.selection_epsilon : The bound.

    Notes
    -----
    The duration of a search reveals the number of runs; the guarantee does not cover it. Callbacks
    of the estimator do not see the runs. Parts, candidates and the number of runs are drawn by
    NumPy's generator, seeded by the operating system.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.model_selection import DPRandomizedSearchCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3000, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = DPBayesianLogisticRegression(classes=[0, 1], solver="vips")
    >>> search = DPRandomizedSearchCV(
    ...     model, {"prior_scale": [0.01, 3.0]}, epsilon=4.0, n_iter=5, random_state=0
    ... ).fit(X, y)
    >>> search.best_params_, search.privacy_spent_.epsilon <= 4
    ({'prior_scale': 3.0}, True)
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_iter: float = 10.0,
        eta: float = 0.0,
        test_size: float = 0.2,
        scoring: str | Callable[..., Any] | None = None,
        ledger: PrivacyLedger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.epsilon = epsilon
        self.delta = delta
        self.n_iter = n_iter
        self.eta = eta
        self.test_size = test_size
        self.scoring = scoring
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Run the search.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
        groups : array-like of shape (n_samples,), optional
            The person that each row is of, where the estimator's `max_rows_per_person` is set. Then
            persons are split, and a person's score is the mean of their rows' scores.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters of the search or of a candidate that are out of range, before any run.
        BudgetError
            If the search costs more than the ledger has left, before any run.
        """
        candidates = self._check()
        refuse_several_processes("A search")
        X, y = loaded(X), loaded(y)
        n = _num_samples(X)
        if y is not None and _num_samples(y) != n:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: X and y differ in "
                "length."
            )
        person = self.estimator._persons_of(groups, n)
        n_records = n if person is None else int(person.max()) + 1
        rng = np.random.default_rng(self.random_state)
        order = rng.permutation(n_records)
        n_test = math.ceil(self.test_size * n_records)
        if not 0 < n_test < n_records:
            raise ValueError(
                f"test_size={self.test_size} leaves one of the parts of {n_records} "
                f"{self.estimator._privacy_unit}s empty."
            )
        parts = order[n_test:], order[:n_test]
        if person is not None:
            first, second = (np.flatnonzero(np.isin(person, part)) for part in parts)
            parts = first, second
        (X_fit, X_test), (y_fit, y_test) = (_parts(data, parts) for data in (X, y))
        of_fit, of_test = ({} if person is None else {"groups": person[part]} for part in parts)

        n_persons = None if person is None else n_records
        plan = self._planned(candidates, X, y, n_records - n_test, n_persons)
        self._charge(plan)
        for name in ("best_estimator_", "best_params_", "best_score_", "score_noise_std_"):
            self.__dict__.pop(name, None)
        self.privacy_spent_ = self._report(plan)

        usable = _quietly(_usable, self._candidate({}, self.epsilon, None), X_test, y_test)

        def seed() -> int | None:
            return None if self.random_state is None else int(rng.integers(2**31))

        def one_run() -> tuple[_Score, int, Any]:
            k = int(rng.integers(len(candidates)))
            model = self._candidate(candidates[k], plan.run_epsilon, seed())
            _fit_quietly(model, X_fit, y_fit, **of_fit)
            score = self._private_score(model, X_test, y_test, usable, plan, seed(), **of_test)
            return score, -k, model

        runs = (one_run() for _ in range(_number_of_runs(rng, self.n_iter, self.eta)))
        # Ties go to the first candidate.
        score, k, best = max(runs, key=lambda run: (run[0].value, run[1]))
        best.privacy_spent_, best.ledger = self.privacy_spent_, None
        self.best_estimator_, self.best_params_ = best, candidates[-k]
        self.best_score_, self.score_noise_std_ = score
        return self

    def _check(self) -> list[dict[str, Any]]:
        """Check all parameters and return the candidates."""
        if not isinstance(self.estimator, PrivateEstimator):
            raise ValueError(
                "estimator must be a private estimator of this package, got an object of class "
                f"{type(self.estimator).__name__}. In a pipeline, make the search the last step."
            )
        check_number("epsilon", self.epsilon, 0)
        check_number("delta", self.delta, 0, 1, open_above=True)
        # At most 1000, so that the number of runs need not be truncated.
        check_number("n_iter", self.n_iter, 1, 1000, closed=True)
        check_number("eta", self.eta, 0, 100, closed=True)
        check_number("test_size", self.test_size, 0, 1, open_above=True)
        if not callable(self.scoring):
            known = self.estimator._scorings
            if not known:
                raise ValueError(
                    f"There is no score for {type(self.estimator).__name__}: give scoring a "
                    "callable."
                )
            if self.scoring is not None:
                check_choice("scoring", self.scoring, known)
        if self.random_state is not None and not isinstance(self.random_state, numbers.Integral):
            raise ValueError(f"random_state must be None or an integer, got {self.random_state!r}.")
        check_ledger(self.ledger)
        if self.estimator.adjacency == "add_remove":
            raise ValueError(
                "A search takes the number of rows as known, which adjacency='add_remove' keeps "
                "private: use adjacency='zero_out' or 'replace_one'."
            )
        undeclared = self.estimator._undeclared()
        if undeclared:
            raise ValueError(f"{undeclared[0]}=None is taken from the rows: declare it.")
        candidates = list(ParameterGrid(self.param_grid))
        if not 1 <= len(candidates) <= _MOST_CANDIDATES:
            raise ValueError(
                f"param_grid must have 1 to {_MOST_CANDIDATES} candidates, got {len(candidates)}."
            )
        fixed = {"epsilon", "delta", "adjacency", "numerics", "ledger", "random_state"}
        fixed |= {"verbose", "classes"}
        if fixed & {name for candidate in candidates for name in candidate}:
            raise ValueError(f"Candidates may not differ in {', '.join(sorted(fixed))}.")
        rows = self.estimator._parameters().get("max_rows_per_person")
        if any(
            (own.get("max_rows_per_person", rows) is None) != (rows is None) for own in candidates
        ):
            raise ValueError(
                "Candidates may not differ in their unit of privacy: max_rows_per_person is None "
                "for all of them and for the estimator, or for none."
            )
        return candidates

    def _charge(self, plan: _Plan) -> None:
        """Charge the ledger in force, if there is one, before the search spends."""
        from skdpbayes.privacy.ledger import ledger_in_force

        ledger = ledger_in_force(self.estimator.ledger if self.ledger is None else self.ledger)
        if ledger is not None:
            ledger.charge(
                plan.selection,
                adjacency=self.estimator.adjacency,
                unit=self.estimator._privacy_unit,
                label=f"{type(self).__name__}({type(self.estimator).__name__})",
                voided_by=plan.voided_by,
            )

    def _report(self, plan: _Plan) -> SelectionSpent:
        """`SelectionSpent` of this search, including earlier searches of the same object."""
        earlier: SelectionSpent | None = vars(self).get("privacy_spent_")
        voided_by = plan.voided_by
        inner = self.estimator
        numerics, adjacency, unit = inner.numerics, inner.adjacency, inner._privacy_unit
        if earlier is not None:
            voided_by += tuple(
                weaker_before(earlier, numerics=numerics, adjacency=adjacency, unit=unit)
            )
            voided_by += tuple(
                f"an earlier search: {why.removeprefix('an earlier search: ')}"
                for why in earlier.voided_by
            )
        return SelectionSpent(
            epsilon=plan.epsilon,
            delta=float(self.delta),
            total_epsilon=plan.epsilon + (0.0 if earlier is None else earlier.total_epsilon),
            total_delta=float(self.delta) + (0.0 if earlier is None else earlier.total_delta),
            numerics=numerics,
            adjacency=adjacency,
            unit=unit,
            run_epsilon=plan.run_epsilon,
            n_iter=float(self.n_iter),
            seeded=self.random_state is not None,
            voided_by=voided_by,
        )

    def _candidate(self, parameters: dict[str, Any], epsilon: float, seed: int | None) -> Any:
        """A silent estimator: neither it nor its parts print or call callbacks."""
        from skdpbayes.privacy.ledger import Prepaid

        model = clone(self.estimator)
        model.set_params(
            epsilon=epsilon,
            delta=self.delta / self.n_iter,
            ledger=Prepaid(),
            random_state=seed,
            **parameters,
        )
        own = model.get_params(deep=True)
        model.set_params(**{name: 0 for name in own if name.split("__")[-1] == "verbose"})
        for part in (model, *own.values()):
            if isinstance(part, CallbackSupportMixin):
                part.set_callbacks()
        return model

    def _planned(
        self,
        candidates: list[dict[str, Any]],
        X: Any,
        y: Any,
        n_fit: int | None = None,
        n_persons: int | None = None,
    ) -> _Plan:
        """Plan of the search, from public facts of X; `n_fit` records are fitted (None: all)."""
        from skdpbayes.privacy import calibrate_noise

        adjacency, run_delta = self.estimator.adjacency, self.delta / self.n_iter
        some = self._candidate({}, self.epsilon, None)
        # Of all rows, as given: a model that holds them is as long, or shares their memory.
        facts = _quietly(some._reader().read, some, X, y).facts
        if n_persons is not None:  # how many rows they have is private
            facts = replace(facts, shape=replace(facts.shape, n_rows=n_persons))
        shape = replace(facts.shape, n_rows=n_fit or facts.n_rows)

        def planned(parameters: dict[str, Any], epsilon: float) -> Plan:
            return _quietly(self._candidate(parameters, epsilon, None)._plan_of, shape)

        @cache
        def plan(epsilon: float) -> tuple[tuple[GaussianSteps, ...], Selection]:
            score = calibrate_noise(epsilon, run_delta, 1.0, 1, adjacency=adjacency).steps
            fits = [planned(own, epsilon).spec.composed() for own in candidates]
            return score, Selection((score, *fits), self.n_iter, self.eta)

        def cost(epsilon: float) -> float:
            return plan(epsilon)[1].epsilon(self.delta, adjacency)

        reports = [planned(own, self.epsilon).report for own in candidates]
        voided_by = [why for report in reports for why in report.voided_by]
        for own in candidates:
            task = _quietly(self._candidate(own, self.epsilon, None)._task, facts)
            voided_by += task.voided_by
        if self.random_state is not None:
            voided_by.append(SEEDED)
        scoring = self.scoring or self.estimator._scorings[0]
        volume = 0.0
        if scoring == "log_density":
            volume = some._log_volume(some._reader().declared(shape))
        reasons = tuple(dict.fromkeys(voided_by))
        finished = partial(_Plan, scoring=scoring, log_volume=volume, voided_by=reasons)
        if math.isinf(self.epsilon):
            free = (GaussianSteps(0.0, 1.0, 1),)
            return finished(math.inf, math.inf, free, Selection((free,), self.n_iter, self.eta))
        run_epsilon = self._affordable(cost, self.epsilon * _NOT_FOR_ARITHMETIC)
        total = float(cost(run_epsilon) / _NOT_FOR_ARITHMETIC)
        return finished(run_epsilon, total, *plan(run_epsilon))

    def _affordable(self, cost: Callable[[float], float], target: float) -> float:
        """Largest epsilon of a run, to a few percent, so that the search costs at most `target`."""
        low, high = target / (2 + self.eta) / 4, target
        while cost(low) > target:
            high, low = low, low / 2
            if low < 1e-4 * target:
                raise ValueError(
                    f"epsilon={self.epsilon:g} is too small for a search of n_iter={self.n_iter:g} "
                    "runs."
                )
        for _ in range(6):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if cost(middle) <= target else (low, middle)
        return low

    def _private_score(
        self,
        fitted: Any,
        X: Any,
        y: Any,
        usable: np.ndarray,
        plan: _Plan,
        seed: int | None,
        groups: np.ndarray | None = None,
    ) -> _Score:
        """Mean score of the usable rows, or persons; the worst one if it is not finite.

        Usable rows on which the model has no score count as wholly wrong.
        """
        from skdpbayes.inference import run
        from skdpbayes.intake.packing import pack_records
        from skdpbayes.mechanism.keys import fit_keys
        from skdpbayes.mechanism.spec import MechanismSpec
        from skdpbayes.models.moments import BoundedScore
        from skdpbayes.solvers.vips import one_release

        # Silent, since a warning could depend on single rows.
        found = np.nan_to_num(_quietly(scores, plan.scoring, fitted, X, y, plan.log_volume))
        found = np.where(usable, np.clip(found, 0, 1), np.nan)
        if groups is not None:
            found = means_by_person(found, groups, int(self.estimator.max_rows_per_person))
        model: Any = BoundedScore()  # no `Model`: it has no likelihood, which one release ignores
        solver: Any = one_release(model, len(found))
        spec = MechanismSpec(plan.score_steps, numerics=self.estimator.numerics)
        state, _ = run(fit_keys(seed), model, solver, spec, pack_records(x=found))
        right, wrong = np.asarray(state.value, float)
        noise, n = plan.score_steps[0].noise_multiplier, len(found)
        # There are no more than n. What noise adds to their number is in both sums alike.
        excess = max(right + wrong - n, 0)
        right -= excess / 2
        # As many as noise alone may make of none, at least: else their number would decide.
        counted = max(right + wrong - excess / 2, min(_SURELY * noise, n), np.finfo(float).tiny)
        score = float(right / counted)
        if not math.isfinite(score):
            return _Score(_WORST, math.inf)
        # With all of them, the noise is that of half of the difference of both sums.
        spread = np.hypot(score, 1 - score) if counted < n else math.sqrt(0.5)
        return _Score(score, float(noise * spread / counted))

    best_estimator_: Any

    def __getattr__(self, name: str) -> Any:
        """Public methods and fitted attributes of the best model.

        Before `fit`, the methods exist and raise a `NotFittedError`.
        """
        best, model = (vars(self).get(part) for part in ("best_estimator_", "estimator"))
        if not name.startswith(("_", "fit", "partial_fit", "set_")) and model is not None:
            if best is not None and (name.endswith("_") or callable(getattr(best, name))):
                return getattr(best, name)
            if best is None and not name.endswith("_") and callable(getattr(model, name)):
                return lambda *rows, **options: check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        return "best_estimator_" in self.__dict__

    _html_repr = diagram_and_card

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.input_tags = inner.estimator_type, inner.input_tags
        tags.classifier_tags = inner.classifier_tags
        tags.regressor_tags = inner.regressor_tags
        return tags


class PriorChoice(NamedTuple):
    """Result of `choose_prior`.

    Attributes
    ----------
    estimator : estimator
        Fitted copy with the best prior.
    params : dict
        The best candidate.
    candidates : list of dict
        All candidates; ``"columns"`` is a mask, wherever the grid has one.
    log_evidence : array of shape (n_candidates,)
    moved : array of shape (n_candidates,)
        Root mean square by which the linear predictors of a row differ from those of the fit; zero
        where that is unknown (without noise). Candidates above 0.25 are not chosen, if others are
        below.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.model_selection import choose_prior
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> model = DPBayesianLogisticRegression(classes=[0, 1]).fit(X, (X[:, 0] > 0).astype(int))
    >>> choice = choose_prior(model, {"prior_scale": [0.001, 1.0]})
    >>> choice.params, choice.candidates, choice.log_evidence.shape
    ({'prior_scale': 1.0}, [{'prior_scale': 0.001}, {'prior_scale': 1.0}], (2,))
    """

    estimator: DPBayesianLogisticRegression
    params: dict[str, Any]
    candidates: list[dict[str, Any]]
    log_evidence: np.ndarray
    moved: np.ndarray


def choose_prior(
    estimator: DPBayesianLogisticRegression, param_grid: Mapping[str, Sequence[Any]]
) -> PriorChoice:
    """Choose the prior of a fitted logistic regression by its evidence, at no cost.

    The evidence is computed from what the fit has released. No row is read, no ledger is charged,
    and ``privacy_spent_`` stays that of the fit.

    Parameters
    ----------
    estimator : DPBayesianLogisticRegression
        Fitted by "na-dpvi".
    param_grid : dict
        Lists of values of ``"prior_scale"``, ``"prior_df"`` and ``"columns"``, as in
        `DPBayesianLogisticRegression.log_evidence`; every combination is a candidate. The entry
        ``"backward"`` of ``"columns"`` stands for nested subsets: all columns, then one less at a
        time, that without which the evidence is largest.

    Returns
    -------
    PriorChoice

    Raises
    ------
    ValueError
        For parameters that are unknown or out of range, and unless the solver is "na-dpvi".
    TypeError
        For other estimators.

    See Also
    --------
    DPBayesianLogisticRegression.with_prior : The copy that is returned.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.model_selection import choose_prior
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3000, 5))
    >>> y = (X[:, 0] + rng.logistic(size=3000) > 0).astype(int)
    >>> model = DPBayesianLogisticRegression(classes=[0, 1]).fit(X, y)
    >>> choice = choose_prior(model, {"columns": ["backward"]})
    >>> bool(choice.params["columns"][0]), choice.estimator.coef_.shape
    (True, (1, 5))
    """
    from skdpbayes.estimators._logistic import DPBayesianLogisticRegression

    if not isinstance(estimator, DPBayesianLogisticRegression):
        raise TypeError(
            "choose_prior takes a fitted DPBayesianLogisticRegression, got "
            f"{type(estimator).__name__}. Of a pipeline or a search pass the regression in it."
        )
    unknown = set(param_grid) - {"prior_scale", "prior_df", "columns"}
    if unknown:
        raise ValueError(f"choose_prior does not know {', '.join(sorted(map(str, unknown)))}.")
    candidates: list[dict[str, Any]] = []
    log_evidence: list[float] = []
    moved: list[float] = []
    for params in ParameterGrid({name: list(values) for name, values in param_grid.items()}):
        other = estimator._with_prior_parameters(
            params.get("prior_scale"), params.get("prior_df", "same")
        )
        columns = params.get("columns")
        if isinstance(columns, str) and columns == "backward":
            found = list(other._nested_columns())
        else:
            kept = other._kept(columns)
            found = [(kept, other._evidence(kept))]
        for kept, one in found:
            candidates.append(params | ({"columns": kept} if "columns" in params else {}))
            log_evidence.append(one.log)
            moved.append(other._moved(one.mean))
    # Far from the fit its likelihood is not known, nor is the evidence.
    near = np.array(moved) <= max(estimator._farthest_prior, min(moved))
    best = int(np.argmax(np.where(near, log_evidence, -np.inf)))
    chosen = estimator.with_prior(**candidates[best])
    return PriorChoice(
        chosen, candidates[best], candidates, np.array(log_evidence), np.array(moved)
    )


@dataclass(frozen=True)
class _Plan:
    """Costs of a run and of the search, and the scoring; public, and fixed before any run."""

    run_epsilon: float
    epsilon: float
    score_steps: tuple[GaussianSteps, ...]
    selection: Selection
    scoring: str | Callable[..., Any]
    log_volume: float
    voided_by: tuple[str, ...]


class _Score(NamedTuple):
    """Private score of a run, and the standard deviation of its noise."""

    value: float
    noise_std: float


def _usable(model: PrivateEstimator, X: Any, y: Any) -> np.ndarray:
    """Mask of the rows that a fit would use."""
    records = model._reader().read(model, X, y).pack()
    usable, places = records.usable, records.places
    assert usable is not None
    return np.asarray(usable if places is None else usable[places], bool)


def _quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    with warnings.catch_warnings():  # warnings would tell the fits of a search apart
        warnings.simplefilter("ignore")
        return call(*arguments, **named)


def _fit_quietly(model: Any, X: Any, y: Any, **groups: np.ndarray) -> None:
    _quietly(model.fit, *(data for data in (X, y) if data is not None), **groups)


def _parts(data: Any, parts: tuple[np.ndarray, np.ndarray]) -> tuple[Any, ...]:
    return (None, None) if data is None else tuple(_safe_indexing(data, part) for part in parts)


def _number_of_runs(rng: np.random.Generator, mean: float, eta: float) -> int:
    """Draw from the truncated negative binomial law with shape `eta` and expectation `mean`."""
    from skdpbayes.privacy.accounting._selection import truncated_negative_binomial_odds

    if mean == 1:
        return 1
    log_inverse = math.log1p(truncated_negative_binomial_odds(mean, eta))  # log(1 / g)
    rest = -math.expm1(-log_inverse)
    mass = rest / log_inverse if eta == 0 else eta * rest / math.expm1(eta * log_inverse)
    u, k = rng.random(), 1
    while u > mass and mass > 0:
        u -= mass
        mass *= rest * (k + eta) / (k + 1)
        k += 1
    return k
