"""Typical norm of a score, found by one release, for models whose scores have no known bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import Opening
from skdpbayes.models.protocols import Params

_LOWEST, _HIGHEST = -8, 13  # range of the histogram, in binary logarithms


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WithScoreUnit:
    """`OpenedModel` that releases a histogram of norms and takes the median as `score_unit`.

    Attributes
    ----------
    model : Model
        With methods ``score_norm(params, record)`` and an attribute `score_unit`.
    found : bool
        Whether to release the histogram; otherwise the model is used as it is.
    factor : float
        The unit is this factor times the median, rounded up to a power of two.
    """

    model: Any
    found: bool = field(metadata={"static": True})
    factor: Any = 1.0

    def init(self) -> Params:
        """Unit before the release."""
        return {"unit": jnp.asarray(self.model.score_unit, jnp.float32)}

    def openings(self) -> tuple[Opening, ...]:
        """A histogram of the norms of scores at the model's start, by powers of two."""
        if not self.found:
            return ()
        start, bins = self.model.init(), jnp.arange(_LOWEST, _HIGHEST)

        def statistics(params):
            del params

            def one(record):
                norm = self.model.score_norm(start, record)
                usable = jnp.isfinite(norm) & (norm > 0)
                size = jnp.clip(
                    jnp.floor(jnp.log2(jnp.where(usable, norm, 1))), _LOWEST, _HIGHEST - 1
                )
                return {"norms": (usable & (size == bins)).astype(jnp.float32)}

            return one

        def update(params, sums, scales, key):
            del params, key
            # Bins that may be noise alone are left out: together they would move the median far.
            seen = (sums["norms"] > 3 * scales["norms"]) | (sums["norms"] == jnp.max(sums["norms"]))
            below = jnp.cumsum(jnp.where(seen, sums["norms"], 0))
            middle = jnp.argmax(2 * below >= below[-1])
            return {"unit": self.factor * 2.0 ** (bins[middle] + 1).astype(jnp.float32)}

        return (Opening(statistics, {"norms": Block(jnp.float32(1), together="mean")}, update),)

    def marginal(self, params):
        """The model with its unit."""
        return replace(self.model, score_unit=params["unit"])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AmortisedStart(WithScoreUnit):
    """A model with an amortised guide, whose typical score is released before the rounds."""
