"""Logs of benchmarks: JSON lines under ``results/``, each with its commit."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def context() -> dict[str, Any]:
    """Commit, whether the tree had changes, and versions. No names of machines or people."""
    try:
        commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    except FileNotFoundError:  # No git here, as in an unpacked archive.
        commit, changes = None, None
    return {
        "commit": commit,
        "uncommitted_changes": None if changes is None else bool(changes),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {
            name: version(name) for name in ("skdpbayes", "jax", "numpyro", "scikit-learn", "numpy")
        },
    }


def in_fresh_process(module: str, *arguments: str) -> dict[str, float]:
    """Figures that a benchmark prints last, as JSON, in a process of its own."""
    command = [sys.executable, "-m", module, "--in-this-process", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def append(name: str, record: dict[str, Any]) -> Path:
    """Append `record` to ``results/<name>.jsonl`` and return that path."""
    path = ROOT / "results" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as stream:
        stream.write(json.dumps({**context(), **record}) + "\n")
    return path


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a table: first column to the left, the others to the right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])
