"""One release of sufficient statistics, and the exact posterior given the noisy sums.

For a conjugate exponential family nothing has to be iterated: the sum of bounded statistics is
released once, over all records, and the model's ``noisy_posterior`` integrates the unknown true sum
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import ConjugateModel
from skdpbayes.solvers.base import Round


class NoisySum(NamedTuple):
    """A released sum of statistics, and the standard deviation of the noise in each entry."""

    value: Any
    scale: Any


def one_release(model: ConjugateModel, n_records) -> OneRelease:
    """`OneRelease` of a model's statistic, at the bound that it declares."""
    norm = np.nextafter(
        np.float32(model.statistic_bound()), np.float32(np.inf)
    )  # not below the bound
    return OneRelease(norm, np.float64(n_records))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneRelease:
    """Release the summed statistics of all records once.

    Attributes
    ----------
    clipping_norm : float
        Not below the model's bound on a record's statistic, so that nothing is clipped.
    n_records : float
        Public.
    """

    clipping_norm: Any
    n_records: Any

    def init(self, model: ConjugateModel, key) -> NoisySum:
        """Nothing known."""
        del key
        return NoisySum(jnp.zeros(model.n_statistics, jnp.float32), jnp.zeros((), jnp.float32))

    def rounds(self, model: ConjugateModel, mechanism: Mechanism) -> tuple[Round, ...]:
        """The release."""
        del mechanism
        norm = jnp.asarray(self.clipping_norm, jnp.float32)

        def update(state, point, step, estimate, scales):
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

    def posterior(self, model: ConjugateModel, state: NoisySum):
        """The model's exact posterior given the release."""
        return model.noisy_posterior(
            np.asarray(state.value, np.float64), float(state.scale), int(self.n_records)
        )

    def diagnostics(self, state: NoisySum, posterior) -> dict:
        """The standard deviation of the noise in each sum."""
        del posterior
        return {"noise_std": float(state.scale)}
