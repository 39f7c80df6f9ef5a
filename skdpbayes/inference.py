"""The only driver: one compiled loop over ``update(private_sum(query))``.

Models, solvers, the mechanism, the records and the draws are pytrees whose numbers are traced: new
hyper-parameters, another number of steps and another number of records of the same padded size
run the program that is already compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.compilation import (
    IN_ONE_PIECE,
    LITTLE_EFFORT,
    OLDER_GENERATOR,
    CompilerThread,
    without_collection,
)
from skdpbayes.mechanism.checkpoint import Checkpoint
from skdpbayes.mechanism.draws import (
    Draw,
    Draws,
    Sampler,
    check_device,
    draws_of_chain,
    largest_batch,
    noise_at,
    windows_of_chain,
)
from skdpbayes.mechanism.integer_noise import MOST_VALUES
from skdpbayes.mechanism.keys import FitKeys
from skdpbayes.mechanism.on_device import DeviceNoise, default_device
from skdpbayes.mechanism.persons import blocks_of_persons, of_person
from skdpbayes.mechanism.private_sum import (
    noise_scales,
    noisy_release,
    partial_sums,
    private_sum,
    slots_at_once,
    zero_sums,
)
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.shards import ON_ALL, OVER_DEVICES, Shards, shards
from skdpbayes.mechanism.spec import Mechanism, MechanismSpec
from skdpbayes.mechanism.stored import (
    StoredRecords,
    ahead,
    batches,
    fits_in_part,
    pieces,
    placed,
    with_draws,
)
from skdpbayes.mechanism.threefry import words_of_steps, wrap_keys
from skdpbayes.models.base import Model
from skdpbayes.pytrees import refuse_confused
from skdpbayes.solvers.base import HasPrograms, Round, Solver, arithmetic

_BEFORE_THE_FIRST_STEP = 2**31 - 1  # a step number that no run reaches
_AT_A_TIME = 2**12  # steps whose kinds are computed at once

FEW = 512
"""Most rounds that are run one by one: in programs that are small and compiled with little effort.

More rounds run in a loop that is compiled as a whole, and so do fewer with many numbers.
"""

IN_A_ROW = 8
"""Rounds between which an accelerator does not wait for the host, which tells it whether to go on.

It takes as many, and forgets those beyond the last.
"""
_SMALL = 256  # records of a batch up to which it pays; windows of larger ones have few rounds

_VERY_FEW, _FEW_NUMBERS = 64, 2**22  # rounds that always count as few; released numbers of others

# Programs that add up records. A record's integers are the same in all of a kind, to the last bit.
# Level 1 compiles a quarter faster than level 3. On accelerators too, a record's integers must not
# depend on how the sums of a product were cut.
_OF_LOOPS = {"xla_backend_optimization_level": 1, "xla_gpu_deterministic_ops": True}
_OF_FEW_ROUNDS = IN_ONE_PIECE | OLDER_GENERATOR | _OF_LOOPS


def run(
    keys: FitKeys,
    model: Model,
    solver: Solver,
    spec: MechanismSpec,
    records: Records | StoredRecords | Shards,
    *,
    keep_releases: bool = False,
    watch: Callable[[int], None] | None = None,
    part_of: int = 0,
    checkpoint: Checkpoint | None = None,
):
    """Run a solver on private records.

    Parameters
    ----------
    keys : FitKeys
        Of ``spec.n_chains`` chains.
    model : Model
    solver : Solver
    spec : MechanismSpec
    records : Records, StoredRecords or Shards
    keep_releases : bool
        Also return every release (they are covered by the guarantee, but take memory).
    watch : callable, optional
        Told, several times a second, how many steps of all chains are done.
    part_of : int
        Number of steps of a longer run, whose programs these steps run: for timing.
    checkpoint : Checkpoint, optional
        From which the run goes on, and which it writes.

    Returns
    -------
    state : pytree
        Final state of the solver, with a leading axis of length ``spec.n_chains`` if that is more
        than one.
    releases : array of shape ([n_chains,] n_steps, size) or None
        Each step's release, ravelled and padded to the longest.
    """
    capacity = spec.n_steps if keep_releases else None
    return _run(keys, model, solver, spec, records, capacity, watch, part_of, checkpoint)


def _run(keys, model, solver, spec, records, capacity, watch=None, part_of=0, checkpoint=None):
    """`run`, with room for so many releases."""
    refuse_confused(model, solver, spec.traced())
    with arithmetic():
        mechanism = jax.device_put(spec.traced())
        records, on_device = _suited(placed(records), spec)
        if on_device and spec.levels is not None:
            for device in _own_devices(records):
                check_device(device)
        of_steps = sizes_of_steps(model, solver, mechanism, records.shaped, spec.n_steps)
        n_steps = max(spec.n_steps, part_of)
        kinds = _kinds_if_few(model, solver, mechanism, n_steps, int(of_steps.max()))
        # The count of usable records is one more value.
        if spec.n_chains * int(of_steps.sum()) >= MOST_VALUES:
            raise ValueError(
                f"All releases together have {MOST_VALUES} values or more: take fewer steps."
            )
        kept = None if capacity is None else np.zeros((capacity, int(of_steps.max())), np.float32)

        def chain(i):
            told = None if watch is None else lambda steps: watch(i * spec.n_steps + steps)
            how = (keys.chain(i), model, solver, mechanism, kinds, spec, of_steps, on_device)
            own = None if kept is None else kept.copy()
            return _private_chain(*how, records, own, _Journal(i, told, checkpoint))

        return _stacked([chain(i) for i in range(spec.n_chains)])


def _own_devices(records):
    """Devices of this process on which rounds run."""
    return records.mesh.local_devices if isinstance(records, Shards) else [default_device()]


def _suited(records, spec):
    """Records as the platform processes them, and whether it draws the noise itself."""
    devices = [*records.mesh.devices.flat] if isinstance(records, Shards) else [default_device()]
    if devices[0].platform == "cpu":
        return records, False
    if spec.n_records is None:  # which the program's shape would reveal
        return records, True
    expected = spec.sampling_rate * spec.n_records / len(devices)
    return replace(records, slots=slots_at_once(expected, records.slots)), True


def _nearly_all_fit(at_once, spec):
    """Whether batches are no larger than the slots that are taken at once, by public numbers."""
    if spec.n_records is None:
        return False
    expected = spec.sampling_rate * spec.n_records
    return spec.n_records <= at_once or largest_batch(expected) <= at_once


def rounds_in_a_row(spec: MechanismSpec, on_device: bool) -> int:
    """`IN_A_ROW` where that pays; by public numbers, since programs depend on it."""
    if not on_device or spec.n_records is None:
        return 1
    small = spec.sampling_rate == 1 or spec.sampling_rate * spec.n_records <= _SMALL
    return IN_A_ROW if small else 1


def _private_chain(
    keys, model, solver, mechanism, kinds, spec, sizes, on_device, records, kept, journal
):
    """One chain, of records in memory, divided over devices, or stored."""
    sampling, noise, key = keys.sampling[0], keys.noise[0], keys.solver[0]
    first, state = journal.start(_start(key, model, solver))
    how = (key, model, solver, mechanism, kinds)
    if isinstance(records, Records):
        bounds = records.bounds()
        of_chain = (sampling, noise, spec, sizes, bounds, records.n_slots, first)
        draws = draws_of_chain(*of_chain, on_device=on_device)
        sources = with_draws(
            records, draws, whole=on_device and _nearly_all_fit(records.at_once, spec)
        )
        in_a_row = rounds_in_a_row(spec, on_device)
        return journal.over(*_chain(*how, sources, state, kept, journal, in_a_row=in_a_row))
    sampler = Sampler(sampling, spec.sampling_rate, records.n_slots)
    windows = windows_of_chain(noise, spec, sizes, sampler, first, on_device=on_device)
    if isinstance(records, Shards):
        sources = shards(records, sampler, windows)
        done = _chain(*how, sources, state, kept, journal, records.mesh)
    elif fits_in_part(records, sampler.rate):
        done = _chain(*how, batches(records, sampler, windows), state, kept, journal)
    else:
        done = _by_pieces(*how, records, sampler, windows, state, kept, journal)
    return journal.over(*done)


class Recording(NamedTuple):
    """Recorded releases, in the place of records and draws."""

    first: Any
    stop: Any
    releases: Any  # (n_steps, size)
    example: Any  # a record of zeros


def replay(releases, solver_keys, model: Model, solver: Solver, spec: MechanismSpec, example):
    """Recompute the final state from recorded releases and the solver key, without data.

    Parameters
    ----------
    releases : array
        As returned by `run`.
    solver_keys : array of keys of shape (n_chains,)
    example : pytree
        One record of zeros, for its shapes.
    """
    releases = np.asarray(releases if spec.n_chains > 1 else releases[None])
    with arithmetic():
        mechanism = jax.device_put(spec.traced())
        kinds = _kinds_if_few(model, solver, mechanism, spec.n_steps, releases.shape[-1])

        def chain(i):
            of_steps = np.int32(0), np.int32(spec.n_steps)
            recording = Recording(*of_steps, *jax.device_put((releases[i], example)))
            state = _start(solver_keys[i], model, solver)
            how = (solver_keys[i], model, solver, mechanism, kinds, [(None, recording)], state)
            in_a_row = rounds_in_a_row(spec, default_device().platform != "cpu")  # as in the run
            return _chain(*how, None, _Journal(i), in_a_row=in_a_row)

        return _stacked([chain(i) for i in range(spec.n_chains)])[0]


def _stacked(chains):
    return (
        chains[0] if len(chains) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *chains)
    )


def _kinds_if_few(model, solver, mechanism, n_steps, width):
    """Kind of each round if they are few enough to be run one by one, else None.

    This depends on the number of rounds and on the size of the longest release, which a replay
    knows too: it runs the same programs.
    """
    few = n_steps <= FEW and (n_steps <= _VERY_FEW or n_steps * width <= _FEW_NUMBERS)
    return _kinds_of_steps(model, solver, mechanism, n_steps) if few else None


def _chain(
    key, model, solver, mechanism, kinds, sources, state, kept, journal, mesh=None, in_a_row=1
):
    """One chain, of pairs of records and draws (or recordings)."""
    how, run = (key, model, solver, mechanism), (state, kept, journal)
    pace = _Pace(journal.watch, in_a_row)
    if kinds is None:
        done = _in_a_loop(*how, sources, *run, pace, mesh, in_a_row)
    else:
        if mesh is None:  # once, and not for every round
            sources = (jax.device_put(pair) for pair in sources)
        done = _one_by_one(*how, kinds, sources, *run, pace, mesh)
    pace.finish()
    return done


def _in_a_loop(key, model, solver, mechanism, sources, state, kept, journal, pace, mesh, in_a_row):
    """Rounds in a compiled loop."""
    steps = partial(_steps, in_a_row) if mesh is None else _over(mesh, _one_after_the_other)
    for records, source in sources:
        first, stop = max(int(source.first), journal.first), int(source.stop)
        while first < stop:
            last = min(first + pace.steps, stop)
            part = np.int32(first), np.int32(last)
            state, kept, done = steps(
                key, records, source, *part, model, solver, mechanism, state, kept
            )
            journal.write(last, state)
            pace.wait_for(done)
            first = last
    return state, kept


def _one_by_one(key, model, solver, mechanism, kinds, sources, state, kept, journal, pace, mesh):
    """Rounds in programs of their own."""
    with CompilerThread() as compiler:
        for records, source in sources:
            first, stop = max(int(source.first), journal.first), int(source.stop)
            words = words_of_steps(key, first, stop)
            recorded = isinstance(source, Recording)
            if mesh is None and not recorded and first == journal.first:
                at, its = (words[0], np.int32(first)), (model, solver, mechanism, state)
                shapes = jax.eval_shape(_the_same, *at, records, source, *its)
                _compile_ahead(compiler, kinds[first : int(mechanism.n_steps)], *shapes)
            for step in range(first, stop):
                how = (int(kinds[step]), words[step - first], np.int32(step))
                its = (model, solver, mechanism, state)
                if recorded:
                    release = _recalled(*how, source, *its)
                else:
                    own = _released if mesh is None else _over(mesh, _release, how[0])
                    where = how if mesh is None else how[1:]
                    compiler.wait_for((_released, how[0]))
                    release = own(*where, records, source, *its)
                compiler.wait_for((_learned, how[0]))
                state, done = _learned(*how, release, *its)
                _keep(release, kept, step)
                journal.write(step + 1, state)
                pace.wait_for(done)
    return state, kept


def _the_same(*values):
    return values


_LOWERED = set[int]()  # hashes of kinds and shapes; one too many is compiled when it is called


def _compile_ahead(compiler, kinds, words, step, records, source, model, solver, mechanism, state):
    """Compile programs of these kinds of rounds, and of the posterior, once for all of one shape.

    All but the kinds are shapes.
    """
    its, kinds = (model, solver, mechanism, state), tuple(dict.fromkeys(kinds.tolist()))
    leaves, structure = jax.tree.flatten((words, step, records, source, its))
    own = hash((kinds, structure, *leaves))
    if own in _LOWERED:
        return
    _LOWERED.add(own)
    for kind in kinds:
        released = _released.lower(kind, words, step, records, source, *its)
        compiler.add(released, (_released, kind))
        learned = _learned.lower(kind, words, step, released.out_info, *its)
        compiler.add(learned, (_learned, kind))
    if isinstance(solver, HasPrograms):
        for program in solver.programs(model, state):
            compiler.add(program)


def _keep(release, kept, step):
    if kept is not None:
        values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(release)])
        kept[step, : values.size] = values


def _by_pieces(
    key, model, solver, mechanism, kinds, records, sampler, windows, state, kept, journal
):
    """One chain in which each step goes through all records, piece by piece."""
    pace, n_kinds = _Pace(journal.watch), len(solver.rounds(model, mechanism))
    piece = _piece if kinds is None else _piece_of_few
    for window in windows:
        first = max(window.first, journal.first)
        words = words_of_steps(key, first, window.stop)
        for step in range(first, window.stop):
            kind = int(_kind(solver, np.int32(step), n_kinds) if kinds is None else kinds[step])
            own = (kind, words[step - first], np.int32(step))
            how = (model, solver, mechanism, state)
            noise, sums = noise_at(window, step), None
            # Of the noise, which is added once, a piece needs to know the kind.
            kind_of_noise = noise if isinstance(noise, DeviceNoise) else noise[:0]
            for part, indices, starts in ahead(pieces(records, sampler, step)):
                drawn: tuple[Any, ...] = (indices, starts, kind_of_noise)
                draw = jax.device_put(Draw(*drawn))
                # Else pieces that were read would wait in memory; the next one is read meanwhile.
                sums = jax.block_until_ready(piece(*own, part, draw, *how, sums))
            if kinds is None:
                state, kept = _noisy_step(*own, noise, *how, sums, kept)
            else:
                release = _noisy(*own, noise, *how, sums)
                state, _ = _learned(*own, release, *how)
                _keep(release, kept, step)
            journal.write(step + 1, state)
            pace.wait_for(np.int32(step + 1))
    pace.finish()
    return state, kept


class _Journal:
    """Where a chain begins, and what is told and written of it."""

    def __init__(self, chain, watch=None, checkpoint=None):
        self._chain, self.watch, self._checkpoint, self.first = chain, watch, checkpoint, 0

    def start(self, fresh):
        """First step, and the state before it."""
        if self._checkpoint is None:
            return 0, fresh
        self.first, state = self._checkpoint.start(self._chain, fresh)
        return self.first, state

    def write(self, step, state):
        """Write the state before a step, if it is time."""
        if self._checkpoint is not None and self._checkpoint.due():
            self._checkpoint.write(self._chain, step, state)

    def over(self, state, kept):
        """What a chain gives, once it is written."""
        if self._checkpoint is not None:
            self._checkpoint.chain_is_over(self._chain, state)
        return state, kept


def _query(kind, words, model, solver, mechanism, state):
    """Query and blocks of a round, in a program of its own."""
    round_ = solver.rounds(model, mechanism)[kind]
    return _asked(round_, mechanism, state, round_.point(state, wrap_keys(words)))


def _release(kind, words, step, records, source, model, solver, mechanism, state):
    """Release of a round."""
    query, blocks = _query(kind, words, model, solver, mechanism, state)
    return private_sum(query, blocks, mechanism, source.at(step), step, records)


_released = jax.jit(_release, static_argnums=0, compiler_options=_OF_FEW_ROUNDS)


@partial(jax.jit, static_argnums=0, compiler_options=LITTLE_EFFORT)
def _recalled(kind, words, step, source, model, solver, mechanism, state):
    """Recorded release of a round."""
    query, blocks = _query(kind, words, model, solver, mechanism, state)
    return recorded_release(query, blocks, _one(source.example), source.releases[step])


@partial(jax.jit, static_argnums=0, compiler_options=LITTLE_EFFORT)
def _learned(kind, words, step, release, model, solver, mechanism, state):
    """State after a round, and the number of steps done; a replay runs the same program."""
    round_ = solver.rounds(model, mechanism)[kind]
    own = wrap_keys(words)
    state, _ = _taken(round_, lambda *_: release, own, step, mechanism, state)
    return state, step + jnp.int32(1)


def _sums_of_piece(kind, words, step, records, draw, model, solver, mechanism, state, sums):
    """Sums over a piece of the records, added to those of the pieces before."""
    query, blocks = _query(kind, words, model, solver, mechanism, state)
    own = partial_sums(query, blocks, mechanism, draw, step, records)
    return own if sums is None else jax.tree.map(jnp.add, sums, own)


_piece, _piece_of_few = (
    jax.jit(_sums_of_piece, static_argnums=0, compiler_options=options)
    for options in (_OF_LOOPS, _OF_FEW_ROUNDS)
)


@partial(jax.jit, static_argnums=0, compiler_options=LITTLE_EFFORT)
def _noisy(kind, words, step, noise, model, solver, mechanism, state, sums):
    """Release of a round whose pieces are summed."""
    _, blocks = _query(kind, words, model, solver, mechanism, state)
    return noisy_release(blocks, mechanism, noise, step, sums)


@partial(jax.jit, static_argnums=0, compiler_options=_OF_LOOPS)
def _noisy_step(kind, words, step, noise, model, solver, mechanism, state, sums, kept):
    """What is left of a step when all pieces are summed."""

    def release(query, blocks, step):
        del query
        return noisy_release(blocks, mechanism, noise, step, sums)

    round_ = solver.rounds(model, mechanism)[kind]
    state, seen = _taken(round_, release, wrap_keys(words), step, mechanism, state)
    return state, None if kept is None else kept.at[step].set(_padded(seen, kept))


class _Pace:
    """How many steps to run in one call: as many as take about a tenth of a second.

    So an interrupt is heard and progress is seen, whatever a step costs. While a part runs, the
    next one is drawn.
    """

    def __init__(self, watch, least=1):
        self._watch, self._before, self._since = watch, None, time.perf_counter()
        self.steps = self._least = least

    def wait_for(self, done):
        """Wait until the part before the one that ends with `done` is over."""
        before, self._before = self._before, done
        if before is not None:
            before = int(before)  # waits
            now = time.perf_counter()
            seconds, self._since = now - self._since, now
            if seconds < 0.05:
                self.steps = min(4 * self.steps, 2**20)
            elif seconds > 0.4:
                self.steps = max(self._least, self.steps // 2)
            if self._watch is not None:
                self._watch(before)

    def finish(self):
        """Wait for the last part."""
        self.wait_for(None)


def release_sizes(
    model: Model, solver: Solver, mechanism: Mechanism, records: Records
) -> list[int]:
    """Number of values in the release of each kind of round: shapes alone, nothing is computed."""
    of_kinds = _releases.eval_shape(model, solver, mechanism, records)
    return [sum(leaf.size for leaf in jax.tree.leaves(release)) for release in of_kinds]


@jax.jit
def _releases(model: Model, solver: Solver, mechanism: Mechanism, records: Records):
    """A release of zeros of each kind of round."""
    key = jax.random.key(0)
    state, one = start(key, model, solver), records.one()
    rounds = solver.rounds(model, mechanism)
    asked = (_asked(r, mechanism, state, r.point(state, key)) for r in rounds)
    return [zero_sums(query, blocks, one) for query, blocks in asked]


@without_collection()
def sizes_of_steps(
    model: Model, solver: Solver, mechanism: Mechanism, records: Records, n_steps: int
) -> np.ndarray:
    """Number of values in the release of each step, (n_steps,)."""
    sizes = np.array(release_sizes(model, solver, mechanism, records))
    return sizes[_kinds_of_steps(model, solver, mechanism, n_steps)]


def _kinds_of_steps(model, solver, mechanism, n_steps):
    """Kind of each round."""
    starts = np.arange(0, n_steps, _AT_A_TIME, dtype=np.int32)
    parts = [np.asarray(_kinds(model, solver, mechanism, first)) for first in starts]
    return np.concatenate(parts)[:n_steps]


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _kinds(model, solver, mechanism, first):
    """Kinds of some rounds."""
    steps = first + jnp.arange(_AT_A_TIME, dtype=jnp.int32)
    return _kind(solver, steps, len(solver.rounds(model, mechanism)))


def _asked(round_: Round, mechanism: Mechanism, state, point):
    """Query and blocks of a round, for records that are rows or persons."""
    blocks, query = round_.blocks(state), round_.query(state, point)
    of_persons = blocks_of_persons(blocks, mechanism)
    return of_person(query, blocks, of_persons), of_persons


def _kind(solver, step, n_kinds):
    return jnp.minimum(solver.which(step), n_kinds - 1) if n_kinds > 1 else jnp.zeros_like(step)


def start(key, model: Model, solver: Solver):
    """State before the first step, of a chain's solver key."""
    return solver.init(model, jax.random.fold_in(key, _BEFORE_THE_FIRST_STEP))


_start = jax.jit(start, compiler_options=LITTLE_EFFORT)


def _some_steps(in_a_row, key, records, source, first, stop, model, solver, mechanism, state, kept):
    """Some steps of one chain; releases come from records or, in a replay, from a recording.

    Returns what `loop` does and the number of steps done, which is there when they are: the rest
    may have been donated.
    """

    def release(query, blocks, step):
        if not isinstance(source, Recording):
            return private_sum(query, blocks, mechanism, source.at(step), step, records)
        return recorded_release(query, blocks, _one(source.example), source.releases[step])

    its = (model, solver, mechanism, state, kept)
    done = loop(release, key, first, stop, *its, in_a_row=in_a_row)
    return *done, stop + jnp.int32(0)


_one_after_the_other = partial(_some_steps, 1)
_steps = jax.jit(_some_steps, static_argnums=0, donate_argnames="state", compiler_options=_OF_LOOPS)


@cache
def _over(mesh, program, kind=None):
    """`_steps`, or `_released` of a kind, of records that are divided over devices."""
    of_kind, options, more = program, _OF_LOOPS, 7
    if kind is not None:
        of_kind, options, more = partial(program, kind), _OF_FEW_ROUNDS, 4

    def divided(*how):
        of_draws: tuple[Any, ...] = (ON_ALL, ON_ALL, OVER_DEVICES, OVER_DEVICES, ON_ALL)
        draws = Draws(*of_draws)
        leading = (ON_ALL, OVER_DEVICES) if kind is None else (ON_ALL, ON_ALL, OVER_DEVICES)
        specs = (*leading, draws, *[ON_ALL] * more)
        # All devices update the same state by the same release.
        return jax.shard_map(of_kind, mesh=mesh, in_specs=specs, out_specs=ON_ALL, check_vma=False)(
            *how
        )

    return jax.jit(divided, compiler_options=options)


def _one(example):
    return jax.tree.map(lambda x: jnp.asarray(x)[None], example)


def recorded_release(query, blocks, one, values):
    """Release from its values, ravelled and padded; a batch of `one` record gives the shapes."""
    flat, unravel = ravel_pytree(zero_sums(query, blocks, one))
    return unravel(values[: flat.size])


def _taken(round_: Round, release_of, key, step, mechanism, state, observe=None):
    """State after a round, and what is seen of it: the release, or what `observe` makes of it."""
    point = round_.point(state, key)
    query, blocks = _asked(round_, mechanism, state, point)
    release = release_of(query, blocks, step)
    # The barrier keeps the compiler from mixing what follows with the sum: replayed releases give
    # the same bits.
    release = jax.lax.optimization_barrier(release)
    estimate = jax.tree.map(lambda x: x / mechanism.rate, release)
    scales = {name: s / mechanism.rate for name, s in noise_scales(blocks, mechanism, step).items()}
    seen = ravel_pytree(release)[0] if observe is None else observe(query, blocks, step, release)
    return round_.update(state, point, step, estimate, scales), seen


def _padded(seen, kept):
    return jnp.pad(seen, (0, kept.shape[1] - seen.size))


def loop(
    release_of,
    key,
    first,
    stop,
    model: Model,
    solver: Solver,
    mechanism: Mechanism,
    state,
    kept=None,
    observe=None,
    in_a_row=1,
):
    """Steps from `first` to `stop` of one chain.

    Parameters
    ----------
    release_of : callable ``(query, blocks, step) -> release``
    key : key
        The solver's.
    first, stop : int
    model, solver, mechanism
    state : pytree
        State of the solver before the first of these steps.
    kept : array or None
        Where to keep releases, or what `observe` makes of each step.
    observe : callable ``(query, blocks, step, release) -> vector``, optional
    in_a_row : int
        `IN_A_ROW`, or 1.

    Returns
    -------
    state, kept
    """
    rounds = solver.rounds(model, mechanism)

    def one_step(step, carry):
        state, kept = carry

        def branch(round_):
            def body(state):
                own = jax.random.fold_in(key, step)
                state, seen = _taken(round_, release_of, own, step, mechanism, state, observe)
                return state, None if kept is None else _padded(seen, kept)

            return body

        if len(rounds) == 1:
            state, seen = branch(rounds[0])(state)
        else:
            state, seen = jax.lax.switch(
                _kind(solver, step, len(rounds)), [branch(r) for r in rounds], state
            )
        return state, None if kept is None else kept.at[step].set(seen)

    def some_steps(i, carry):
        def unless_over(j, carry):
            step = first + i * in_a_row + j
            return jax.tree.map(partial(jnp.where, step < stop), one_step(step, carry), carry)

        return jax.lax.fori_loop(0, in_a_row, unless_over, carry)

    if in_a_row > 1:
        times = (stop - first + in_a_row - 1) // in_a_row
        return jax.lax.fori_loop(0, times, some_steps, (state, kept))
    return jax.lax.fori_loop(first, stop, one_step, (state, kept))
