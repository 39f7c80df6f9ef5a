"""The private sum: the only code that aggregates training records.

Every solver is a loop over ``update(private_sum(query))``. In round ``t``

1. each record enters the batch independently with probability ``q`` (Poisson sampling; `draws`);
2. ``query`` maps one record to one contribution, made of one or more named blocks;
3. every block is clipped to its norm, the blocks are summed over the batch, and Gaussian noise is
   added;
4. the noisy sums, and nothing else, go to ``update``.

So accounting needs the sampling rate, the noise multiplier and the number of rounds alone:
`private_sum` has the claim and its proof. What one record can do to a release is decided by
`_clipped_sum`, whatever the query returned, and nowhere else.

Sums and noise are integers (``numerics="secure"``). The release is the integer sum plus integer
noise, and only then becomes a floating-point number. With ``numerics="fast"`` nothing is rounded
and the noise is a floating-point number: the guarantee is then the idealised one of real
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from skdpbayes.mechanism.contributions import (
    Contribution,
    Number,
    Part,
    RankOne,
    parts_of,
    squares,
    sum_of,
)
from skdpbayes.mechanism.draws import Draw, largest_batch, noise_of_steps, undrawn
from skdpbayes.mechanism.grid import VECTOR, grid_of
from skdpbayes.mechanism.integer_noise import levels_for, noise_std
from skdpbayes.mechanism.on_device import DeviceNoise
from skdpbayes.mechanism.records import CHUNK, Group, Records, Tree
from skdpbayes.mechanism.spec import Block, Mechanism, MechanismSpec
from skdpbayes.privacy.count import NoisyCount

_SHARE_ERROR = 2.0**-48  # of sums of budget shares, within the margin of `_clipped_sum`

# For `RaggedRows`: listed columns in a chunk; for persons, whose contributions are formed: numbers
# in a chunk. The fewest slots, of which those for persons are a multiple.
_LISTED, _FORMED, _FEWEST = 2**13, 2**22, 8
_STEP = 32  # of slots, where empty ones are expensive: each number of them is another program
_CHUNK_COST = 16  # of a chunk beside that of its slots, in slots
_MOST_CHUNKS = 2**12  # that an accelerator processes at once
_FORMED_AT_ONCE = 2**26  # numbers in contributions that an accelerator forms at once

Release: TypeAlias = dict[str, Any]
"""For each block, a pytree of arrays with the shapes of one contribution."""

Query: TypeAlias = Callable[[Tree], Mapping[str, Contribution]]

_WORD = 2**32


class Sums(NamedTuple):
    """Sums over records, which one word of 64 bits could not hold for any number of them.

    Attributes
    ----------
    high : Release or None
        Multiples of 2^32 in a sum of integers; None if sums are of floating-point numbers.
    low : Release
        What is left of each part, below 2^32, added up; or sums of floating-point numbers.
    """

    high: Release | None
    low: Release


def _in_words(sums: Release) -> Sums:
    """Integer sums over a chunk, or over each of several."""
    high = jax.tree.map(lambda x: x >> 32, sums)
    return Sums(high, jax.tree.map(lambda x: x & (_WORD - 1), sums))


def _carried(sums: Sums) -> Sums:
    """The same integers, whose lower words are below 2^32: many of them may be added up."""
    if sums.high is None:
        return sums
    more = _in_words(sums.low)
    return Sums(jax.tree.map(jnp.add, sums.high, more.high), more.low)


def _as_number(high: jax.Array, low: jax.Array) -> jax.Array:
    """The integer ``high 2^32 + low`` in double precision, however it is divided in two words."""
    carry = low // _WORD
    return (high + carry).astype(float) * _WORD + (low - carry * _WORD).astype(float)


def _clipped_sum(
    contributions: Contribution,
    clipping_norm: jax.Array,
    included: jax.Array,
    units: Number,
    exact: bool,
) -> Tree:
    """Sum over a chunk of contributions clipped to their norm.

    Parameters
    ----------
    contributions : pytree
        One block of a batch.
    clipping_norm : float
        Becomes `units` long.
    included : bool array
        Batch slots that were sampled.
    units : float
    exact : bool
        Whether sums are integers.

    Notes
    -----
    **Formal guarantee.** If `exact`, each slot adds integers of norm at most `units`, and zero if
    it is not included, whatever the query returned: NaN, infinities, huge or denormal numbers. Sums
    are exact, so that a record's share does not depend on the others. Otherwise the same holds in
    real arithmetic.

    *Proof.* Let h be a contribution's head in steps of the grid, of n entries, and g at least the
    norm of its vectors, which are integers (or were made so when records were packed:
    `put_on_grid`, and only where `_with_own_grids` finds the record's own vector). The head is
    multiplied by

        w = min(1, (units (1 - c) - sqrt(n) g / 2) / (|h| g))

    or by zero where that is not positive, and rounded, which moves it by at most sqrt(n) / 2, so
    that the norm of the product is at most ``(w |h| + sqrt(n) / 2) g <= units (1 - c)``. With
    several parts, ``|h| g`` is the root of the sum of squares, and ``sqrt(n) g / 2`` the sum of the
    parts' (Minkowski's inequality). The figures, and the root of the sum of budget shares, have
    relative errors that sum to less than ``c = (size + 16) 2^-50``. What is not finite, and what is
    so long that its square is not, has weight zero. Products are of integers below 2^53, and a
    chunk's sums stay below 2^53 as `units` is at most 2^43 and `CHUNK` below 2^9: both are exact in
    double precision, in any order, and so they are if powers of two go from one factor to the
    other. QED

    Tests that die if it does not hold:
    ``test_attack.py::test_no_record_is_longer_than_the_clipping_norm_in_exact_arithmetic``,
    ``test_attack.py::test_sums_are_exact_and_records_do_not_see_where_they_stand``,
    ``test_mechanism.py::test_any_contribution_is_clipped``,
    ``test_own_vectors.py::test_only_a_records_own_vector_has_its_grid``.
    """
    parts, treedef = parts_of(contributions)
    scale = units / clipping_norm.astype(float)
    prepared = [part.prepared(scale, units, exact) for part in parts]
    heads = [part.head * scale for part, _ in prepared]
    gains = [gain for _, gain in prepared]
    square = sum_of(squares(head) * gain**2 for head, gain in zip(heads, gains, strict=True))
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(contributions))
    # A sum of `size` squares is off by at most about size * 2^-53.
    most = jnp.asarray(units * (1 - (size + 16) * 2.0**-50))
    if exact:  # rounding moves each entry of a head by at most one half
        halves = [math.sqrt(math.prod(head.shape[1:])) / 2 for head in heads]
        most = most - sum_of(half * gain for half, gain in zip(halves, gains, strict=True))
    usable = included & (square > 0) & jnp.isfinite(square)  # NaN compares false
    weight = jnp.where(usable, jnp.minimum(1, most / jnp.sqrt(jnp.where(usable, square, 1))), 0)

    def clipped(part: Part, head: jax.Array) -> jax.Array:
        column = weight.reshape((-1,) + (1,) * (head.ndim - 1))
        # Below zero, rounding alone would be longer than the norm.
        head = jnp.where(column > 0, head * column, 0)
        if exact:
            return part.with_head(jnp.round(head)).total().astype(jnp.int64)
        head = head.astype(jnp.float32)
        return part.with_head(jnp.where(jnp.isfinite(head), head, 0)).total()

    sums = [clipped(part, head) for (part, _), head in zip(prepared, heads, strict=True)]
    return jax.tree.unflatten(treedef, sums)


def add_noise(noise: jax.Array, sums: Tree) -> Tree:
    """Noisy sums: one draw for all blocks of a release.

    Parameters
    ----------
    noise : array
        At least as long as all sums together.
    sums : pytree of arrays
    """
    flat, unravel = ravel_pytree(sums)  # for their size and type: one long array is never formed
    return jax.tree.map(jnp.add, sums, unravel(noise[: flat.size].astype(flat.dtype)))


def noise_scales(
    blocks: Mapping[str, Block], mechanism: Mechanism, step: ArrayLike
) -> dict[str, jax.Array]:
    """Standard deviation of the noise in each block's release at a step (public).

    Raises
    ------
    ValueError
        If the budget shares of the blocks sum to more than one.
    """
    _check_shares(blocks)
    sigma = mechanism.noise_multiplier(step)
    return {
        name: sigma * block.clipping_norm / math.sqrt(block.share) for name, block in blocks.items()
    }


def _check_shares(blocks: Mapping[str, Block]) -> None:
    total = math.fsum(block.share for block in blocks.values())
    if not total <= 1 + _SHARE_ERROR or any(block.share <= 0 for block in blocks.values()):
        shares = {name: block.share for name, block in blocks.items()}
        raise ValueError(f"Budget shares must be positive and sum to at most 1, got {shares}.")


def _chunk_sums(
    query: Query,
    blocks: Mapping[str, Block],
    units: Mapping[str, Number],
    exact: bool,
    batch: Tree,
    included: jax.Array,
) -> Release:
    contributions = jax.vmap(_with_own_grids(query))(batch)
    if set(contributions) != set(blocks):
        raise ValueError(
            f"The query returned blocks {sorted(contributions)}, declared are {sorted(blocks)}."
        )
    norms = {name: jnp.asarray(block.clipping_norm) for name, block in blocks.items()}
    return {
        name: _clipped_sum(contributions[name], norms[name], included, units[name], exact)
        for name in blocks
    }


def _with_own_grids(query: Query) -> Query:
    """Query whose products have a grid if, and only if, their vector is the record's own."""

    def one(record: Tree) -> Mapping[str, Contribution]:
        grid = grid_of(record)

        def known(part: Any) -> Any:
            if not isinstance(part, RankOne):
                return part
            # The same tracer is the same vector, whatever else the query does.
            own = grid is not None and part.right is record[VECTOR]
            return replace(part, grid=grid if own else None)

        out: Mapping[str, Contribution] = jax.tree.map(
            known, query(record), is_leaf=lambda x: isinstance(x, Part)
        )
        return out

    return one


def zero_sums(query: Query, blocks: Mapping[str, Block], batch: Tree) -> Release:
    """Zeros with the shapes of a release, from the shapes of a batch of one record."""
    units = dict.fromkeys(blocks, 1.0)
    shapes = jax.eval_shape(
        lambda b: _chunk_sums(query, blocks, units, False, b, jnp.ones(1, bool)), batch
    )
    zeros: Release = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), shapes)
    return zeros


def private_sum(
    query: Query,
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    draw: Draw,
    step: ArrayLike,
    records: Records,
) -> Release:
    """Noisy sums, over a Poisson sample of the records, of clipped contributions.

    Parameters
    ----------
    query : callable
        Maps one record to ``{block name: contribution}``; vectorised here, so it cannot see two
        records.
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
        For each block, ``sum_i clip(contribution_i, C) + N(0, (sigma C)^2 / share)`` (an estimate
        of q times the full-data sum), with the shapes of one contribution.

    Notes
    -----
    **Formal guarantee.** Given all earlier releases, the release is one round of the
    Poisson-subsampled Gaussian mechanism of the rate and noise multiplier that `mechanism` has at
    this step, so that the rounds compose as `GaussianSteps` do, if (i) `draw` has a Poisson sample
    of at most that rate and independent noise, secret and used once (`draws_of_chain`); (ii)
    `blocks`, and all that `query` holds besides its record, come from public values and earlier
    releases, never from data: so may a clipping norm that adapts; (iii) a record's fields depend
    on no other record, and the compiled query on no batch slot.

    *Proof.* `vmap` gives `query` one record at a time, and sums are exact, so that one record
    changes the sum K_b of block b by its own contribution alone, of norm at most ``units_b``
    (`_clipped_sum`; under ``replace_one`` by the difference of two, for which the accountant takes
    the distance 2C). `Mechanism.units` is at most ``noise_std sqrt(p_b) / sigma`` for the budget
    share p_b, and shares sum to at most one (`_check_shares`; c of `_clipped_sum` covers their
    rounding). So one record moves all blocks together by at most ``sqrt(sum_b units_b^2) <=
    noise_std / sigma``, and the noise in every coordinate, independent of the others, has the
    standard deviation ``noise_std``: one Gaussian release of noise multiplier at least sigma,
    however many blocks there are, up to the law of the noise (`integer_noise`, `overhead`). No word
    of a sum overflows: a chunk's integers stay below 2^53, the noise below 2^46, and a part of the
    records, whose places in a sample are int32 numbers, has at most 2^28 chunks; its lower word is
    below 2^32 (`_carried`), and there are fewer than 2^30 parts (pieces or devices). What is
    released is a function of the noisy integer alone (`_as_number`), times the scale of a block,
    which is public: post-processing. Should less noise have been drawn than is needed, all is NaN.
    So are rounds beyond the last of the draws, which an accelerator computes and forgets
    (`IN_A_ROW`). QED

    ``tests/mechanism/test_kill_matrix.py`` has mutants of each condition and the checks that kill
    them. ``test_attack.py::test_sums_are_exact_and_records_do_not_see_where_they_stand`` looks for
    a slot that matters. In ``test_mechanism.py``,
    `test_one_record_moves_all_blocks_together_by_at_most_one` measures the sensitivity and
    `test_a_release_for_which_too_little_noise_was_drawn_is_not_a_number` tests the last sentence.
    """
    sums = partial_sums(query, blocks, mechanism, draw, step, records)
    if records.axis is not None:  # each device has summed its own records
        sums = jax.tree.map(partial(jax.lax.psum, axis_name=records.axis), sums)
    return noisy_release(blocks, mechanism, draw.noise, step, sums)


def partial_sums(
    query: Query,
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    draw: Draw,
    step: ArrayLike,
    records: Records,
) -> Sums:
    """Sums without noise, over some of the records: private, and never released.

    Sums over parts of the records add up to those over all of them, to the last bit if they are of
    integers, however the records were divided.

    Parameters
    ----------
    query, blocks, mechanism, draw, step, records
        As `private_sum`'s; of the noise only the dtype is looked at.
    """
    _check_shares(blocks)
    exact = _exact(draw.noise)
    units = {name: mechanism.units(step, block.share) for name, block in blocks.items()}

    double = exact and _multiplies_own_vectors(query, records)

    def over(i: int, group: Group, sums: Sums) -> Sums:
        chunks, slots = _slots(query, records, group)
        stop = draw.starts[i + 1]

        def next_chunks(carry: tuple[jax.Array, Sums]) -> tuple[jax.Array, Sums]:
            place, sums = carry
            places = place + jnp.arange(chunks * slots)
            included = places < stop
            indices = draw.indices.at[jnp.where(included, places, 0)].get(mode="promise_in_bounds")
            batch = records.take(indices, group.width)
            if double:  # as they are gathered, which costs nothing
                batch = {**batch, VECTOR: batch[VECTOR].astype(float)}

            def summed(batch: Tree, included: jax.Array) -> Sums:
                own = _chunk_sums(query, blocks, units, exact, batch, included)
                return _in_words(own) if exact else Sums(None, own)

            if chunks == 1:
                sums = jax.tree.map(jnp.add, sums, summed(batch, included))
            else:
                cut = jax.tree.map(
                    lambda x: x.reshape(chunks, slots, *x.shape[1:]), (batch, included)
                )
                sums = jax.tree.map(_add_all, sums, jax.vmap(summed)(*cut))
            return place + chunks * slots, sums

        start = (draw.starts[i], sums)
        most = records.at_once if records.whole else records.n_slots
        if (records.whole or 1 < chunks) and most <= chunks * slots:
            return next_chunks(start)[1]  # a loop would have the device wait for the host
        total: Sums
        _, total = jax.lax.while_loop(lambda carry: carry[0] < stop, next_chunks, start)
        return total

    # Sums of floats in double precision: in single, rounding ten million would carry a record
    # beyond its clipping norm.
    zeros: Release = jax.tree.map(
        lambda x: x.astype(jnp.int64 if exact else float), zero_sums(query, blocks, records.one())
    )
    sums = Sums(zeros if exact else None, zeros)
    # Each group has its own program, over its own part of one Poisson sample.
    for i, group in enumerate(records.groups()):
        sums = over(i, group, sums)
    return _carried(sums)


def _add_all(total: jax.Array, chunks: jax.Array) -> jax.Array:
    return total + jnp.sum(chunks, axis=0, dtype=total.dtype)


def _multiplies_own_vectors(query: Query, records: Records) -> bool:
    """Whether a query returns products with the records' own vectors, from shapes alone."""
    if grid_of(records.fields) is None:
        return False
    formed = jax.eval_shape(jax.vmap(_with_own_grids(query)), records.one())
    parts = parts_of(formed)[0]
    return any(isinstance(part, RankOne) and part.grid is not None for part in parts)


def noisy_release(
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    drawn: jax.Array | DeviceNoise,
    step: ArrayLike,
    sums: Sums,
) -> Release:
    """Release of sums over all records: noise is added once, and they become numbers.

    Parameters
    ----------
    blocks, mechanism, step
        As `private_sum`'s.
    drawn : array or DeviceNoise
        Noise of this step.
    sums : Sums
        `partial_sums`, added up over all parts of the records.
    """
    _check_shares(blocks)
    if _exact(drawn) and any(leaf.dtype != jnp.int64 for leaf in jax.tree.leaves(sums)):
        raise TypeError("Integer noise is added to integer sums alone.")
    units = {name: mechanism.units(step, block.share) for name, block in blocks.items()}

    # Fail closed, should less noise have been drawn than is needed. A kind of round that is
    # compiled and never run may need more than any that runs.
    size, nothing = sum(leaf.size for leaf in jax.tree.leaves(sums.low)), undrawn(drawn.dtype)
    if isinstance(drawn, DeviceNoise):
        noise = drawn.values(size)
    else:
        noise = jnp.pad(drawn, (0, max(0, size - drawn.size)), constant_values=nothing)
    missing = noise[size - 1] == nothing
    noisy = add_noise(jnp.where(mechanism.noise_multiplier(step) > 0, noise, 0), sums.low)
    if sums.high is not None:
        noisy = jax.tree.map(_as_number, sums.high, noisy)
    spacing = {
        name: jnp.where(missing, jnp.nan, block.clipping_norm / units[name])
        for name, block in blocks.items()
    }
    return {
        name: jax.tree.map(lambda x, s=spacing[name]: (x * s).astype(jnp.float32), noisy[name])
        for name in noisy
    }


def _exact(noise: jax.Array | DeviceNoise) -> bool:
    exact = jnp.issubdtype(noise.dtype, jnp.integer)
    if exact and jnp.zeros(0, int).dtype != jnp.int64:
        raise TypeError("Integer sums need 64 bits: call this under jax.enable_x64(True).")
    return exact


def _slots(query: Query, records: Records, group: Group) -> tuple[int, int]:
    """Chunks processed at a time, and batch slots of each: from shapes alone."""
    at_once = records.at_once
    slots, size = min(at_once, CHUNK), 1
    if group.width is not None:
        slots = min(CHUNK, _LISTED // group.width)
    if records.most_rows > 1 or at_once > CHUNK:
        formed = jax.tree.leaves(jax.eval_shape(jax.vmap(query), records.one()))
        size = max(1, sum(math.prod(leaf.shape[1:]) for leaf in formed))
    if records.most_rows > 1:
        slots = min(slots // records.most_rows, _FORMED // size)
    slots = max(_FEWEST, slots // _FEWEST * _FEWEST)
    if at_once <= CHUNK:
        return 1, slots
    return max(1, min(at_once, _FORMED_AT_ONCE // size) // slots), slots


def slots_of_a_batch(rate: float, n_records: int) -> int:
    """Batch slots that a processor takes at a time, where empty ones are expensive.

    With these a round takes the fewest of them on average, and few chunks.
    """
    expected = rate * n_records
    if expected > 16 * CHUNK:
        return CHUNK
    spread = math.sqrt(2 * expected * (1 - rate)) or 1e-9

    def work(slots: int) -> float:
        ends = range(0, math.ceil(largest_batch(expected)), slots)  # of all chunks before one
        chunks = math.fsum(math.erfc((end + 0.5 - expected) / spread) / 2 for end in ends)
        return chunks * (slots + _CHUNK_COST)

    return min(range(2 * _STEP, CHUNK + 1, _STEP), key=work)


def slots_at_once(expected: float, slots: int | None) -> int | None:
    """Batch slots that an accelerator processes at a time: all of nearly any batch, or many.

    Parameters
    ----------
    expected : float
        Number of records in a batch.
    slots : int or None
        Of `Records`, as planned for a processor.
    """
    most, chunks = largest_batch(expected), 1
    if most <= CHUNK:
        return None if slots is None else max(2 * _STEP, _STEP * math.ceil(most / _STEP))
    while chunks * CHUNK < most and chunks < _MOST_CHUNKS:
        chunks *= 2
    return chunks * CHUNK


def noisy_count(
    key: bytes,
    usable: np.ndarray | Iterable[np.ndarray],
    spec: MechanismSpec,
    total: Callable[[Iterable[int]], int] = sum,
) -> NoisyCount | None:
    """Number of records that can contribute, with noise: a private sum of zeros and ones.

    Parameters
    ----------
    key : bytes
        Used here and nowhere else.
    usable : bool array of shape (n_records,), or parts of it
    spec : MechanismSpec
    total : callable
        Adds up the numbers of the parts, and those of other processes, if there are any.

    Returns
    -------
    NoisyCount or None
        None if `spec` has no such release.

    Notes
    -----
    **Formal guarantee.** The release is the Gaussian mechanism of noise multiplier at least
    ``spec.count.noise_multiplier`` and sampling rate 1, if `key` is secret and used once, and
    whether a record is usable depends on no other.

    *Proof.* A record adds 0 or `units`, an integer, to a sum of unbounded integers; the noise has
    standard deviation ``noise_std(levels) >= units * noise_multiplier``, is drawn once and from a
    key of its own, and is an integer too (`integer_noise`). What follows is post-processing. With
    ``numerics="fast"`` the same holds of real numbers. QED

    ``tests/mechanism/test_count.py::test_mutants_of_the_count_are_noticed`` breaks each step of the
    proof, and `test_a_fit_draws_its_noise_from_its_own_key` the key.
    """
    if spec.count is None:
        return None
    parts = [usable] if isinstance(usable, np.ndarray) else usable
    number, sigma = total(int(np.count_nonzero(own)) for own in parts), spec.count.noise_multiplier
    if sigma == 0:
        return NoisyCount(float(number), 0.0)
    if spec.numerics == "fast":
        return NoisyCount(number + sigma * float(noise_of_steps(key, None, 0, [1])[0]), sigma)
    levels = levels_for(sigma)
    units = math.floor(noise_std(levels) / sigma)
    noise = int(noise_of_steps(key, levels, 0, [1])[0])
    return NoisyCount((number * units + noise) / units, noise_std(levels) / units)
