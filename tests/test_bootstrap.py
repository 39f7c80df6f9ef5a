"""The environment is made whole or not at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import bootstrap


@pytest.fixture
def calls(monkeypatch):
    """Record pip's commands instead of running them; venv makes an empty folder."""
    made = []
    monkeypatch.setattr(bootstrap, "run_pip", lambda command, what: made.append(what))
    done = subprocess.CompletedProcess([], 0, "")
    monkeypatch.setattr(
        bootstrap.subprocess, "run", lambda command, **options: made.append("venv") or done
    )
    return made


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "test.lock"
    path.write_text("numpy==1")
    return path


def test_the_environment_is_not_made_with_its_own_python(
    calls, lock, tmp_path, monkeypatch, capsys
):
    """The commands may be run inside of it: it is gone by the time it is made anew."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    bootstrap.make(tmp_path / "env", lock, False)
    assert str(tmp_path / "env" / "bin") not in capsys.readouterr().out


def test_second_run_does_nothing(calls, lock, tmp_path):
    bootstrap.make(tmp_path / "env", lock, True)
    assert calls == ["venv", str(lock), "the package itself"]
    bootstrap.make(tmp_path / "env", lock, True)
    assert len(calls) == 3


def test_new_lock_makes_the_environment_anew(calls, lock, tmp_path):
    bootstrap.make(tmp_path / "env", lock, False)
    (tmp_path / "env" / "left-over").touch()
    lock.write_text("numpy==2")
    bootstrap.make(tmp_path / "env", lock, False)
    assert calls == ["venv", str(lock)] * 2
    assert not (tmp_path / "env" / "left-over").exists()


def test_second_lock_is_added(calls, lock, tmp_path):
    bootstrap.make(tmp_path / "env", lock, False)
    dev = tmp_path / "dev.lock"
    dev.write_text("ruff==1")
    bootstrap.make(tmp_path / "env", dev, False)
    assert calls == ["venv", str(lock), str(dev)]
    bootstrap.make(tmp_path / "env", lock, False)
    bootstrap.make(tmp_path / "env", dev, False)
    assert len(calls) == 3


@pytest.mark.parametrize("added", [False, True])
def test_interrupted_run_is_not_believed(calls, lock, tmp_path, monkeypatch, added):
    if added:
        bootstrap.make(tmp_path / "env", lock, False)
    dev = tmp_path / "dev.lock"
    dev.write_text("ruff==1")

    def interrupted(command, what):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "run_pip", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.make(tmp_path / "env", dev, False)
    assert not list((tmp_path / "env").glob("*.stamp"))
    calls.clear()
    bootstrap.make(tmp_path / "env", lock, False)
    assert calls == ["venv", str(lock)]


def test_environment_of_others_is_left_alone(calls, lock, tmp_path):
    (tmp_path / "env").mkdir()
    with pytest.raises(SystemExit, match="make did not make it"):
        bootstrap.make(tmp_path / "env", lock, False)
    assert calls == []


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_other_pythons_are_refused(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit, match=r"Python 3\.11 to 3\.13 is needed"):
        bootstrap.check_python()


def test_missing_module_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"no module ensurepip.*apt install python3-venv"):
        bootstrap.check_python()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "WARNING: Retrying ... NewConnectionError(...)\nERROR: No matching distribution found",
            "be reached",
        ),
        ("ERROR: No matching distribution found for numpy==1", "did not offer"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "differs from the locked one"),
        ("something else", "last words are above"),
    ],
)
def test_failure_of_pip_is_explained(monkeypatch, capsys, words, cause):
    failed = subprocess.CompletedProcess([], 1, words)
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda command, **options: failed)
    with pytest.raises(SystemExit, match=cause):
        bootstrap.run_pip(["pip"], "the lock")
    assert words.splitlines()[-1] in capsys.readouterr().out
