"""Table of what is supported: estimator by solver, and the adjacencies of each.

``python -m tools.support_matrix`` prints it. What it says is what plans say: a cell names the
adjacencies under which a plan is made, with both numerics; "no" means that the plan is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from skdpbayes.estimators._base import solvers_of
from skdpbayes.plans.registry import SOLVERS

if TYPE_CHECKING:
    from cases import Case

ADJACENCIES = "zero_out", "replace_one", "add_remove"
NUMERICS = "secure", "fast"
# What users are asked for where the number of records is private.
_PRIVATE_SIZE = {"sampling_rate": 0.3, "learning_rate": 1e-6}


def is_planned(case: Case, adjacency: str, numerics: str) -> bool:
    """Whether a plan is made; raises if it is refused without an error that users could read."""
    changes = {"adjacency": adjacency, "numerics": numerics}
    try:
        plan = case.plan(**changes | _declared(case, adjacency))
    except ValueError as error:
        assert "adjacency" in str(error) or "needs another solver" in str(error), error
        return False
    assert plan.report.adjacency == adjacency and plan.report.numerics == numerics
    return True


def _declared(case: Case, adjacency: str) -> dict[str, float]:
    """What stands in for the number of records, where that is private."""
    if adjacency != "add_remove" or (case.solver == "vips" and case.has("guide")):
        return {}
    asked = [name for name in _PRIVATE_SIZE if case.has(name)]
    if case.solver in ("na-dpvi", "vips"):
        asked = [name for name in asked if name != "learning_rate"]
    return {name: _PRIVATE_SIZE[name] for name in asked}


def cell(cases: Iterable[Case]) -> str:
    """Adjacencies of an estimator under a solver; "no" without any."""
    own = list(cases)
    planned = {
        adjacency: {
            any(is_planned(case, adjacency, numerics) for case in own) for numerics in NUMERICS
        }
        for adjacency in ADJACENCIES
    }
    assert all(len(answers) == 1 for answers in planned.values()), "numerics differ"
    found = [f"`{adjacency}`" for adjacency, answers in planned.items() if True in answers]
    return ", ".join(found) or "no"


def table(cases: Iterable[Case]) -> str:
    """The table, in Markdown."""
    all_cases = list(cases)
    classes = list(dict.fromkeys(case.cls for case in all_cases))
    lines = [
        f"| estimator | {' | '.join(f'`{name}`' for name in SOLVERS)} |",
        "| --- |" + " --- |" * len(SOLVERS),
    ]
    for cls in sorted(classes, key=lambda own: own.__name__):
        cells = [
            cell(case for case in all_cases if case.cls is cls and case.solver == name)
            if name in solvers_of(cls)
            else "no"
            for name in SOLVERS
        ]
        lines.append(f"| `{cls.__name__}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from cases import CASES

    print(table(CASES))
