"""Imports point one way, and what users import first loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skdpbayes

ROOT = Path(skdpbayes.__file__).parent

# What each part may import of ours (itself aside).
ALLOWED = {
    "": {"estimators", "schema"},
    "__main__": {"_version", "privacy"},
    "_declared": {"_labels", "_rows", "schema"},
    "_labels": set(),
    "_layers": set(),
    "_mixture_coordinates": {"posteriors"},
    "_plotting": set(),
    "_noisy_mixture": {"posteriors"},
    "_noisy_moments": {"posteriors"},
    "_noisy_sums": {"posteriors"},
    "_noisy_topics": set(),
    "_noisy_weights": set(),
    "_rows": {"_labels"},
    "_version": set(),
    "_scoring": {"_labels", "estimators"},
    "calibration": {"_plotting"},
    "datasets": {"preprocessing"},
    "estimators": {
        "_declared",
        "_labels",
        "_layers",
        "_rows",
        "_version",
        "inference",
        "models",
        "posteriors",
        "privacy",
        "records",
        "schema",
        "solvers",
    },
    "inference": {
        "models.base",
        "privacy.draws",
        "privacy.lattice",
        "privacy.mechanism",
        "privacy.random",
        "records",
        "solvers.base",
    },
    "inspection": {"_plotting"},
    "model_selection": {
        "_declared",
        "_rows",
        "_scoring",
        "preprocessing",
        "estimators",
        "inference",
        "models",
        "privacy",
        "records",
        "solvers",
    },
    "models": {
        "_layers",
        "_mixture_coordinates",
        "_noisy_mixture",
        "_noisy_moments",
        "_noisy_sums",
        "_noisy_topics",
        "_noisy_weights",
        "privacy.contributions",
        "privacy.mechanism",
    },
    "posteriors": set(),
    "preprocessing": {
        "_declared",
        "_labels",
        "_rows",
        "estimators",
        "model_selection",
        "models",
        "privacy",
        "records",
        "schema",
        "solvers",
    },
    "privacy.accounting": set(),
    "privacy._audit_attack": {"inference", "privacy._audited", "privacy.accounting", "privacy.mechanism"},
    "privacy._audit_checks": {"inference", "privacy._audited", "privacy.report"},
    "privacy._audited": {"inference", "privacy.draws", "privacy.mechanism", "privacy.random"},
    "privacy._card": set(),
    "privacy._displays": {"_plotting", "privacy._card", "privacy.accounting", "privacy.ledger", "privacy.report"},
    "privacy.auditing": {
        "_plotting",
        "privacy._audit_attack",
        "privacy._audit_checks",
        "privacy._audited",
        "privacy.accounting",
        "privacy.report",
    },
    "privacy.contributions": set(),
    "privacy.draws": {"privacy.lattice", "privacy.random"},
    "privacy.lattice": set(),
    "privacy._open_ledgers": set(),
    "privacy.ledger": {"_version", "privacy._card", "privacy._open_ledgers", "privacy.accounting", "privacy.report"},
    "privacy.mechanism": {
        "privacy.accounting",
        "privacy.contributions",
        "privacy.draws",
        "privacy.lattice",
        "privacy.report",
    },
    "privacy.random": set(),
    "privacy.report": {"privacy._card", "privacy.accounting"},
    "records": set(),
    "reference": {"_rows"},
    "schema": {"_labels", "_rows"},
    "solvers": {"models.base", "posteriors", "privacy.contributions", "privacy.mechanism"},
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


def within(name, part):
    return name == part or name.startswith(f"{part}.")


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")
    if name == "privacy":  # names of its own modules, resolved when they are asked for
        assert all(within(other, "privacy") for other in names_imported(path))
        return
    homes = [part for part in ALLOWED if part and within(name, part)] or [""]
    assert homes != [""] or name == "", f"{name} has no place among the layers"
    for other in names_imported(path):
        fine = within(other, homes[0]) or any(within(other, part) for part in ALLOWED[homes[0]])
        assert fine or not homes[0], f"{name} imports {other}"


def test_the_check_of_layers_sees_imports():
    found = set(names_imported(ROOT / "inference.py"))
    assert {"models.base.Model", "privacy.mechanism.private_sum", "solvers.base.Solver"} <= found
    assert "privacy.accounting._steps.GaussianSteps" in set(names_imported(ROOT / "privacy" / "report.py"))


PUBLIC = (
    "", "estimators", "privacy", "datasets", "calibration", "inspection", "reference", "preprocessing",
    "model_selection", "schema",
)  # fmt: skip


@pytest.mark.parametrize("module", [f".{name}" if name else "" for name in PUBLIC])
def test_importing_loads_nothing_heavy(module):
    code = (
        f"import sys, skdpbayes{module}; "
        "heavy = {'jax', 'jaxlib', 'matplotlib', 'numpyro', 'polyagamma', 'dp_accounting', 'fourier_accountant'}; "
        "heavy &= set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_an_estimator_is_built_cloned_and_shown_without_jax():
    code = (
        "import sys; from skdpbayes import DPBayesianLogisticRegression as E; from sklearn.base import clone; "
        "e = clone(E(epsilon=2.0)); repr(e); e._repr_html_(); e.get_params(); "
        "sys.exit(int('jax' in sys.modules or 'dp_accounting' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
