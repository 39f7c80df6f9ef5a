"""The only driver: one compiled loop over ``update(private_sum(query))``.

Models, solvers, the mechanism and the records are pytrees whose numbers are traced: new hyper-parameters, another
number of steps and another number of records of the same padded size run the program that is already compiled.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from skdpbayes.models.base import Model
from skdpbayes.privacy.mechanism import Mechanism, MechanismSpec, noise_scales, private_sum, zero_sums
from skdpbayes.privacy.random import FitKeys, wrap_keys
from skdpbayes.records import Records
from skdpbayes.solvers.base import Round, Solver

_BEFORE_THE_FIRST_STEP = 2**31 - 1  # a step number that no run reaches


def run(keys: FitKeys, model: Model, solver: Solver, spec: MechanismSpec, records: Records, *, keep_releases=False):
    """Run a solver on private records.

    Parameters
    ----------
    keys : FitKeys
        With a leading axis of length ``spec.n_chains``.
    model : Model
    solver : Solver
    spec : MechanismSpec
    records : Records
    keep_releases : bool
        Also return every release (they are covered by the guarantee, but take memory).

    Returns
    -------
    state : pytree
        Final state of the solver, with a leading axis of length ``spec.n_chains`` if that is more than one.
    releases : array of shape ([n_chains,] n_steps, size) or None
        Each step's release, ravelled and padded to the longest.
    """
    return _run(keys, records, None, None, model, solver, spec, spec.n_steps if keep_releases else None)


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
    releases = jnp.asarray(releases if spec.n_chains > 1 else releases[None])
    unused = wrap_keys(jnp.zeros((spec.n_chains, 2)))
    return _run(FitKeys(unused, unused, solver_keys), None, releases, example, model, solver, spec, None)[0]


def _run(keys, records, releases, example, model, solver, spec, capacity):
    # Positions in a Poisson sample, and the uniforms behind them, need 64 bits; everything else names its dtype.
    with jax.enable_x64(True):
        mechanism = jax.tree.map(jnp.asarray, spec.traced())
        return _chains(keys, records, releases, example, model, solver, mechanism, capacity)


# Level 1 compiles a quarter faster than 3, and runs as fast.
@partial(jax.jit, static_argnames="capacity", compiler_options={"xla_backend_optimization_level": 1})
def _chains(keys, records, releases, example, model, solver, mechanism, capacity):
    """One chain after the other; releases come from records or, in a replay, from a recording."""

    def chain(of_chain):
        own_keys, recorded = of_chain

        def release(query, blocks, step_keys, step):
            if recorded is None:
                return private_sum(query, blocks, mechanism, step_keys, step, records)
            zeros = zero_sums(query, blocks, jax.tree.map(lambda x: x[None], example))
            flat, unravel = ravel_pytree(zeros)
            return unravel(recorded[step, : flat.size])

        return _loop(release, own_keys, model, solver, mechanism, capacity)

    if keys.solver.shape[0] > 1:
        return jax.lax.map(chain, (keys, releases))
    return chain(jax.tree.map(lambda x: x[0], (keys, releases)))


def _loop(release_of, keys: FitKeys, model: Model, solver: Solver, mechanism: Mechanism, capacity):
    rounds = solver.rounds(model, mechanism)

    def take(round_: Round, step, step_keys, state):
        blocks, point = round_.blocks(state), round_.point(state, step_keys.solver)
        release = release_of(round_.query(state, point), blocks, step_keys, step)
        # The barrier keeps the compiler from mixing what follows with the sum: replayed releases give the same bits.
        release = jax.lax.optimization_barrier(release)
        estimate = jax.tree.map(lambda x: x / mechanism.rate, release)
        scales = {name: s / mechanism.rate for name, s in noise_scales(blocks, mechanism, step).items()}
        return round_.update(state, point, step, estimate, scales), ravel_pytree(release)[0]

    def one_step(step, carry):
        state, kept = carry
        step_keys = keys.at(step)

        def branch(round_):
            def body(state):
                state, flat = take(round_, step, step_keys, state)
                return state, None if kept is None else jnp.pad(flat, (0, kept.shape[1] - flat.size))

            return body

        if len(rounds) == 1:
            state, flat = branch(rounds[0])(state)
        else:
            kind = jnp.minimum(solver.which(step), len(rounds) - 1)
            state, flat = jax.lax.switch(kind, [branch(r) for r in rounds], state)
        return state, None if kept is None else kept.at[step].set(flat)

    state = solver.init(model, jax.random.fold_in(keys.solver, _BEFORE_THE_FIRST_STEP))
    kept = None
    if capacity is not None:
        sizes = [jax.eval_shape(lambda s, r=r: take(r, jnp.int32(0), keys, s)[1], state).size for r in rounds]
        kept = jnp.zeros((capacity, max(sizes)), jnp.float32)
    return jax.lax.fori_loop(0, mechanism.n_steps, one_step, (state, kept))
