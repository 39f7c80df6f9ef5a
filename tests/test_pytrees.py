"""A program that is compiled for one class is not run for another."""

from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

import skdpbayes
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.topics_dpvi import TopicsDPVI
from skdpbayes.solvers.topics_na_dpvi import TopicsNADPVI


@pytree
@dataclass(frozen=True)
class Own:
    a: float
    name: str = field(default="x", metadata={"static": True})
    left: int = field(default=0, metadata={"dropped": True})
    b: float = 0.0


def test_fields_are_children_structure_or_left_out():
    tree = Own(1.0, "y", 5, b=2.0)
    assert jax.tree.leaves(tree) == [1.0, 2.0]
    assert jax.tree.map(lambda x: 2 * x, tree) == Own(2.0, "y", 0, b=4.0)
    assert jax.tree.structure(tree) == jax.tree.structure(Own(3.0, "y", 7))
    assert jax.tree.structure(tree) != jax.tree.structure(Own(1.0, "z", 5, b=2.0))
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)] == [
        ".a",
        ".b",
    ]


def test_structures_of_two_classes_differ():
    solvers = [jax.tree.structure(kind(1.0, 2.0, 3.0)) for kind in (TopicsDPVI, TopicsNADPVI)]
    assert solvers[0] != solvers[1] and not solvers[0] == solvers[1]


def test_no_call_runs_the_program_of_another_class():
    """With `jax.tree_util.register_dataclass` several of these do so (jaxlib 0.10.2)."""

    def numbered(i):
        @pytree
        @dataclass(frozen=True)
        class Numbered:
            x: float

            def number(self):
                return i

        return Numbered

    program = jax.jit(lambda tree: tree.x + tree.number())
    found = [program(numbered(i)(0.0)) for i in range(100)]
    np.testing.assert_array_equal(found, np.arange(100))


def test_no_module_registers_its_classes_otherwise():
    files = Path(skdpbayes.__file__).parent.rglob("*.py")
    others = [
        file.name
        for file in files
        if "tree_util.register_" in file.read_text() or "register_dataclass" in file.read_text()
    ]
    assert others == ["pytrees.py"]
