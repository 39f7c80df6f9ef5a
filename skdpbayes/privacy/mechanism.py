"""The private sum: the only code that aggregates training records.

Every solver is a loop over ``update(private_sum(query))``. In round ``t``

1. each record enters the batch independently with probability ``q`` (Poisson sampling; `draws`);
2. ``query`` maps one record to one contribution, made of one or more named blocks;
3. every block is clipped to its norm, the blocks are summed over the batch, and Gaussian noise is added;
4. the noisy sums, and nothing else, go to ``update``.

The blocks of a round are **one** Gaussian release. A block with clipping norm ``C_b`` and budget share
``p_b`` gets noise of standard deviation ``sigma * C_b / sqrt(p_b)``. Measured in units of its noise, a record
moves the release by at most ``sqrt(sum_b p_b) / sigma = 1 / sigma``, so that accounting needs ``(q, sigma, T)``
alone, however many blocks there are and whatever their clipping norms. A clipping norm may depend on
earlier releases (adaptive clipping), never on data.

What one record can do to a release is decided here and nowhere else: a contribution that is not finite, or
larger than its clipping norm, or that comes from a batch slot that was not sampled, is dealt with in
`_clipped_sum`, whatever the query returned.

Sums and noise are integers (``numerics="secure"``). The grid is such that the noise of every block, measured in its
steps, is the one integer law of `lattice`; a clipping norm then is `Mechanism.units` steps. A contribution is rounded
to the grid by itself, so that its norm is at most the clipping norm, exactly; sums of integers are exact in any order.
The release is the integer sum plus integer noise, and only then becomes a floating-point number. `docs/arithmetic.md`
has the proof. With ``numerics="fast"`` nothing is rounded and the noise is a floating-point number: then the guarantee
is the idealised one of real arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.privacy.draws import Draw
from skdpbayes.privacy.lattice import levels_for, noise_std

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import GaussianSteps

CHUNK = 384
"""Batch slots processed at a time. A multiple of 64; larger chunks waste slots, smaller ones launch overhead."""

_ENTRIES, _FEWEST = 2**13, 8  # of `RaggedRows`: listed columns in a chunk, and slots, where lists are long

MAX_SCHEDULE = 64
"""Most pieces of a piecewise constant noise schedule (a static shape, so that no schedule recompiles)."""

# Gaps are drawn from uniforms of 53 bits; the chance that a record is sampled then differs from q by a relative
# error far below this margin, by which the sampler's rate stays *under* the rate that the accountant charges.
_RATE_MARGIN = 2.0**-20

# Grid steps in a clipping norm, such that the sum over a chunk is exact in double precision; and where there is no
# noise that says how fine a grid makes sense.
_MOST_UNITS, _UNITS_WITHOUT_NOISE = 2.0**43, 2.0**37


@dataclass(frozen=True)
class MechanismSpec:
    """Everything public that decides what the mechanism does; the run and the accountant read the same object.

    Attributes
    ----------
    steps : tuple of GaussianSteps
        Consecutive pieces of the run; each has a noise multiplier, a sampling rate and a number of steps.
        The sampling rate is the same in all of them.
    n_chains : int
        Chains that sample and add noise independently; the accountant composes all of them.
    numerics : {"secure", "fast"}
        Integer sums and integer noise, or floating-point numbers.
    """

    steps: tuple[GaussianSteps, ...]
    n_chains: int = 1
    numerics: str = "secure"

    @property
    def n_steps(self) -> int:
        """Rounds of one chain."""
        return sum(piece.steps for piece in self.steps)

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.steps[0].sampling_rate

    @property
    def log_survival(self) -> float:
        """Logarithm of the probability that a record stays out of a batch, a little above ``log(1 - q)``."""
        rate = self.sampling_rate
        return -math.inf if rate == 1 else math.log1p(-rate * (1 - _RATE_MARGIN))

    @property
    def levels(self) -> int | None:
        """Of `integer_noise`; None if the noise is to be floating-point numbers."""
        return levels_for(min(piece.noise_multiplier for piece in self.steps)) if self.numerics == "secure" else None

    def check_records(self, n_records: int) -> None:
        """Raise a `ValueError` if integer sums over so many records, whose number is public, could overflow."""
        if self.levels is None:
            return
        least = min(piece.noise_multiplier for piece in self.steps)
        units = min(noise_std(self.levels) / least, _MOST_UNITS) if least > 0 else _UNITS_WITHOUT_NOISE
        most = 2.0**63 / units  # in a batch, at full length and in one direction
        if n_records * self.sampling_rate > 0.99 * most:
            raise ValueError(
                f"numerics='secure' sums at most {0.99 * most:.3g} records with a noise multiplier as small as "
                f"{least:.3g}: take a smaller sampling_rate or epsilon, or numerics='fast'."
            )

    def composed(self) -> tuple[GaussianSteps, ...]:
        """Steps that the accountant has to compose: every chain's."""
        return self.steps * self.n_chains

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
        ends = np.full(MAX_SCHEDULE, np.iinfo(np.int32).max, np.int32)
        sigmas = np.full(MAX_SCHEDULE, np.float32(np.inf))  # no step lies beyond the schedule; noise would be infinite
        ends[: len(self.steps)] = np.cumsum([piece.steps for piece in self.steps])
        exact = np.array([piece.noise_multiplier for piece in self.steps])
        rounded = exact.astype(np.float32)  # never below what is charged
        sigmas[: len(self.steps)] = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
        return Mechanism(
            rate=np.float32(rate),
            sigmas=sigmas,
            ends=ends,
            n_steps=np.int32(self.n_steps),
            noise_std=None if self.levels is None else np.float64(noise_std(self.levels)),
        )


class Mechanism(NamedTuple):
    """`MechanismSpec` as arrays (traced: new values compile nothing).

    Attributes
    ----------
    rate, sigmas, ends, n_steps
        Sampling rate, noise multipliers, the step at which each ends, and steps in all.
    noise_std : float or None
        Standard deviation of the integer noise; None if the noise is not of integers.
    """

    rate: Any
    sigmas: Any
    ends: Any
    n_steps: Any
    noise_std: Any

    def noise_multiplier(self, step):
        """Noise multiplier (standard deviation over clipping norm) in force at a step."""
        return jnp.asarray(self.sigmas)[jnp.sum(jnp.asarray(self.ends) <= step)]

    def units(self, step, share):
        """Grid steps in the clipping norm of a block with a budget share: the noise over its noise multiplier."""
        sigma = self.noise_multiplier(step).astype(jnp.float64)
        units = jnp.minimum(self.noise_std * math.sqrt(share) / jnp.where(sigma > 0, sigma, 1), _MOST_UNITS)
        return jnp.where(sigma > 0, units, _UNITS_WITHOUT_NOISE)


class Block(NamedTuple):
    """Clipping norm (traced) and budget share (a Python float; the shares of a round sum to at most one)."""

    clipping_norm: Any
    share: float = 1.0


# Contributions. Each kind is a product of a *head*, which is scaled when the contribution is clipped, and of vectors
# that stay; the product is not formed for single records. `gain` is the norm of what stays, so that the norm of a
# contribution is that of its head times its gain. Products and sums of integers are exact.


class _Structured:
    head: Any
    with_head: Any

    def scaled(self, factor):
        """Contribution times a number."""
        return self.with_head(self.head * factor)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RankOne(_Structured):
    """A contribution ``left right'`` (K x d) that is never formed: the gradient of a generalised linear model."""

    left: jax.Array
    right: jax.Array

    head = property(lambda self: self.left)

    def with_head(self, left):
        """Contribution with another head."""
        return RankOne(left, self.right)

    def prepared(self, units):
        """Batch with `right` finite and, if there are units, of integers; and a bound on its length."""
        right, scale, length = _vectors(self.right, units, 2)
        return RankOne(self.left.astype(float) / scale[:, None], right), length

    def total(self):
        """Sum over the batch, (K, d)."""
        return _outer_sum(self.left, self.right)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quadratic(_Structured):
    """A contribution ``weight (x) vector vector'`` (K x d x K x d), never formed per record: a GLM's curvature."""

    weight: jax.Array  # (K, K)
    vector: jax.Array  # (d,)

    head = property(lambda self: self.weight)

    def with_head(self, weight):
        """Contribution with another head."""
        return Quadratic(weight, self.vector)

    def prepared(self, units):
        """Batch with `vector` finite and, if there are units, of integers; and its squared length."""
        vector, scale, length = _vectors(self.vector, units, 3)
        gain = length**2 if units is None else _squares(vector)
        return Quadratic(self.weight.astype(float) / scale[:, None, None] ** 2, vector), gain

    def total(self):
        """Sum over the batch, (K, d, K, d)."""
        left = self.weight[:, :, :, None] * self.vector.astype(self.weight.dtype)[:, None, None, :]
        _, k, _, d = left.shape
        return _outer_sum(left.reshape(-1, k * k * d), self.vector).reshape(k, k, d, d).transpose(0, 2, 1, 3)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scattered(_Structured):
    """A contribution (n_rows x K) that is zero but in a few rows.

    Attributes
    ----------
    rows : int array of shape (L,)
        In increasing order, without repetition: a record for which they are not contributes nothing, as its norm would
        not be that of the values. ``n_rows`` marks an entry that is not used.
    values : array of shape (L, K)
    n_rows : int
    """

    rows: jax.Array
    values: jax.Array
    n_rows: int = field(metadata={"static": True})

    head = property(lambda self: self.values)

    def with_head(self, values):
        """Contribution with another head."""
        return replace(self, values=values)

    def prepared(self, units):
        """Batch; and one, or NaN where rows are not as they must be."""
        del units
        distinct = (self.rows[:, 1:] > self.rows[:, :-1]) | (self.rows[:, 1:] == self.n_rows)
        gain = jnp.where(distinct.all(axis=1) & (self.rows[:, 0] >= 0), 1, jnp.nan)
        return self.with_head(self.values.astype(float)), gain

    def total(self):
        """Sum over the batch, (n_rows, K)."""
        values = self.values.reshape(-1, self.values.shape[-1])
        total = jnp.zeros((self.n_rows, values.shape[1]), values.dtype)
        return total.at[self.rows.reshape(-1)].add(values, mode="drop")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Dense:
    """A contribution that is an array (any shape), one per record."""

    head: jax.Array

    def with_head(self, head):
        return _Dense(head)

    def prepared(self, units):
        del units
        return _Dense(self.head.astype(float)), jnp.ones(self.head.shape[0])

    def total(self):
        return jnp.sum(self.head, axis=0)


def _vectors(vectors, units, root):
    """A batch of vectors that are finite, what they were multiplied by, and bounds on their lengths.

    If there are units, vectors are rounded, to be nearly as long as the given root of `units`. They are multiplied by
    powers of two, which keep zeros and ones, and whatever has few binary digits, exact. A vector that is not finite
    becomes zero, with a length that is not finite.
    """
    length = jnp.sqrt(_squares(vectors))
    usable = (length > 0) & jnp.isfinite(length)
    if units is None:
        return jnp.where(usable[:, None], vectors, 0), jnp.ones_like(length), length
    bits = jnp.floor(jnp.log2(units) / root).astype(jnp.int64)
    exponent = (jax.lax.bitcast_convert_type(jnp.where(usable, length, 1), jnp.int64) >> 52) - 1022  # rounded up
    scale = jax.lax.bitcast_convert_type((bits - exponent + 1023) << 52, jnp.float64)
    # At most 2^21 in size: exact in single precision, which takes half of the memory.
    rounded = _single(jnp.round(jnp.where(usable[:, None], vectors.astype(float) * scale[:, None], 0)))
    return rounded, scale, length * scale + math.sqrt(vectors.shape[1]) / 2


def _outer_sum(left, right):
    # Reduced precision, which some accelerators default to, would let a contribution exceed its norm.
    return jnp.matmul(left.T, right.astype(left.dtype), precision=jax.lax.Precision.HIGHEST)


def _squares(values):
    flat = values.astype(float).reshape(values.shape[0], -1)  # double in the compiled loop
    return jnp.sum(jnp.square(flat), axis=1)


def _is_structured(part):
    return isinstance(part, _Structured)


def _structured(contribution):
    """The parts of a block: arrays or structured contributions, in the order of its pytree."""
    leaves, treedef = jax.tree.flatten(contribution, is_leaf=_is_structured)
    return [x if _is_structured(x) else _Dense(x) for x in leaves], treedef


def scaled(contribution, factor):
    """One record's contribution times a number."""
    return jax.tree.map(
        lambda part: part.scaled(factor) if _is_structured(part) else part * factor,
        contribution,
        is_leaf=_is_structured,
    )


def contribution_norms(contributions):
    """l2 norms of a batch of contributions (a pytree of arrays, RankOne, Quadratic or Scattered), as given."""
    prepared = [part.prepared(None) for part in _structured(contributions)[0]]
    return jnp.sqrt(sum(_squares(part.head) * gain**2 for part, gain in prepared))


def contribution_norm(contribution):
    """l2 norm of one record's contribution."""
    return contribution_norms(jax.tree.map(lambda leaf: leaf[None], contribution))[0].astype(jnp.float32)


def _clipped_sum(contributions, clipping_norm, included, units):
    """Sum over a chunk of contributions clipped to their norm, which is `units`, or 1 if that is None.

    Total: any contribution at all, of NaN, infinities, huge or denormal numbers, counts as something of norm at most
    `units`; what is not finite, or so long that its squared norm is not, counts as zero. With `units`, all that is
    summed are integers.
    """
    limit = 1.0 if units is None else units
    parts, treedef = _structured(contributions)
    parts, gains = zip(*(part.prepared(units) for part in parts), strict=True)
    heads = [part.head * (limit / clipping_norm.astype(float)) for part in parts]
    square = sum(_squares(head) * gain**2 for head, gain in zip(heads, gains, strict=True))
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(contributions))
    most = limit * (1 - (size + 16) * 2.0**-50)  # a sum of `size` squares is off by at most about size * 2^-53
    if units is not None:  # rounding moves each entry of a head by at most one half
        most = most - sum(
            math.sqrt(math.prod(head.shape[1:])) / 2 * gain for head, gain in zip(heads, gains, strict=True)
        )
    usable = included & (square > 0) & jnp.isfinite(square) & (most > 0)  # NaN compares false
    weight = jnp.where(usable, jnp.minimum(1, most / jnp.sqrt(jnp.where(usable, square, 1))), 0)

    def clipped(part, head):
        column = weight.reshape((-1,) + (1,) * (head.ndim - 1))
        head = jnp.where(column > 0, head * column, 0)
        if units is not None:
            return part.with_head(jnp.round(head)).total().astype(jnp.int64)
        head = _single(head)
        return part.with_head(jnp.where(jnp.isfinite(head), head, 0)).total()

    totals = [clipped(part, head) for part, head in zip(parts, heads, strict=True)]
    return jax.tree.unflatten(treedef, totals)


def _single(x):
    return x.astype(jnp.float32)


def add_noise(noise, sums, scales):
    """Noisy sums, ``sums + scales * noise``: one draw for all blocks of a release.

    Parameters
    ----------
    noise : array
        At least as long as all sums together.
    sums, scales : dicts with the same keys
        Arrays, and by what the noise of each one is multiplied.
    """
    flat, unravel = ravel_pytree(sums)
    noise = unravel(noise[: flat.size].astype(flat.dtype))
    return {name: jax.tree.map(lambda x, z, s=scales[name]: x + s * z, sums[name], noise[name]) for name in sums}


def noise_scales(blocks: Mapping[str, Block], mechanism: Mechanism, step):
    """Standard deviation of the noise in each block's release at a step (public).

    Raises
    ------
    ValueError
        If the budget shares of the blocks sum to more than one.
    """
    _check_shares(blocks)
    sigma = mechanism.noise_multiplier(step)
    return {name: sigma * block.clipping_norm / math.sqrt(block.share) for name, block in blocks.items()}


def _check_shares(blocks):
    total = sum(block.share for block in blocks.values())
    if not total <= 1 + 1e-9 or any(block.share <= 0 for block in blocks.values()):
        shares = {name: block.share for name, block in blocks.items()}
        raise ValueError(f"Budget shares must be positive and sum to at most 1, got {shares}.")


def _chunk_sums(query, blocks, units, batch, included):
    contributions = jax.vmap(query)(batch)
    if set(contributions) != set(blocks):
        raise ValueError(f"The query returned blocks {sorted(contributions)}, declared are {sorted(blocks)}.")
    return {
        name: _clipped_sum(contributions[name], jnp.asarray(blocks[name].clipping_norm), included, units[name])
        for name in blocks
    }


def zero_sums(query, blocks, batch):
    """Zeros with the shapes of a release; `batch` is a batch of one record, of which only the shapes count."""
    units = dict.fromkeys(blocks, None)
    shapes = jax.eval_shape(lambda b: _chunk_sums(query, blocks, units, b, jnp.ones(1, bool)), batch)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), shapes)


def private_sum(
    query: Callable[[Any], Mapping[str, Any]],
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    draw: Draw,
    step,
    records,
):
    """Noisy sums, over a Poisson sample of the records, of clipped contributions.

    Parameters
    ----------
    query : callable
        Maps one record to ``{block name: contribution}``; vectorised here, so it cannot see two records.
    blocks : mapping of str to Block
        Clipping norm and budget share of each block of `query`.
    mechanism : Mechanism
    draw : Draw
        Batch and noise, never used for another round.
    step : int
        Round; it selects the noise multiplier.
    records : Records
        ``groups()`` and ``take(indices, width)``.

    Returns
    -------
    release : dict
        For each block, ``sum_i clip(contribution_i, C) + N(0, (sigma C)^2 / share)`` (an estimate of q times
        the full-data sum), with the shapes of one contribution.
    """
    _check_shares(blocks)
    exact = mechanism.noise_std is not None
    units = {name: mechanism.units(step, block.share) if exact else None for name, block in blocks.items()}

    def over(i, group, sums):
        slots = CHUNK if group.width is None else max(_FEWEST, min(CHUNK, _ENTRIES // group.width))
        stop = draw.starts[i + 1]

        def next_chunk(carry):
            place, sums = carry
            places = place + jnp.arange(slots)
            included = places < stop
            indices = draw.indices.at[jnp.where(included & ~draw.full, places, 0)].get(mode="promise_in_bounds")
            indices = jnp.where(included, jnp.where(draw.full, places, indices), 0).astype(jnp.int32)
            chunk = _chunk_sums(query, blocks, units, records.take(indices, group.width), included)
            return place + slots, jax.tree.map(jnp.add, sums, chunk)

        return jax.lax.while_loop(lambda carry: carry[0] < stop, next_chunk, (draw.starts[i], sums))[1]

    groups = records.groups()
    one = jax.eval_shape(lambda: records.take(jnp.zeros(1, jnp.int32), groups[0].width))
    # Sums of floats in double precision: in single, rounding ten million would carry a record beyond its clipping norm.
    kind = jnp.int64 if exact else jnp.float64
    sums = jax.tree.map(lambda x: x.astype(kind), zero_sums(query, blocks, one))
    for i, group in enumerate(groups):  # each its own program, over its own part of one Poisson sample
        sums = over(i, group, sums)

    # `sums` are in units of the clipping norm: one record moves the concatenation, block b weighted by sqrt(share_b),
    # by at most 1. The noise has standard deviation sigma in the same weighted units. (Or both are in grid steps.)
    if exact:
        noise = jnp.where(mechanism.noise_multiplier(step) > 0, draw.noise, 0)
        noisy = add_noise(noise, sums, dict.fromkeys(blocks, 1))
        steps = {name: block.clipping_norm / units[name] for name, block in blocks.items()}
    else:
        scales = noise_scales({name: Block(1.0, block.share) for name, block in blocks.items()}, mechanism, step)
        noisy = jax.tree.map(_single, add_noise(draw.noise, sums, scales))
        steps = {name: block.clipping_norm for name, block in blocks.items()}
    return {name: jax.tree.map(lambda x, s=steps[name]: (x * s).astype(jnp.float32), noisy[name]) for name in noisy}
