"""Imports point one way, and what users import first loads nothing heavy."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import skdpbayes

ROOT = Path(skdpbayes.__file__).parent

# The rooms, from the ground up: a module imports from its own room and from rooms below.
ROOMS = (
    "_version",
    "cells",
    "checks",
    "compilation",
    "pytrees",
    "schema",
    "declarations",
    "facts",
    "execution",
    "privacy",
    "mechanism",
    "posteriors",
    "intake",
    "models",
    "solvers",
    "inference",
    "plans",
    "estimators",
    "preprocessing",
    "model_selection",
    "pipelines",
    "audit",
    "datasets",
    "reference",
    "calibration",
    "displays",
    "",
    "__main__",
)

# Rooms that stand below, and are closed all the same: what decides about a fit sees no rows.
CLOSED = {
    "privacy": {"schema", "declarations", "cells"},
    "mechanism": {"schema", "declarations", "cells"},
    "models": {"intake", "schema", "declarations"},
    "solvers": {"intake", "schema", "declarations"},
    "inference": {"intake", "schema", "declarations"},
    "plans": {"intake"},
}


def names_imported(path):
    """Modules of ours that a file imports, anywhere in it."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) if node.level else ""
            home = ".".join(part for part in (base, node.module) if part)
            found = [f"{home}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            if name.split(".")[0] == "skdpbayes":
                yield ".".join(name.split(".")[1:])


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    .removesuffix("__init__")
    .rstrip("."): path
    for path in FILES
}


def module_of(name):
    """Module that an imported name is, or is part of."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def room_of(name):
    room = module_of(name).partition(".")[0]
    assert room in ROOMS, f"{name} has no place among the rooms"
    return room


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    room = room_of(name)
    below = set(ROOMS[: ROOMS.index(room) + 1]) - CLOSED.get(room, set())
    wrong = {other for other in names_imported(MODULES[name]) if room_of(other) not in below}
    assert not wrong, f"{name} may import from {sorted(below)}, and imports {sorted(wrong)}"


def test_no_modules_import_each_other():
    """Imports within functions count, too."""
    graph = {
        name: {module_of(other) for other in names_imported(path)} - {name}
        for name, path in MODULES.items()
    }
    assert len(graph["inference"]) > 3
    TopologicalSorter(graph).prepare()  # raises a CycleError


def test_the_check_of_layers_sees_imports():
    found = set(names_imported(ROOT / "inference.py"))
    assert {
        "models.base.Model",
        "mechanism.private_sum.private_sum",
        "solvers.base.Solver",
    } <= found
    lazy = set(names_imported(ROOT / "estimators" / "_base.py"))
    assert "inference.run" in lazy


PUBLIC = (
    *("", "estimators", "privacy", "datasets", "calibration", "displays", "pipelines"),
    *("intake", "reference", "preprocessing", "model_selection", "schema"),
)


HEAVY = {
    "jax",
    "jaxlib",
    "matplotlib",
    "numpyro",
    "polyagamma",
    "dp_accounting",
    "fourier_accountant",
}


def test_importing_loads_nothing_heavy():
    """The first of them that loads something heavy is named."""
    modules = [f"skdpbayes.{name}" if name else "skdpbayes" for name in PUBLIC]
    code = (
        "import sys, importlib\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        f"    if found := {HEAVY} & set(sys.modules): sys.exit(name + ' loads ' + str(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_an_estimator_is_built_cloned_and_shown_without_jax():
    code = (
        "import sys; from skdpbayes import DPBayesianLogisticRegression as E; from sklearn.base import clone; "
        "e = clone(E(epsilon=2.0)); repr(e); e._repr_html_(); e.get_params(); "
        "sys.exit(int('jax' in sys.modules or 'dp_accounting' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_regressions_are_fitted_without_numpyro():
    """NumPyro takes a while to import, and regressions need none of it."""
    code = (
        "import sys, numpy as np, skdpbayes as s; X = np.zeros((9, 1)); "
        "s.DPBayesianLinearRegression(bounds=((-1, 1), (-1, 1)), solver='vips').fit(X, X[:, 0]); "
        "how = {'solver': 'dpvi', 'guide': 'mean_field', 'n_steps': 1}; "
        "s.DPBayesianLogisticRegression(classes=[0, 1], **how).fit(X, X[:, 0]); "
        "assert 'jax' in sys.modules; sys.exit('numpyro' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
