"""Unit and coordinates of scores, found by a release, for models whose scores have no bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import scaled
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, flat_start, single
from skdpbayes.models.protocols import Contribution, HasCurvatureUnit, Number, Params, Record
from skdpbayes.models.whitened import whitening_axes
from skdpbayes.pytrees import pytree

_LOWEST, _HIGHEST = -8, 13  # range of the histogram, in binary logarithms
_CLEAR = 0.3  # noise of a mean square of one, up to which correlations are taken
_DOUBT = 2.0  # standard deviations of the noise below which the size of an entry is noise
_LEAST = 1e-6  # mean square of an entry, where there is hardly any noise
_FARTHEST = 100.0  # by which a mean square may be below what noise hides


@pytree
@dataclass(frozen=True)
class WithScoreUnit:
    """`OpenedModel` that releases a histogram of norms and takes the median as `score_unit`.

    Attributes
    ----------
    model : Model
        With a method ``score_norm(params, record)`` and an attribute `score_unit`. Unless
        coordinates are given, also with ``score_sizes(params, record)``, ``score_moments(params,
        record)`` and ``foreseen_shares(params)``.
    found : bool
        Whether to release the histogram; otherwise the model is used as it is.
    factor : float
        The unit is this factor times the median, rounded up to a power of two.
    first_factor : float
        The same before the opening is made again: bounded scores lead far in few rounds.
    coordinates : {"given", "scaled", "whitened"}
        Unless they are given, the sizes of entries are released too, and the model is taken in
        coordinates in which they are about one; "whitened": and about uncorrelated, so that it has
        no independent prior. The opening is then made twice: at the start, and where the rounds
        after it have led. Only there coordinates are found: far from the truth, one entry may stand
        for all that a model does not explain.
    """

    model: Any
    found: bool = field(metadata={"static": True})
    factor: Number = 1.0
    first_factor: Number = 1.0
    coordinates: Literal["given", "scaled", "whitened"] = field(
        default="given", metadata={"static": True}
    )

    def init(self) -> Params:
        """What is known before the release: the unit, and where scores are looked at."""
        own = jnp.asarray(self.model.score_unit, jnp.float32)
        unit = {"unit": own, "curvature": own}
        if not self.looks_again:
            return unit
        start = ravel_pytree(self.model.init())[0]
        return unit | {"start": start, "axes": self._identity(start), "arrived": jnp.bool_(False)}

    @property
    def looks_again(self) -> bool:
        """Whether the opening is made twice."""
        return self.found and self.coordinates != "given"

    @property
    def _whitened(self) -> bool:
        return self.coordinates == "whitened"

    def looked_at(self, params: Params, centre: jax.Array) -> Params:
        """Parameters for another opening at `centre`, a point of `marginal` before it.

        Axes are the identity until then, so it is a point of the model.
        """
        return {**params, "start": centre.astype(jnp.float32)}

    def openings(self) -> tuple[Opening, ...]:
        """A histogram of the norms of scores, by powers of two.

        If coordinates are to be found, also the sums of the entries' shares of the norm, and of
        their squares or second moments.
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
                found = {"norms": (size == bins).astype(jnp.float32)}
                if self.looks_again:
                    found["shares"] = shares = self.model.score_sizes(start, record) / norm
                    found["squares"] = shares**2
                if self._whitened:
                    moments = self.model.score_moments(start, record)
                    found["squares"] = scaled(moments, 1 / norm**2)
                return jax.tree.map(lambda x: jnp.where(usable, x, 0), found)

            return one

        def update(params: Params, sums: Any, scales: Any, key: jax.Array) -> Params:
            del key
            # Bins that may be noise alone are left out: together they would move the median far.
            seen = (sums["norms"] > 3 * scales["norms"]) | (sums["norms"] == jnp.max(sums["norms"]))
            below = jnp.cumsum(jnp.where(seen, sums["norms"], 0))
            middle = jnp.argmax(2 * below >= below[-1])
            median = 2.0 ** (bins[middle] + 1).astype(jnp.float32)
            factor = self.factor
            if self.looks_again:
                factor = jnp.where(params["arrived"], self.factor, self.first_factor)
            unit = {"unit": factor * median, "curvature": self.factor * median}
            if not self.looks_again:
                return unit
            shares, squares, noise = sums["shares"], sums["squares"], scales["squares"]
            foreseen = self.model.foreseen_shares(unravel(params["start"]))
            found = (axes_of if self._whitened else scales_of)(shares, squares, noise, foreseen)
            axes = jnp.where(params["arrived"], found, self._identity(params["start"]))
            return {**params, **unit, "axes": axes, "arrived": jnp.bool_(True)}

        blocks = {"norms": Block(jnp.float32(1), 0.5 if self.looks_again else 1.0, "mean")}
        if self.looks_again:
            # Squares of shares have the sum one: no norm of a record's part is larger.
            blocks |= {name: Block(NORM, 0.25, "mean") for name in ("shares", "squares")}
        return (Opening(statistics, blocks, update),)

    def marginal(self, params: Params) -> Any:
        """The model with its unit, and perhaps with axes and a start."""
        units = {"score_unit": params["unit"]}
        if isinstance(self.model, HasCurvatureUnit):
            units["curvature_unit"] = params["curvature"]
        if not self.looks_again:
            return replace(self.model, **units)
        axes, start = params["axes"], params["start"]
        start = jnp.linalg.solve(axes, start) if self._whitened else start / axes
        return replace(self.model, **units, axes=axes, starts_at=start)

    def _identity(self, like: jax.Array) -> jax.Array:
        """Axes of the coordinates given."""
        return jnp.eye(like.size, dtype=like.dtype) if self._whitened else jnp.ones_like(like)


def scales_of(
    shares: jax.Array, squares: jax.Array, noise: jax.Array, foreseen: jax.Array
) -> jax.Array:
    """Scales at which the entries of scores have about one mean square.

    A score times the scales has the norm that it had, in the mean square. Entries that hide in the
    noise have what is foreseen, if that hides, too.

    Parameters
    ----------
    shares, squares : arrays of shape (P,)
        Noisy sums, over records, of the sizes of entries over the norm, and of their squares.
    noise : float
        Standard deviation of the noise.
    foreseen : array of shape (P,)
        Mean squares that made-up records have; zero where nothing is foreseen.
    """
    shares, squares, noise, foreseen = double((shares, squares, noise, foreseen))
    doubt, n = _DOUBT * noise, _counted(squares)
    hidden = doubt**2 / n
    least = jnp.where(foreseen > 0, jnp.clip(foreseen * n, hidden / _FARTHEST, hidden), hidden)
    # The mean square is at least the square of the mean, which noise hides less. From the doubt on
    # the mean counts for more and more, and at one and a half times the doubt for all that it is.
    mean = jnp.minimum(shares, 3 * jnp.maximum(shares - doubt, 0))
    known = jnp.maximum(jnp.maximum(mean**2 / n, squares - doubt), least)
    return single(jnp.sqrt(n / len(known) / jnp.maximum(known, _LEAST * n)))


def axes_of(
    shares: jax.Array, moments: jax.Array, noise: jax.Array, foreseen: jax.Array
) -> jax.Array:
    """Axes in which entries of scores have one mean square, and are uncorrelated, (P, P).

    Parameters
    ----------
    shares, foreseen : arrays of shape (P,)
        As in `scales_of`.
    moments : array of size P^2
        Noisy sum of the second moments of entries over the norm.
    noise : float
    """
    p = len(shares)
    moments = moments.reshape(p, p)
    scales = double(scales_of(shares, jnp.diag(moments), noise, foreseen))
    moments, noise = double((moments, noise))
    # Of entries that hide in the noise, no correlation is known.
    unit = p / _counted(jnp.diag(moments))
    doubt = unit * noise * scales**2
    clear = doubt < _CLEAR
    found = unit * scales[:, None] * (moments + moments.T) / 2 * scales
    found = jnp.where(clear[:, None] & clear & ~jnp.eye(p, dtype=bool), found, jnp.eye(p))
    # Of the mean doubt; half of it, as off the diagonal two entries were averaged.
    variance = jnp.sum(jnp.where(clear, doubt, 0)) ** 2 / jnp.maximum(jnp.sum(clear), 1) ** 2 / 2
    axes = whitening_axes(found, variance, jnp.asarray(p**0.5))
    return single(scales[:, None] * double(axes))


def _counted(squares: jax.Array) -> jax.Array:
    """Noisy number of records: the squares of each have the sum one."""
    return jnp.maximum(jnp.sum(squares), 1)


@pytree
@dataclass(frozen=True)
class AmortisedStart(WithScoreUnit):
    """A model with an amortised guide, whose typical score is released before the rounds."""
