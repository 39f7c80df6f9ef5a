"""Private choice of hyper-parameters, and what a search of scikit-learn's costs.

`sklearn.model_selection.GridSearchCV` fits many times and publishes scores on the rows themselves:
it is not private, and `search_spent` says how far. `DPRandomizedSearchCV` is: it makes a random
number of private runs and releases the best by a private score, which costs little more than one
run (Papernot and Steinke 2022).
"""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.callback import CallbackSupportMixin
from sklearn.model_selection import ParameterGrid
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted

from skdpbayes.checks import check_choice, check_number
from skdpbayes.estimators._base import PrivateEstimator, check_ledger, diagram_and_card
from skdpbayes.intake.scores import scores
from skdpbayes.plans.settings import SEEDED
from skdpbayes.privacy import GaussianSteps, Selection
from skdpbayes.privacy.selection import SelectionSpent

_MOST_CANDIDATES = 200
_WORST = -math.inf
_NOT_FOR_ARITHMETIC = 1 - 1e-6  # share of epsilon; integer arithmetic adds far less than the rest


class DPRandomizedSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Choose hyper-parameters under differential privacy.

    A random number of times, a candidate is drawn from a public grid, fitted to a random part of
    the rows and scored, with noise, on the others. The best run *is* the result: its model is not
    fitted again. Only that model, its parameters and its score are exposed; how many runs there
    were, and the losers, are not.

    The law of the number of runs is a truncated negative binomial one, and the bound on the total
    that of Koskela, Redberg and Wang (2024), from the whole privacy profiles of the runs. Each row
    is in one part only, so a run costs the larger of what its fit and its score cost.

    The fitted search is used like its best model: it has the model's public methods, such as
    ``predict``, ``predict_interval`` and ``sample_posterior``, and its fitted attributes, such as
    ``coef_``.

    Parameters
    ----------
    estimator : estimator of this package
        Its ``epsilon``, ``delta``, ``ledger`` and ``random_state`` are set by the search.
    param_grid : dict or list of dicts
        Public candidates, as `sklearn.model_selection.ParameterGrid` takes them. All have the same
        chance.
    epsilon : float, default=1.0
        Privacy budget of the whole search.
    delta : float, default=1e-5
        Privacy failure probability of the whole search.
    n_iter : float, default=10.0
        Expected number of runs, at most 1000.
    eta : float, default=0.0
        Shape of the law of the number of runs: 0 is logarithmic and cheapest, 1 geometric and less
        spread out.
    test_size : float, default=0.2
        Fraction of the rows that score.
    scoring : {"log_loss", "accuracy", "log_density"} or callable, default=None
        Score of each row, in [0, 1], larger is better. None takes the first that fits the
        estimator.

        - ``"log_loss"``, for classifiers: ``1 - min(loss, 3) / 3`` of the log-loss in nats.
        - ``"accuracy"``, for classifiers: whether the label is right.
        - ``"log_density"``, for all others: ``p / (p + u)``, p being the model's density of the
          row, and u the uniform one on the range that the estimator's own parameters make public.
          For densities both are geometric means over columns; for topics they are means over the
          words of half of a document, given the other half; for regressions p is the predictive
          density of the response. (`DPNumPyroModel` declares no range: u is 1.)

        A callable ``(estimator, X, y) -> float`` is called once for **each row**, with an X and y
        of that row alone, so that no row can change the score of another. That takes one prediction
        per row, and it must keep no state from call to call and not change the estimator. The
        result is cut to [0, 1].
    ledger : PrivacyLedger, default=None
        Budget that the search is charged to, as one private selection; None takes the estimator's,
        or the one that is open. It needs ``composition="renyi"``.
    random_state : None or int, default=None
        None draws from the operating system. An integer makes everything reproducible: for tests
        only, as it voids the guarantee.

    Attributes
    ----------
    best_estimator_ : estimator
        Its ``privacy_spent_`` is that of the search.
    best_params_ : dict
    best_score_ : float
        With noise: the mean score of the rows that scored.
    privacy_spent_ : SelectionSpent

    See Also
    --------
    skdpbayes.privacy.selection_epsilon : The bound.

    Notes
    -----
    The time that a search takes tells how many runs there were, which is not covered. Callbacks of
    the estimator are not told of the runs. The parts, the candidates and the number of runs are
    drawn by NumPy's generator, from the operating system's entropy.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.model_selection import DPRandomizedSearchCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3000, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = DPBayesianLogisticRegression(classes=[0, 1], solver="vips")
    >>> search = DPRandomizedSearchCV(model, {"prior_scale": [0.01, 3.0]}, epsilon=4.0, n_iter=5, random_state=0)
    >>> search = search.fit(X, y)
    >>> search.best_params_, search.privacy_spent_.epsilon <= 4
    ({'prior_scale': 3.0}, True)
    """

    def __init__(
        self,
        estimator,
        param_grid,
        *,
        epsilon=1.0,
        delta=1e-5,
        n_iter=10.0,
        eta=0.0,
        test_size=0.2,
        scoring=None,
        ledger=None,
        random_state=None,
    ):
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

    def fit(self, X, y=None):
        """Search.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters, of the search or of a candidate, out of range; before anything is run.
        BudgetError
            If the ledger does not have what the search costs; before anything is run.
        """
        candidates = self._check()
        n = _num_samples(X)
        if y is not None and _num_samples(y) != n:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: X and y differ in length."
            )
        rng = np.random.default_rng(self.random_state)
        order = rng.permutation(n)
        n_test = math.ceil(self.test_size * n)
        if not 0 < n_test < n:
            raise ValueError(
                f"test_size={self.test_size} leaves one of the parts of {n} rows empty."
            )
        parts = order[n_test:], order[:n_test]
        (X_fit, X_test), (y_fit, y_test) = (_parts(data, parts) for data in (X, y))

        plan = self._planned(candidates, X, y, n - n_test)
        self._charge(plan)
        for name in ("best_estimator_", "best_params_", "best_score_"):
            self.__dict__.pop(name, None)
        self.privacy_spent_ = self._report(plan)

        def seed():
            return None if self.random_state is None else int(rng.integers(2**31))

        def one_run():
            k = int(rng.integers(len(candidates)))
            model = self._candidate(candidates[k], plan.run_epsilon, seed())
            _fit_quietly(model, X_fit, y_fit)
            return self._private_score(model, X_test, y_test, plan, seed()), -k, model

        runs = (one_run() for _ in range(_number_of_runs(rng, self.n_iter, self.eta)))
        score, k, best = max(
            runs, key=lambda run: run[:2]
        )  # a tie goes to the first candidate of the grid
        best.privacy_spent_, best.ledger = self.privacy_spent_, None
        self.best_estimator_, self.best_params_, self.best_score_ = best, candidates[-k], score
        return self

    def _check(self):
        if not isinstance(self.estimator, PrivateEstimator):
            raise ValueError(
                f"estimator must be a private estimator of this package, got {self.estimator!r}. In a pipeline, make "
                "the search the last step."
            )
        check_number("epsilon", self.epsilon, 0)
        check_number("delta", self.delta, 0, 1, open_above=True)
        check_number(
            "n_iter", self.n_iter, 1, 1000, closed=True
        )  # so that no number of runs is ever cut off
        check_number("eta", self.eta, 0, 100, closed=True)
        check_number("test_size", self.test_size, 0, 1, open_above=True)
        if not callable(self.scoring):
            known = self.estimator._scorings
            if not known:
                raise ValueError(
                    f"There is no score for {type(self.estimator).__name__}: give scoring a callable."
                )
            if self.scoring is not None:
                check_choice("scoring", self.scoring, known)
        if self.random_state is not None and not isinstance(self.random_state, numbers.Integral):
            raise ValueError(f"random_state must be None or an integer, got {self.random_state!r}.")
        check_ledger(self.ledger)
        if self.estimator.adjacency == "add_remove":
            raise ValueError(
                "A search takes the number of rows as known, which adjacency='add_remove' keeps private: use "
                "adjacency='zero_out' or 'replace_one'."
            )
        undeclared = self.estimator._undeclared()
        if undeclared:
            raise ValueError(f"{undeclared[0]}=None is taken from the rows: declare it.")
        candidates = list(ParameterGrid(self.param_grid))
        if not 1 <= len(candidates) <= _MOST_CANDIDATES:
            raise ValueError(
                f"param_grid must have 1 to {_MOST_CANDIDATES} candidates, got {len(candidates)}."
            )
        fixed = {
            "epsilon",
            "delta",
            "adjacency",
            "numerics",
            "ledger",
            "random_state",
            "verbose",
            "classes",
        }
        if fixed & {name for candidate in candidates for name in candidate}:
            raise ValueError(f"Candidates may not differ in {', '.join(sorted(fixed))}.")
        return candidates

    def _charge(self, plan):
        """Charge the ledger that is in force, if there is one, with what the whole search is about to spend."""
        from skdpbayes.privacy.ledger import ledger_in_force

        ledger = ledger_in_force(self.estimator.ledger if self.ledger is None else self.ledger)
        if ledger is not None:
            ledger.charge(
                plan.selection,
                adjacency=self.estimator.adjacency,
                unit=self.estimator._record,
                label=f"{type(self).__name__}({type(self.estimator).__name__})",
                voided_by=plan.voided_by,
            )

    def _report(self, plan):
        """`SelectionSpent` of this search, earlier ones of the same object added."""
        earlier, voided_by = getattr(self, "privacy_spent_", None), plan.voided_by
        if earlier is not None:
            voided_by += tuple(
                f"an earlier search: {why.removeprefix('an earlier search: ')}"
                for why in earlier.voided_by
            )
        return SelectionSpent(
            epsilon=plan.epsilon,
            delta=float(self.delta),
            total_epsilon=plan.epsilon + (0.0 if earlier is None else earlier.total_epsilon),
            total_delta=float(self.delta) + (0.0 if earlier is None else earlier.total_delta),
            numerics=self.estimator.numerics,
            adjacency=self.estimator.adjacency,
            unit=self.estimator._record,
            run_epsilon=plan.run_epsilon,
            n_iter=float(self.n_iter),
            seeded=self.random_state is not None,
            voided_by=voided_by,
        )

    def _candidate(self, parameters, epsilon, seed):
        """An estimator that tells nobody of its run; parts that are estimators keep silent, too."""
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

    def _planned(self, candidates, X, y, n_fit=None):
        """`_Plan` of the search, from public facts of X alone; `n_fit` rows are fitted (None: all)."""
        from skdpbayes.privacy import calibrate_noise

        adjacency, run_delta = self.estimator.adjacency, self.delta / self.n_iter
        some = self._candidate({}, self.epsilon, None)
        # Of all rows, as given: a model that holds them is as long, or shares their memory.
        facts = _quietly(some._reader().read, some, X, y).facts
        shape = replace(facts.shape, n_rows=n_fit or facts.n_rows)

        def planned(parameters, epsilon):
            return _quietly(self._candidate(parameters, epsilon, None)._plan_of, shape)

        @cache
        def plan(epsilon):
            score = calibrate_noise(epsilon, run_delta, 1.0, 1, adjacency=adjacency).steps
            fits = [planned(own, epsilon).spec.composed() for own in candidates]
            return score, Selection((score, *fits), self.n_iter, self.eta)

        def cost(epsilon):
            return plan(epsilon)[1].epsilon(self.delta, adjacency)

        reports = [planned(own, self.epsilon).report for own in candidates]
        voided_by = dict.fromkeys(why for report in reports for why in report.voided_by)
        for own in candidates:
            task = _quietly(self._candidate(own, self.epsilon, None)._task, facts)
            voided_by |= dict.fromkeys(task.voided_by)
        if self.random_state is not None:
            voided_by[SEEDED] = None
        scoring = self.scoring or self.estimator._scorings[0]
        volume = 0.0
        if scoring == "log_density":
            volume = some._log_volume(some._reader().declared(shape))
        finished = partial(_Plan, scoring=scoring, log_volume=volume, voided_by=tuple(voided_by))
        if math.isinf(self.epsilon):
            free = (GaussianSteps(0.0, 1.0, 1),)
            return finished(math.inf, math.inf, free, Selection((free,), self.n_iter, self.eta))
        run_epsilon = self._affordable(cost, self.epsilon * _NOT_FOR_ARITHMETIC)
        return finished(
            run_epsilon, float(cost(run_epsilon) / _NOT_FOR_ARITHMETIC), *plan(run_epsilon)
        )

    def _affordable(self, cost, target):
        """Largest epsilon of a run, to a few percent, for which the search costs at most `target`."""
        low, high = target / (2 + self.eta) / 4, target
        while cost(low) > target:
            high, low = low, low / 2
            if low < 1e-4 * target:
                raise ValueError(
                    f"epsilon={self.epsilon:g} is too small for a search of n_iter={self.n_iter:g} runs."
                )
        for _ in range(6):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if cost(middle) <= target else (low, middle)
        return low

    def _private_score(self, fitted, X, y, plan, seed):
        """Mean score of the rows, with noise; the worst if it is not a number."""
        from skdpbayes.inference import run
        from skdpbayes.intake.packing import pack_records
        from skdpbayes.mechanism.keys import fit_keys
        from skdpbayes.mechanism.spec import MechanismSpec
        from skdpbayes.models.moments import BoundedScore
        from skdpbayes.solvers.vips import one_release

        found = _quietly(
            scores, plan.scoring, fitted, X, y, plan.log_volume
        )  # a warning would tell of single rows
        model: Any = (
            BoundedScore()
        )  # Any: it has no likelihood and no kinds of rounds, for which `run` has no use here
        solver: Any = one_release(model, len(found))
        state, _ = run(
            fit_keys(seed),
            model,
            solver,
            MechanismSpec(plan.score_steps, numerics=self.estimator.numerics),
            pack_records(x=found),
        )
        score = float(np.asarray(state.value)[0]) / len(found)
        return score if math.isfinite(score) else _WORST

    best_estimator_: Any

    def __getattr__(self, name):
        """Public methods and fitted attributes of the best model; before `fit` its methods are there, and say so."""
        best, model = (vars(self).get(part) for part in ("best_estimator_", "estimator"))
        if not name.startswith(("_", "fit", "partial_fit", "set_")) and model is not None:
            if best is not None and (name.endswith("_") or callable(getattr(best, name))):
                return getattr(best, name)
            if best is None and not name.endswith("_") and callable(getattr(model, name)):
                return lambda *rows, **options: check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self):
        return "best_estimator_" in self.__dict__

    _html_repr = diagram_and_card

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            inner.estimator_type, inner.classifier_tags, inner.regressor_tags,
        )  # fmt: skip
        tags.input_tags = inner.input_tags
        return tags


@dataclass(frozen=True)
class _Plan:
    """Costs of a run and of the whole search, and how rows are scored; known before anything is run."""

    run_epsilon: float
    epsilon: float
    score_steps: tuple[GaussianSteps, ...]
    selection: Selection
    scoring: Any
    log_volume: float
    voided_by: tuple[str, ...]


def _quietly(call, *arguments):
    with warnings.catch_warnings():  # the fits of a search are not to be told one from another
        warnings.simplefilter("ignore")
        return call(*arguments)


def _fit_quietly(model, X, y):
    _quietly(model.fit, *(data for data in (X, y) if data is not None))


def _parts(data, parts):
    return (None, None) if data is None else tuple(_safe_indexing(data, part) for part in parts)


def _number_of_runs(rng, mean, eta):
    """A draw of the truncated negative binomial law with shape `eta` and expectation `mean`."""
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
