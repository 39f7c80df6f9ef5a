"""What a traced function computes: operations that are refused, and by what it is known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from skdpbayes.models.numpyro.program import Program

_LOOPS = re.compile(r"while|random_gamma.*")  # of no fixed length
_REFUSED = re.compile(
    r".*callback.*|debug_.*|.*ffi_call|infeed|outfeed|custom_vmap_call|" + _LOOPS.pattern
)


class Traced(Protocol):
    """A jaxpr, with its constants or without, whatever class JAX gives it."""

    @property
    def eqns(self) -> Sequence[JaxprEqn]:
        """Its operations."""


def _is_traced(value: object) -> TypeGuard[Traced]:
    """Not by its class: a jaxpr of another one would be overlooked."""
    return hasattr(value, "eqns")


def _all_in(program: Traced) -> Iterator[Traced]:
    """A jaxpr, and all those in its operations."""
    yield program
    for equation in program.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if _is_traced(inner):
                    yield from _all_in(inner)


def _primitives(program: Traced) -> set[str]:
    """Names of the operations, nested ones included."""
    return {equation.primitive.name for own in _all_in(program) for equation in own.eqns}


def has_loops(program: Traced) -> bool:
    """Whether it has loops of no fixed length."""
    return any(map(_LOOPS.fullmatch, _primitives(program)))


def refuse_primitives(programs: Sequence[ClosedJaxpr]) -> list[np.ndarray]:
    """Raise if a compiled function leaks values, has data-dependent time, or sees a batch.

    Returns
    -------
    constants : list of NumPy arrays
        Arrays that the first of them holds.
    """
    for name in sorted(set().union(*map(_primitives, programs))):
        if _REFUSED.fullmatch(name):
            raise ValueError(
                f"The model has an operation {name!r}: callbacks see records, loops of no fixed "
                "length run for as long "
                "as a record says, and rules for batches see other records. Use jax.lax.fori_loop "
                "with a fixed number "
                "of steps, or jax.lax.scan, and print what was released."
            )
    return [np.asarray(x) for x in programs[0].consts if np.ndim(x)]


def known_by(program: Program, computed: Sequence[ClosedJaxpr]) -> Program:
    """Program with a digest of these jaxprs in its `code`."""
    code = "".join([program.code, *map(_digest, computed)])
    return replace(program, code=hashlib.sha256(code.encode()).hexdigest())


def _digest(program: ClosedJaxpr) -> str:
    """Digest of a jaxpr and its constants, but for the addresses of functions in it."""
    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(program)).encode())
    for own in _all_in(program):
        for constant in getattr(own, "consts", ()):
            is_key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
            array = jax.random.key_data(constant) if is_key else constant
            digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()
