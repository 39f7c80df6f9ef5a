"""Records divided over devices, and over processes: each has a range of them, in one order.

A device samples its own range, as anybody would (`draws.Sampler`), and adds up the contributions of
its sample. The private sum adds up the sums of all devices, and the noise once: every device has
the same noise. What is exchanged beside the sums are numbers of records and, from the first
process, the keys.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from skdpbayes.mechanism.draws import Draws, Sampler, Window, drawn, room, rows_of
from skdpbayes.mechanism.records import Persons, RaggedRows, Records, SparseRows, padded_size
from skdpbayes.mechanism.stored import StoredRecords

AXIS = "records"
OVER_DEVICES, ON_ALL = PartitionSpec(AXIS), PartitionSpec()


@dataclass(frozen=True)
class Devices:
    """Devices over which records are divided.

    Attributes
    ----------
    mesh : Mesh
        Of one axis, the devices of one process after the other.
    """

    mesh: Mesh

    @classmethod
    def of(cls, n: int | str) -> Devices:
        """So many devices, or all.

        Raises
        ------
        ValueError
            If there are fewer, or some of other processes are left out.
        """
        found = jax.devices()
        if n != "all" and (int(n) > len(found) or jax.process_count() > 1):
            raise ValueError(
                f"devices={n}, and JAX has {len(found)} devices in {jax.process_count()} "
                "process(es): take as many or fewer; 'all' if there are several processes."
            )
        return cls(Mesh(np.array(found if n == "all" else found[: int(n)]), (AXIS,)))

    @property
    def n_processes(self) -> int:
        """Number of processes that have records."""
        return len({device.process_index for device in self.mesh.devices.flat})

    @cached_property
    def n_local(self) -> int:
        """Devices of this process."""
        own = jax.process_index()
        return sum(device.process_index == own for device in self.mesh.devices.flat)

    def from_first(self, secret: bytes) -> bytes:
        """What the first process has."""
        if self.n_processes == 1:
            return secret
        words = multihost_utils.broadcast_one_to_all(np.frombuffer(secret, np.uint8))
        return np.asarray(words, np.uint8).tobytes()

    def numbers(self, own: int) -> list[int]:
        """A number of each process, in their order."""
        if self.n_processes == 1:
            return [own]
        # In halves of 32 bits: 64 are no matter of course.
        halves = np.array([own >> 31, own & (2**31 - 1)], np.int32)
        found = np.asarray(multihost_utils.process_allgather(halves), np.int64)
        return [int(high) << 31 | int(low) for high, low in found]

    def agree(self, what: bytes) -> None:
        """Raise a `RuntimeError` in all processes unless all say the same."""
        if self.n_processes == 1:
            return
        what += bytes([self.n_local])
        own = np.frombuffer(hashlib.blake2b(what, digest_size=32).digest(), np.int32)
        found = np.asarray(multihost_utils.process_allgather(own))
        if (found != found[0]).any():
            raise RuntimeError(
                "Processes do not fit the same: parameters, columns, versions and numbers of "
                "devices must be equal in all of them. Nothing was released."
            )

    def total(self, own: Iterable[int]) -> int:
        """Sum of numbers, over all processes."""
        return sum(self.numbers(sum(own)))

    def once(self, action: Callable[[], None]) -> None:
        """Do something in the first process; if it fails there, all fail.

        Raises
        ------
        RuntimeError
            In the others, if it failed in the first.
        """
        failed: Exception | None = None
        if jax.process_index() == 0 or self.n_processes == 1:
            try:
                action()
            except Exception as error:  # whatever it is, the others have to hear of it
                failed = error
        if self.numbers(int(failed is not None))[0]:
            raise failed or RuntimeError("The first process refused this fit: see its error.")


def refuse_undivided(records: Records) -> None:
    """Raise a `ValueError` for records that cannot be divided, by their types alone."""

    def whole(field: Any) -> bool:
        return isinstance(field, SparseRows | RaggedRows | Persons)

    if any(map(whole, jax.tree.leaves(records.fields, is_leaf=whole))):
        raise ValueError(
            "Documents, sparse rows and persons are not divided over devices: fit them without "
            "execution(devices=...), or pass dense rows."
        )


@dataclass(frozen=True)
class Shards:
    """Records of this process, a range for each of its devices.

    Attributes
    ----------
    devices : Devices
    records : Records
        Of this process, in memory.
    counts : tuple of int
        Numbers of records of all processes.
    slots : int or None
        As in `Records`, of each device.
    """

    devices: Devices
    records: Records
    counts: tuple[int, ...]
    slots: int | None = None

    @classmethod
    def of(cls, devices: Devices, records: Records | StoredRecords) -> Shards:
        """Divide records.

        Raises
        ------
        ValueError
            For records that cannot be divided.
        """
        if isinstance(records, StoredRecords):
            whole = records.read(slice(0, records.n_records), records.n_slots)
            records = replace(whole, fields=jax.device_get(whole.fields))
        refuse_undivided(records)
        counts = tuple(devices.numbers(int(records.n_records)))
        return cls(devices, records, counts, records.slots)

    @property
    def shaped(self) -> Records:
        """Records of the same shapes."""
        return self.records

    @property
    def mesh(self) -> Mesh:
        """Mesh of the devices."""
        return self.devices.mesh

    @property
    def n_slots(self) -> int:
        """Number of records of all processes, with those that would pad them."""
        return padded_size(sum(self.counts))

    @property
    def _edges(self) -> np.ndarray:
        """Where the ranges of this process's devices begin, among its records; and their end."""
        own = self.counts[jax.process_index()]
        return np.arange(self.devices.n_local + 1) * own // self.devices.n_local

    @property
    def _length(self) -> int:
        """Room for the records of a device, equal on all."""
        most = max(self.counts)  # all processes have as many devices
        return padded_size(-(-most // self.devices.n_local))

    @cached_property
    def fields(self) -> Records:
        """Records as the compiled loop sees them."""
        edges, length = self._edges, self._length

        def divided(field: Any) -> jax.Array:
            field = np.asarray(field)
            out = np.zeros((self.devices.n_local, length, *field.shape[1:]), field.dtype)
            for own, low, high in zip(out, edges[:-1], edges[1:], strict=True):
                own[: high - low] = field[low:high]
            return self._put(out.reshape(-1, *field.shape[1:]))

        n = np.full(self.devices.n_local, length, np.int32)
        fields = jax.tree.map(divided, self.records.fields)
        own = replace(self.records, fields=fields, n_records=self._put(n), slots=self.slots)
        return replace(own, axis=AXIS, usable=None)

    def draws(self, sampler: Sampler, windows: Iterator[Window]) -> Iterator[Draws]:
        """Batches of all devices, and their noise, window by window."""
        first = sum(self.counts[: jax.process_index()])
        edges = first + self._edges
        n_room = self._length if sampler.rate == 1 else room(sampler)
        for window in windows:
            steps, rows = window.stop - window.first, rows_of(window)
            indices = np.zeros((self.devices.n_local, n_room), np.int32)
            starts = np.zeros((self.devices.n_local, rows, 2), np.int64)
            if sampler.rate == 1:
                indices[:] = np.arange(n_room)
                starts[:, :steps, 1] = np.diff(edges)[:, None]
            else:
                places = sampler.sample(window.first, steps, int(edges[0]), int(edges[-1]))
                record = sampler.record(places)
                for i, (low, high) in enumerate(itertools.pairwise(edges)):
                    mine = (record >= low) & (record < high)
                    indices[i, : np.count_nonzero(mine)] = record[mine] - low
                    starts[i, :steps] = sampler.starts(places[mine], steps, edges[i : i + 2])
            divided = self._put(indices.reshape(-1)), self._put(starts.reshape(-1, 2))
            yield drawn(window, *divided, window.noise)

    def _put(self, local: np.ndarray) -> jax.Array:
        """An array whose first axis is divided over all devices, of the part of this process."""
        sharding = NamedSharding(self.devices.mesh, OVER_DEVICES)
        put: jax.Array = jax.make_array_from_process_local_data(sharding, local)
        return put


def divided(
    devices: Devices | None, records: Records | StoredRecords
) -> Records | StoredRecords | Shards:
    """Records over devices; as they are without any."""
    return records if devices is None else Shards.of(devices, records)


def shards(
    records: Shards, sampler: Sampler, windows: Iterator[Window]
) -> Iterator[tuple[Records, Draws]]:
    """Records of all devices, and their draws, window by window."""
    for draws in records.draws(sampler, windows):
        yield records.fields, draws
