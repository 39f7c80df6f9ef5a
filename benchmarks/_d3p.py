"""d3p 0.2.0 for the benchmarks beside it: an environment of its own, and fits there in another process.

The environment is made from ``benchmarks/peers/d3p.lock`` and needs Python 3.11.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _log

PEERS = Path(__file__).parent / "peers"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the environment lies and what makes it."""
    parser.add_argument("--env", type=Path, default=_log.ROOT / ".peers" / "d3p", help="environment of d3p's own")
    default = sys.executable if sys.version_info[:2] == (3, 11) else "python3.11"
    parser.add_argument("--python", default=default, help="Python 3.11 to make it with (default: %(default)s)")


def environment(env: Path, python: str) -> Path:
    """Make d3p's environment where it is not there yet; its Python."""
    env = env.resolve()
    if shutil.which(python) is None:
        sys.exit(f"d3p needs Python 3.11, and {python!r} is not on the path: give one with --python.")
    command = [python, str(_log.ROOT / "tools" / "bootstrap.py"), "--env", str(env)]
    # The lock is complete. Left to resolve it with hashes, pip stumbles over the extras that d3p asks for.
    complete = {**os.environ, "PIP_NO_DEPS": "1"}
    subprocess.run([*command, "--lock", str(PEERS / "d3p.lock")], check=True, env=complete)
    return env / ("Scripts" if os.name == "nt" else "bin") / "python"


def run(python: Path, script: str, arrays: dict[str, Any], plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What d3p released, one record a fit, in the order of the plan; `arrays` have an axis of data sets first."""
    with tempfile.TemporaryDirectory() as folder:
        data, entries = Path(folder) / "data.npz", Path(folder) / "plan.json"
        np.savez(data, **arrays)
        entries.write_text(json.dumps(plan))
        command = [str(python), str(PEERS / script), str(data), str(entries)]
        own = {**os.environ, "JAX_PLATFORMS": "cpu"}
        own.pop("XLA_FLAGS", None)  # its old JAX stops at flags that it does not know
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
    return [json.loads(line) for line in done.stdout.splitlines()]
