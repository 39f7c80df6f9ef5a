"""A private loop as a function of a key that may be batched: many fits in one program.

The noise is made of floating-point numbers and each batch has all records: the loop is that of
``numerics="fast", sampling_rate=1``, with noise from a generator inside of the program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from skdpbayes.inference import loop, release_sizes, start
from skdpbayes.mechanism.draws import Draws
from skdpbayes.mechanism.keys import wrap_keys
from skdpbayes.mechanism.private_sum import private_sum
from skdpbayes.mechanism.spec import MechanismSpec


def final_state(key: Any, records: Any, model: Any, solver: Any, spec: MechanismSpec) -> Any:
    """Final state of the solver in a private run; call it under ``jax.enable_x64(True)``."""
    if spec.sampling_rate != 1:
        raise ValueError("Only runs on all records can be batched.")
    mechanism = jax.tree.map(jnp.asarray, replace(spec, numerics="fast").traced())
    of_solver, of_noise = jax.random.split(wrap_keys(jax.random.bits(key, 2, jnp.uint32)))
    width = max(release_sizes(model, solver, mechanism, records))
    noise = jax.random.normal(of_noise, (spec.n_steps, width), jnp.float32)
    starts = jnp.tile(jnp.asarray([0, records.n_records], jnp.int64), (spec.n_steps, 1))
    indices = jnp.arange(records.n_slots, dtype=jnp.int32)
    draws = Draws(0, spec.n_steps, indices, starts, noise)

    def release(query: Any, blocks: Any, step: Any) -> Any:
        return private_sum(query, blocks, mechanism, draws.at(step), step, records)

    began = start(of_solver, model, solver)
    return loop(release, of_solver, 0, spec.n_steps, model, solver, mechanism, began)[0]
