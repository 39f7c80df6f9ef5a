"""Typical norm of a score, found by one release, for models whose scores have no known bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, flat_start, single
from skdpbayes.models.protocols import Contribution, Params, Record

_LOWEST, _HIGHEST = -8, 13  # range of the histogram, in binary logarithms
_DOUBT = 2.0  # standard deviations of the noise within which nothing is known of an entry


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
    scaled : bool
        Whether to release the sizes of entries too, and to take the model at `scales` by which they
        are about one. The opening is then made twice: at the start, and where the rounds after it
        have led. Only there scales are taken: far from the truth, one entry may stand for all that
        a model does not explain.
    """

    model: Any
    found: bool = field(metadata={"static": True})
    factor: Any = 1.0
    scaled: bool = field(default=False, metadata={"static": True})

    def init(self) -> Params:
        """What is known before the release: the unit, and where scores are looked at."""
        unit = {"unit": jnp.asarray(self.model.score_unit, jnp.float32)}
        if not self.looks_again:
            return unit
        start = ravel_pytree(self.model.init())[0]
        return unit | {"start": start, "scales": jnp.ones_like(start), "again": jnp.bool_(False)}

    @property
    def looks_again(self) -> bool:
        """Whether the opening is made twice."""
        return self.found and self.scaled

    def looked_at(self, params: Params, centre: jax.Array) -> Params:
        """Parameters for another opening at `centre`, a point of `marginal` at scales of one."""
        return {**params, "start": centre.astype(jnp.float32)}

    def openings(self) -> tuple[Opening, ...]:
        """A histogram of the norms of scores, by powers of two.

        If `scaled`, also the sums of the entries' shares of the norm, and of their squares.
        """
        if not self.found:
            return ()
        init, unravel = flat_start(self.model)
        bins = jnp.arange(_LOWEST, _HIGHEST)

        def statistics(params: Params) -> Callable[[Record], Mapping[str, Contribution]]:
            start = unravel(params.get("start", init))

            def one(record: Record) -> Mapping[str, Contribution]:
                norm = self.model.score_norm(start, record)
                usable = jnp.isfinite(norm) & (norm > 0)
                size = jnp.clip(
                    jnp.floor(jnp.log2(jnp.where(usable, norm, 1))), _LOWEST, _HIGHEST - 1
                )
                found = {"norms": (usable & (size == bins)).astype(jnp.float32)}
                if self.scaled:
                    shares = self.model.score_sizes(start, record) / jnp.where(usable, norm, 1)
                    found["shares"] = jnp.where(usable, jnp.stack([shares, shares**2]), 0)
                return found

            return one

        def update(params: Params, sums: Any, scales: Any, key: jax.Array) -> Params:
            del key
            # Bins that may be noise alone are left out: together they would move the median far.
            seen = (sums["norms"] > 3 * scales["norms"]) | (sums["norms"] == jnp.max(sums["norms"]))
            below = jnp.cumsum(jnp.where(seen, sums["norms"], 0))
            middle = jnp.argmax(2 * below >= below[-1])
            unit = {"unit": self.factor * 2.0 ** (bins[middle] + 1).astype(jnp.float32)}
            if not self.scaled:
                return unit
            found = scales_of(sums["shares"], scales["shares"])
            own = {"scales": jnp.where(params["again"], found, 1), "again": jnp.bool_(True)}
            return {**params, **unit, **own}

        norms = Block(jnp.float32(1), 0.5 if self.scaled else 1.0, "mean")
        # Squares of shares have the sum one, and so have shares to the power of four at most.
        shares = {"shares": Block(NORM * np.float32(2**0.5), 0.5, "mean")} if self.scaled else {}
        return (Opening(statistics, {"norms": norms} | shares, update),)

    def marginal(self, params: Params) -> Any:
        """The model with its unit, and perhaps with scales and a start."""
        if not self.looks_again:
            return replace(self.model, score_unit=params["unit"])
        scales = params["scales"]
        own = {"scales": scales, "starts_at": params["start"] / scales}
        return replace(self.model, score_unit=params["unit"], **own)


def scales_of(sums: jax.Array, noise: jax.Array) -> jax.Array:
    """Scales at which the entries of scores have about one mean square.

    A score times the scales has the norm that it had, in the mean square.

    Parameters
    ----------
    sums : array of shape (2, P)
        Noisy sums, over records, of the sizes of entries over the norm, and of their squares.
    noise : float
        Standard deviation of the noise.
    """
    (shares, squares), noise = double((sums, noise))
    n = jnp.maximum(jnp.sum(squares), 1)
    # The mean square is at least the square of the mean, which noise hides less.
    doubt = _DOUBT * noise
    known = jnp.maximum(jnp.maximum(shares, doubt) ** 2 / n, squares - doubt)
    return single(jnp.sqrt(n / len(known) / known))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AmortisedStart(WithScoreUnit):
    """A model with an amortised guide, whose typical score is released before the rounds."""
