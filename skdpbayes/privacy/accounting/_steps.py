"""What is accounted for: blocks of Poisson-subsampled Gaussian releases, and the adjacency.

Standard library only, so that mechanisms and reports can name their steps without loading SciPy.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ADJACENCIES = ("zero_out", "add_remove", "replace_one")


@dataclass(frozen=True)
class GaussianSteps:
    """A block of identical rounds of the Poisson-subsampled Gaussian mechanism.

    Each round includes each record independently with probability `sampling_rate`, sums one vector
    of norm at most C per included record, and adds Gaussian noise of standard deviation
    `noise_multiplier * C` to every coordinate.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the clipping norm C, **for every adjacency**
        (under ``"replace_one"`` the accountant, not the caller, accounts for the distance 2C). Zero
        means no noise: epsilon is then infinite.
    sampling_rate : float
        In (0, 1]. The sampler must use a probability that is not above this one: a sampler on a
        grid rounds down, or declares the rate rounded up.
    steps : int
        Number of rounds, at least 1.
    sampling : {"poisson"}
        Other schemes need other accounting (sampling without replacement can cost five times the
        epsilon) and are refused.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, epsilon
    >>> rounds = GaussianSteps(noise_multiplier=1.0, sampling_rate=0.01, steps=100)
    >>> round(epsilon(rounds, delta=1e-5), 2)
    0.72
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        sigma = _real(self.noise_multiplier, "noise_multiplier")
        if not 0.0 <= sigma < math.inf:
            raise ValueError(
                "noise_multiplier must be finite and at least 0 (0 means no noise), got "
                f"{self.noise_multiplier!r}."
            )
        if self.sampling != "poisson":
            raise ValueError(
                f"sampling must be 'poisson', got {self.sampling!r}. Shuffled or fixed-size "
                "batches have other, often much larger, privacy costs; sample each record "
                "independently instead."
            )
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "sampling_rate", check_sampling_rate(self.sampling_rate))
        object.__setattr__(self, "steps", check_count(self.steps, "steps"))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain Python values."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
            "sampling": self.sampling,
        }


def _real(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"{name} must be a real number, got {value!r} of type {type(value).__name__}."
        )
    return float(value)


def check_sampling_rate(value: Any) -> float:
    """Return `value` as a float in (0, 1], or raise ValueError."""
    rate = _real(value, "sampling_rate")
    if not 0.0 < rate <= 1.0:
        raise ValueError(
            f"sampling_rate must be in (0, 1], got {value!r}. It is the probability that a record "
            "is in a batch: expected batch size divided by the number of records; 1 uses every "
            "record in every step."
        )
    return rate


def check_count(value: Any, name: str) -> int:
    """Return `value` as a positive int, or raise ValueError."""
    number = _real(value, name)
    if not (math.isfinite(number) and number == int(number) and number >= 1):
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}.")
    return int(number)


def check_adjacency(adjacency: Any) -> str:
    """Return `adjacency` if it is a known name, or raise ValueError."""
    if adjacency not in ADJACENCIES:
        raise ValueError(
            f"adjacency must be one of {', '.join(map(repr, ADJACENCIES))}, got {adjacency!r}."
        )
    return str(adjacency)


def check_delta(delta: Any) -> float:
    """Return `delta` as a float in (0, 1), or raise ValueError."""
    value = _real(delta, "delta")
    if not 0.0 < value < 1.0:
        raise ValueError(
            f"delta must be in (0, 1), got {delta!r}. Gaussian noise gives no pure epsilon "
            "guarantee; take a delta well below one over the number of records, such as 1e-5."
        )
    return value


def check_epsilon(epsilon: Any, *, positive: bool = False) -> float:
    """Return `epsilon` as a float, at least 0 (above 0 when `positive`), or raise ValueError."""
    value = _real(epsilon, "epsilon")
    if math.isnan(value) or value < 0.0 or (positive and value == 0.0):
        bound = "above 0" if positive else "at least 0"
        raise ValueError(f"epsilon must be {bound} (infinity means no privacy), got {epsilon!r}.")
    return value


def as_steps(steps: GaussianSteps | Iterable[GaussianSteps]) -> tuple[GaussianSteps, ...]:
    """Return `steps` as a non-empty tuple of `GaussianSteps`, or raise ValueError."""
    if isinstance(steps, GaussianSteps):
        return (steps,)
    if not isinstance(steps, Iterable):
        raise ValueError(f"steps must be a GaussianSteps or a sequence of them, got {steps!r}.")
    blocks = tuple(steps)
    wrong = [block for block in blocks if not isinstance(block, GaussianSteps)]
    if wrong:
        raise ValueError(
            f"steps must hold GaussianSteps only, got {wrong[0]!r}; write "
            "GaussianSteps(noise_multiplier, sampling_rate, steps)."
        )
    if not blocks:
        raise ValueError("steps must hold at least one GaussianSteps, got an empty sequence.")
    return blocks


def merge(blocks: Iterable[GaussianSteps]) -> tuple[GaussianSteps, ...]:
    """Merge equal mechanisms, and all unsampled blocks into one Gaussian release.

    The order of the blocks is immaterial to a composition that was fixed in advance. Gaussian
    releases at rate 1 compose exactly into one Gaussian release: ``1 / sigma**2 = sum(T /
    sigma_t**2)``.
    """
    counts: dict[tuple[float, float], int] = {}
    precision = 0.0
    for block in blocks:
        if block.noise_multiplier == 0.0:
            return (GaussianSteps(0.0, block.sampling_rate, 1),)
        if block.sampling_rate == 1.0:
            precision += block.steps / block.noise_multiplier / block.noise_multiplier
        else:
            key = (block.noise_multiplier, block.sampling_rate)
            counts[key] = counts.get(key, 0) + block.steps
    merged = [GaussianSteps(sigma, rate, count) for (sigma, rate), count in sorted(counts.items())]
    if precision > 0.0:
        merged.append(GaussianSteps(precision**-0.5, 1.0, 1))
    return tuple(merged)
