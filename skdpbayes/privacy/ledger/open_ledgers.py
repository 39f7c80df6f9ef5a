"""Open ledgers, in this context, in other threads of the process, and in the processes above it.

A context variable holds the ledgers that ``with`` has opened here. Threads and worker processes do
not inherit it, and their fits must not escape. So each process also keeps the list of all its open
ledgers, and shows it to the processes that it starts: in a file named by its number, in a folder
that only its user can enter. The process locks the file while ledgers are open: a file without a
lock was left by a killed process, and does not count. A worker that was started before a ledger was
opened finds the file, too.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypedDict

from skdpbayes.privacy.accounting._selection import Selection
from skdpbayes.privacy.accounting._steps import GaussianSteps

try:
    import fcntl
except ImportError:  # no such locks on Windows: a file always counts there
    fcntl = None  # type: ignore[assignment]


class Ledger(Protocol):
    """What a fit charges."""

    def charge(
        self,
        steps: GaussianSteps | Iterable[GaussianSteps] | Selection,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        label: str = "",
        voided_by: Iterable[str] = (),
    ) -> None:
        """Record spending, before it happens, or raise `BudgetError`."""


class Description(TypedDict):
    """A ledger, for other processes; `path` is None in memory, `key` its own in its process."""

    path: str | None
    parameters: dict[str, Any]
    key: int


class Opened(NamedTuple):
    """One opening of a ledger."""

    ledger: Ledger
    description: Description


class Elsewhere(NamedTuple):
    """Ledgers that are open, and not in this context."""

    processes: bool  # in processes above this one; else in other threads
    descriptions: list[Description]


_FOLDER = "SKDPBAYES_OPEN_LEDGERS"  # environment variable
_HERE: ContextVar[tuple[Opened, ...]] = ContextVar("open ledgers", default=())
_lock = threading.Lock()
_process: list[Opened] = []  # of all threads
_inherited: list[Opened] = []  # open in the parent when this process was forked
_marker: IO[str] | None = None  # the locked file


def enter(ledger: Ledger, description: Description) -> None:
    """Open a ledger in this context."""
    opened = Opened(ledger, description)
    with _lock:
        _mark([*_process, opened])
        _process.append(opened)
    _HERE.set((*_HERE.get(), opened))


def leave(ledger: Ledger) -> None:
    """Undo the last `enter` of a ledger; for the process alone, where the context has none."""
    _HERE.set(tuple(_without(ledger, _HERE.get())))
    with _lock:
        _process[:] = _without(ledger, _process)
        _mark(_process)


def innermost() -> Opened | Elsewhere | None:
    """The ledger of this context, else those that are open elsewhere; None if none is open.

    A process that was forked sees the ledgers that its parent had open then (inherited). States, of
    which the first that holds decides:

    ===  ======================  ==============  ===============  ============  ==================
    row  last of this context    this process    at the fork      above         answer
    ===  ======================  ==============  ===============  ============  ==================
    1    opened by this process                                                 that ledger
    2                            some are open                                  other threads
    3    none                                    some were open                 other threads
    4    inherited                                                none          that ledger
    5    inherited                                                the same      that ledger
    6                                                             some          processes above
    7                                                             none          None
    ===  ======================  ==============  ===============  ============  ==================

    A context's ledger is inherited if this process has not opened it itself. Row 2: a thread that
    did not inherit its context, or a fork whose other threads opened more. Row 3: a fork from such
    a thread. Rows 4 and 5: a fork inside a block stays there, until another ledger is open above.
    """
    last: Opened | None = next(reversed(_HERE.get()), None)
    inherited = last in _inherited and last not in _process
    if last is not None and not inherited:  # row 1
        return last
    if _process:  # row 2
        return Elsewhere(False, _described(_process))
    if last is None and _inherited:  # row 3
        return Elsewhere(False, _described(_inherited))
    above = next(filter(None, map(_shown_by, _ancestors())), [])
    if last is not None and above in ([], _described(_inherited)):  # rows 4 and 5
        return last
    return Elsewhere(True, above) if above else None  # rows 6 and 7


def _described(opened: list[Opened]) -> list[Description]:
    return [one.description for one in opened]


def _without(ledger: Ledger, opened: tuple[Opened, ...] | list[Opened]) -> list[Opened]:
    last = max((i for i, own in enumerate(opened) if own.ledger is ledger), default=len(opened))
    return [*opened[:last], *opened[last + 1 :]]


def _after_fork() -> None:
    global _lock, _marker
    _inherited[:], _process[:] = _process, []
    _lock = threading.Lock()
    if _marker is not None:
        _marker.close()  # which leaves the parent's lock alone
        _marker = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# What a process shows to those that it starts


def _folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(os.environ.get(_FOLDER) or Path(tempfile.gettempdir()) / f"skdpbayes-{user}")


def _is_ours(folder: Path) -> bool:
    """Whether it is there, a folder and no link, of this user, and closed to others."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return False
    own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
    return stat.S_ISDIR(found.st_mode) and own


def _file(folder: Path, process: int) -> Path:
    machine = "".join(letter if letter.isalnum() else "-" for letter in platform.node())
    return folder / f"{machine}-{process}.json"


def _mark(opened: list[Opened]) -> None:
    """Show the open ledgers, or that none is open."""
    global _marker
    folder, new = _folder(), None
    if opened:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        if not _is_ours(folder):
            raise PermissionError(
                f"{folder} must be a folder of yours that nobody else can enter: open ledgers are "
                "shown there to worker processes. Remove it, or set TMPDIR to another place."
            )
        os.environ[_FOLDER] = str(folder)  # a process that is started now may have another TMPDIR
        descriptor, name = tempfile.mkstemp(dir=folder)
        new = os.fdopen(descriptor, "w")
        if fcntl is not None:
            fcntl.flock(new, fcntl.LOCK_EX)
        json.dump(_described(opened), new)
        new.flush()
        if fcntl is None:
            new.close()  # Windows replaces no open file
        os.replace(name, _file(folder, os.getpid()))
    elif _is_ours(folder):
        _file(folder, os.getpid()).unlink(missing_ok=True)
    if _marker is not None:
        _marker.close()
    _marker = new


def _shown_by(process: int) -> list[Description]:
    """Open ledgers of another process."""
    path = _file(_folder(), process)
    while _is_ours(path.parent):
        try:
            with path.open() as file:
                if _locked(file):
                    shown: list[Description] = json.load(file)
                    return shown
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    break  # its process is gone
        except FileNotFoundError:
            break
    return []


def _locked(file: IO[str]) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _ancestors() -> Iterator[int]:
    """Processes above this one, the nearest first; without /proc only parents."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        yield parent.pid  # also where a server forks on its behalf
    process = os.getppid()
    while process > 0:
        yield process
        try:
            text = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        except OSError:
            return
        process = int(text.rpartition(")")[2].split()[1])
