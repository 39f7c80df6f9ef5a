"""Rows reach the files that `docs/review.md` lists, and no others.

A fit runs under a profiler that looks at all local variables of every function of the package when
it returns, and at what an estimator among them keeps. An array or a list with one entry for each
row (the number of rows is like no other number of the fit) tells that rows, or something made of
single rows, got there. Sums over rows have no such length, and code of other packages is not
watched: so the few functions that are handed rows may hand them on by name to a few others alone.
"""

import ast
import sys
import tempfile
from dataclasses import fields, is_dataclass
from pathlib import Path

import arrow_files
import cases
import jax
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator

import skdpbayes
from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli, Schema
from skdpbayes.intake.packing import padded_size
from skdpbayes.preprocessing import DPStandardScaler

ROOT = Path(skdpbayes.__file__).parent
ROUTE = (ROOT.parent / "docs" / "review.md").read_text()
N = cases.N
SIZES = {N, padded_size(N)}
# Functions outside of the two rooms that are handed rows, and hand them on; see `test_handed_on`.
HANDED_ON = {
    "estimators/_base.py": {"_fit", "_prepared", "_charged_run", "_run", "<lambda>", "records_of"},
    "inference.py": {
        "run",
        "_run",
        "_suited",
        "_own_devices",
        "chain",
        "_private_chain",
        "_chain",
        "_in_a_loop",
        "_one_by_one",
        "sizes_of_steps",
        "release_sizes",
        "<listcomp>",
        "<genexpr>",
    },
    # JAX takes records apart into their arrays, and puts them together again.
    "pytrees.py": {"flatten", "flatten_with_keys", "unflatten", "<listcomp>"},
}
# Programs that are compiled, whose records have no values while the profiler looks.
COMPILED = {"_steps", "_released", "release", "_releases"}
# To whom: the reader, the mechanism, the compiled loop, and each other.
HANDED_TO = {
    *("own_fit", "self._fit", "self._prepared", "self._reader().read", "_RUNNER.get()"),
    *("estimator._charged_run", "self._run", "replace", "noisy_count"),
    *(
        "run",
        "_run",
        "_private_chain",
        "_chain",
        "drive",
        "steps",
        "own",
        "sizes_of_steps",
        "release_sizes",
        "_releases.eval_shape",
    ),
    *(
        "jax.eval_shape",
        "jax.device_put",
        "draws_of_chain",
        "private_sum",
        "by_person",
        "records_of",
    ),
    *("_of_all_processes", "_digest", "digest_of", "divided", "StoredRecords"),
    *(
        "isinstance",
        "placed",
        "_suited",
        "_own_devices",
        "with_draws",
        "shards",
        "batches",
        "pieces",
        "fits_in_part",
        "ahead",
        "Sampler",
        "_by_pieces",
        "piece",
    ),
}


def row_counts(value, depth=0):
    """Lengths of the arrays in a value, as far as they are of data."""
    if isinstance(value, jax.core.Tracer):
        return
    if isinstance(value, np.ndarray | jax.Array) or sparse.issparse(value):
        yield from value.shape
    elif isinstance(value, tuple | list | dict | set | frozenset):
        yield len(value)
        if depth < 4 and len(value) < 50:
            for own in value.values() if isinstance(value, dict) else value:
                yield from row_counts(own, depth + 1)
    elif depth < 4 and isinstance(value, BaseEstimator):
        yield from row_counts(vars(value), depth + 1)
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


def _fit_of(file):
    """`fit`, where `test_handed_on` looks at it."""
    checked = file.startswith("estimators/") or file == "preprocessing/_scaler.py"
    return {"fit"} if checked else set()


def strays(reached):
    """What rows reached outside of the rooms, the functions that hand them on, and `fit` itself."""
    return {
        file: left
        for file, functions in reached.items()
        if not file.startswith(("intake/", "mechanism/")) and file != "cells.py"
        if (left := functions - HANDED_ON.get(file, set()) - _fit_of(file))
    }


# Of programs the tracer sees each call of NumPyro.
@pytest.mark.parametrize(
    "case",
    cases.every_fit(slow=("NumPyro", "linear", "logistic, vips", "network, regression, sgnht")),
)
def test_rows_stay_on_the_route(case):
    X, y = case.data()
    with Tracer() as tracer:
        case.make().fit(*((X,) if y is None else (X, y)))
    assert strays(tracer.reached) == {}
    assert "mechanism/private_sum.py" in tracer.reached and "inference.py" in tracer.reached
    rooms = {file for file in tracer.reached if file.startswith(("intake/", "mechanism/"))}
    missing = {file for file in rooms | {"cells.py"} if f"`{file}`" not in ROUTE}
    assert not missing, f"docs/review.md lacks {sorted(missing)}"


TABLE = pd.DataFrame({"a": np.linspace(0, 1, N), "b": np.arange(N) % 2})
SCHEMA = Schema(
    {"a": {"bounds": (0, 1)}, "b": {"kind": "integer", "bounds": (0, 1)}},
    {"name": "ill", "labels": [0, 1]},
)


def on_disk(X, y):
    with tempfile.TemporaryDirectory() as folder:
        return arrow_files.of_rows(Path(folder) / "t", X, y)  # mapped, whatever becomes of the name


@pytest.mark.parametrize(
    ("model", "X", "y"),
    [
        (DPStandardScaler(SCHEMA, random_state=0), TABLE, None),
        (
            DPBayesianLogisticRegression(classes=SCHEMA, solver="vips", random_state=0),
            TABLE,
            TABLE["b"],
        ),
        (DPStandardScaler(([0, 0], [1, 1]), random_state=0), TABLE.to_numpy().tolist(), None),
        (DPBetaBernoulli(random_state=0), sparse.csr_array(TABLE.to_numpy()), None),
        (
            DPBayesianLogisticRegression(classes=SCHEMA, solver="vips", random_state=0),
            *on_disk(TABLE.to_numpy(), TABLE["b"].to_numpy()),
        ),
    ],
    ids=["schema", "schema with labels", "list", "sparse", "on disk"],
)
def test_rows_of_any_kind_stay_on_the_route(model, X, y, compiled_quickly):
    with Tracer() as tracer:
        model.fit(X, y)
    assert strays(tracer.reached) == {}
    assert all(f"`{file}`" in ROUTE for file in tracer.reached if file.startswith("intake/"))


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


# What may be asked of rows that are handed on, beside handing them on.
ASKED = {
    ("rows", "facts"),  # public
    ("records", "shaped"),  # the same
    ("records", "mesh"),  # names of devices
    ("records", "slots"),  # planned from public numbers
    ("records", "at_once"),  # the same
    ("records", "n_slots"),  # sizes that `intake.packing` has rounded up
    ("records", "one"),  # a record of zeros
    ("named", "keys"),  # names of arguments
}
ALIASED = {
    "bounds": "bounds",
    "pack": "records",
    "read": "rows",
    "placed": "records",
}  # names that results get


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, N)),
        [0.0] * N,
        {"x": (np.ones(N),)},
        DPBetaBernoulli(random_state=list(range(N))),
    ],
    ids=["columns", "list", "nested", "estimator"],
)
def test_the_tracer_sees_rows_in_whatever_holds_them(value):
    assert N in row_counts(value)


class Uses(ast.NodeVisitor):
    """Where rows are used, under the names that they have, other than by handing them on."""

    def __init__(self):
        self.found, self._fine = [], set()

    def _handed(self, node):
        """A name, or the records that can contribute, as an argument or a result."""
        if isinstance(node, ast.Starred):
            node = node.value
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "records.usable":
            node = node.value
        if isinstance(node, ast.Name):
            self._fine.add(node)

    def visit_Call(self, node):
        if ast.unparse(node.func) in HANDED_TO:
            for argument in (*node.args, *(own.value for own in node.keywords)):
                self._handed(argument)
        self.generic_visit(node)

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and (node.value.id, node.attr) in ASKED:
            self._fine.add(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node):
        """Results that are rows keep a name that is watched."""
        (target,) = node.targets if len(node.targets) == 1 else (None,)
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=True)
        for own, value in pairs:
            called = value.func if isinstance(value, ast.Call) else None
            name = getattr(called, "attr", None)
            if name in ALIASED and isinstance(own, ast.Name) and own.id == ALIASED[name]:
                self._fine |= {called, called.value}
        self.generic_visit(node)

    def visit_Assert(self, node):
        """Nothing is told but a mistake of the package."""
        self._handed(getattr(node.test, "left", None))
        self.generic_visit(node)

    def visit_Return(self, node):
        for own in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            self._handed(own)
        self.generic_visit(node)

    def generic_visit(self, node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in ("X", "y", "named", "rows", "records") and node not in self._fine:
                self.found.append((node.id, node.lineno))
        if isinstance(node, ast.Attribute) and node.attr in ("pack", "read"):
            if node not in self._fine:
                self.found.append((node.attr, node.lineno))
        super().generic_visit(node)


def functions_of(path):
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def misuses(function):
    """Uses of rows that are more than handing them on."""
    uses = Uses()
    uses.visit(function)
    return uses.found


def test_handed_on():
    """Functions that are handed rows hand them on, and do nothing else with them."""
    checked = 0
    private = (*sorted((ROOT / "estimators").glob("*.py")), ROOT / "preprocessing" / "_scaler.py")
    for path in (*private, ROOT / "inference.py"):
        for function in functions_of(path):
            name = str(path.relative_to(ROOT))
            if function.name in {"fit"} | HANDED_ON.get(name, set()) | COMPILED:
                assert misuses(function) == [], (name, function.name)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    "body",
    [
        "n = len(X) + X.sum()",
        "m = X",
        "z = [own for own in X]",
        "rows.pack().fields['x'] + X",
        "self.mean_ = np.mean(X)",
        "packed = rows.pack()",
        "self.kept_ = rows = self._reader().read(self, X, y)",
        "self.count_ = int(np.sum(records.usable))",
        "records = rows.pack(); self.count_ = int(records.n_records)",
        "self._warn_if_few_are_usable(plan.facts, rows.pack().usable)",
        "model.fit(X)",
        "self.last_ = named['y']",
        "refuse_foreign(type(self), named)",
    ],
)
def test_the_check_of_what_is_handed_on_sees_more_than_that(body):
    (function,) = ast.parse(f"def fit(self, X, y=None):\n    {body}\n    self._fit(X, y)").body
    assert misuses(function)


def test_only_an_audit_puts_something_in_the_place_of_charges_and_runs():
    users = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if "runs_by" in path.read_text() or "_RUNNER" in path.read_text()
    }
    assert users == {"audit/fit.py", "estimators/_base.py"}
