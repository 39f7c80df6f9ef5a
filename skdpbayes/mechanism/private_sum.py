"""The private sum: the only code that aggregates training records.

Every solver is a loop over ``update(private_sum(query))``. In round ``t``

1. each record enters the batch independently with probability ``q`` (Poisson sampling; `draws`);
2. ``query`` maps one record to one contribution, made of one or more named blocks;
3. every block is clipped to its norm, the blocks are summed over the batch, and Gaussian noise is
   added;
4. the noisy sums, and nothing else, go to ``update``.

The blocks of a round are **one** Gaussian release. A block with clipping norm ``C_b`` and budget
share ``p_b`` gets noise of standard deviation ``sigma * C_b / sqrt(p_b)``. Measured in units of its
noise, a record moves the release by at most ``sqrt(sum_b p_b) / sigma = 1 / sigma``, so that
accounting needs ``(q, sigma, T)`` alone, however many blocks there are and whatever their clipping
norms. A clipping norm may depend on earlier releases (adaptive clipping), never on data.

What one record can do to a release is decided here and nowhere else: a contribution that is not
finite, or larger than its clipping norm, or that comes from a batch slot that was not sampled, is
dealt with in `_clipped_sum`, whatever the query returned.

Sums and noise are integers (``numerics="secure"``). The grid is such that the noise of every block,
measured in its steps, is the one integer law of `lattice`; a clipping norm then is
`Mechanism.units` steps. A contribution is rounded to the grid by itself, so that its norm is at
most the clipping norm, exactly; sums of integers are exact in any order. The release is the integer
sum plus integer noise, and only then becomes a floating-point number. `docs/arithmetic.md` has the
proof. With ``numerics="fast"`` nothing is rounded and the noise is a floating-point number: then
the guarantee is the idealised one of real arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import parts_of, squares
from skdpbayes.mechanism.draws import Draw, noise_source, undrawn
from skdpbayes.mechanism.integer_noise import levels_for, noise_std
from skdpbayes.mechanism.spec import Block, Mechanism, MechanismSpec
from skdpbayes.privacy.count import NoisyCount

if TYPE_CHECKING:
    pass

CHUNK = 384
"""Batch slots processed at a time. A multiple of 64; larger chunks waste slots, smaller ones launch overhead."""

_LISTED, _FEWEST = (
    2**13,
    8,
)  # of `RaggedRows`: listed columns in a chunk, and slots, where lists are long


def _clipped_sum(contributions, clipping_norm, included, units, exact):
    """Sum over a chunk of contributions clipped to their norm, which becomes `units`; of integers if `exact`.

    Total: any contribution at all, of NaN, infinities, huge or denormal numbers, counts as
    something of norm at most `units`; what is not finite, or so long that its squared norm is not,
    counts as zero.
    """
    parts, treedef = parts_of(contributions)
    scale = units / clipping_norm.astype(float)
    parts, gains = zip(*(part.prepared(scale, units, exact) for part in parts), strict=True)
    heads = [part.head * scale for part in parts]
    square = sum(squares(head) * gain**2 for head, gain in zip(heads, gains, strict=True))
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(contributions))
    most = units * (
        1 - (size + 16) * 2.0**-50
    )  # a sum of `size` squares is off by at most about size * 2^-53
    if exact:  # rounding moves each entry of a head by at most one half
        halves = [math.sqrt(math.prod(head.shape[1:])) / 2 for head in heads]
        most = most - sum(half * gain for half, gain in zip(halves, gains, strict=True))
    usable = included & (square > 0) & jnp.isfinite(square)  # NaN compares false
    weight = jnp.where(usable, jnp.minimum(1, most / jnp.sqrt(jnp.where(usable, square, 1))), 0)

    def clipped(part, head):
        column = weight.reshape((-1,) + (1,) * (head.ndim - 1))
        head = jnp.where(
            column > 0, head * column, 0
        )  # below zero where rounding alone is longer than the norm
        if exact:
            return part.with_head(jnp.round(head)).total().astype(jnp.int64)
        head = head.astype(jnp.float32)
        return part.with_head(jnp.where(jnp.isfinite(head), head, 0)).total()

    return jax.tree.unflatten(
        treedef, [clipped(part, head) for part, head in zip(parts, heads, strict=True)]
    )


def add_noise(noise, sums):
    """Noisy sums: one draw for all blocks of a release.

    Parameters
    ----------
    noise : array
        At least as long as all sums together.
    sums : pytree of arrays
    """
    flat, unravel = ravel_pytree(sums)
    return unravel(flat + noise[: flat.size].astype(flat.dtype))


def noise_scales(blocks: Mapping[str, Block], mechanism: Mechanism, step):
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


def _check_shares(blocks):
    total = sum(block.share for block in blocks.values())
    if not total <= 1 + 1e-9 or any(block.share <= 0 for block in blocks.values()):
        shares = {name: block.share for name, block in blocks.items()}
        raise ValueError(f"Budget shares must be positive and sum to at most 1, got {shares}.")


def _chunk_sums(query, blocks, units, exact, batch, included):
    contributions = jax.vmap(query)(batch)
    if set(contributions) != set(blocks):
        raise ValueError(
            f"The query returned blocks {sorted(contributions)}, declared are {sorted(blocks)}."
        )
    return {
        name: _clipped_sum(
            contributions[name],
            jnp.asarray(blocks[name].clipping_norm),
            included,
            units[name],
            exact,
        )
        for name in blocks
    }


def zero_sums(query, blocks, batch):
    """Zeros with the shapes of a release; `batch` is a batch of one record, of which only the shapes count."""
    units = dict.fromkeys(blocks, 1.0)
    shapes = jax.eval_shape(
        lambda b: _chunk_sums(query, blocks, units, False, b, jnp.ones(1, bool)), batch
    )
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
    """
    _check_shares(blocks)
    exact = jnp.issubdtype(draw.noise.dtype, jnp.integer)
    if exact and jnp.zeros(0, int).dtype != jnp.int64:
        raise TypeError("Integer sums need 64 bits: call this under jax.enable_x64(True).")
    units = {name: mechanism.units(step, block.share) for name, block in blocks.items()}

    def over(i, group, sums):
        slots = (
            (records.slots or CHUNK)
            if group.width is None
            else max(_FEWEST, min(CHUNK, _LISTED // group.width))
        )
        stop = draw.starts[i + 1]

        def next_chunk(carry):
            place, sums = carry
            places = place + jnp.arange(slots)
            included = places < stop
            indices = draw.indices.at[jnp.where(included, places, 0)].get(mode="promise_in_bounds")
            chunk = _chunk_sums(
                query, blocks, units, exact, records.take(indices, group.width), included
            )
            return place + slots, jax.tree.map(jnp.add, sums, chunk)

        return jax.lax.while_loop(
            lambda carry: carry[0] < stop, next_chunk, (draw.starts[i], sums)
        )[1]

    # Sums of floats in double precision: in single, rounding ten million would carry a record
    # beyond its clipping norm.
    sums = jax.tree.map(
        lambda x: x.astype(jnp.int64 if exact else float), zero_sums(query, blocks, records.one())
    )
    for i, group in enumerate(
        records.groups()
    ):  # each its own program, over its own part of one Poisson sample
        sums = over(i, group, sums)

    # A clipping norm is `units` long, so that the noise is the same in all blocks: one record moves
    # the sums by at most its standard deviation over sigma.
    last = draw.noise[sum(leaf.size for leaf in jax.tree.leaves(sums)) - 1]
    missing = last == undrawn(
        draw.noise.dtype
    )  # fail closed, should fewer have been drawn than are needed
    noisy = add_noise(jnp.where(mechanism.noise_multiplier(step) > 0, draw.noise, 0), sums)
    spacing = {
        name: jnp.where(missing, jnp.nan, block.clipping_norm / units[name])
        for name, block in blocks.items()
    }
    return {
        name: jax.tree.map(lambda x, s=spacing[name]: (x * s).astype(jnp.float32), noisy[name])
        for name in noisy
    }


def noisy_count(key: bytes, usable, spec: MechanismSpec) -> NoisyCount | None:
    """Number of records that can contribute, with noise: a private sum of zeros and ones.

    *Claim.* The release is the Gaussian mechanism of noise multiplier at least
    ``spec.count.noise_multiplier``. *Proof.* A record adds 0 or `units`, an integer, to a sum of
    unbounded integers; the noise has standard deviation ``noise_std(levels) >= units *
    noise_multiplier``, is drawn once and from a key of its own, and is an integer too. What follows
    is post-processing. With ``numerics="fast"`` the same holds of real numbers.

    Parameters
    ----------
    key : bytes
        Used here and nowhere else.
    usable : bool array of shape (n_records,)
    spec : MechanismSpec

    Returns
    -------
    NoisyCount or None
        None if `spec` has no such release.
    """
    if spec.count is None:
        return None
    number, sigma = int(np.count_nonzero(usable)), spec.count.noise_multiplier
    if sigma == 0:
        return NoisyCount(float(number), 0.0)
    if spec.numerics == "fast":
        return NoisyCount(number + sigma * float(noise_source(key, None)(1)[0]), sigma)
    levels = levels_for(sigma)
    units = math.floor(noise_std(levels) / sigma)
    noise = int(noise_source(key, levels)(1)[0])
    return NoisyCount((number * units + noise) / units, noise_std(levels) / units)
