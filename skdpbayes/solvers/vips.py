"""One release of sufficient statistics, and the posterior given the noisy sum.

VIPS (Park, Foulds, Chaudhuri and Welling 2020, algorithm 2) for models without latent variables.
The sum of bounded statistics t(x) is released once, over all records, and the model's
``noisy_posterior`` is

    p(theta | r),    r = sum_i t(x_i) + N(0, scale^2 I),

with the unknown true sum integrated out (Bernstein and Sheldon 2018).

Where we differ: VIPS takes the noisy sum for the true one, so that its posterior ignores the noise.
There is nothing to iterate, and no subsampling. See ``docs/solvers/vips.md``.

Where records are persons, the number of rows is not public: it is one more entry of the statistic
(`Counted`), and the posterior includes its noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism, Together
from skdpbayes.models.base import BoundedStatistic, ConjugateModel
from skdpbayes.models.protocols import Number, Record
from skdpbayes.posteriors.conjugate import CountedPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import OneKindOfRound, Point, Round, Scales, Sums


class NoisySum(NamedTuple):
    """A released sum of statistics, and the standard deviation of the noise in each entry."""

    value: jax.Array
    scale: jax.Array


@dataclass(frozen=True)
class Counted:
    """Statistic of a row with a constant, whose sum tells the number of rows.

    An error of the number shifts sums that are centred in their range by half the range at most.
    With d sums of bound B / sqrt(d), noise and shift together are least, at the ends of the range,
    for a constant of B d^(-1/4). We take 0.7 of it, as ends are rare.

    Attributes
    ----------
    model : ConjugateModel
    unit : float
        The constant.
    """

    model: ConjugateModel
    unit: Number

    @classmethod
    def of(cls, model: ConjugateModel) -> Counted:
        """Statistic of a model."""
        bound = model.statistic_bound() * model.n_statistics**-0.25
        return cls(model, np.float32(0.7 * bound))

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return self.model.n_statistics + 1

    def statistic(self, record: Record) -> jax.Array:
        """Statistic of one row, the constant last."""
        count = self.unit * self.model.known(record)
        return jnp.append(self.model.statistic(record), count)

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return math.hypot(self.model.statistic_bound(), float(self.unit))

    def noisy_posterior(self, total: np.ndarray, scale: float, n_records: int) -> Any:
        """Posterior given noisy sums; `n_records` is the largest number of rows."""
        return CountedPosterior.given(
            lambda n: self.model.noisy_posterior(total[:-1], scale, n),
            float(total[-1]) / float(self.unit),
            scale / float(self.unit),
            n_records,
        )


def norm_above(statistic: BoundedStatistic) -> np.float32:
    """The next number above the bound of a statistic, lest rounding put the norm below it."""
    return np.nextafter(np.float32(statistic.statistic_bound()), np.float32(np.inf))


def one_release(
    statistic: BoundedStatistic, n_records: float, together: Together = "sum"
) -> OneRelease:
    """`OneRelease` of a statistic, at its declared bound."""
    unit = statistic.unit if isinstance(statistic, Counted) else None
    return OneRelease(norm_above(statistic), np.float64(n_records), unit, together)


@pytree
@dataclass(frozen=True)
class OneRelease(OneKindOfRound):
    """Release the summed statistics of all records once.

    Attributes
    ----------
    clipping_norm : float
        At least the model's bound on a row's statistic, so that no row is clipped.
    n_records : float
        Public number of records; if it is counted, the largest number of rows.
    unit : float or None
        Of `Counted`, if the number of rows is released.
    together : {"sum", "statistic", "mean"}
        How the rows of one person add up (`Block`).
    """

    clipping_norm: Number
    n_records: Number
    unit: Number | None = None
    together: Together = field(default="sum", metadata={"static": True})

    def init(self, model: BoundedStatistic, key: jax.Array) -> NoisySum:
        """State before the release."""
        del key
        model = self._asked(model)
        return NoisySum(jnp.zeros(model.n_statistics, jnp.float32), jnp.zeros((), jnp.float32))

    def rounds(self, model: BoundedStatistic, mechanism: Mechanism) -> tuple[Round[NoisySum], ...]:
        """The release."""
        del mechanism
        model = self._asked(model)
        norm = jnp.asarray(self.clipping_norm, jnp.float32)

        def update(
            state: NoisySum, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> NoisySum:
            del state, point, step
            return NoisySum(estimate["statistic"], scales["statistic"])

        return (
            Round(
                point=lambda state, key: (),
                query=lambda state, point: lambda record: {"statistic": model.statistic(record)},
                blocks=lambda state: {"statistic": Block(norm, together=self.together)},
                update=update,
            ),
        )

    def posterior(self, model: ConjugateModel, state: NoisySum) -> Any:
        """The model's posterior given the release."""
        return self._asked(model).noisy_posterior(
            np.asarray(state.value, np.float64), float(state.scale), int(self.n_records)
        )

    def _asked(self, model: Any) -> Any:
        return model if self.unit is None else Counted(model, self.unit)

    def diagnostics(self, model: ConjugateModel, state: NoisySum, posterior: Any) -> dict[str, Any]:
        """The standard deviation of the noise in each sum."""
        del model, posterior
        return {"noise_std": float(state.scale)}
