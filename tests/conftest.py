"""Shared settings: warnings are errors (pyproject.toml), and the warning about seeds, said once, has been said."""

import contextlib
import ctypes
import functools
import gc
import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "privacy")]  # whitebox


@pytest.fixture(autouse=True)
def seeds_are_for_tests(monkeypatch):
    from skdpbayes.estimators import _base

    monkeypatch.setattr(_base, "_warned", ["seed"])
    monkeypatch.setattr(_base, "now", lambda: "2026-11-20T09:30:00+00:00")  # reports of two fits are compared


@functools.cache
def _compiled_with(**options):
    import jax

    from skdpbayes import inference

    original = inference._steps.__wrapped__
    own = functools.wraps(original)(functools.partial(original))  # a function of its own: traced anew
    options = {f"xla_{name}": value for name, value in options.items()}
    return jax.jit(own, donate_argnames="state", compiler_options=options)


@pytest.fixture(scope="module")
def compiled_quickly():
    """The same programs compiled in half of the time, for tests that need many."""
    from skdpbayes import inference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_steps", _compiled_with(backend_optimization_level=0))
        yield


@pytest.fixture
def compiled_as_users_do(monkeypatch):
    """By the code generator that the Makefile turns off: with the other, replays differ in the last bits."""
    from skdpbayes import inference

    program = _compiled_with(backend_optimization_level=1, cpu_use_fusion_emitters=True)
    monkeypatch.setattr(inference, "_steps", program)


@pytest.fixture(scope="session")
def compilations():
    """One item for each program that XLA compiled; to be cleared."""
    import jax

    seen: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **kwargs: seen.append(event) if "backend_compile" in event else None
    )
    return seen


@pytest.fixture
def no_compiled_programs(compiled_quickly):
    """Programs are traced anew: a change to what they are made of takes effect, and ends with the test."""
    from skdpbayes import inference

    inference._steps.clear_cache()
    yield
    inference._steps.clear_cache()


_MOST = 2**30  # bytes of a test process above which compiled programs are dropped


def _resident():
    """Resident memory of this process in bytes; zero where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError):
        return 0


def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs once they fill memory: few of them are of use to another module."""
    if (nextitem is None or nextitem.path != item.path) and _resident() > _MOST and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def pytest_terminal_summary(terminalreporter):
    """Table of the mutants of the mechanism, and of what noticed each."""
    rows = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "killed" and report.when == "call":
                    mutant, solver, check = value
                    rows.setdefault((mutant, check), []).append(solver if outcome == "passed" else f"{solver} SURVIVED")
    if rows:
        terminalreporter.section("mutants")
        width = max(len(mutant) for mutant, _ in rows)
        for (mutant, check), solvers in sorted(rows.items()):
            terminalreporter.write_line(f"{mutant:{width}}  killed by {check:24}  {', '.join(sorted(solvers))}")
