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
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np

from skdpbayes.mechanism.draws import Draws, Sampler, Window
from skdpbayes.mechanism.records import Records, Tree, padded_size

_MOST_BYTES = 2**27  # of packed records that are read together; three times as many are in memory

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
    slots : int or None
        As in `Records`.
    """

    n_records: int
    pack: Callable[[Places], Records]
    slots: int | None = None

    @cached_property
    def first(self) -> Records:
        """The first record, for its shapes."""
        return self.pack(slice(0, 1))

    @property
    def n_slots(self) -> int:
        """Number of records, with those that would pad them in memory."""
        return padded_size(self.n_records)

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a record."""
        return 1

    def bounds(self) -> list[int]:
        """Where groups begin, and the number of records."""
        return [0, self.n_records]

    def one(self) -> Tree:
        """A batch of one record, for its shapes."""
        return self.first.one()

    @cached_property
    def most(self) -> int:
        """Records that are read together, about."""
        padded = sum(leaf.nbytes for leaf in jax.tree.leaves(self.first.fields))
        return max(64, _MOST_BYTES * self.first.n_slots // max(1, padded))

    @property
    def usable(self) -> Iterator[np.ndarray]:
        """Which records can contribute, part by part."""
        return ahead(self._usable(low) for low in range(0, self.n_records, self.most))

    def _usable(self, low: int) -> np.ndarray:
        usable = self.pack(slice(low, min(low + self.most, self.n_records))).usable
        assert usable is not None
        return usable

    def read(self, places: Places, size: int) -> Records:
        """Records at some places, padded to a size."""
        found = self.pack(places)

        def padded(field: np.ndarray) -> np.ndarray:
            if len(field) == size:
                return field
            out = np.zeros((size, *field.shape[1:]), field.dtype)
            out[: min(size, len(field))] = field[:size]
            return out

        return replace(found, fields=jax.tree.map(padded, found.fields), slots=self.slots)


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Items of an iterable; while one is in use, the next one is made by another thread."""
    nothing, iterator = object(), iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, iterator, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, iterator, nothing)
            yield item  # type: ignore[misc]


def fits_in_part(records: StoredRecords, rate: float) -> bool:
    """Whether the batch of one round is read at once: else rounds go through all records."""
    return rate * records.n_records <= records.most / 2


def batches(
    records: StoredRecords, sampler: Sampler, windows: Iterable[Window]
) -> Iterator[tuple[Records, Draws]]:
    """The sampled records of windows, and draws whose indices are theirs.

    Those of many windows are read together, in the order in which they are stored.
    """
    window: list[Window] = []
    each = 0.0

    def read() -> Iterator[tuple[Records, Draws]]:
        places = [
            sampler.sample(own.number, own.stop - own.first, 0, records.n_records) for own in window
        ]
        record = np.concatenate(places) % sampler.stride
        order = np.argsort(record, kind="stable")
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        rows = records.read(record[order], _size(len(order), records.most))
        low = 0
        for own, chosen in zip(window, places, strict=True):
            steps = np.arange(len(own.noise) + 1) * sampler.stride
            first = np.searchsorted(chosen, steps)
            indices = np.zeros(_size(len(chosen), sampler.hits), np.int32)
            indices[: len(chosen)] = rank[low : low + len(chosen)]
            low += len(chosen)
            starts = np.stack([first[:-1], first[1:]], axis=1)
            drawn: tuple[Any, ...] = (np.int32(own.first), np.int32(own.stop), indices, starts)
            yield rows, Draws(*drawn, own.noise)

    for own in windows:
        expected = sampler.rate * sampler.stride * (own.stop - own.first)
        if window and each + expected > records.most:
            yield from read()
            window, each = [], 0.0
        window.append(own)
        each += expected
    if window:
        yield from read()


def pieces(
    records: StoredRecords, sampler: Sampler, window: Window, step: int, first: int, stop: int
) -> Iterator[tuple[Records, np.ndarray, np.ndarray]]:
    """All records from `first` to `stop` that one step samples, some at a time.

    Parameters
    ----------
    records : StoredRecords
    sampler : Sampler
    window : Window
        The step's.
    step, first, stop : int

    Returns
    -------
    iterator over (Records, indices, starts)
        As a `Draw` has them.
    """
    most = int(records.most / sampler.rate)
    width = most // sampler.block * sampler.block or most
    place = step - window.first
    for low in range(first, stop, width):
        high = min(low + width, stop)
        if sampler.rate == 1:
            places: Places = slice(low, high)
            n, size = high - low, min(width, padded_size(records.n_records))
        else:
            drawn = sampler.sample(window.number, place + 1, low, high)
            places = drawn[drawn >= place * sampler.stride] - place * sampler.stride
            n = len(places)
            size = _size(n, int(sampler.rate * width))
        yield records.read(places, size), np.arange(size, dtype=np.int32), np.array([0, n])


def _size(n: int, expected: int) -> int:
    """Room for `n` items where so many are expected: nearly always the same."""
    return padded_size(max(n, math.ceil(expected + 8 * math.sqrt(expected))))
