"""Rows by person: how `fit` reads `groups`.

Which rows of a person are kept, and in which order, depends on the number of that person's rows
alone. A row that names no person counts for none: it could be anybody's.
"""

from __future__ import annotations

import datetime
import uuid
import zoneinfo
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from skdpbayes.cells import objects, plain
from skdpbayes.intake.labels import as_labels
from skdpbayes.intake.reading import Rows
from skdpbayes.intake.tables import dtype_of

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records

_ZONES = (datetime.timezone, zoneinfo.ZoneInfo)  # others may run any code
_ATTOSECONDS = {
    **{"W": 604_800 * 10**18, "D": 86_400 * 10**18, "h": 3600 * 10**18, "m": 60 * 10**18},
    **{unit: 1000 ** (6 - i) for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}


def codes_of_persons(groups: Any, n_rows: int) -> np.ndarray:
    """Codes of persons from zero, (n_rows,); -1 where a name is missing or no plain value.

    Plain values are numbers, texts, bytes, dates, times, UUIDs, and tuples of these. Whether two
    rows name the same person depends on these two names alone.

    Raises
    ------
    ValueError
        If there are not as many names as rows, or no name at all: data sets have a person at least.
    """
    if isinstance(groups, np.ma.MaskedArray):  # what lies under the mask names nobody
        hidden = np.ma.getmaskarray(groups).ravel()
        groups = objects(list(groups.data.ravel()))
        groups[hidden] = None
    try:
        names = column_or_1d(as_labels(groups))
    except ValueError:
        raise ValueError(
            f"groups has shape {np.shape(groups)}: name a person for each row, in one column "
            "(the column itself, such as table['patient'], not its name)."
        ) from None
    if len(names) != n_rows:
        raise ValueError(
            f"groups has {len(names)} entries and X {n_rows} rows: name a person for each row."
        )
    if names.dtype.names:  # of several fields: tuples, whose cells NumPy would compare
        names = objects(names.tolist())
    if names.dtype.kind in "OT":  # a missing text may equal itself, or raise, in NumPy's arrays
        own = [_name(name) for name in names]
        known: dict[Hashable, int] = {}
        for name in own:
            if name is not None:
                known.setdefault(name, len(known))
        codes = np.array([known.get(name, -1) for name in own], np.int64)
    else:
        with np.errstate(all="ignore"):  # of a signalling NaN
            missing = names != names  # NaN and NaT
        codes = np.full(n_rows, -1)
        codes[~missing] = np.unique(names[~missing], return_inverse=True)[1]
    if not (codes >= 0).any():
        dtype = dtype_of(groups)
        raise ValueError(
            f"groups{'' if dtype is None else f', of dtype {dtype},'} names no person. Names are "
            "numbers, texts, dates, UUIDs, or tuples of these, and no other objects: make texts of "
            "those, as groups.astype(str) does, each row by itself."
        )
    return codes


def by_person(rows: Rows, person: np.ndarray, most: int) -> Rows:
    """Rows as records that are persons, given their codes; `most` rows of each count."""
    n_persons = int(person.max()) + 1 if len(person) else 0
    facts = replace(rows.facts, shape=replace(rows.facts.shape, n_rows=n_persons))
    return Rows(facts, lambda: _packed(rows.pack(), person, n_persons, most))


def kept_rows(person: np.ndarray, n_persons: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that count, of one person after the other, and where each person's begin.

    Of a person with more than `most` rows, as many are taken, evenly spaced.
    """
    named = np.flatnonzero(person >= 0)
    counts = np.bincount(person[named], minlength=n_persons)
    first = np.cumsum(counts) - counts
    order = named[np.argsort(person[named], kind="stable")]
    kept = np.minimum(counts, most)
    starts = np.concatenate([[0], np.cumsum(kept)])
    owner = np.repeat(np.arange(n_persons), kept)
    place = np.arange(starts[-1]) - starts[owner]
    return order[first[owner] + place * counts[owner] // kept[owner]], starts


def means_by_person(values: np.ndarray, person: np.ndarray, most: int) -> np.ndarray:
    """Mean over the rows of each person that count, NaN left out; NaN if nothing is left."""
    person = np.unique(person, return_inverse=True)[1]
    n = int(person.max()) + 1
    order, starts = kept_rows(person, n, most)
    owner, kept = np.repeat(np.arange(n), np.diff(starts)), values[order]
    fine = ~np.isnan(kept)
    total = np.bincount(owner[fine], kept[fine], n)
    with np.errstate(invalid="ignore"):
        return (total / np.bincount(owner[fine], minlength=n)).astype(values.dtype)


def _packed(records: Records, person: np.ndarray, n_persons: int, most: int) -> Records:
    """Records of persons; where rows are ragged, those whose longest row is shortest come first."""
    from skdpbayes.mechanism.records import Persons, RaggedRows, padded_size

    kept, starts = kept_rows(person, n_persons, most)
    owner = person[kept]
    rows = kept if records.places is None else records.places[kept]
    assert records.usable is not None
    usable = np.zeros(n_persons, bool)
    usable[owner[records.usable[rows]]] = True
    ends = records.ends
    if isinstance(records.fields, RaggedRows):
        lengths = np.diff(np.asarray(records.fields.row_starts))[rows]
        longest = np.zeros(n_persons, lengths.dtype)
        np.maximum.at(longest, owner, lengths)
        order = np.argsort(longest, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(n_persons)
        rows = rows[np.argsort(rank[owner], kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.diff(starts)[order])])
        usable, longest = usable[order], longest[order]
        ends = np.searchsorted(longest, records.widths, side="right").astype(np.int32)
    padded = np.zeros(padded_size(len(rows)), np.int32)
    padded[: len(rows)] = rows
    stops = np.full(padded_size(n_persons) + 1, len(rows), np.int32)
    stops[: n_persons + 1] = starts
    return replace(
        records,
        fields=Persons(records.fields, padded, stops, most),
        n_records=np.int32(n_persons),
        ends=ends,
        usable=usable,
        places=None,
    )


def _name(cell: Any) -> Hashable:
    """Kind and value of a name: equal for equal names, and comparable to any other without errors.

    NumPy compares dates and durations with numbers, and may raise; so names of different kinds are
    never compared. A name is the same in Python's class and in NumPy's, or a person had two.
    """
    try:
        kind = type(cell)
        if kind is tuple:
            parts = [_name(part) for part in cell]
            return None if any(part is None for part in parts) else ("tuple", *parts)
        if kind is uuid.UUID:
            return ("UUID", cell.int) if type(cell.int) is int else None
        if kind is datetime.datetime:
            if cell.tzinfo is None:
                return _moment(np.datetime64(cell))
            if type(cell.tzinfo) not in _ZONES:
                return None
            return "instant", _moment(
                np.datetime64(cell.astimezone(datetime.UTC).replace(tzinfo=None))
            )
        own = plain(cell)
        if own is None or own != own:
            return None
        if isinstance(own, datetime.date):
            own = np.datetime64(own)
        if isinstance(own, np.datetime64 | np.timedelta64):
            return _moment(own)
        if isinstance(own, str | bytes):
            return ("text", str(own)) if isinstance(own, str) else ("bytes", bytes(own))
        if isinstance(own, np.generic):
            own = complex(own) if isinstance(own, np.complexfloating) else own.item()
            own = float(own) if isinstance(own, np.longdouble) else own
        return None if hash(own) is None else ("number", own)
    except Exception:  # an error would tell of the record
        return None


def _moment(own: np.datetime64 | np.timedelta64) -> Hashable:
    """A date or duration, equal in all units; durations of months are no number of days."""
    unit, step = np.datetime_data(own.dtype)
    kind = type(own).__name__
    if unit in ("Y", "M"):
        if isinstance(own, np.timedelta64):
            return "months", int(own.view(np.int64)) * step * (12 if unit == "Y" else 1)
        own, unit, step = own.astype("datetime64[D]"), "D", 1
    return kind, int(own.view(np.int64)) * step * _ATTOSECONDS[unit]
