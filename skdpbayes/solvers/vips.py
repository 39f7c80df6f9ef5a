"""One release of sufficient statistics, and the posterior given the noisy sum.

VIPS (Park, Foulds, Chaudhuri and Welling 2020, algorithm 2) for models without latent variables.
The sum of bounded statistics t(x) is released once, over all records, and the model's
``noisy_posterior`` is

    p(theta | r),    r = sum_i t(x_i) + N(0, scale^2 I),

with the unknown true sum integrated out (Bernstein and Sheldon 2018).

Where we differ: VIPS takes the noisy sum for the true one, so that its posterior ignores the noise.
There is nothing to iterate, and no subsampling. See ``docs/solvers/vips.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import BoundedStatistic, ConjugateModel
from skdpbayes.models.protocols import Number
from skdpbayes.solvers.base import OneKindOfRound, Point, Round, Scales, Sums


class NoisySum(NamedTuple):
    """A released sum of statistics, and the standard deviation of the noise in each entry."""

    value: jax.Array
    scale: jax.Array


def one_release(model: BoundedStatistic, n_records: float) -> OneRelease:
    """`OneRelease` of a model's statistic, at its declared bound."""
    # The next number above, lest rounding put the norm below the bound.
    norm = np.nextafter(np.float32(model.statistic_bound()), np.float32(np.inf))
    return OneRelease(norm, np.float64(n_records))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneRelease(OneKindOfRound):
    """Release the summed statistics of all records once.

    Attributes
    ----------
    clipping_norm : float
        At least the model's bound on a record's statistic, so that nothing is clipped.
    n_records : float
        Public number of records.
    """

    clipping_norm: Number
    n_records: Number

    def init(self, model: BoundedStatistic, key: jax.Array) -> NoisySum:
        """State before the release."""
        del key
        return NoisySum(jnp.zeros(model.n_statistics, jnp.float32), jnp.zeros((), jnp.float32))

    def rounds(self, model: BoundedStatistic, mechanism: Mechanism) -> tuple[Round[NoisySum], ...]:
        """The release."""
        del mechanism
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
                blocks=lambda state: {"statistic": Block(norm)},
                update=update,
            ),
        )

    def posterior(self, model: ConjugateModel, state: NoisySum) -> Any:
        """The model's posterior given the release."""
        return model.noisy_posterior(
            np.asarray(state.value, np.float64), float(state.scale), int(self.n_records)
        )

    def diagnostics(self, state: NoisySum, posterior: Any) -> dict[str, Any]:
        """The standard deviation of the noise in each sum."""
        del posterior
        return {"noise_std": float(state.scale)}
