"""Many independent runs of one plan in one compiled program.

The program is a map over runs of the loop of `inference`, with its private sum. Batches and noise
of each run are drawn by the sampler and the integer noise of a fit, from keys of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes import inference
from skdpbayes.mechanism.draws import (
    Draw,
    Draws,
    Sampler,
    Window,
    drawn,
    resident,
    windows_of_chain,
)
from skdpbayes.mechanism.keys import FitKeys
from skdpbayes.mechanism.on_device import DeviceNoise
from skdpbayes.mechanism.private_sum import CHUNK, Query, Release, private_sum
from skdpbayes.mechanism.records import Records, Tree, padded_size
from skdpbayes.mechanism.spec import Block, Mechanism, MechanismSpec
from skdpbayes.models.base import Model
from skdpbayes.pytrees import refuse_confused
from skdpbayes.solvers.base import Solver, arithmetic

Observe: TypeAlias = Callable[
    [Tree, Query, Mapping[str, Block], Mechanism, jax.Array, Draw, Release], jax.Array
]
"""Function of a context, of a round, and of its draws and its release; it returns a vector."""

_AT_A_TIME = 250  # most runs in one call of the compiled program
_NUMBERS = 2**22  # that contributions of these runs may have in one chunk, about
_SLOTS = 64  # a chunk of a batch is a multiple


@partial(jax.jit, static_argnums=0)
def _some_steps(
    observe: Observe | None,
    context: Tree,
    keys: jax.Array,
    draws: Draws,
    states: Tree,
    kept: jax.Array,
    records: Records,
    model: Model,
    solver: Solver,
    mechanism: Mechanism,
) -> tuple[Tree, jax.Array]:
    """Some steps of all runs: their states, and what was kept of each step."""

    def one(
        key: jax.Array,
        indices: jax.Array,
        starts: jax.Array,
        noise: jax.Array | DeviceNoise,
        state: Tree,
        kept: jax.Array,
    ) -> tuple[Tree, jax.Array]:
        own = draws._replace(indices=indices, starts=starts, noise=noise)

        def release(query: Query, blocks: Mapping[str, Block], step: jax.Array) -> Release:
            return private_sum(query, blocks, mechanism, own.at(step), step, records)

        def seen(
            query: Query, blocks: Mapping[str, Block], step: jax.Array, release: Release
        ) -> jax.Array:
            assert observe is not None
            return observe(context, query, blocks, mechanism, step, own.at(step), release)

        return inference.loop(
            release, key, draws.first, draws.stop, model, solver, mechanism, state, kept,
            None if observe is None else seen,
        )  # fmt: skip

    alike = None if draws.indices.ndim == 1 else 0  # all runs take all records
    return jax.vmap(one, in_axes=(0, alike, alike, 0, 0, 0))(
        keys, draws.indices, draws.starts, draws.noise, states, kept
    )


_starts = jax.jit(jax.vmap(inference.start, in_axes=(0, None, None)))


def runs(
    keys: FitKeys,
    model: Model,
    solver: Solver,
    spec: MechanismSpec,
    records: Records,
    observe: Observe | None = None,
    context: Tree = (),
    *,
    at_a_time: int | None = None,
) -> Iterator[tuple[Tree, np.ndarray]]:
    """Run a plan once for each chain of the keys, some at a time.

    Parameters
    ----------
    keys : FitKeys
        Of any number of chains: each is a run of one chain.
    model, solver, spec, records
        As `inference.run`'s.
    observe : callable, optional
        What to keep of each step, a number; a function of a module, since a new one compiles. None
        keeps releases.
    context : pytree
        Given to `observe`.
    at_a_time : int, optional
        Number of runs in one call of the compiled program; another number is compiled anew. None:
        as many as suit memory.

    Yields
    ------
    states : pytree
        Final states, with a first axis of runs.
    kept : array of shape (n_runs, n_steps, size)
        Releases, ravelled and padded to the longest, or what `observe` returned (size 1).
    """
    refuse_confused(model, solver)
    with arithmetic():
        mechanism = jax.device_put(spec.traced())
        sizes = inference.sizes_of_steps(model, solver, mechanism, records, spec.n_steps)
        width = int(sizes.max())
        slots = _slots(records, spec.sampling_rate)
        records = jax.device_put(replace(records, slots=slots))
        n = len(keys.noise)
        most = at_a_time or min(_AT_A_TIME, max(1, _NUMBERS // (slots * width)))
        shape = (most, spec.n_steps, width if observe is None else 1)
        bounds = np.array(records.bounds(), np.int64)
        for low in range(0, n, most):
            # The last ones are repeated, and left out.
            chains = np.minimum(np.arange(low, low + most), n - 1)
            samplers = [
                Sampler(keys.sampling[i], spec.sampling_rate, records.n_slots) for i in chains
            ]
            windows = [
                windows_of_chain(keys.noise[i], spec, sizes, own, padded=False)
                for i, own in zip(chains, samplers, strict=True)
            ]
            solver_keys = keys.solver[chains]
            states, kept = _starts(solver_keys, model, solver), jnp.zeros(shape)
            for together in zip(*windows, strict=True):
                draws = _stacked(samplers, together, bounds)
                states, kept = _some_steps(
                    observe, context, solver_keys, draws, states, kept, records, model, solver,
                    mechanism,
                )  # fmt: skip
            real = min(n - low, most)
            states, kept = jax.device_get((states, kept))
            yield jax.tree.map(lambda x, real=real: x[:real], states), kept[:real]


def joined(keys: Sequence[FitKeys]) -> FitKeys:
    """Keys of runs of one chain each, as those of one fit of many chains."""
    own = zip(*((key.sampling[0], key.noise[0]) for key in keys), strict=True)
    sampling, noise = own
    return FitKeys(sampling, noise, jnp.concatenate([key.solver for key in keys]), b"")


def _slots(records: Records, rate: float) -> int:
    """Batch slots that hold nearly every batch, if a chunk can."""
    expected = rate * int(records.n_records)
    most = min(expected + 4 * math.sqrt(expected), int(records.n_records))
    own = min(CHUNK, _SLOTS * math.ceil(max(most, 1) / _SLOTS))
    return own if records.slots is None else min(own, records.slots)


def _stacked(samplers: Sequence[Sampler], windows: Sequence[Window], bounds: np.ndarray) -> Draws:
    """Draws of one window of all runs, as far as they are needed."""
    noise, sampler = np.stack([np.asarray(own.noise) for own in windows]), samplers[0]
    if sampler.rate == 1:  # all runs take all records
        own = resident(sampler, windows[0], bounds)
        return drawn(windows[0], own.indices[: padded_size(int(bounds[-1]))], own.starts, noise)
    parts = [resident(*own, bounds) for own in zip(samplers, windows, strict=True)]
    # Nearly always the same length: another one would be compiled.
    expected = sampler.rate * sampler.stride * noise.shape[1]
    longest = max(int(own.starts.max()) for own in parts)
    size = padded_size(max(longest, math.ceil(expected + 8 * math.sqrt(expected))))
    indices = np.stack([own.indices[:size] for own in parts])
    return drawn(windows[0], indices, np.stack([own.starts for own in parts]), noise)
