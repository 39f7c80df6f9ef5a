"""Peers of the benchmarks: an environment for each, and scripts that run there.

An environment is made from ``benchmarks/peers/NAME.lock`` and needs Python 3.11.
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
ENVIRONMENTS = _log.ROOT / ".peers"


class Unavailable(Exception):
    """A peer cannot be run here; the message says why."""


def add_python(parser: argparse.ArgumentParser) -> None:
    """What makes the environments."""
    default = sys.executable if sys.version_info[:2] == (3, 11) else "python3.11"
    parser.add_argument(
        "--python", default=default, help="Python 3.11 to make them with (default: %(default)s)"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where d3p's environment lies and what makes it."""
    parser.add_argument(
        "--env", type=Path, default=ENVIRONMENTS / "d3p", help="environment of d3p's own"
    )
    add_python(parser)


def environment(name: str, python: str, folder: Path | None = None) -> Path:
    """Make the environment of a peer where it is not there yet; its Python.

    Raises
    ------
    Unavailable
        If it cannot be made.
    """
    folder = (folder or ENVIRONMENTS / name).resolve()
    if shutil.which(python) is None:
        raise Unavailable(
            f"{name} needs Python 3.11, and {python!r} is not on the path: give one with --python."
        )
    command = [python, str(_log.ROOT / "tools" / "bootstrap.py"), "--env", str(folder)]
    # The lock is complete. Left to resolve it with hashes, pip stumbles over the extras that d3p
    # asks for.
    complete = {**os.environ, "PIP_NO_DEPS": "1"}
    made = subprocess.run([*command, "--lock", str(PEERS / f"{name}.lock")], env=complete)
    if made.returncode:
        raise Unavailable(f"the environment of {name} was not made: status {made.returncode}")
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def clean_environment() -> dict[str, str]:
    """Variables for a process in a peer's environment."""
    own = {**os.environ, "JAX_PLATFORMS": "cpu"}
    own.pop("XLA_FLAGS", None)  # an old JAX stops at flags that it does not know
    own.pop("PYTHONPATH", None)
    return own


def run(
    python: Path, script: str, arrays: dict[str, Any], plan: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Releases of a script, one record a fit, in the order of the plan; `arrays` by data set."""
    with tempfile.TemporaryDirectory() as folder:
        data, entries = Path(folder) / "data.npz", Path(folder) / "plan.json"
        np.savez(data, **arrays)
        entries.write_text(json.dumps(plan))
        command = [str(python), str(PEERS / script), str(data), str(entries)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=clean_environment()
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


class Worker:
    """A script that answers lines of JSON, so that peers and our code take turns.

    Parameters
    ----------
    command : list of str
        Python and script, with arguments.
    arrays : dict
        Written to an NPZ file, whose name is the last argument.

    Raises
    ------
    Unavailable
        From `ask`, if the script ends without an answer.
    """

    def __init__(self, command: list[str], arrays: dict[str, Any]):
        self._folder = tempfile.TemporaryDirectory()
        data = Path(self._folder.name) / "data.npz"
        np.savez(data, **arrays)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, str(data)], stdin=pipe, stdout=pipe, text=True, env=clean_environment()
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; what else the script prints is passed over."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise Unavailable(
            f"{Path(self._process.args[1]).name} ended with status {self._process.wait()}"
        )

    def close(self) -> None:
        """End the script."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
