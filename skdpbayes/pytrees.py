"""Dataclasses as pytrees.

`jax.tree_util.register_dataclass` does not make the class a part of what makes structures equal: in
jaxlib 0.10, structures of any two such classes with as many fields are. JAX finds compiled programs
by a few bits of a hash and by that equality, so that a call of a program may run what was compiled
for another solver or model: with a chance of about 1 in 128 for each other such class that ran
before. Here the class is a part of it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jaxlib

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_OURS: set[type] = set()
_CONFUSED = tuple(int(part) for part in jaxlib.__version__.split(".")[:2]) < (0, 11)


def pytree(kind: type[T]) -> type[T]:
    """Register a dataclass as a pytree, whose structures equal those of the same class alone.

    Parameters
    ----------
    kind : type
        A dataclass. Values of static fields should be of one type each: they are compared by
        ``==``. Metadata of a field say what it is: ``{"static": True}`` is part of the
        structure, and ``{"dropped": True}`` takes its default in copies. All others are children.

    Returns
    -------
    type
        The same class.
    """
    own = [field for field in fields(kind) if not field.metadata.get("dropped")]
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
    _OURS.add(kind)
    return kind


def refuse_confused(*trees: Any) -> None:
    """Refuse dataclasses whose compiled programs JAX might confuse.

    Raises
    ------
    TypeError
        For a dataclass that is part of a tree and was not registered by `pytree`, with a jaxlib
        that confuses programs.
    """
    if not _CONFUSED:
        return

    def children_of(tree: Any) -> list[Any]:
        return jax.tree.leaves(tree, is_leaf=lambda x: x is not tree)

    for tree in trees:
        children = children_of(tree)
        if len(children) == 1 and children[0] is tree:
            continue  # a leaf
        if is_dataclass(tree) and type(tree) not in _OURS:
            raise TypeError(
                f"{type(tree).__name__} is a dataclass that skdpbayes.pytrees.pytree has not "
                "registered. Decorate it with that in the place of JAX's own registration, with "
                "which JAX may run the program of another class."
            )
        refuse_confused(*children)
