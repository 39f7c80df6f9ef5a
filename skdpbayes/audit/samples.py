"""Fits as functions from a table to independent samples, for test batteries of others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from skdpbayes import inference
from skdpbayes.audit.fit import Fit
from skdpbayes.audit.runs import runs
from skdpbayes.checks import check_number
from skdpbayes.estimators._base import Outcome, PrivateEstimator, draws_rng
from skdpbayes.mechanism.keys import FitKeys, fit_keys
from skdpbayes.mechanism.private_sum import noisy_count
from skdpbayes.mechanism.records import Records
from skdpbayes.privacy.accounting import PrivacyCurve
from skdpbayes.privacy.count import NoisyCount

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

Statistic: TypeAlias = Callable[[Any], ArrayLike]
"""Function of a fitted estimator, that returns numbers."""


class FitMechanism:
    """What fits of an estimator release, as a function: ``mechanism(dataset, num_samples)``.

    Test batteries of others ask for such a function: DP-Auditorium's ``Mechanism``, and whatever
    else compares samples on two neighbouring tables. A sample is one whole run of the estimator's
    plan, with batches and noise of its own: the private sum, the sampler and the integer noise are
    those of `fit`. Many runs share one compiled program, so that small tables give thousands of
    samples a second.

    **Samples are not private**: there are many of them, and no ledger is charged. Take test data.

    Parameters
    ----------
    estimator : estimator of this package
        It is not changed. Its `random_state` and `ledger` are ignored.
    dataset : array-like or tuple
        Table for the plan: X or ``(X, y)`` or, where the estimator's unit is a person,
        ``(X, y, groups)``.
    statistic : callable, optional
        Function of a fitted estimator that returns a number or an array, such as ``lambda fitted:
        fitted.coef_``. It is post-processing, and takes milliseconds a sample. None: a sample holds
        all releases of the run, and last the noisy number of usable records, if that is released.
    random_state : int, optional
        None draws keys from the operating system. An integer makes the sequence of calls
        reproducible.

    Attributes
    ----------
    plan : Plan
        Plan of all runs.
    curve : PrivacyCurve
        Claim about a sample: ``curve.epsilon(delta)``, ``curve.delta(epsilon)``, and
        ``curve.tpr(fpr)``, above which no test of two neighbours can be.

    Raises
    ------
    ValueError
        For a table that the estimator refuses. A call raises for a table of another plan.

    Notes
    -----
    Neighbours depend on the estimator's `adjacency`. ``"zero_out"``: one row is null (NaN) in one
    of the tables. ``"replace_one"``: one row differs. ``"add_remove"``: one table lacks a row.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> from skdpbayes.audit import FitMechanism
    >>> X = np.full((100, 1), 10.0)
    >>> mechanism = FitMechanism(DPGammaExponential(epsilon=2.0), X)
    >>> mechanism(X, 1000).shape
    (1000, 2)
    """

    def __init__(
        self,
        estimator: PrivateEstimator,
        dataset: Any,
        *,
        statistic: Statistic | None = None,
        random_state: int | None = None,
    ) -> None:
        self._estimator = clone(estimator).set_params(random_state=None, ledger=None)
        self._statistic = statistic
        self._random = None if random_state is None else np.random.default_rng(random_state)
        self._fit = Fit(self._estimator, *_parts(dataset))
        self.plan: Plan = self._fit.plan

    @property
    def curve(self) -> PrivacyCurve:
        """Curve of the claim about one sample."""
        return self.plan.report.compose()

    def __call__(self, dataset: Any, num_samples: int) -> NDArray[np.float64]:
        """Independent samples.

        Parameters
        ----------
        dataset : array-like or tuple
            As the constructor's, of the same plan: with as many columns, and rows unless
            ``adjacency="add_remove"``.
        num_samples : int

        Returns
        -------
        samples : array of shape (num_samples, size)
        """
        check_number("num_samples", num_samples, 1, integral=True, closed=True)
        n, n_chains = int(num_samples), self.plan.spec.n_chains
        records = self._records(dataset)
        keys, counts = fit_keys(self._random, n * n_chains), self._counts(records, n)
        plan = (self.plan.model, self.plan.solver, self.plan.spec)
        states, releases = zip(*runs(keys, *plan, records), strict=True)
        if self._statistic is not None:
            state = jax.tree.map(lambda *parts: np.concatenate(parts), *states)
            return np.stack(
                [self._value(state, keys, i, count) for i, count in enumerate(counts)]
            ).reshape(n, -1)
        real = np.arange(releases[0].shape[-1]) < self._sizes[:, None]
        samples = [np.concatenate(releases)[:, real].reshape(n, -1)]
        if self.plan.spec.count is not None:
            samples.append(np.array([[own.estimate] for own in counts if own is not None]))
        return np.concatenate(samples, axis=1)

    def _records(self, dataset: Any) -> Records:
        """Records of a table whose fits have the same plan."""
        fit = Fit(self._estimator, *_parts(dataset))
        if (fit.plan.facts.shape, fit.spec) != (self.plan.facts.shape, self.plan.spec):
            raise ValueError(
                f"A fit of this table has another plan: {fit.plan.facts.shape} instead of "
                f"{self.plan.facts.shape}. Neighbours have equal shapes, unless "
                "adjacency='add_remove'."
            )
        return fit.records

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Number of values in the release of each step."""
        model, solver, spec = self.plan.model, self.plan.solver, self.plan.spec
        with jax.enable_x64(True):
            mechanism = jax.device_put(spec.traced())
            return inference.sizes_of_steps(
                model, solver, mechanism, self._fit.records, spec.n_steps
            )

    def _counts(self, records: Records, n: int) -> list[NoisyCount | None]:
        """Noisy numbers of usable records, each from a key of its own."""
        if self.plan.spec.count is None:
            return [None] * n
        assert records.usable is not None
        keys = fit_keys(self._random, n).noise
        return [noisy_count(key, records.usable, self.plan.spec) for key in keys]

    def _value(self, states: Any, keys: FitKeys, i: int, usable: NoisyCount | None) -> ArrayLike:
        """Statistic of the fit that a run would be."""
        assert self._statistic is not None
        n_chains = self.plan.spec.n_chains
        own = slice(i * n_chains, (i + 1) * n_chains)
        state = jax.tree.map(lambda x: x[own] if n_chains > 1 else x[i], states)
        fitted = copy.copy(self._fit.estimator)
        fitted._adopt(self.plan, Outcome(state, draws_rng(keys.solver[own]), usable))
        return np.asarray(self._statistic(fitted), float)


def _parts(dataset: Any) -> tuple[Any, ...]:
    """X, and what else a fit takes."""
    return dataset if isinstance(dataset, tuple) else (dataset,)
