"""Public values that decide what the mechanism does; the run and the accountant read the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from skdpbayes.mechanism.integer_noise import MOST_UNITS, levels_for, noise_std
from skdpbayes.privacy.accounting import GaussianSteps

MAX_SCHEDULE = 64
"""Most pieces of a noise schedule: a static shape, so that no schedule recompiles."""

LEAST_RATE = 1e-6
"""Smallest sampling rate: `poisson_sample`'s proof covers no smaller one."""

Together: TypeAlias = Literal["sum", "score", "statistic", "weight", "mean"]
"""How the contributions of one person's rows add up (`Block`)."""

# Grid steps in a clipping norm, where no noise says how fine a grid makes sense.
_UNITS_WITHOUT_NOISE = 2.0**40


@dataclass(frozen=True)
class MechanismSpec:
    """Steps, sampling and numerics of a run, and its count of records.

    Attributes
    ----------
    steps : tuple of GaussianSteps
        Consecutive pieces of the run; each has a noise multiplier, a sampling rate and a number of
        steps. The sampling rate is the same in all of them.
    n_chains : int
        Chains that sample and add noise independently; the accountant composes all of them.
    numerics : {"secure", "fast"}
        Integer sums and integer noise, or floating-point numbers.
    count : GaussianSteps or None
        Release of the number of usable records, by `noisy_count`; None if there is none.
    most_rows : int
        Largest number of rows of a record: above one where records are persons.
    n_records : int or None
        Public number of records, of all processes; None if it is private.
    """

    steps: tuple[GaussianSteps, ...]
    n_chains: int = 1
    numerics: str = "secure"
    count: GaussianSteps | None = None
    most_rows: int = 1
    n_records: int | None = None

    @property
    def n_steps(self) -> int:
        """Rounds of one chain."""
        return sum(piece.steps for piece in self.steps)

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.steps[0].sampling_rate

    @property
    def levels(self) -> int | None:
        """Of `integer_noise`; None if the noise is to be floating-point numbers."""
        return levels_for(self.least_noise) if self.numerics == "secure" else None

    @property
    def least_noise(self) -> float:
        """Smallest noise multiplier of all steps."""
        return min(piece.noise_multiplier for piece in self.steps)

    @property
    def rounds(self) -> tuple[GaussianSteps, ...]:
        """Steps of all chains."""
        return self.steps * self.n_chains

    @property
    def along(self) -> tuple[GaussianSteps, ...]:
        """Releases beside the rounds."""
        return () if self.count is None else (self.count,)

    def composed(self) -> tuple[GaussianSteps, ...]:
        """All that the accountant has to compose."""
        return self.rounds + self.along

    def traced(self) -> Mechanism:
        """Arrays that the compiled loop reads."""
        if len(self.steps) > MAX_SCHEDULE:
            raise ValueError(
                f"A noise schedule may have at most {MAX_SCHEDULE} pieces, got {len(self.steps)}; "
                "merge neighbouring pieces, keeping the larger noise multiplier."
            )
        rates = {piece.sampling_rate for piece in self.steps}
        if len(rates) != 1:
            raise ValueError(f"All steps must share one sampling rate, got {sorted(rates)}.")
        (rate,) = rates
        if rate < LEAST_RATE:
            raise ValueError(f"sampling_rate must be at least {LEAST_RATE:g}, got {rate:g}.")
        ends = np.full(MAX_SCHEDULE, np.iinfo(np.int32).max, np.int32)
        # No step lies beyond the schedule; its noise would be infinite.
        sigmas = np.full(MAX_SCHEDULE, np.float32(np.inf))
        ends[: len(self.steps)] = np.cumsum([piece.steps for piece in self.steps])
        exact = np.array([piece.noise_multiplier for piece in self.steps])
        rounded = exact.astype(np.float32)  # never below what is charged
        rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
        # Below this a program may take a number for zero, which means no noise.
        least = np.finfo(np.float32).tiny
        sigmas[: len(self.steps)] = np.where(exact > 0, np.maximum(rounded, least), 0)
        return Mechanism(
            rate=np.float32(rate),
            sigmas=sigmas,
            ends=ends,
            n_steps=np.int32(self.n_steps),
            noise_std=np.float64(1.0 if self.levels is None else noise_std(self.levels)),
            most_rows=np.float32(self.most_rows) if self.most_rows > 1 else None,
        )


def growth(together: Together, noisy: bool) -> float:
    """Power of the number of rows with which a clipping norm grows (`Block`)."""
    if together == "statistic" and not noisy:  # nobody is shortened
        return 1.0
    return {"sum": 1.0, "weight": 1.0, "score": 0.5, "statistic": 0.5, "mean": 0.0}[together]


class Mechanism(NamedTuple):
    """`MechanismSpec` as arrays: NumPy's, traced in the compiled loop (new values compile nothing).

    Attributes
    ----------
    rate, sigmas, ends, n_steps
        Sampling rate, noise multipliers, the step at which each ends, and steps in all.
    noise_std : float
        Standard deviation of the noise as it is drawn.
    most_rows : int or None
        Largest number of rows of a record; None if it is one.
    """

    rate: Any
    sigmas: Any
    ends: Any
    n_steps: Any
    noise_std: Any
    most_rows: Any = None

    @property
    def several_rows(self) -> bool:
        """Whether a record may have several rows; static."""
        return self.most_rows is not None

    def between(self, first: ArrayLike, stop: ArrayLike) -> Mechanism:
        """The part from step `first` to before step `stop`, whose steps count from zero."""
        ends = jnp.maximum(jnp.minimum(self.ends, stop) - first, 0)
        return self._replace(n_steps=jnp.asarray(stop) - first, ends=ends)

    def noise_multiplier(self, step: ArrayLike) -> jax.Array:
        """Noise multiplier (standard deviation over clipping norm) in force at a step."""
        return jnp.asarray(self.sigmas)[jnp.sum(jnp.asarray(self.ends) <= step)]

    def norm_of_record(self, norm: ArrayLike, together: Together) -> jax.Array:
        """Clipping norm of a record's contribution, given that of a row's (`Block`)."""
        if not self.several_rows:
            return jnp.asarray(norm)
        exact, noisy = (growth(together, noise) for noise in (False, True))
        power = jnp.where(jnp.asarray(self.sigmas)[0] > 0, noisy, exact)
        return jnp.asarray(norm) * jnp.power(self.most_rows, power)

    def units(self, step: ArrayLike, share: float) -> jax.Array:
        """Length of a block's clipping norm in steps of the grid, on which noise is as drawn."""
        sigma = self.noise_multiplier(step).astype(float)
        units = jnp.minimum(
            self.noise_std * math.sqrt(share) / jnp.where(sigma > 0, sigma, 1), MOST_UNITS
        )
        return jnp.where(sigma > 0, units, _UNITS_WITHOUT_NOISE)


class Block(NamedTuple):
    """Clipping norm and budget share of one block of a release.

    Attributes
    ----------
    clipping_norm : float
        Traced.
    share : float
        Static; the shares of a round sum to at most one.
    together : {"sum", "score", "statistic", "weight", "mean"}
        How the rows of one person add up (`persons`). Sums of k rows are up to k times as long as
        one row, sums of scores about root k, since scores average out at the truth; a mean is no
        longer. Statistics have the norm of scores. A person whose sum of them is too long counts
        for less in all statistics and weights of the round, so that their ratios stay; weights
        have the norm of a sum.
    """

    clipping_norm: ArrayLike
    share: float = 1.0
    together: Together = "sum"
