"""Rows reach the files that `docs/review.md` lists, and no others.

A fit runs under a profiler that looks at all local variables of every function of the package when
it returns. An array with one entry for each row (the number of rows is like no other number of the
fit) tells that rows, or something made of single rows, got there.
"""

import ast
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import cases
import jax
import numpy as np
import pytest
from scipy import sparse

import skdpbayes
from skdpbayes import DPBetaBernoulli
from skdpbayes.intake.packing import padded_size

ROOT = Path(skdpbayes.__file__).parent
ROUTE = (ROOT.parent / "docs" / "review.md").read_text()
N = cases.N
SIZES = {N, padded_size(N)}
# Functions outside of the two rooms that are handed rows, and hand them on; see `test_handed_on`.
HANDED_ON = {
    "estimators/_base.py": {"_fit", "_prepared", "_charged_run", "_run", "<lambda>"},
    "inference.py": {"run", "_run", "chain", "_chain", "sizes_of_steps", "<listcomp>"},
}


def row_counts(value, depth=0):
    """Lengths of the arrays in a value, as far as they are of data."""
    if isinstance(value, jax.core.Tracer):
        return
    if isinstance(value, np.ndarray | jax.Array) or sparse.issparse(value):
        if len(value.shape):
            yield value.shape[0]
    elif depth < 4 and isinstance(value, tuple | list) and len(value) < 50:
        for own in value:
            yield from row_counts(own, depth + 1)
    elif depth < 4 and isinstance(value, dict) and len(value) < 50:
        for own in value.values():
            yield from row_counts(own, depth + 1)
    elif depth < 4 and is_dataclass(value) and not isinstance(value, type):
        for own in fields(value):
            yield from row_counts(getattr(value, own.name, None), depth + 1)


class Tracer:
    """Files and functions of the package whose local variables hold rows."""

    def __init__(self):
        self.reached = {}

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *error):
        sys.setprofile(self._before)

    def _seen(self, frame, event, argument):
        name = frame.f_code.co_filename
        if event != "return" or not name.startswith(str(ROOT)):
            return
        holds = any(
            size in SIZES
            for own in (*frame.f_locals.values(), argument)
            for size in row_counts(own)
        )
        if holds:
            file = str(Path(name).relative_to(ROOT))
            self.reached.setdefault(file, set()).add(frame.f_code.co_name)


def strays(reached):
    """What rows reached outside of the rooms, the functions that hand them on, and `fit` itself."""
    return {
        file: left
        for file, functions in reached.items()
        if not file.startswith(("intake/", "mechanism/")) and file != "cells.py"
        if (left := functions - HANDED_ON.get(file, set()) - {"fit"})
    }


@pytest.mark.parametrize("case", cases.every_fit())
def test_rows_stay_on_the_route(case):
    X, y = case.data()
    with Tracer() as tracer:
        case.make().fit(*((X,) if y is None else (X, y)))
    assert strays(tracer.reached) == {}
    assert "mechanism/private_sum.py" in tracer.reached and "inference.py" in tracer.reached
    rooms = {file for file in tracer.reached if file.startswith(("intake/", "mechanism/"))}
    missing = {file for file in rooms | {"cells.py"} if f"`{file}`" not in ROUTE}
    assert not missing, f"docs/review.md lacks {sorted(missing)}"


def test_the_tracer_sees_a_reader_that_keeps_rows():
    class Curious(DPBetaBernoulli):
        def fit(self, X, y=None):
            self.mean_row_ = self._glance(X)
            return super().fit(X, y)

        def _glance(self, X):
            return X.mean(axis=0)

    case = cases.named("beta")
    X, _ = case.data()
    Curious._glance.__code__ = Curious._glance.__code__.replace(
        co_filename=str(ROOT / "estimators" / "_families.py")
    )
    with Tracer() as tracer:
        Curious(random_state=0).fit(X)
    assert strays(tracer.reached) == {"estimators/_families.py": {"_glance"}}


class Uses(ast.NodeVisitor):
    """Where names are used other than as an argument of a call, or returned."""

    def __init__(self, names, attributes):
        self.names, self.attributes, self.found, self._fine = names, attributes, [], set()

    def visit_Call(self, node):
        for argument in (*node.args, *(own.value for own in node.keywords)):
            inner = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(inner, ast.Name):
                self._fine.add(inner)
        self.generic_visit(node)

    def visit_Attribute(self, node):
        if node.attr in self.attributes and isinstance(node.value, ast.Name):
            self._fine.add(node.value)
        self.generic_visit(node)

    def visit_Return(self, node):
        for own in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            self._fine.add(own)
        self.generic_visit(node)

    def visit_Name(self, node):
        if node.id in self.names and isinstance(node.ctx, ast.Load) and node not in self._fine:
            self.found.append((node.id, node.lineno))


def functions_of(path):
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def misuses(function):
    """Uses of rows, under the names that they have, that are more than handing them on.

    Of `Rows` the public facts and the function that packs may be asked for; of `Records` what is
    public or goes into the mechanism.
    """
    uses = Uses(
        {"X", "y", "rows", "records"},
        {"facts", "pack", "usable", "bounds", "n_slots"},
    )
    uses.visit(function)
    return uses.found


def test_handed_on():
    """Functions that are handed rows hand them on, and do nothing else with them."""
    checked = 0
    for path in (*sorted((ROOT / "estimators").glob("*.py")), ROOT / "inference.py"):
        for function in functions_of(path):
            name = str(path.relative_to(ROOT))
            if function.name == "fit" or function.name in HANDED_ON.get(name, ()):
                assert misuses(function) == [], (name, function.name)
                checked += 1
    assert checked > 15


@pytest.mark.parametrize(
    "body",
    ["n = len(X) + X.sum()", "m = X", "z = [own for own in X]", "rows.pack().fields['x'] + X"],
)
def test_the_check_of_what_is_handed_on_sees_more_than_that(body):
    (function,) = ast.parse(f"def fit(self, X, y=None):\n    {body}\n    self._fit(X, y)").body
    assert misuses(function)
