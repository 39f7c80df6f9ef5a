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
from skdpbayes.privacy.mechanism import Mechanism, MechanismSpec, noise_scales, private_sum, zero_sums
from skdpbayes.privacy.random import FitKeys, wrap_keys
from skdpbayes.records import Records
from skdpbayes.solvers.base import Round, Solver


class _FromRecords(NamedTuple):
    """Releases computed from the training records."""

    records: Records

    def release(self, query, blocks, mechanism, keys, step):
        return private_sum(query, blocks, mechanism, keys, step, self.records)


class _FromTranscript(NamedTuple):
    """Releases read from a recording: no data, and no use of the keys for sampling and noise."""

    releases: Any
    example: Any

    def release(self, query, blocks, mechanism, keys, step):
        del keys
        zeros = zero_sums(query, blocks, jax.tree.map(lambda x: x[None], self.example))
        flat, unravel = ravel_pytree(zeros)
        return unravel(self.releases[step, : flat.size])


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
    return _run(_FromRecords(records), None, keys, model, solver, spec, spec.n_steps if record else None)


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
    unused = wrap_keys(jnp.zeros((spec.n_chains, 2)))
    keys = FitKeys(unused, unused, solver_keys)
    return _run(source, _FromTranscript(0, None), keys, model, solver, spec, None)[0]


def _run(source, chain_axes, keys, model, solver, spec, capacity):
    # Positions in a Poisson sample, and the uniforms behind them, need 64 bits; everything else names its dtype.
    with jax.enable_x64(True):
        mechanism = jax.tree.map(jnp.asarray, spec.traced())
        if spec.n_chains > 1:
            return _chains(source, keys, model, solver, mechanism, capacity, chain_axes)
        if chain_axes is not None:
            source = source._replace(releases=source.releases[0])
        return _one_chain(source, jax.tree.map(lambda k: k[0], keys), model, solver, mechanism, capacity)


_COMPILER = {"xla_backend_optimization_level": 1}  # compiles a quarter faster than 3, runs as fast


@partial(jax.jit, static_argnames=("capacity", "axes"), compiler_options=_COMPILER)
def _chains(source, keys, model, solver, mechanism, capacity, axes):
    chain = partial(_loop, model=model, solver=solver, mechanism=mechanism, capacity=capacity)
    return jax.vmap(chain, in_axes=(axes, 0))(source, keys)


@partial(jax.jit, static_argnames=("capacity",), compiler_options=_COMPILER)
def _one_chain(source, keys, model, solver, mechanism, capacity):
    return _loop(source, keys, model, solver, mechanism, capacity)


def _loop(source, keys: FitKeys, model: Model, solver: Solver, mechanism: Mechanism, capacity):
    rounds = solver.rounds(model, mechanism)

    def take(round_: Round, step, step_keys, state):
        blocks, point = round_.blocks(state), round_.point(state, step_keys.solver)
        release = source.release(round_.query(state, point), blocks, mechanism, step_keys, step)
        # The barrier keeps the compiler from mixing what follows with the sum: replayed releases give the same bits.
        release = jax.lax.optimization_barrier(release)
        estimate = jax.tree.map(lambda x: x / mechanism.rate, release)
        scales = {name: s / mechanism.rate for name, s in noise_scales(blocks, mechanism, step).items()}
        return round_.update(state, point, step, estimate, scales), ravel_pytree(release)[0]

    def one_step(step, carry):
        state, transcript = carry
        step_keys = keys.at(step)

        def branch(round_):
            def body(state):
                state, flat = take(round_, step, step_keys, state)
                return state, None if transcript is None else jnp.pad(flat, (0, transcript.shape[1] - flat.size))

            return body

        if len(rounds) == 1:
            state, flat = branch(rounds[0])(state)
        else:
            state, flat = jax.lax.switch(solver.which(step), [branch(r) for r in rounds], state)
        return state, None if transcript is None else transcript.at[step].set(flat)

    state = solver.init(model, mechanism, jax.random.fold_in(keys.solver, _BEFORE_THE_FIRST_STEP))
    transcript = None
    if capacity is not None:
        sizes = [jax.eval_shape(lambda s, r=r: take(r, jnp.int32(0), keys, s)[1], state).size for r in rounds]
        transcript = jnp.zeros((capacity, max(sizes)), jnp.float32)
    return jax.lax.fori_loop(0, mechanism.n_steps, one_step, (state, transcript))


_BEFORE_THE_FIRST_STEP = 2**31 - 1  # a step number that no run reaches
