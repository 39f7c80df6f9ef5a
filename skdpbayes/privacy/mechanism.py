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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.privacy.contributions import parts_of, squares
from skdpbayes.privacy.draws import LEAST_RATE, Draw, noise_source, undrawn
from skdpbayes.privacy.lattice import MOST_UNITS, levels_for, noise_std
from skdpbayes.privacy.report import NoisyCount

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import GaussianSteps

CHUNK = 384
"""Batch slots processed at a time. A multiple of 64; larger chunks waste slots, smaller ones launch overhead."""

_LISTED, _FEWEST = 2**13, 8  # of `RaggedRows`: listed columns in a chunk, and slots, where lists are long

MAX_SCHEDULE = 64
"""Most pieces of a piecewise constant noise schedule (a static shape, so that no schedule recompiles)."""

_UNITS_WITHOUT_NOISE = 2.0**40  # in a clipping norm, where no noise says how fine a grid makes sense


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
    count : GaussianSteps or None
        Release of the number of usable records, by `noisy_count`; None if there is none.
    """

    steps: tuple[GaussianSteps, ...]
    n_chains: int = 1
    numerics: str = "secure"
    count: GaussianSteps | None = None

    @property
    def n_steps(self) -> int:
        """Rounds of one chain."""
        return sum(piece.steps for piece in self.steps)

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.steps[0].sampling_rate

    @property
    def levels(self) -> int | None:
        """Of `integer_noise`; None if the noise is to be floating-point numbers."""
        return levels_for(self.least_noise) if self.numerics == "secure" else None

    @property
    def least_noise(self) -> float:
        """Smallest noise multiplier of all steps."""
        return min(piece.noise_multiplier for piece in self.steps)

    def check_records(self, n_records: int) -> None:
        """Raise a `ValueError` if integer sums over so many records, whose number is public, could overflow."""
        if self.levels is None:
            return
        least = self.least_noise
        units = min(noise_std(self.levels) / least, MOST_UNITS) if least else _UNITS_WITHOUT_NOISE
        most = 0.99 * 2.0**63 / units  # in a batch, at full length and in one direction
        if n_records * self.sampling_rate > most:
            raise ValueError(
                f"numerics='secure' sums at most {most:.3g} records with a noise multiplier as small as {least:.3g}: "
                "take a smaller sampling_rate or epsilon, or numerics='fast'."
            )

    @property
    def rounds(self) -> tuple[GaussianSteps, ...]:
        """Steps of all chains."""
        return self.steps * self.n_chains

    @property
    def along(self) -> tuple[GaussianSteps, ...]:
        """Releases beside the rounds."""
        return () if self.count is None else (self.count,)

    def composed(self) -> tuple[GaussianSteps, ...]:
        """All that the accountant has to compose."""
        return self.rounds + self.along

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
        if rate < LEAST_RATE:
            raise ValueError(f"sampling_rate must be at least {LEAST_RATE:g}, got {rate:g}.")
        ends = np.full(MAX_SCHEDULE, np.iinfo(np.int32).max, np.int32)
        sigmas = np.full(MAX_SCHEDULE, np.float32(np.inf))  # no step lies beyond the schedule; noise would be infinite
        ends[: len(self.steps)] = np.cumsum([piece.steps for piece in self.steps])
        exact = np.array([piece.noise_multiplier for piece in self.steps])
        rounded = exact.astype(np.float32)  # never below what is charged
        rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
        least = np.finfo(np.float32).tiny  # below it a program may take a number for zero, which means no noise
        sigmas[: len(self.steps)] = np.where(exact > 0, np.maximum(rounded, least), 0)
        return Mechanism(
            rate=np.float32(rate),
            sigmas=sigmas,
            ends=ends,
            n_steps=np.int32(self.n_steps),
            noise_std=np.float64(1.0 if self.levels is None else noise_std(self.levels)),
        )


class Mechanism(NamedTuple):
    """`MechanismSpec` as arrays (traced: new values compile nothing).

    Attributes
    ----------
    rate, sigmas, ends, n_steps
        Sampling rate, noise multipliers, the step at which each ends, and steps in all.
    noise_std : float
        Standard deviation of the noise as it is drawn.
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
        """Length of the clipping norm of a block with a budget share, where the noise is as it is drawn."""
        sigma = self.noise_multiplier(step).astype(float)
        units = jnp.minimum(self.noise_std * math.sqrt(share) / jnp.where(sigma > 0, sigma, 1), MOST_UNITS)
        return jnp.where(sigma > 0, units, _UNITS_WITHOUT_NOISE)


class Block(NamedTuple):
    """Clipping norm (traced) and budget share (a Python float; the shares of a round sum to at most one)."""

    clipping_norm: Any
    share: float = 1.0


def _clipped_sum(contributions, clipping_norm, included, units, exact):
    """Sum over a chunk of contributions clipped to their norm, which becomes `units`; of integers if `exact`.

    Total: any contribution at all, of NaN, infinities, huge or denormal numbers, counts as something of norm at most
    `units`; what is not finite, or so long that its squared norm is not, counts as zero.
    """
    parts, treedef = parts_of(contributions)
    scale = units / clipping_norm.astype(float)
    parts, gains = zip(*(part.prepared(scale, units, exact) for part in parts), strict=True)
    heads = [part.head * scale for part in parts]
    square = sum(squares(head) * gain**2 for head, gain in zip(heads, gains, strict=True))
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(contributions))
    most = units * (1 - (size + 16) * 2.0**-50)  # a sum of `size` squares is off by at most about size * 2^-53
    if exact:  # rounding moves each entry of a head by at most one half
        halves = [math.sqrt(math.prod(head.shape[1:])) / 2 for head in heads]
        most = most - sum(half * gain for half, gain in zip(halves, gains, strict=True))
    usable = included & (square > 0) & jnp.isfinite(square)  # NaN compares false
    weight = jnp.where(usable, jnp.minimum(1, most / jnp.sqrt(jnp.where(usable, square, 1))), 0)

    def clipped(part, head):
        column = weight.reshape((-1,) + (1,) * (head.ndim - 1))
        head = jnp.where(column > 0, head * column, 0)  # below zero where rounding alone is longer than the norm
        if exact:
            return part.with_head(jnp.round(head)).total().astype(jnp.int64)
        head = head.astype(jnp.float32)
        return part.with_head(jnp.where(jnp.isfinite(head), head, 0)).total()

    return jax.tree.unflatten(treedef, [clipped(part, head) for part, head in zip(parts, heads, strict=True)])


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
    return {name: sigma * block.clipping_norm / math.sqrt(block.share) for name, block in blocks.items()}


def _check_shares(blocks):
    total = sum(block.share for block in blocks.values())
    if not total <= 1 + 1e-9 or any(block.share <= 0 for block in blocks.values()):
        shares = {name: block.share for name, block in blocks.items()}
        raise ValueError(f"Budget shares must be positive and sum to at most 1, got {shares}.")


def _chunk_sums(query, blocks, units, exact, batch, included):
    contributions = jax.vmap(query)(batch)
    if set(contributions) != set(blocks):
        raise ValueError(f"The query returned blocks {sorted(contributions)}, declared are {sorted(blocks)}.")
    return {
        name: _clipped_sum(contributions[name], jnp.asarray(blocks[name].clipping_norm), included, units[name], exact)
        for name in blocks
    }


def zero_sums(query, blocks, batch):
    """Zeros with the shapes of a release; `batch` is a batch of one record, of which only the shapes count."""
    units = dict.fromkeys(blocks, 1.0)
    shapes = jax.eval_shape(lambda b: _chunk_sums(query, blocks, units, False, b, jnp.ones(1, bool)), batch)
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
    exact = jnp.issubdtype(draw.noise.dtype, jnp.integer)
    if exact and jnp.zeros(0, int).dtype != jnp.int64:
        raise TypeError("Integer sums need 64 bits: call this under jax.enable_x64(True).")
    units = {name: mechanism.units(step, block.share) for name, block in blocks.items()}

    def over(i, group, sums):
        slots = (records.slots or CHUNK) if group.width is None else max(_FEWEST, min(CHUNK, _LISTED // group.width))
        stop = draw.starts[i + 1]

        def next_chunk(carry):
            place, sums = carry
            places = place + jnp.arange(slots)
            included = places < stop
            indices = draw.indices.at[jnp.where(included, places, 0)].get(mode="promise_in_bounds")
            chunk = _chunk_sums(query, blocks, units, exact, records.take(indices, group.width), included)
            return place + slots, jax.tree.map(jnp.add, sums, chunk)

        return jax.lax.while_loop(lambda carry: carry[0] < stop, next_chunk, (draw.starts[i], sums))[1]

    # Sums of floats in double precision: in single, rounding ten million would carry a record beyond its clipping norm.
    sums = jax.tree.map(lambda x: x.astype(jnp.int64 if exact else float), zero_sums(query, blocks, records.one()))
    for i, group in enumerate(records.groups()):  # each its own program, over its own part of one Poisson sample
        sums = over(i, group, sums)

    # A clipping norm is `units` long, so that the noise is the same in all blocks: one record moves the sums by at most
    # its standard deviation over sigma.
    last = draw.noise[sum(leaf.size for leaf in jax.tree.leaves(sums)) - 1]
    missing = last == undrawn(draw.noise.dtype)  # fail closed, should fewer have been drawn than are needed
    noisy = add_noise(jnp.where(mechanism.noise_multiplier(step) > 0, draw.noise, 0), sums)
    spacing = {name: jnp.where(missing, jnp.nan, block.clipping_norm / units[name]) for name, block in blocks.items()}
    return {name: jax.tree.map(lambda x, s=spacing[name]: (x * s).astype(jnp.float32), noisy[name]) for name in noisy}


def noisy_count(key: bytes, usable, spec: MechanismSpec) -> NoisyCount | None:
    """Number of records that can contribute, with noise: a private sum of zeros and ones.

    *Claim.* The release is the Gaussian mechanism of noise multiplier at least ``spec.count.noise_multiplier``.
    *Proof.* A record adds 0 or `units`, an integer, to a sum of unbounded integers; the noise has standard deviation
    ``noise_std(levels) >= units * noise_multiplier``, is drawn once and from a key of its own, and is an integer too.
    What follows is post-processing. With ``numerics="fast"`` the same holds of real numbers.

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
