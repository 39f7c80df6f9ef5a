"""A program that is compiled for one class is not run for another."""

from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import pytest

from skdpbayes import DPBetaBernoulli, inference, pytrees
from skdpbayes.audit.runs import runs
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.records import Records
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


def test_records_keep_counts_and_places_to_themselves():
    """Programs are not compiled anew for them, and have no part of them."""
    records = Records(np.ones((4, 2)), 4, usable=np.ones(4, bool), places=np.arange(4), slots=2)
    copy = jax.tree.map(lambda x: x, records)
    assert len(jax.tree.leaves(records)) == 2
    assert copy.usable is None and copy.places is None and copy.slots == 2


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


def test_no_code_or_page_registers_its_classes_otherwise():
    """Those of tests, benchmarks and pages that users copy run in the same programs."""
    root = Path(__file__).parents[1]
    files = [
        path
        for folder in ("skdpbayes", "tests", "benchmarks", "docs", "examples")
        for path in (root / folder).rglob("*.*")
        if path.suffix in (".py", ".md") and "decisions" not in path.parts
    ]
    assert len(files) > 300
    others = [
        path.name
        for path in files
        if "@jax.tree_util." + "register_dataclass" in path.read_text("utf-8")
    ]
    assert not others


def test_a_run_refuses_dataclasses_that_may_be_confused(monkeypatch):
    @dataclass(frozen=True)
    class Confused:
        x: float

    jax.tree_util.register_dataclass(Confused, ["x"], [])
    monkeypatch.setattr(pytrees, "_CONFUSED", True)
    pytrees.refuse_confused(Own(1.0), {"a": [Own(2.0)], "b": np.ones(3)}, None, 1.0)
    for tree in (Confused(1.0), Own([1.0, Confused(2.0)]), {"a": (Own(1.0), Confused(1.0))}):
        with pytest.raises(TypeError, match="Confused is a dataclass"):
            pytrees.refuse_confused(tree)
    plan = DPBetaBernoulli(solver="vips").plan(100, 2)
    records = pack_records(x=np.zeros((100, 2), np.float32))
    keys = fit_keys(0, 1)
    for own in ((Confused(1.0), plan.solver), (plan.model, Confused(1.0))):
        for of_run in (inference.run, lambda *how: next(runs(*how))):
            with pytest.raises(TypeError, match="Confused"):
                of_run(keys, *own, plan.spec, records)
    monkeypatch.setattr(pytrees, "_CONFUSED", False)
    pytrees.refuse_confused(Confused(1.0))
