"""The only driver: one compiled loop over ``update(private_sum(query))``.

Models, solvers, the mechanism and the records are pytrees whose numbers are traced: new hyper-parameters, another
number of steps and another number of records of the same padded size run the program that is already compiled.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from skdpbayes.models.base import Model
from skdpbayes.privacy.mechanism import Mechanism, MechanismSpec, noise_scales, private_sum
from skdpbayes.privacy.random import FitKeys
from skdpbayes.records import Records
from skdpbayes.solvers.base import Round, Solver


class _FromRecords(NamedTuple):
    """Releases computed from the training records."""

    keys: Any  # MechanismKeys
    records: Records

    def release(self, query, blocks, mechanism, step):
        return private_sum(query, blocks, mechanism, self.keys, step, self.records)


class _FromTranscript(NamedTuple):
    """Releases read from a recording: no data."""

    releases: jax.Array
    example: Any

    def release(self, query, blocks, mechanism, step):
        shapes = jax.eval_shape(lambda r: jax.vmap(query)(jax.tree.map(lambda x: x[None], r)), self.example)
        sums = jax.eval_shape(lambda c: _dense_sums(c), shapes)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), {name: sums[name] for name in blocks})
        flat, unravel = ravel_pytree(zeros)
        return unravel(self.releases[step, : flat.size])


def _dense_sums(contributions):
    from skdpbayes.privacy.mechanism import _clipped_sum

    return {name: _clipped_sum(c, 1.0, jnp.ones(1, bool)) for name, c in contributions.items()}


def run(keys: FitKeys, model: Model, solver: Solver, spec: MechanismSpec, records: Records, *, record: bool = False):
    """Run a solver on private records.

    Parameters
    ----------
    keys : FitKeys
        With a leading axis of length ``spec.n_chains``.
    model : Model
    solver : Solver
    spec : MechanismSpec
    records : Records
    record : bool
        Also return every release (they are covered by the guarantee, but take memory).

    Returns
    -------
    state : pytree
        Final state of the solver, with a leading axis of length ``spec.n_chains`` if that is more than one.
    transcript : array of shape ([n_chains,] n_steps, size) or None
        Each step's release, ravelled and padded to the longest.
    """
    source = _FromRecords(keys.mechanism, records)
    return _run(source, keys.solver, model, solver, spec, spec.n_steps if record else None, source_axes=(0, None))


def replay(transcript, solver_keys, model: Model, solver: Solver, spec: MechanismSpec, example):
    """Recompute the final state from recorded releases and the solver key, without data.

    Parameters
    ----------
    transcript : array
        As returned by `run`.
    solver_keys : array of keys of shape (n_chains,)
    example : pytree
        One record of zeros, for its shapes.
    """
    transcript = transcript if spec.n_chains > 1 else transcript[None]
    source = _FromTranscript(jnp.asarray(transcript), example)
    return _run(source, solver_keys, model, solver, spec, None, source_axes=(0, None))[0]


def _run(source, solver_keys, model, solver, spec, capacity, source_axes):
    # Positions in a Poisson sample, and the uniforms behind them, need 64 bits; everything else names its dtype.
    with jax.enable_x64(True):
        mechanism = jax.tree.map(jnp.asarray, spec.traced())
        first, second = source
        if spec.n_chains == 1:
            first = jax.tree.map(lambda x: x[0], first)
            source, key = type(source)(first, second), solver_keys[0]
            return _loop(source, key, model, solver, mechanism, capacity)
        return _chains(source, solver_keys, model, solver, mechanism, capacity, type(source)(*source_axes))


@partial(jax.jit, static_argnames=("capacity", "axes"))
def _chains(source, keys, model, solver, mechanism, capacity, axes):
    return jax.vmap(lambda s, k: _loop(s, k, model, solver, mechanism, capacity), in_axes=(axes, 0))(source, keys)


@partial(jax.jit, static_argnames=("capacity",))
def _loop(source, solver_key, model: Model, solver: Solver, mechanism: Mechanism, capacity):
    rounds = solver.rounds(model, mechanism)

    def take(round_: Round, step, key, state):
        blocks = round_.blocks(state)
        release = source.release(round_.query(state, key), blocks, mechanism, step)
        # The barrier keeps the compiler from mixing what follows with the sum: replayed releases give the same bits.
        release = jax.lax.optimization_barrier(release)
        estimate = jax.tree.map(lambda x: x / mechanism.rate, release)
        scales = {name: s / mechanism.rate for name, s in noise_scales(blocks, mechanism, step).items()}
        return round_.update(state, key, step, estimate, scales), ravel_pytree(release)[0]

    def one_step(step, carry):
        state, transcript = carry
        key = jax.random.fold_in(solver_key, step)
        width = None if transcript is None else transcript.shape[1]

        def branch(round_):
            def body(state):
                state, flat = take(round_, step, key, state)
                return state, None if width is None else jnp.pad(flat, (0, width - flat.size))

            return body

        if len(rounds) == 1:
            state, flat = branch(rounds[0])(state)
        else:
            state, flat = jax.lax.switch(solver.which(step), [branch(r) for r in rounds], state)
        return state, None if transcript is None else transcript.at[step].set(flat)

    init_key = jax.random.fold_in(solver_key, jnp.iinfo(jnp.int32).max)
    state = solver.init(model, mechanism, init_key)
    transcript = None
    if capacity is not None:
        sizes = [jax.eval_shape(lambda s, r=r: take(r, 0, solver_key, s)[1], state).size for r in rounds]
        transcript = jnp.zeros((capacity, max(sizes)), jnp.float32)
    return jax.lax.fori_loop(0, mechanism.n_steps, one_step, (state, transcript))
