"""The private sum: the only code that aggregates training records.

Every solver is a loop over ``update(private_sum(query))``. In round ``t``

1. each record enters the batch independently with probability ``q`` (Poisson sampling);
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

Arithmetic is plain floating point ("fast"): `Records` are summed in float32 and the noise is a float32
Gaussian, so the guarantee is the idealised one of real arithmetic. An exact integer implementation replaces
`_clipped_sum` (with the ``weighted_sum`` that each kind of contribution brings) and `add_noise`, and hands out the
release in units of the clipping norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

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

# Squared norms below the first are taken for zero, and contributions whose squared norm exceeds the second are
# dropped. Between them, what float32 squares lose to underflow (each below 2^-126) is less than a rounding error.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-60, 2.0**120


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
    """

    steps: tuple[GaussianSteps, ...]
    n_chains: int = 1

    @property
    def n_steps(self) -> int:
        """Rounds of one chain."""
        return sum(piece.steps for piece in self.steps)

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.steps[0].sampling_rate

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
        below = rate if rate == 1 else rate * (1 - _RATE_MARGIN)
        return Mechanism(
            rate=np.float32(rate),
            log_survival=np.float64(-np.inf if rate == 1 else math.log1p(-below)),
            sigmas=sigmas,
            ends=ends,
            n_steps=np.int32(self.n_steps),
        )


class Mechanism(NamedTuple):
    """`MechanismSpec` as arrays (traced: new values compile nothing)."""

    rate: Any
    log_survival: Any
    sigmas: Any
    ends: Any
    n_steps: Any

    def noise_multiplier(self, step):
        """Noise multiplier (standard deviation over clipping norm) in force at a step."""
        return jnp.asarray(self.sigmas)[jnp.sum(jnp.asarray(self.ends) <= step)]


class Block(NamedTuple):
    """Clipping norm (traced) and budget share (a Python float; the shares of a round sum to at most one)."""

    clipping_norm: Any
    share: float = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RankOne:
    """A contribution ``left right'`` (K x d) that is never formed: the gradient of a generalised linear model."""

    left: jax.Array
    right: jax.Array

    def scaled(self, factor):
        """Contribution times a number."""
        return RankOne(self.left * factor, self.right)

    def squared_norms(self, clipping_norm):
        """Squared norm of each record's contribution, in units of the clipping norm."""
        return _product(_squares(self.left / clipping_norm), _squares(self.right))

    def weighted_sum(self, weights):
        """Sum over the batch, (K, d); a record of zero weight contributes zero, whatever it holds."""
        left = jnp.where((weights > 0)[:, None], self.left * weights[:, None], 0)
        return _summed_outer(left, self.right, weights)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quadratic:
    """A contribution ``weight (x) vector vector'`` (K x d x K x d), never formed per record: a GLM's curvature."""

    weight: jax.Array  # (K, K)
    vector: jax.Array  # (d,)

    def scaled(self, factor):
        """Contribution times a number."""
        return Quadratic(self.weight * factor, self.vector)

    def squared_norms(self, clipping_norm):
        """Squared norm of each record's contribution, in units of the clipping norm."""
        return _product(_squares(self.weight / clipping_norm), _squares(self.vector) ** 2)

    def weighted_sum(self, weights):
        """Sum over the batch, (K, d, K, d); a record of zero weight contributes zero, whatever it holds."""
        keep = (weights > 0)[:, None, None, None]
        left = self.weight[:, :, :, None] * weights[:, None, None, None] * self.vector[:, None, None, :]
        _, k, _, d = left.shape
        flat = jnp.where(keep, left, 0).reshape(-1, k * k * d)
        return _summed_outer(flat, self.vector, weights).reshape(k, k, d, d).transpose(0, 2, 1, 3)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scattered:
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

    def scaled(self, factor):
        """Contribution times a number."""
        return Scattered(self.rows, self.values * factor, self.n_rows)

    def squared_norms(self, clipping_norm):
        """Squared norm of each record's contribution, in units of the clipping norm."""
        distinct = (self.rows[:, 1:] > self.rows[:, :-1]) | (self.rows[:, 1:] == self.n_rows)
        return jnp.where(distinct.all(axis=1) & (self.rows[:, 0] >= 0), _squares(self.values / clipping_norm), jnp.nan)

    def weighted_sum(self, weights):
        """Sum over the batch, (n_rows, K); a record of zero weight contributes zero, whatever it holds."""
        column = weights[:, None, None]
        values = jnp.where(column > 0, self.values * column, 0).reshape(-1, self.values.shape[-1])
        total = jnp.zeros((self.n_rows, values.shape[1]), values.dtype)
        return total.at[self.rows.reshape(-1)].add(values, mode="drop")


@dataclass(frozen=True)
class _Dense:
    """A contribution that is an array (any shape), one per record."""

    value: jax.Array

    def squared_norms(self, clipping_norm):
        return _squares(self.value / clipping_norm)

    def weighted_sum(self, weights):
        column = weights.reshape((-1,) + (1,) * (self.value.ndim - 1))
        return jnp.sum(jnp.where(column > 0, self.value * column, 0), axis=0)


def _summed_outer(left, right, weights):
    """``left' right`` without the rows of zero weight, of which `left` is clear but `right` may not be.

    A row of `right` that is not finite makes the product so; only then is it worth a pass over `right` to clear it.
    """

    def cleared():
        return multiply(left.T, jnp.where((weights > 0)[:, None], right, 0))

    # Reduced precision, which some accelerators default to, would let a contribution exceed its norm.
    multiply = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    product = multiply(left.T, right)
    return jax.lax.cond(jnp.isfinite(product).all(), lambda: product, cleared)


def _squares(values):
    flat = values.reshape(values.shape[0], -1)
    total = jnp.sum(jnp.square(flat), axis=1)
    return jnp.where(total < _SMALLEST_SQUARE, 0, total)  # NaN stays NaN


def _product(one, other):
    """Product of the squared norms of two factors; NaN where a factor taken for zero might hide a large product."""
    hidden = (jnp.minimum(one, other) == 0) & (jnp.maximum(one, other) > 2.0**20)
    return jnp.where(hidden, jnp.nan, one * other)


def _is_structured(part):
    return isinstance(part, (RankOne, Quadratic, Scattered))


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


def clipping_weights(contributions, clipping_norm, included):
    """Factors that clip a batch of contributions to norm 1 **in units of the clipping norm**.

    Total: any contribution at all, of NaN, infinities, huge or denormal numbers, gets a finite factor in
    [0, 1] such that the scaled contribution has norm at most 1; what is not finite, and a norm whose square
    leaves the float32 range, gets zero.

    Parameters
    ----------
    contributions : pytree of arrays, RankOne, Quadratic or Scattered, batched over a leading axis of length B
    clipping_norm : scalar, positive
    included : bool array of shape (B,)

    Returns
    -------
    weights : array of shape (B,)
        Scaled contribution = weight * contribution / clipping_norm.
    """
    parts, _ = _structured(contributions)
    square = sum(part.squared_norms(clipping_norm) for part in parts)
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(contributions))
    # A float32 sum of `size` squares is off by at most about size * 2^-24: stay under the clipping norm all the same.
    shortened = 1 / (1 + (size + 16) * 2.0**-23)
    usable = included & (square > 0) & (square < _LARGEST_SQUARE)  # NaN compares false
    return jnp.where(usable, jnp.minimum(1, shortened * jax.lax.rsqrt(jnp.where(usable, square, 1))), 0)


def contribution_norm(contribution):
    """l2 norm of one record's contribution (a pytree of arrays, RankOne, Quadratic or Scattered)."""
    parts, _ = _structured(jax.tree.map(lambda leaf: leaf[None], contribution))
    return jnp.sqrt(sum(part.squared_norms(1.0) for part in parts)[0])


def _clipped_sum(contributions, clipping_norm, included):
    """Sum over a chunk of contributions clipped to norm 1 in units of `clipping_norm`."""
    weights = clipping_weights(contributions, clipping_norm, included) / clipping_norm
    parts, treedef = _structured(contributions)
    return jax.tree.unflatten(treedef, [part.weighted_sum(weights) for part in parts])


def sample_chunk(key, mechanism: Mechanism, last, n_records, slots=CHUNK):
    """Next `slots` candidate slots of a Poisson sample, as record indices after `last`, below `n_records`.

    Gaps between sampled indices are independent Geometric(q) variables, so a batch costs O(qN). A gap beyond
    ``8/q`` is cut there without choosing the record it lands on, and drawing goes on: by memorylessness
    that is the same law, and it keeps the 53-bit uniform away from its tail, where its grid would distort
    the chance of inclusion. At ``q = 1`` the logarithm of the survival probability is minus infinity: every gap is 1
    and every record is included.

    Returns
    -------
    indices : int array of shape (slots,)
        Record indices, zero where not included.
    included : bool array of shape (slots,)
    last : int
        Position to go on from; at least ``n_records - 1`` when the pass is complete.
    """
    bits = jax.random.bits(key, (slots,), jnp.uint64) >> 11
    uniform = (bits.astype(jnp.float64) + 1) * 2.0**-53  # in (0, 1]: its logarithm is finite
    longest = jnp.ceil(8 / mechanism.rate.astype(jnp.float64))
    gap = jnp.floor(_log(uniform) / mechanism.log_survival) + 1
    chosen, gap = gap <= longest, jnp.minimum(gap, longest).astype(jnp.int64)
    position = last + jnp.cumsum(gap)  # 64 bits: cannot overflow
    included = chosen & (position >= 0) & (position < n_records)
    indices = jnp.where(included, position, 0).astype(jnp.int32)
    return indices, included, position[-1]


def _log(x):
    """Natural logarithm of positive, normal float64 numbers, by arithmetic that vectorises; XLA calls libm for each."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64)
    mantissa = jax.lax.bitcast_convert_type((bits & (2**52 - 1)) | (1023 << 52), jnp.float64)  # in [1, 2)
    upper = mantissa > math.sqrt(2)
    mantissa, exponent = jnp.where(upper, mantissa / 2, mantissa), (bits >> 52) - 1023 + upper
    ratio = (mantissa - 1) / (mantissa + 1)
    series = jnp.zeros_like(ratio)  # log m = 2 artanh(ratio) = ratio (2 + 2/3 ratio^2 + ...); |ratio| < 0.172
    for k in range(21, 0, -2):
        series = series * ratio**2 + 2 / k
    return exponent.astype(jnp.float64) * math.log(2) + ratio * series


def add_noise(key, sums, scales):
    """``sums + scales * N(0, I)``: one draw for all blocks of a release.

    Parameters
    ----------
    sums, scales : dicts with the same keys
        Arrays, and the standard deviation of each one's noise.
    """
    flat, unravel = ravel_pytree(sums)
    noise = unravel(jax.random.normal(key, flat.shape, jnp.float32).astype(flat.dtype))
    return {name: jax.tree.map(lambda x, z, s=scales[name]: x + s * z, sums[name], noise[name]) for name in sums}


def noise_scales(blocks: Mapping[str, Block], mechanism: Mechanism, step):
    """Standard deviation of the noise in each block's release at a step (public).

    Raises
    ------
    ValueError
        If the budget shares of the blocks sum to more than one.
    """
    total = sum(block.share for block in blocks.values())
    if not total <= 1 + 1e-9 or any(block.share <= 0 for block in blocks.values()):
        shares = {name: block.share for name, block in blocks.items()}
        raise ValueError(f"Budget shares must be positive and sum to at most 1, got {shares}.")
    sigma = mechanism.noise_multiplier(step)
    return {name: sigma * block.clipping_norm / math.sqrt(block.share) for name, block in blocks.items()}


def _chunk_sums(query, blocks, batch, included):
    contributions = jax.vmap(query)(batch)
    if set(contributions) != set(blocks):
        raise ValueError(f"The query returned blocks {sorted(contributions)}, declared are {sorted(blocks)}.")
    return {name: _clipped_sum(contributions[name], blocks[name].clipping_norm, included) for name in blocks}


def zero_sums(query, blocks, batch):
    """Zeros with the shapes of a release; `batch` is a batch of one record, of which only the shapes count."""
    shapes = jax.eval_shape(lambda b: _chunk_sums(query, blocks, b, jnp.ones(1, bool)), batch)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def private_sum(
    query: Callable[[Any], Mapping[str, Any]],
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    keys,
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
    keys : FitKeys
        Of this round: ``keys.sampling`` and ``keys.noise`` must never be used for another one.
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

    def over(group, i, sums):
        slots = CHUNK if group.width is None else max(_FEWEST, min(CHUNK, _ENTRIES // group.width))

        def next_chunk(carry):
            i, last, sums = carry
            key = jax.random.fold_in(keys.sampling, i)
            indices, included, last = sample_chunk(key, mechanism, last, group.stop, slots)
            chunk = _chunk_sums(query, blocks, records.take(indices, group.width), included)
            return i + 1, last, jax.tree.map(jnp.add, sums, chunk)

        start = i, group.start.astype(jnp.int64) - 1, sums
        i, _, sums = jax.lax.while_loop(lambda carry: carry[1] < group.stop - 1, next_chunk, start)
        return i, sums

    groups = records.groups()
    # In double precision: in single, rounding a sum of ten million would carry a record further than its clipping norm.
    one = jax.eval_shape(lambda: records.take(jnp.zeros(1, jnp.int32), groups[0].width))
    i, sums = jnp.int32(0), jax.tree.map(lambda x: x.astype(jnp.float64), zero_sums(query, blocks, one))
    for group in groups:  # each its own program, over its own part of one Poisson sample
        i, sums = over(group, i, sums)

    # `sums` are in units of the clipping norm: one record moves the concatenation, block b weighted by
    # sqrt(share_b), by at most 1. The noise has standard deviation sigma in the same weighted units.
    sigma = noise_scales({name: Block(1.0, block.share) for name, block in blocks.items()}, mechanism, step)
    noisy = add_noise(keys.noise, sums, sigma)
    noisy = jax.tree.map(lambda x: x.astype(jnp.float32), noisy)
    return {name: jax.tree.map(lambda x, c=blocks[name].clipping_norm: x * c, noisy[name]) for name in noisy}
