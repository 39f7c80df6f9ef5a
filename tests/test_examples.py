"""The demo and the scripts of the gallery have their form, need no download, and run."""

import ast
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from examples import demo
from skdpbayes import datasets
from skdpbayes.privacy import PrivacyLeakWarning

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("plot_*.py"))


def test_scripts_are_found():
    assert {"plot_pipeline.py", "plot_topics.py", "plot_drop_in.py"} <= {
        path.name for path in SCRIPTS
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_form(path):
    """A title underlined by as many signs, text below it, cells with text, and a picture."""
    text = path.read_text("utf-8")
    compile(text, str(path), "exec")
    title, line, empty, *about = ast.get_docstring(ast.parse(text), clean=True).splitlines()
    assert (
        line == "=" * len(title)
        and not empty
        and len(re.findall(r"[.?](?:\s|$)", " ".join(about))) >= 2
    )
    assert len(re.findall(r"^# %%\n# \S", text, re.MULTILINE)) >= 2
    assert "plt.show()" in text


# What a page may speak of, and what has to be in its code if it does.
NEEDS = {
    r"\bAdult\b|\bcensus\b|OpenML": "load_adult",
    r"20 Newsgroups|\bnewsgroups?\b": "fetch_20newsgroups",
    r"breast": "load_breast_cancer",
    r"\biris\b|\bflowers?\b": "load_iris",
    r"\baffairs?\b|\bsurvey\b": r"load_fair|import .*\bfair\b",
    r"\bMNIST\b": "mnist",
}
DOWNLOADS = (
    r"fetch_\w+|load_adult|urlopen|requests\.|SKDPBAYES_DATA_HOME|\.\./shared|try:\n.*\n.*OSError"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_page_needs_no_download_and_speaks_of_its_own_data(path):
    text = path.read_text("utf-8")
    assert not re.search(DOWNLOADS, text)
    for words, code in NEEDS.items():
        assert not re.search(words, text) or re.search(code, text), f"{words}, without {code}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_seeded_page_says_so_and_shows_no_report(path):
    """A seeded fit is not private: the page says it, and prints no report of one."""
    text = path.read_text("utf-8")
    if re.search(r"random_state=[\dr]", text) or "def seeded" in text:
        prose = " ".join(re.findall(r"^# (.*)$", text, re.MULTILINE))
        about_seeds = [part for part in re.split(r"[.:]\s", prose) if re.search("seed", part, re.I)]
        assert any(re.search("private|released?|guarantee", part) for part in about_seeds)
        assert not re.search(r"privacy_spent_\s*[)}]", text)


def printed(capsys, tmp_path, *arguments):
    """What the demo prints and draws, without the seconds that it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        demo.main([*arguments, "--output", str(tmp_path / "demo.png")])
    return re.sub(r"fit: .* s\n", "", capsys.readouterr().out)


def sizes_in(text):
    """Numbers of people to learn from and to test on."""
    (sizes,) = re.findall(r"(\d+) \w+ to learn from, (\d+) to test on", text)
    return tuple(map(int, sizes))


def test_demo_is_the_same_on_every_machine(capsys, tmp_path, monkeypatch):
    """Without the Adult table, and without a network, which a fixture takes away from every test."""
    monkeypatch.delenv(datasets.DATA_HOME_VARIABLE, raising=False)
    text, task = printed(capsys, tmp_path), demo.fair()
    assert sizes_in(text) == (len(task.y_train), len(task.y_test)) == (4244, 2122)
    found = {
        name: (float(private), float(open_))
        for name, private, open_ in re.findall(
            r"^  (\D+?) +(\d\.\d{3}) +(\d\.\d{3})$", text, re.MULTILINE
        )
    }
    # Forty fits had areas of .737 and errors of .032, give or take .002 and .004.
    _, area, _, error = found.values()
    assert area == (pytest.approx(0.737, abs=0.02), 0.737)
    assert error == (pytest.approx(0.032, abs=0.03), 0.028)
    assert "delta=1e-05" in text and "VOID" not in text
    (marriage,) = (name for name, weights in task.effects if "rate_marriage" in weights)
    assert re.search(rf"{marriage} +0\.[3-6]\d .*\[0\.", text)
    intervals = re.findall(r"\[(\d+\.\d\d), (\d+\.\d\d)\]", text)
    assert len(intervals) >= 3 and all(float(low) <= float(high) for low, high in intervals)
    assert task.y_test.iloc[0] in text
    assert (tmp_path / "demo.png").stat().st_size > 50_000
    # The same again, if asked for.
    first, second = (printed(capsys, tmp_path, "--random-state", "0") for _ in range(2))
    assert first == second != text


def test_demo_takes_no_other_table_than_was_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Adult was looked for"):
        demo.main(["--data", "adult", "--output", str(tmp_path / "demo.png")])
    assert not list(tmp_path.iterdir())


@pytest.mark.adult
def test_demo_of_adult(capsys, tmp_path):
    text = printed(capsys, tmp_path, "--data", "adult")
    assert sizes_in(text) == (32561, 16281) and "Married-civ-spouse" in text


def test_what_the_readme_says_of_the_demo():
    """Two commands that there are, and how many answers the survey has."""
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"\bmake {target}\b", readme)
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    data = datasets.load_fair()
    assert re.search(rf"\b{len(data.y_train) + len(data.y_test)}\b", readme)
    assert re.search(r"^demo: env .*\n\t@\$\(PY\) examples/demo\.py$", makefile, re.MULTILINE)
    for page in ("README.md", "docs/install.md", "docs/quickstart.md"):
        assert not re.search("census|breast", (ROOT / page).read_text("utf-8")), page


@pytest.mark.skipif(not (ROOT / ".ci" / "run").exists(), reason="no checkout")
@pytest.mark.parametrize("beside", [True, False], ids=["with data", "without"])
def test_integration_hides_data_from_the_suite(tmp_path, beside):
    """Called: `make test` as on a stranger's machine, the tests of real data where they are, lint and pages."""
    run = tmp_path / "checkout" / ".ci" / "run"
    run.parent.mkdir(parents=True)
    run.write_text((ROOT / ".ci" / "run").read_text("utf-8"), "utf-8")
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin" / "make"
    make.write_text('#!/bin/sh\necho "$* [$SKDPBAYES_DATA_HOME]"\n', "utf-8")
    make.chmod(0o755)
    if beside:
        (tmp_path / "shared" / "data").mkdir(parents=True)
        (tmp_path / "shared" / "data" / "adult.csv.gz").write_bytes(b"")
    environment = os.environ | {
        "PATH": f"{make.parent}{os.pathsep}{os.environ['PATH']}",
        datasets.DATA_HOME_VARIABLE: "/elsewhere",
    }
    calls = subprocess.run(
        ["bash", str(run)], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert calls[0] == "test DATA_HOME= MOST_MEMORY=4 []"
    last = "lint docs DATA_HOME= SPHINX_ARGS=-D plot_gallery=0"
    tables = ["test-data DATA_HOME=../shared/data"] * beside
    assert [call.split(" [")[0] for call in calls[1:]] == [*tables, last]


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(path, tmp_path):
    """As a user runs it, from another folder, without a network; what it draws is drawn in full, and fits."""
    draw = (
        "import socket; socket.getaddrinfo = None;"
        "import sys, runpy, warnings; import matplotlib.pyplot as plt; warnings.simplefilter('error', UserWarning);"
        "from skdpbayes.privacy import PrivacyLeakWarning; warnings.simplefilter('default', PrivacyLeakWarning);"
        "sys.path.insert(0, sys.argv[1].rpartition('/')[0]); plt.show = lambda: None;"
        "runpy.run_path(sys.argv[1], run_name='__main__');"
        "assert plt.get_fignums(); [plt.figure(i).canvas.draw() for i in plt.get_fignums()]"
    )
    environment = os.environ | {
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(ROOT),
        datasets.DATA_HOME_VARIABLE: "",
    }
    run = subprocess.run(
        [sys.executable, "-c", draw, path.as_posix()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) < 40
