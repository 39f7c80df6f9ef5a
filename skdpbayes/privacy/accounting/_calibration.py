"""The least noise that keeps a promise.

The search starts from the Gaussian with the composed mean and variance of the privacy loss (central
limit theorem), moves by secant steps on logarithms inside a bracket, and returns only a noise whose
epsilon was itself computed and found to be at most the one asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from skdpbayes.privacy.accounting._crosscheck import AccountingError, CrossCheck, crosscheck
from skdpbayes.privacy.accounting._curve import PrivacyCurve, compose
from skdpbayes.privacy.accounting._gaussian import gaussian_mu
from skdpbayes.privacy.accounting._pair import Pair, kinds
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    check_adjacency,
    check_count,
    check_delta,
    check_epsilon,
    check_sampling_rate,
    merge,
)

_SMALLEST, _LARGEST = 1e-3, 1e9
_MAX_EVALUATIONS = 80


@dataclass(frozen=True)
class Calibration:
    """A verified noise level.

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation over C; with a `schedule`, that of a relative multiplier of 1.
    epsilon : float
        Achieved: an upper bound, at most `target_epsilon`.
    target_epsilon : float
        Asked for.
    delta : float
    adjacency : str
    steps : tuple of GaussianSteps
        What to run.
    along : tuple of GaussianSteps
        Releases with a fixed noise that are accounted for too.
    crosscheck : CrossCheck
        What fourier-accountant says about (`epsilon`, `delta`).

    Examples
    --------
    >>> from skdpbayes.privacy import calibrate_noise, epsilon
    >>> found = calibrate_noise(1.0, 1e-5, sampling_rate=0.01, steps=1000)
    >>> found.epsilon <= found.target_epsilon
    True
    >>> epsilon(found.steps, found.delta) == found.epsilon
    True
    """

    noise_multiplier: float
    epsilon: float
    target_epsilon: float
    delta: float
    adjacency: str
    steps: tuple[GaussianSteps, ...]
    crosscheck: CrossCheck
    along: tuple[GaussianSteps, ...] = ()

    @property
    def curve(self) -> PrivacyCurve:
        """The composition of `steps` and `along`."""
        return compose(self.steps + self.along, self.adjacency)


def calibrate_noise(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    schedule: Sequence[tuple[float, int]] | None = None,
    adjacency: str = "zero_out",
    rtol: float = 1e-3,
    along: Iterable[GaussianSteps] = (),
) -> Calibration:
    """Find the smallest noise multiplier that is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Above 0. Infinity gives noise 0.
    delta : float
        In (0, 1).
    sampling_rate : float
        In (0, 1].
    steps : int
        Number of rounds.
    schedule : sequence of (relative multiplier, number of rounds), optional
        Piecewise constant noise: the multipliers are scaled together, the numbers of rounds add up
        to `steps`. Time grows with the number of levels (some 10 ms each): round long schedules
        with `bucket_schedule`.
    adjacency : {"zero_out", "add_remove", "replace_one"}
    rtol : float
        The epsilon of the noise returned is in ``[(1 - rtol) * epsilon, epsilon]``; at least 1e-6.
    along : sequence of GaussianSteps
        Releases with a fixed noise that share the budget.

    Returns
    -------
    Calibration
        Cached: a second call with equal arguments is free (all of them are public values).

    Raises
    ------
    ValueError
        If an argument is out of range, or if `delta` is so large that a release without any noise
        would satisfy it.
    AccountingError
        If fourier-accountant, where its guards accept it, contradicts the result.

    Examples
    --------
    >>> from skdpbayes.privacy import calibrate_noise
    >>> found = calibrate_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=10_000)
    >>> round(found.noise_multiplier, 1)
    3.8
    >>> 0.999 <= found.epsilon <= 1.0
    True
    """
    epsilon, delta = check_epsilon(epsilon, positive=True), check_delta(delta)
    rate, count, adjacency = (
        check_sampling_rate(sampling_rate),
        check_count(steps, "steps"),
        check_adjacency(adjacency),
    )
    if not 1e-6 <= rtol < 1.0:
        raise ValueError(f"rtol must be in [1e-6, 1), got {rtol!r}.")
    blocks = _check_schedule(schedule, count)
    if math.isfinite(epsilon) and rate < 1.0 and -math.expm1(count * math.log1p(-rate)) <= delta:
        raise ValueError(
            f"delta={delta!r} is at least the probability that a record is used at all "
            f"(sampling_rate={rate!r}, steps={count}): releasing the records themselves would "
            f"satisfy it. "
            "Take a smaller delta."
        )
    return _calibrate(epsilon, delta, rate, blocks, adjacency, float(rtol), tuple(along))


def _check_schedule(
    schedule: Iterable[tuple[float, int]] | None, steps: int
) -> tuple[tuple[float, int], ...]:
    if schedule is None:
        return ((1.0, steps),)
    blocks = tuple(
        (float(relative), check_count(count, "schedule's number of rounds"))
        for relative, count in schedule
    )
    if not blocks or not all(0.0 < relative < math.inf for relative, _ in blocks):
        raise ValueError(
            "schedule must hold pairs (relative multiplier above 0, number of rounds), got "
            f"{schedule!r}."
        )
    total = sum(count for _, count in blocks)
    if total != steps:
        raise ValueError(
            f"schedule has {total} rounds in all, but steps={steps}; they must be equal."
        )
    return blocks


@functools.lru_cache(maxsize=256)
def _calibrate(
    epsilon: float,
    delta: float,
    rate: float,
    schedule: tuple[tuple[float, int], ...],
    adjacency: str,
    rtol: float,
    along: tuple[GaussianSteps, ...],
) -> Calibration:
    def rounds(scale: float) -> tuple[GaussianSteps, ...]:
        return tuple(GaussianSteps(scale * relative, rate, count) for relative, count in schedule)

    def blocks(scale: float) -> tuple[GaussianSteps, ...]:
        return rounds(scale) + along

    def achieved(scale: float) -> float:
        return PrivacyCurve(blocks(scale), adjacency).epsilon(delta)

    if math.isinf(epsilon):
        check = CrossCheck(False, "no noise, nothing to check", epsilon, delta)
        return Calibration(0.0, epsilon, epsilon, delta, adjacency, rounds(0.0), check, along)
    start = _central_limit_guess(blocks, gaussian_mu(epsilon, delta), adjacency)
    scale, value = _search(achieved, epsilon, start, rtol)
    check = crosscheck(blocks(scale), value, delta, adjacency)
    if check.disagrees:
        raise AccountingError(
            f"the accountants disagree: epsilon={value!r} at delta={delta!r} for "
            f"{blocks(scale)!r}, "
            f"adjacency {adjacency!r}, but {check}. Please report this."
        )
    return Calibration(scale, value, epsilon, delta, adjacency, rounds(scale), check, along)


def _central_limit_guess(
    blocks: Callable[[float], tuple[GaussianSteps, ...]], mu: float, adjacency: str
) -> float:
    """Return the scale at which the composed loss has the variance mu**2 of a Gaussian's."""
    kind = kinds(adjacency)[0]

    def variance(scale: float) -> float:
        return sum(
            b.steps * Pair(kind, b.noise_multiplier, b.sampling_rate).moments()[1]
            for b in merge(blocks(scale))
        )

    low, high = math.log(0.05), math.log(1e4)
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if variance(math.exp(middle)) > mu * mu else (low, middle)
    return math.exp(0.5 * (low + high))


def _search(
    achieved: Callable[[float], float], target: float, start: float, rtol: float
) -> tuple[float, float]:
    """Return (scale, epsilon) with epsilon in [(1 - rtol) target, target].

    Secant steps on (log scale, log epsilon), halved into the bracket whenever they leave it.
    """
    aim = math.log(target * (1.0 - 0.5 * rtol))
    below: tuple[float, float] | None = None  # too little noise: (log scale, log epsilon)
    above: tuple[float, float] | None = None  # enough noise
    x, slope, last = math.log(start), -1.2, None
    for _ in range(_MAX_EVALUATIONS):
        value = achieved(math.exp(x))
        if (1.0 - rtol) * target <= value <= target:
            return math.exp(x), value
        y = math.log(value) if 0.0 < value < math.inf else math.copysign(math.inf, value - target)
        if value > target:
            below = (x, y)
        else:
            above = (x, y)
        if last is not None and math.isfinite(y) and math.isfinite(last[1]) and x != last[0]:
            slope = min((y - last[1]) / (x - last[0]), -0.05)
        last = (x, y)
        step = (aim - y) / slope if math.isfinite(y) else math.copysign(0.7, y)
        x = _safeguard(x + max(min(step, 1.5), -1.5), below, above)
        if not math.log(_SMALLEST) < x < math.log(_LARGEST):
            break
    raise ValueError(
        f"no noise multiplier between {_SMALLEST} and {_LARGEST} gives an epsilon within "
        f"{rtol} below "
        f"{target!r}; check epsilon, delta, sampling_rate and steps."
    )


def _safeguard(
    x: float, below: tuple[float, float] | None, above: tuple[float, float] | None
) -> float:
    if below is not None and above is not None:
        width = above[0] - below[0]
        if not below[0] + 1e-3 * width < x < above[0] - 1e-3 * width:
            return 0.5 * (below[0] + above[0])
    return x


def bucket_schedule(sigmas: Iterable[float], rho: float = 0.02) -> list[tuple[float, int]]:
    """Round a schedule of noise multipliers **down** into geometric buckets.

    The rounds then run with the noise of the schedule or, simpler, of the buckets; accounting for
    less noise than is added is sound, because the extra noise is post-processing. (The root mean
    square of a schedule is no bound.)

    Parameters
    ----------
    sigmas : iterable of float
        Noise multiplier of every round, above 0.
    rho : float
        Relative width of a bucket, above 0. Epsilon grows by about rho / 2.

    Returns
    -------
    list of (float, int)
        The smallest multiplier of each bucket and its number of rounds, increasing. Make steps of
        it with ``[GaussianSteps(sigma, sampling_rate, count) for sigma, count in buckets]``.

    Examples
    --------
    >>> from skdpbayes.privacy import bucket_schedule
    >>> bucket_schedule([2.0, 1.01, 1.0, 2.0])
    [(1.0, 2), (2.0, 2)]
    """
    values = sorted(float(sigma) for sigma in sigmas)
    if not values or not all(0.0 < value < math.inf for value in values):
        raise ValueError("sigmas must be a non-empty sequence of finite noise multipliers above 0.")
    if not rho > 0.0:
        raise ValueError(f"rho must be above 0, got {rho!r}.")
    buckets: list[list[Any]] = []
    for value in values:
        if buckets and value <= buckets[-1][0] * (1.0 + rho):
            buckets[-1][1] += 1
        else:
            buckets.append([value, 1])
    return [(sigma, count) for sigma, count in buckets]
