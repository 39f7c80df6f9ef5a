"""Shared settings: warnings are errors (pyproject.toml), and the warning about seeds, said once, has been said."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "privacy")]  # gibbs, whitebox


@pytest.fixture(autouse=True)
def seeds_are_for_tests(monkeypatch):
    from skdpbayes.estimators import _base

    monkeypatch.setattr(_base, "_warned", ["seed"])


@pytest.fixture
def compiled_quickly(monkeypatch):
    """The same programs compiled in two thirds of the time, for tests that need many."""
    import jax

    from skdpbayes import inference

    options = {"xla_backend_optimization_level": 0}
    for name, static in (("_one_chain", ("capacity",)), ("_chains", ("capacity", "axes"))):
        program = jax.jit(getattr(inference, name).__wrapped__, static_argnames=static, compiler_options=options)
        monkeypatch.setattr(inference, name, program)
