"""Records that are not in memory: a part of them at a time is read, ahead of its use.

Sums over parts of the records are integers and add up exactly, so that a fit releases what it would
release with all records in memory. What is read, and when, depends on the draws and on public
numbers, never on a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import jax
import numpy as np

from skdpbayes.mechanism.draws import Draws, Sampler, Window, drawn, rows_of
from skdpbayes.mechanism.on_device import DeviceNoise
from skdpbayes.mechanism.records import Records, Tree, aligned_zeros, padded_size

_MOST_BYTES = 3 * 2**26  # of packed records that are read together; twice as many are in memory
_AT_A_TIME = 2**15  # records that are packed at a time, so that they stay in cache

Places = slice | np.ndarray
"""A range of records, or numbers of records in increasing order (they may repeat)."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class StoredRecords:
    """Records that are packed when they are asked for.

    Attributes
    ----------
    n_records : int
    pack : callable ``places -> Records``
        Packs the records at `Places`, each by itself.
    counted : callable ``places -> Records``, optional
        As `pack`, and faster, for which of them are usable. None: `pack`.
    slots : int or None
        As in `Records`.
    """

    n_records: int
    pack: Callable[[Places], Records]
    counted: Callable[[Places], Records] | None = None
    slots: int | None = None

    @cached_property
    def shaped(self) -> Records:
        """A record, for its shapes."""
        return self.pack(slice(0, 1))

    @property
    def n_slots(self) -> int:
        """Number of records, with those that would pad them in memory."""
        return padded_size(self.n_records)

    @cached_property
    def most(self) -> int:
        """Records that are read together, about."""
        padded: int = sum(leaf.nbytes for leaf in jax.tree.leaves(self.shaped.fields))
        return max(64, _MOST_BYTES * self.shaped.n_slots // max(1, padded))

    @property
    def usable(self) -> Iterator[np.ndarray]:
        """Which records can contribute, part by part."""
        for part in self._all(self.counted or self.pack):
            assert part.usable is not None
            yield part.usable

    def _all(self, pack: Callable[[Places], Records]) -> Iterator[Records]:
        """All records, part by part."""
        ends = range(0, self.n_records, _AT_A_TIME)
        return ahead(pack(slice(low, min(low + _AT_A_TIME, self.n_records))) for low in ends)

    @property
    def parts(self) -> Iterator[Tree]:
        """All that a fit reads of the records, part by part."""
        for part in self._all(self.pack):
            yield part.fields, part.n_records

    def read(self, places: Places, size: int) -> Records:
        """Records at some places, padded to a size, on the device."""
        if isinstance(places, slice):
            places = np.arange(places.start, places.stop)
        out = jax.tree.map(
            lambda x: aligned_zeros((size, *x.shape[1:]), x.dtype), self.shaped.fields
        )

        def put(whole: np.ndarray, part: np.ndarray, low: int, n: int) -> None:
            whole[low : low + n] = part[:n]

        for low in range(0, len(places), _AT_A_TIME):
            some = places[low : low + _AT_A_TIME]
            fields = self.pack(some).fields
            jax.tree.map(partial(put, low=low, n=len(some)), out, fields)
        # Here, once: the loop would copy them for each window.
        return replace(
            self.shaped,
            fields=jax.device_put(out),
            n_records=np.int32(len(places)),
            slots=self.slots,
            usable=None,
        )


def placed(records: Any) -> Any:
    """Records where the loop finds them: those in memory on the device, a small table in memory."""
    if isinstance(records, StoredRecords) and records.n_records <= records.most:
        records = records.read(slice(0, records.n_records), records.n_slots)
    return jax.device_put(records) if isinstance(records, Records) else records


def with_draws(
    records: Records, draws: Iterable[Draws], *, whole: bool = False
) -> Iterator[tuple[Records, Draws]]:
    """Records in memory, with one part of the draws after the other.

    Parameters
    ----------
    records : Records
    draws : iterable of Draws
    whole : bool
        Whether programs may take batches whole: public numbers say that they fit.
    """
    for own in draws:
        # Those of all groups together: how large a group is may be private.
        fit = whole and int((own.starts[:, -1] - own.starts[:, 0]).max()) <= records.at_once
        yield replace(records, whole=fit), own


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Items of an iterable; while one is in use, the next one is made by another thread."""
    iterator, wide = iter(items), jax.dtypes.canonicalize_dtype(np.int64) == np.int64

    def made() -> Item | None:
        with jax.enable_x64(wide):  # each thread has a setting of its own
            return next(iterator, None)

    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(made)
        while (item := coming.result()) is not None:  # which no item is
            coming = thread.submit(made)
            yield item


def fits_in_part(records: StoredRecords, rate: float) -> bool:
    """Whether the batch of one round is read at once: else rounds go through all records."""
    return rate * records.n_records <= records.most / 2


def batches(
    records: StoredRecords, sampler: Sampler, windows: Iterable[Window]
) -> Iterator[tuple[Records, Draws]]:
    """The sampled records of windows, and draws whose indices are theirs.

    Those of many windows are read together, in the order in which they are stored, while the ones
    before are in use.
    """
    together = (_batch(records, sampler, some) for some in _together(records, sampler, windows))
    for rows, draws in ahead(together):
        for own in draws:
            yield rows, own


def _together(
    records: StoredRecords, sampler: Sampler, windows: Iterable[Window]
) -> Iterator[list[Window]]:
    some: list[Window] = []
    expected = 0.0
    for own in windows:
        more = sampler.rate * sampler.stride * (own.stop - own.first)
        if some and expected + more > records.most:
            yield some
            some, expected = [], 0.0
        some.append(own)
        expected += more
    if some:
        yield some


def _batch(
    records: StoredRecords, sampler: Sampler, windows: list[Window]
) -> tuple[Records, list[Draws]]:
    places = [
        sampler.sample(own.first, own.stop - own.first, 0, records.n_records) for own in windows
    ]
    record = sampler.record(np.concatenate(places))
    order = np.argsort(record)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rows, low, draws = records.read(record[order], _size(len(order), records.most)), 0, []
    for own, chosen in zip(windows, places, strict=True):
        steps = 1 << (min(sampler.window, rows_of(own)) - 1).bit_length()  # of short ones too
        indices = np.zeros(_size(len(chosen), sampler.hits), np.int32)
        indices[: len(chosen)] = rank[low : low + len(chosen)]
        low += len(chosen)
        starts = sampler.starts(chosen, steps, np.array([0, records.n_records]))
        noise = own.noise if isinstance(own.noise, DeviceNoise) else own.noise[:steps].copy()
        draws.append(drawn(own, indices, starts, noise))
    return rows, draws


def pieces(
    records: StoredRecords, sampler: Sampler, step: int
) -> Iterator[tuple[Records, np.ndarray, np.ndarray]]:
    """All records that one step samples, some at a time.

    Parameters
    ----------
    records : StoredRecords
    sampler : Sampler
    step : int

    Returns
    -------
    iterator over (Records, indices, starts)
        As a `Draw` has them.
    """
    most = max(1, int(records.most / (4 * sampler.rate)))  # no pass is saved by larger pieces
    width = most // sampler.block * sampler.block or most
    for low in range(0, records.n_records, width):
        high = min(low + width, records.n_records)
        if sampler.rate == 1:
            places: Places = slice(low, high)
            n, size = high - low, min(width, padded_size(records.n_records))
        else:
            places = sampler.sample(step, 1, low, high)
            n = len(places)
            size = _size(n, int(sampler.rate * width))
        yield records.read(places, size), np.arange(size, dtype=np.int32), np.array([0, n])


def _size(n: int, expected: int) -> int:
    """Room for `n` items where so many are expected: nearly always the same."""
    return padded_size(max(n, math.ceil(expected + 8 * math.sqrt(expected))))
