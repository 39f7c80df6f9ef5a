"""Scripts of the gallery have its form, and run."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("plot_*.py"))


def test_scripts_are_found():
    assert {"plot_adult_pipeline.py", "plot_topics.py", "plot_drop_in.py"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_form(path):
    """A title underlined by as many signs, text below it, cells with text, and a picture."""
    text = path.read_text("utf-8")
    compile(text, str(path), "exec")
    title, line, empty, *about = ast.get_docstring(ast.parse(text), clean=True).splitlines()
    assert line == "=" * len(title) and not empty and len(re.findall(r"[.?](?:\s|$)", " ".join(about))) >= 2
    assert len(re.findall(r"^# %%\n# \S", text, re.MULTILINE)) >= 2
    assert "plt.show()" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(path, tmp_path):
    """As a user runs it, from another folder; what it draws is drawn in full, and fits."""
    draw = (
        "import sys, runpy, warnings; import matplotlib.pyplot as plt; warnings.simplefilter('error', UserWarning);"
        "from skdpbayes.privacy import PrivacyLeakWarning; warnings.simplefilter('default', PrivacyLeakWarning);"
        "sys.path.insert(0, sys.argv[1].rpartition('/')[0]); plt.show = lambda: None;"
        "runpy.run_path(sys.argv[1], run_name='__main__');"
        "assert plt.get_fignums(); [plt.figure(i).canvas.draw() for i in plt.get_fignums()]"
    )
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", draw, path.as_posix()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) < 40
