"""Shared settings: warnings are errors (pyproject.toml), and the warning about seeds, said once, has been said."""

import functools
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "privacy")]  # gibbs, whitebox


@pytest.fixture(autouse=True)
def seeds_are_for_tests(monkeypatch):
    from skdpbayes.estimators import _base

    monkeypatch.setattr(_base, "_warned", ["seed"])


@pytest.fixture(scope="module")
def compiled_quickly():
    """The same programs compiled in two thirds of the time, for tests that need many."""
    import jax

    from skdpbayes import inference

    options = {"xla_backend_optimization_level": 0}
    with pytest.MonkeyPatch.context() as patch:
        for name, static in (("_one_chain", ("capacity",)), ("_chains", ("capacity", "axes"))):
            original = getattr(inference, name).__wrapped__
            own = functools.wraps(original)(functools.partial(original))  # a function of its own: traced anew
            patch.setattr(inference, name, jax.jit(own, static_argnames=static, compiler_options=options))
        yield


@pytest.fixture
def no_compiled_programs(compiled_quickly):
    """Programs are traced anew: a change to what they are made of takes effect, and ends with the test."""
    from skdpbayes import inference

    def clear():
        inference._one_chain.clear_cache()
        inference._chains.clear_cache()

    clear()
    yield
    clear()
