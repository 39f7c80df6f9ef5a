"""Dataclasses as pytrees.

`jax.tree_util.register_dataclass` does not make the class a part of what makes structures equal: in
jaxlib 0.10, structures of any two such classes with as many fields are. JAX finds compiled programs
by a few bits of a hash and by that equality, so that one call in 128 or so of a program would run
what was compiled for another solver or model. Here the class is a part of it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def pytree(kind: type[T]) -> type[T]:
    """Register a dataclass as a pytree, whose structures equal those of the same class alone.

    Parameters
    ----------
    kind : type
        A dataclass. Metadata of a field say what it is: ``{"static": True}`` is part of the
        structure, and ``{"dropped": True}`` takes its default in copies. All others are children.

    Returns
    -------
    type
        The same class.
    """
    own = [field for field in fields(kind) if not field.metadata.get("dropped")]  # type: ignore[arg-type]
    static = [field.name for field in own if field.metadata.get("static")]
    children = [field.name for field in own if not field.metadata.get("static")]
    keys = [jax.tree_util.GetAttrKey(name) for name in children]

    def flatten(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values = vars(tree)
        return tuple([values[name] for name in children]), tuple([values[name] for name in static])

    def flatten_with_keys(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, structure = flatten(tree)
        return tuple(zip(keys, values, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], values: Any) -> T:
        return kind(**dict(zip([*static, *children], [*structure, *values], strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
    return kind
