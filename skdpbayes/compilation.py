"""How programs are compiled: with how much effort, where, and whether other processes keep them.

Nothing here sees a row. Importing this module does not import JAX.
"""

from __future__ import annotations

import gc
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.stages import Lowered

IN_ONE_PIECE: dict[str, bool | int] = {"xla_cpu_parallel_codegen_split_count": 1}
"""XLA option of programs that release a round: by default they are cut, and each piece costs time.

Not of programs in `LITTLE_EFFORT`, whose last bits it changes.
"""

# XLA's older code generator, which compiles sooner; later versions have the newer one alone.
_JAXLIB = tuple(map(int, re.findall(r"\d+", version("jaxlib"))[:3]))
OLDER_GENERATOR: dict[str, bool | int] = (
    {"xla_cpu_use_fusion_emitters": False} if _JAXLIB < (0, 11, 1) else {}
)

LITTLE_EFFORT: dict[str, bool | int] = OLDER_GENERATOR | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
}
"""XLA options of programs that run a few hundred times at most.

They compile in a quarter of the time that default options take, and run several times slower.
"""


@contextmanager
def without_collection() -> Iterator[None]:
    """Context in which Python looks for no cyclic garbage.

    For imports and tracing: they make hundreds of thousands of objects that stay, and searching
    them again and again takes a tenth of a first fit.
    """
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


class CompilerThread:
    """Compiles programs in another thread, while Python traces the next ones; a context.

    JAX keeps them for the calls, which would compile them otherwise. One thread, since tracing
    keeps a core busy; whoever waits for a program compiles others meanwhile.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._coming: dict[Hashable, tuple[Future[Any], Lowered]] = {}

    def __enter__(self) -> CompilerThread:
        return self

    def __exit__(self, error: type[BaseException] | None, *more: object) -> None:
        try:
            if error is None:
                self._help_until(lambda: False)
        finally:
            # None is left running: it would be forked, or write to a folder that is no longer the
            # one. None is left to begin, but after an error.
            self._thread.shutdown(cancel_futures=True)

    def add(self, lowered: Lowered, name: Hashable = None) -> None:
        """Compile a program, by whose name it can be waited for."""
        try:
            future = self._thread.submit(lowered.compile)
        except RuntimeError:  # no thread can be started: calls compile
            return
        self._coming[future if name is None else name] = future, lowered

    def wait_for(self, name: Hashable) -> None:
        """Wait for a program, the first time that it is asked for; the call raises its errors."""
        if name not in self._coming:
            return
        future, _ = self._coming.pop(name)
        if not future.cancel():  # it has begun; else the call compiles it
            self._help_until(future.done)
            wait([future])

    def _help_until(self, done: Callable[[], bool]) -> None:
        """Compile what is not begun, the last first, until something is done or none is left."""
        while self._coming and not done():
            _, (future, lowered) = self._coming.popitem()
            if future.cancel():
                with suppress(Exception):  # which the call raises
                    lowered.compile()


def set_compilation_cache(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs in a folder, for later processes of the same user.

    A cache saves most of the first fit's compilation. It holds programs: shapes, sizes and the
    structure of models, and no values of records, parameters or keys. See the page on the first
    fit.

    Parameters
    ----------
    folder : path or None
        Made if needed, readable by its owner alone. None: programs are no longer kept.

    Raises
    ------
    PermissionError
        If the folder belongs to another user, or if others may read it or write to it: to load a
        program is to run it, and whoever can write to the folder can put one there.
    NotImplementedError
        Where the owner of a folder cannot be told, as on Windows.

    Examples
    --------
    >>> import skdpbayes, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> skdpbayes.set_compilation_cache(folder)
    >>> skdpbayes.set_compilation_cache(None)
    """
    path = None if folder is None else str(_private_folder(Path(folder)))
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", path)
    # By default small programs are not kept, and a fit has many.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if path else 1.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1 if path else 0)
    # XLA's own caches, of autotuned kernels, would be folders that are made by other rules.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    compilation_cache.reset_cache()


def _private_folder(path: Path) -> Path:
    """Absolute path of a folder that its owner, this user, alone can read and write."""
    if not hasattr(os, "getuid"):
        raise NotImplementedError("The owner of a folder cannot be checked on this system.")
    path = path.expanduser().absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} must be a folder, and no link to one.")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user, who could put programs there.")
    if found.st_mode & 0o077:
        raise PermissionError(
            f"{path} can be read or written by others, who could put programs there: "
            f"make it private with chmod 700, or name a new folder."
        )
    for parent in path.resolve().parents:
        above = parent.stat()
        swappable = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if swappable or above.st_uid not in (0, os.getuid()):
            raise PermissionError(
                f"{parent} can be changed by others, who could put another folder in the place of "
                f"{path}."
            )
    return path
