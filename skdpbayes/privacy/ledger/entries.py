"""Where a ledger keeps its charges: in this process, or in a file that processes share.

A charge reads what was spent and adds an entry, with no other between: `Store.exclusive`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from skdpbayes.privacy.ledger.filters import BudgetError

Entry = dict[str, Any]
"""One charge, of JSON's types (`PrivacyLedger.entries`)."""

_IN_MEMORY = (
    "This is a copy of a ledger that another process keeps in memory: it cannot tell what is left. "
    "Open the ledger with a path, which processes can share."
)
_NO_FILE = "This is a copy of a ledger whose file, {}, is not here: it cannot tell what is left."


class Store(Protocol):
    """Entries of a ledger; `where` they are kept instead, if they are not known here."""

    where: str | None

    def entries(self) -> list[Entry]:
        """All entries, in their order."""

    def exclusive(self) -> AbstractContextManager[list[Entry]]:
        """Entries, which nobody else reads or changes during the block."""

    def add(self, entry: Entry) -> None:
        """Add an entry, within `exclusive`; lost if the block raises."""


class Memory:
    """Entries of this process."""

    where: str | None = None

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._lock, self._process = threading.Lock(), os.getpid()

    def entries(self) -> list[Entry]:
        """All entries."""
        return [dict(entry) for entry in self._entries]

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[Entry]]:
        """Entries, locked; refused in a fork, whose entries the other process would never see."""
        if self._process != os.getpid():
            raise BudgetError(_IN_MEMORY)
        with self._lock:
            yield self._entries

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._entries.append(entry)


class Unreachable:
    """No entries: a copy in another process cannot know what is spent, and refuses all charges."""

    def __init__(self, path: str | None) -> None:
        place = "in the memory of another process" if path is None else "in a file that is not here"
        self.where: str | None = f"kept {place}"
        self._why = _IN_MEMORY if path is None else _NO_FILE.format(path)

    def entries(self) -> list[Entry]:
        """None that are known."""
        return []

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[Entry]]:
        """Raise `BudgetError`."""
        raise BudgetError(self._why)
        yield []

    def add(self, entry: Entry) -> None:
        """Raise `BudgetError`."""
        raise BudgetError(self._why)


class File:
    """Entries in a file (sqlite3), one transaction for each charge."""

    where: str | None = None

    def __init__(self, path: str, parameters: dict[str, Any]) -> None:
        self._path, self._local = path, threading.local()
        text = json.dumps(parameters, sort_keys=True)
        with self.exclusive():
            database = self._local.database
            database.execute("CREATE TABLE IF NOT EXISTS ledger (parameters TEXT)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, entry TEXT)"
            )
            found = database.execute("SELECT parameters FROM ledger").fetchone()
            if found is None:
                database.execute("INSERT INTO ledger VALUES (?)", (text,))
            elif found[0] != text:
                raise ValueError(
                    f"{path} is a ledger with other parameters: open it with these, or take "
                    f"another path: {found[0]}."
                )

    def entries(self) -> list[Entry]:
        """All entries."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as database:
            return _read(database)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[Entry]]:
        """Entries, within a transaction that is undone if the block raises."""
        database = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        self._local.database = database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield _read(database)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        finally:
            self._local.database = None
            database.close()

    def add(self, entry: Entry) -> None:
        """Add an entry to the transaction."""
        self._local.database.execute("INSERT INTO entries (entry) VALUES (?)", (json.dumps(entry),))


def _read(database: sqlite3.Connection) -> list[Entry]:
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
        return []
    rows = database.execute("SELECT entry FROM entries ORDER BY id")
    return [json.loads(text) for (text,) in rows]


def stored_json(path: str | Path) -> str:
    """Text of `PrivacyLedger.to_json` for a ledger's file, which stays as it is.

    The text of any other file is returned unchanged.
    """
    path = Path(path)
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return path.read_text("utf-8")
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as database:
        database.execute("BEGIN")  # one state of the file
        (parameters,) = database.execute("SELECT parameters FROM ledger").fetchone()
        return json.dumps({"ledger": json.loads(parameters), "entries": _read(database)})
