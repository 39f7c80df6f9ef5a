"""Shared settings: warnings are errors (pyproject.toml), and the warning about seeds, said once, has been said."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "privacy")]  # gibbs, whitebox


@pytest.fixture(autouse=True)
def seeds_are_for_tests(monkeypatch):
    from skdpbayes.estimators import _base

    monkeypatch.setattr(_base, "_warned", ["seed"])
