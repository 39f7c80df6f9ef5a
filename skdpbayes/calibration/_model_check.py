"""One call that checks an estimator on data simulated from its own prior."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skdpbayes.calibration._check import Floats, check_count, check_open_unit
from skdpbayes.calibration._coverage import (
    Coverage,
    MarginalCoverage,
    marginal_coverage,
    tarp_coverage,
)
from skdpbayes.calibration._scores import crps, interval_width
from skdpbayes.calibration._simulators import Values, simulator_of

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

_FREE = "Simulated data only: no real record was read, and no budget was spent."
_GIVEN = "No ledger was charged; taken as public: {}."


@dataclass(frozen=True)
class CalibrationCheck:
    """Truths, posterior draws of the fits, and their figures: the result of `check`.

    Attributes
    ----------
    estimator : str
        Name of the class.
    names : tuple of str
        Names of the coordinates.
    truth : array of shape (n_fits, n_coordinates)
    draws : array of shape (n_fits, n_draws, n_coordinates)
    coverage : MarginalCoverage
        Of the intervals of each coordinate.
    tarp : Coverage or None
        Expected coverage of all coordinates together. None if truths were given, as the test needs
        draws from the prior, or if there are fewer than three fits.
    width, crps : arrays of shape (n_coordinates,)
        Means over fits, in the unit of the coordinate.
    plain : MarginalCoverage or None
        Coverage of the non-private posterior of the same rows, where a reference exists.
    relative_width, relative_crps : arrays of shape (n_coordinates,), or None
        `width` and `crps` over those of the non-private posterior.
    seconds : float
        Median time of a fit; the first includes compilation.
    taken_as_public : tuple of str
        Which of ``X``, ``truths`` and ``simulate`` were given, and arrays of 100 rows or more that
        a NumPyro model holds. All else is simulated.

    Examples
    --------
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.calibration import check
    >>> result = check(DPBetaBernoulli(epsilon=1.0), n_rows=200, n_fits=5, random_state=0)
    >>> result.n_fits, result.draws.shape[0]
    (5, 5)
    """

    estimator: str
    names: tuple[str, ...]
    truth: Floats = field(repr=False)
    draws: Floats = field(repr=False)
    coverage: MarginalCoverage
    tarp: Coverage | None
    width: Floats
    crps: Floats
    plain: MarginalCoverage | None
    relative_width: Floats | None
    relative_crps: Floats | None
    seconds: float
    taken_as_public: tuple[str, ...] = ()

    @property
    def n_fits(self) -> int:
        """Number of fits."""
        return len(self.truth)

    @property
    def worst(self) -> tuple[str, float]:
        """Name and coverage of the coordinate that is covered least."""
        place = int(self.coverage.coverage.argmin())
        return self.names[place], float(self.coverage.coverage[place])

    def _verdict(self) -> str:
        """Which coordinates' bands exclude the level."""
        own = self.coverage
        off = [
            f"{name} ({'too narrow' if share < own.level else 'too wide'})"
            for name, share, within in zip(self.names, own.coverage, own.within_band, strict=True)
            if not within
        ]
        if not off:
            return f"No coordinate's band excludes {own.level:.0%}."
        told = ", ".join(off[:10]) + (f" and {len(off) - 10} more" if len(off) > 10 else "")
        return (
            f"Bands of {len(off)} of {len(self.names)} coordinates exclude {own.level:.0%} "
            f"(by chance {1 - own.confidence:.2g} of them do): {told}."
        )

    def __str__(self) -> str:
        level, found = self.coverage.level, self.coverage.coverage
        name, worst = self.worst
        given = " and ".join(self.taken_as_public)
        lines = [
            f"{self.estimator}: {self.n_fits} fits. {_GIVEN.format(given) if given else _FREE}",
            f"{level:.0%} intervals hold {found.mean():.3f} of the truths; worst coordinate "
            f"{name}: {worst:.3f}.",
            self._verdict(),
        ]
        if self.tarp is not None:
            low, high = self.tarp.rmse_band
            lines.append(
                f"TARP: error {self.tarp.rmse:.3f}; exact posteriors have {low:.3f} to {high:.3f}."
            )
        width, score, note = self.width, self.crps, ""
        if self.relative_width is not None and self.relative_crps is not None:
            width, score = self.relative_width, self.relative_crps
            note = " (width and CRPS over the non-private posterior's)"
        longest = max(10, *(len(own) for own in self.names))
        lines.append(f"{'coordinate':{longest}}  covered  from   to     width     CRPS{note}")
        rows = zip(
            self.names, found, self.coverage.lower, self.coverage.upper, width, score, strict=True
        )
        lines += [
            f"{own:{longest}}  {share:7.3f}  {low:.3f}  {high:.3f}  {wide:8.3g} {loss:8.3g}"
            for own, share, low, high, wide, loss in rows
        ]
        return "\n".join(lines)


def check(
    estimator: BaseEstimator,
    n_rows: int | None = None,
    *,
    n_features: int | None = None,
    X: Any = None,
    truths: Mapping[str, ArrayLike] | None = None,
    simulate: Callable[..., Any] | None = None,
    groups: ArrayLike | None = None,
    n_fits: int | None = None,
    n_draws: int = 500,
    level: float = 0.9,
    reference: bool = True,
    random_state: int | None = None,
) -> CalibrationCheck:
    """Fit an estimator to data simulated from its own prior, and compare posteriors with truths.

    Each fit has its own truth, rows and noise. **Data are simulated**: the check reads no real
    record, charges no ledger and costs no privacy, so that it can come before the one fit to real
    data. The programs of a fit are compiled once. `X`, `truths`, rows from `simulate` and arrays
    that a NumPyro model holds must be **public**: the result depends on them, and no ledger knows.

    It takes logistic and linear regression, the exponential families, Gaussian mixtures (with
    `mean_prior` and `covariance_prior`, or `truths`), hierarchies and NumPyro models. Components
    of mixtures are aligned with the nearest true ones. Networks, belief networks and topics are
    refused, since their single parameters are not identified.

    Parameters
    ----------
    estimator : estimator
        Its parameters are those of the fit; it is cloned and stays as it is.
    n_rows : int, optional
        Number of rows of each simulated table; None: that of X.
    n_features : int, optional
        Number of columns; with a column of groups, this one included. None: those of X or of the
        declared columns, else 2 (regressions; a hierarchy 3) or 1 (densities).
    X : array-like of shape (n_rows, n_features) or dict of arrays, optional
        **Public** design of a regression, the same for each fit. A dict has the arguments of a
        NumPyro model, without the response. None: for each fit new standard normal rows; for
        `DPBayesianLinearRegression` rows uniform on its bounds.
    truths : dict of arrays, optional
        Truths instead of draws from the prior, with a first axis of fits, by the names of
        `posterior_samples_` (families: ``"probability"`` or ``"rate"``). Coverage then need not be
        `level` even for the exact posterior, and there is no TARP. Sites of a NumPyro model that
        are left out are drawn from its prior and not reported.
    simulate : callable, optional
        Function of ``(rng, truth, X)`` that returns the arguments of `fit`, a tuple or X alone, in
        place of the estimator's own simulation: for other data than the model's, and for NumPyro
        models that cannot draw their response. It must not return real records.
    groups : array-like of shape (n_rows,), optional
        The person that each row is of, where the estimator has `max_rows_per_person`: made up, or
        public. Rows are independent given the truth.
    n_fits : int, optional
        None: 100, or as many as `truths`.
    n_draws : int, default=500
        Posterior draws of each fit.
    level : float, default=0.9
        Probability of the intervals.
    reference : bool, default=True
        Whether to compare with the non-private posterior of the same rows, where there is one: the
        families, linear regression, and logistic regression of two classes (with `polyagamma`;
        its priors are normal).
    random_state : int, optional
        Seed of truths, rows and fits.

    Returns
    -------
    CalibrationCheck

    Raises
    ------
    ValueError
        If the estimator is not among those above, has no prior of its own, or arguments do not fit
        together.

    Examples
    --------
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.calibration import check
    >>> found = check(DPBetaBernoulli(epsilon=1.0), n_rows=500, n_fits=50, random_state=0)
    >>> bool(0.8 < found.coverage.coverage[0] <= 1.0)
    True
    """
    from sklearn.base import clone

    n_rows = _length(n_rows, X)
    n_draws = check_count(n_draws, "n_draws", 2)
    level = check_open_unit(level, "level")
    own = clone(estimator)
    simulator = simulator_of(own, n_rows, n_features, X)
    given = None if truths is None else {name: np.asarray(x) for name, x in truths.items()}
    n_fits = _number(n_fits, given)
    lacking = [] if given is None else [name for name in simulator.needed if name not in given]
    if lacking:
        raise ValueError(f"truths lack {lacking}; they have {sorted(given or ())}.")
    asked = {"X": X, "truths": truths, "simulate": simulate, "groups": groups}
    seed = np.random.SeedSequence(random_state)

    truth, draws, plain, seconds = [], [], [], []
    names: tuple[str, ...] = ()
    rows: tuple[Any, ...] = ()
    for k, stream in enumerate(seed.spawn(n_fits)):
        rng = np.random.default_rng(stream)
        values = simulator.truth(rng) if given is None else {n: x[k] for n, x in given.items()}
        if simulate is None:
            rows = simulator.rows(rng, values)
        else:
            drawn = simulate(rng, values, X)
            rows = drawn if isinstance(drawn, tuple) else (drawn,)
        fitted, taken = _fitted(own, rows, groups, int(rng.integers(2**31)), first=k == 0)
        seconds.append(taken)
        compared = simulator.compared(values)
        names = _names(compared)
        truth.append(_ravelled({n: np.asarray(x)[None] for n, x in compared.items()}, compared)[0])
        draws.append(_ravelled(simulator.draws(fitted, n_draws, rng, values), compared))
        exact = simulator.plain(rows, n_draws, rng) if reference and simulate is None else None
        if exact is not None:
            plain.append(_ravelled(exact, compared))
    return _summary(
        type(estimator).__name__,
        names,
        np.stack(truth),
        np.stack(draws),
        np.stack(plain) if plain else None,
        level,
        given is None and simulate is None and n_fits >= 3,
        float(np.median(seconds)),
        seed,
        tuple(name for name, value in asked.items() if value is not None) + simulator.held(rows),
    )


def _length(n_rows: int | None, X: Any) -> int:
    """Number of rows, given or of X."""
    if X is not None:
        lengths = {len(x) for x in (X.values() if isinstance(X, Mapping) else [X])}
        if len(lengths) != 1 or n_rows not in (None, *lengths):
            raise ValueError(f"X has {sorted(lengths)} rows, and n_rows is {n_rows}.")
        (n_rows,) = lengths
    if n_rows is None:
        raise ValueError("n_rows is needed, or a public design X.")
    return check_count(n_rows, "n_rows")


def _number(n_fits: int | None, truths: Values | None) -> int:
    """Number of fits, given or that of the truths."""
    if truths is not None:
        lengths = {len(x) if x.ndim else 0 for x in truths.values()}
        if len(lengths) != 1 or n_fits not in (None, *lengths):
            raise ValueError(
                "truths must be arrays whose common first axis are the fits, got the lengths "
                f"{sorted(lengths)} with n_fits={n_fits}."
            )
        (n_fits,) = lengths
    return check_count(100 if n_fits is None else n_fits, "n_fits")


def _fitted(
    own: Any, rows: tuple[Any, ...], groups: Any, seed: int, *, first: bool
) -> tuple[Any, float]:
    """A fit that charges no ledger, and its seconds."""
    from sklearn.exceptions import ConvergenceWarning

    from skdpbayes.checks import LongFitWarning
    from skdpbayes.privacy import PrivacyLeakWarning
    from skdpbayes.privacy.ledger.in_force import Prepaid

    # A copy shares the model's functions, so that nothing is compiled again.
    fitted = copy.copy(own).set_params(random_state=seed, ledger=Prepaid())
    start = time.perf_counter()
    with warnings.catch_warnings():
        # About seeds and undeclared parameters, of data that are simulated; and about chains,
        # whose coverage is reported.
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        if not first:  # said once
            warnings.simplefilter("ignore", LongFitWarning)
        fitted.fit(*rows, **({} if groups is None else {"groups": groups}))
    return fitted, time.perf_counter() - start


def _names(values: Values) -> tuple[str, ...]:
    """Names of the coordinates, in order."""
    return tuple(
        name + (f"[{','.join(map(str, place))}]" if place else "")
        for name in sorted(values)
        for place in np.ndindex(np.shape(values[name]))
    )


def _ravelled(draws: Values, like: Values) -> Floats:
    """Draws of shape (n, n_coordinates), in the order of `_names`."""
    parts = []
    for name in sorted(like):
        if name not in draws:
            raise ValueError(f"The posterior has no {name!r}: it has {sorted(draws)}.")
        drawn, shape = np.asarray(draws[name], np.float64), np.shape(like[name])
        if drawn.shape[1:] != shape:
            raise ValueError(f"{name} has the shape {shape}; the posterior's is {drawn.shape[1:]}.")
        parts.append(drawn.reshape(len(drawn), -1))
    return np.concatenate(parts, axis=1)


def _summary(
    estimator: str,
    names: tuple[str, ...],
    truth: Floats,
    draws: Floats,
    plain: Floats | None,
    level: float,
    from_prior: bool,
    seconds: float,
    seed: np.random.SeedSequence,
    given: tuple[str, ...],
) -> CalibrationCheck:
    """Figures of all fits."""
    rng = np.random.default_rng(seed.spawn(1)[0])
    width, score = interval_width(draws, level).mean(axis=0), crps(draws, truth).mean(axis=0)
    return CalibrationCheck(
        estimator=estimator,
        names=names,
        truth=truth,
        draws=draws,
        coverage=marginal_coverage(draws, truth, level),
        tarp=tarp_coverage(draws, truth, random_state=rng) if from_prior else None,
        width=width,
        crps=score,
        plain=None if plain is None else marginal_coverage(plain, truth, level),
        relative_width=(
            None if plain is None else width / interval_width(plain, level).mean(axis=0)
        ),
        relative_crps=None if plain is None else score / crps(plain, truth).mean(axis=0),
        seconds=seconds,
        taken_as_public=given,
    )
