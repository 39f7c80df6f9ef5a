"""Shared settings: warnings are errors (pyproject.toml), and the warning about seeds, said once, has been said.

No test reaches a network. Those that are marked `adult` read that table from a folder, and are
skipped without it.
"""

import contextlib
import ctypes
import functools
import gc
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS / "mechanism")]  # for cases, conjugate; whitebox, farthest


@pytest.fixture(autouse=True)
def seeds_are_for_tests(monkeypatch):
    from skdpbayes.estimators import _base
    from skdpbayes.privacy import report

    monkeypatch.setattr(_base, "_warned", ["seed"])
    # Reports of two fits are compared.
    monkeypatch.setattr(report, "now", lambda: "2026-11-20T09:30:00+00:00")


_AS_USERS_DO: dict[str, object] = {}  # the programs of few rounds

_PROGRAMS = "SKDPBAYES_TEST_PROGRAMS"  # names the folder of compiled programs

_KEPT: dict[str, object] = {}  # JAX's settings that keep programs in that folder


def _keep_programs():
    """Keep programs once more, at first and after a test of `set_compilation_cache`."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in _KEPT.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def _put_whole(self, key, value):
    """`LRUCache.put`, but no process reads a file before it is whole."""
    path = self.path / f"{key}-cache"
    if not path.exists():
        own = self.path / f"{key}.{os.getpid()}"
        own.write_bytes(value)
        own.replace(path)


def pytest_configure(config):
    """Import ArviZ once, before test processes race for its note of the day.

    Programs that one of these has compiled, the others and itself need not compile again.
    """
    controls = not hasattr(config, "workerinput")
    if controls:
        folder = tempfile.mkdtemp(prefix="skdpbayes-programs-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ[_PROGRAMS] = folder
    if controls and getattr(config.option, "numprocesses", None):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", "import arviz"], check=False, capture_output=True
        )
        return
    from jax._src.interpreters import mlir
    from jax._src.lru_cache import LRUCache

    # Of the time that a small program takes to compile, a fifth is spent on a context of its own.
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    LRUCache.put = _put_whole
    _KEPT["jax_compilation_cache_dir"] = os.environ[_PROGRAMS]
    _KEPT["jax_persistent_cache_min_compile_time_secs"] = 0.1
    _keep_programs()
    gc.set_threshold(100_000, 50, 100)  # tracing makes many objects, and few of them are garbage
    # Test processes have no idle core, and that context is not one for threads.
    from skdpbayes.compilation import CompilerThread

    CompilerThread.as_users_have, CompilerThread.add = CompilerThread.add, lambda *how: None
    # Programs of few rounds run a few times in tests, and compile in half of the time.
    from skdpbayes import inference

    options = {own.removeprefix("xla_"): value for own, value in inference._OF_FEW_ROUNDS.items()}
    options |= {"backend_optimization_level": 0, "llvm_disable_expensive_passes": True}
    for name in ("_released", "_piece_of_few"):
        _AS_USERS_DO[name] = getattr(inference, name)
        setattr(inference, name, _compiled_with(name, **options))


def pytest_runtest_setup(item):
    """Skip a test of the real Adult table where no folder with it is named."""
    from skdpbayes.datasets import DATA_HOME_VARIABLE

    if (
        item.get_closest_marker("adult")
        and not Path(os.environ.get(DATA_HOME_VARIABLE) or "/nowhere", "adult.csv.gz").is_file()
    ):
        pytest.skip(f"Adult is not in the folder that {DATA_HOME_VARIABLE} names")


def _is_local(host):
    if host in ("", "localhost", None):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture
def only_documented_warnings():
    """Warnings of seeds and of short chains are said on pages and in docstrings; others are errors."""
    from sklearn.exceptions import ConvergenceWarning

    from skdpbayes.privacy import PrivacyLeakWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("default", PrivacyLeakWarning)
        warnings.simplefilter("default", ConvergenceWarning)
        yield


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A test that looks up a host or connects to one fails, also where it catches every Exception."""

    def guarded(original, host_of):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if (host := host_of(*args)) is not NotImplemented and not _is_local(host):
                pytest.fail(f"this test tried to reach {host!r} over the network")
            return original(*args, **kwargs)

        return call

    def address(self, address, *rest):
        internet = self.family in (socket.AF_INET, socket.AF_INET6)
        return address[0] if internet else NotImplemented

    monkeypatch.setattr(
        socket, "getaddrinfo", guarded(socket.getaddrinfo, lambda host=None, *rest: host)
    )
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name), address))


@functools.cache
def _compiled_with(name, **options):
    """A program compiled with other options."""
    import jax

    from skdpbayes import inference

    original = getattr(inference, name).__wrapped__
    own = functools.wraps(original)(
        functools.partial(original)
    )  # a function of its own: traced anew
    options = {f"xla_{name}": value for name, value in options.items()}
    how = {"donate_argnames": "state"} if name == "_steps" else {}
    return jax.jit(own, static_argnums=0, compiler_options=options, **how)


@pytest.fixture(scope="module")
def compiled_quickly():
    """The same programs compiled in half of the time, for tests that need many."""
    from skdpbayes import inference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_steps", _compiled_with("_steps", backend_optimization_level=0))
        yield


@pytest.fixture
def compiled_as_users_do(monkeypatch):
    """By the code generator that the Makefile turns off, and with the effort that users have.

    With the other, replays differ in the last bits.
    """
    from skdpbayes import inference
    from skdpbayes.compilation import OLDER_GENERATOR

    newer = {"cpu_use_fusion_emitters": True} if OLDER_GENERATOR else {}  # else there is no choice
    for name in ("_steps", "_piece", "_noisy_step"):  # of loops
        program = _compiled_with(name, backend_optimization_level=1, **newer)
        monkeypatch.setattr(inference, name, program)
    for name, program in _AS_USERS_DO.items():
        monkeypatch.setattr(inference, name, program)


@pytest.fixture
def on_the_host():
    """Fits run on the processor, where there is an accelerator too."""
    import jax

    if jax.default_backend() == "cpu":  # a context with a device would compile all programs anew
        yield
        return
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(scope="session")
def compilations():
    """Of each program that XLA compiled the name, and whether in the main thread; to be cleared."""
    import jax

    seen: list[tuple[str, bool]] = []

    def listen(event, seconds, *, fun_name="", **more):
        if "backend_compile" in event:
            seen.append((fun_name, threading.current_thread() is threading.main_thread()))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seen


@pytest.fixture
def compiled_in_a_thread(monkeypatch):
    """Programs of rounds are compiled ahead, as users have them."""
    from skdpbayes.compilation import CompilerThread

    monkeypatch.setattr(CompilerThread, "add", CompilerThread.as_users_have)


@pytest.fixture
def in_a_loop(monkeypatch):
    """Rounds run in the compiled loop, however few they are."""
    from skdpbayes import inference

    monkeypatch.setattr(inference, "FEW", 0)


@pytest.fixture
def no_compiled_programs(compiled_quickly):
    """Programs are traced anew: a change to what they are made of takes effect, and ends with the test."""
    from whitebox import forget_programs

    forget_programs()
    yield
    forget_programs()


# bytes of a test process above which compiled programs are dropped
_MOST_AFTER_A_MODULE = 1.5 * 2**30
_MOST_WITHIN_A_MODULE = 1.65 * 2**30


@pytest.hookimpl(trylast=True)  # after fixtures
def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs once they fill memory: few of them are of use to another module."""
    import jax

    if jax.config.jax_compilation_cache_dir != _KEPT["jax_compilation_cache_dir"]:
        _keep_programs()
    last = nextitem is None or nextitem.path != item.path
    most = _MOST_AFTER_A_MODULE if last else _MOST_WITHIN_A_MODULE
    if psutil.Process().memory_info().rss > most:
        jax.clear_caches()
        sys.modules["jax._src.interpreters.mlir"].make_ir_context.cache_clear()
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
                    rows.setdefault((mutant, check), []).append(
                        solver if outcome == "passed" else f"{solver} SURVIVED"
                    )
    if rows:
        terminalreporter.section("mutants")
        width = max(len(mutant) for mutant, _ in rows)
        for (mutant, check), solvers in sorted(rows.items()):
            terminalreporter.write_line(
                f"{mutant:{width}}  killed by {check:24}  {', '.join(sorted(solvers))}"
            )
