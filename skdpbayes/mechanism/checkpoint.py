"""Checkpoints of a fit: its secret keys, how far it is, and the state of its solver.

A fit that goes on draws what it would have drawn. So it must be the same fit, of the same records:
the same noise on other sums would give away by how much these differ. `digest_of` binds a
checkpoint to the fit.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from importlib.metadata import version
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import numpy as np

from skdpbayes._version import __version__
from skdpbayes.mechanism.on_device import default_device

_FORMAT = 2  # raised where rounds are compiled otherwise, too: no fit is of two kinds of programs


class Saved(NamedTuple):
    """Content of a checkpoint.

    Attributes
    ----------
    material : bytes
        Of the fit's keys.
    digest : bytes
    paid : str
        The ledger's entry of the fit; empty without a ledger.
    chain, step : int
        What comes next.
    states : list of list of arrays
        Leaves of the states of the chains that are over, and of the one that is not.
    """

    material: bytes
    digest: bytes
    paid: str
    chain: int
    step: int
    states: list[list[np.ndarray]]


class Checkpoint:
    """A checkpoint's file.

    Parameters
    ----------
    path : path
    every : float
        Seconds between two writings.
    """

    def __init__(self, path: Path, every: float) -> None:
        self.path, self._every, self._last = path, every, time.monotonic()
        self._head: tuple[bytes, bytes] = (b"", b"")
        self.paid = ""
        self._over: list[list[np.ndarray]] = []
        self.saved: Saved | None = None

    def load(self) -> Saved | None:
        """What is saved; None if there is no file.

        Raises
        ------
        ValueError
            If it is a link, if others may read or change it, or if it is no checkpoint.
        """
        if self.path.is_symlink():
            raise ValueError(
                f"The checkpoint {str(self.path)!r} is a link: its keys would stay where it points "
                "to. Give the file itself."
            )
        if not self.path.exists():
            return None
        with open(os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            status, content = os.fstat(file.fileno()), file.read()
        if os.name == "posix" and (
            status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077
        ):
            raise ValueError(
                f"The checkpoint {str(self.path)!r} holds secret keys, and others may read or "
                "change it: it must be yours, with the permissions 0600."
            )
        try:
            with np.load(BytesIO(content), allow_pickle=False) as data:
                if int(data["format"]) != _FORMAT:
                    raise KeyError("format")
                lengths = data["lengths"].tolist()
                leaves = iter([data[f"leaf{i}"] for i in range(sum(lengths))])
                states = [[next(leaves) for _ in range(n)] for n in lengths]
                head = (data["material"].tobytes(), data["digest"].tobytes())
                paid = data["paid"].tobytes().decode()
                self.saved = Saved(*head, paid, int(data["chain"]), int(data["step"]), states)
        except (KeyError, OSError, EOFError, ValueError, BadZipFile) as error:
            raise ValueError(
                f"{str(self.path)!r} is no checkpoint of this version of skdpbayes. Delete it to "
                "begin a new fit, which is charged."
            ) from error
        self._over = self.saved.states[: self.saved.chain]
        return self.saved

    def begin(self, material: bytes, digest: bytes) -> None:
        """Bind the file to a fit.

        Raises
        ------
        ValueError
            If it is of another fit.
        """
        self._head = material, digest
        if self.saved is not None and self.saved.digest != digest:
            raise ValueError(
                f"The checkpoint {str(self.path)!r} is of another fit: of other records, other "
                "parameters, another version or another kind of device. With the same noise on "
                "other records both would be given away. Delete it to begin a new fit, which is "
                "charged. (That something differs is private, too.)"
            )

    def start(self, chain: int, fresh: Any) -> tuple[int, Any]:
        """Step and state from which a chain goes on; `fresh` is its state before the first."""
        if self.saved is None or chain > self.saved.chain:
            return 0, fresh
        step = self.saved.step if chain == self.saved.chain else np.iinfo(np.int32).max
        if chain == self.saved.chain and step == 0:
            return 0, fresh
        structure = jax.tree.structure(fresh)
        return step, _restored(fresh, jax.tree.unflatten(structure, self.saved.states[chain]))

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._last >= self._every

    def chain_is_over(self, chain: int, state: Any) -> None:
        """Remember the final state of a chain, and write."""
        if chain == len(self._over):
            self._over.append(_leaves(state))
            self.write(chain + 1, 0, None)

    def write(self, chain: int, step: int, state: Any) -> None:
        """Write the state of a chain before a step; None if it is the first."""
        states = self._over + ([] if state is None else [_leaves(state)])
        leaves = [leaf for own in states for leaf in own]
        named: dict[str, Any] = {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}
        head = (*self._head, self.paid.encode())
        material, digest, paid = (np.frombuffer(own, np.uint8) for own in head)
        buffer = BytesIO()
        np.savez(
            buffer, format=_FORMAT, material=material, digest=digest, paid=paid, chain=chain,
            step=step, lengths=np.array([len(own) for own in states], np.int64), **named,
        )  # fmt: skip
        beside = self.path.with_name(self.path.name + ".new")
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as out:
            out.write(buffer.getbuffer())
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, self.path)
        self._last = time.monotonic()

    def delete(self) -> None:
        """Delete the file: the fit is over."""
        self.path.unlink(missing_ok=True)


def refuse_unbound(plan: Any) -> None:
    """Raise a `ValueError` for a plan that holds functions: nothing tells two of them apart."""
    if " at 0x" in str(jax.tree.structure(plan)):
        raise ValueError(
            "A fit of a model or guide that is a function of yours cannot have a checkpoint: a "
            "file cannot tell whether the function is still the same. Leave the checkpoint out."
        )


def digest_of(material: bytes, plan: Any, report: str, parts: Iterable[Any]) -> bytes:
    """Keyed digest of a plan, of the versions that run it, and of all records.

    Parameters
    ----------
    material : bytes
        Of the fit's keys: who does not have them learns nothing from a digest.
    plan : pytree
    report : str
        All else that is said of the fit.
    parts : iterable of pytrees of arrays
        Packed records.
    """
    key = hashlib.blake2b(material, person=b"digest", digest_size=32).digest()
    out = hashlib.blake2b(key=key, digest_size=32)
    device = default_device()
    versions = (__version__, *(version(name) for name in ("jax", "jaxlib", "numpy")))
    out.update(repr((versions, device.platform, device.device_kind, report)).encode())
    for tree in chain((plan,), parts):
        for leaf in jax.tree.leaves(tree):
            array = np.ascontiguousarray(leaf)
            out.update(f"{array.dtype}{array.shape}".encode())
            out.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
        out.update(str(jax.tree.structure(tree)).encode())
    return out.digest()


def _leaves(state: Any) -> list[np.ndarray]:
    return [
        np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for leaf in jax.tree.leaves(state)
    ]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _restored(like: Any, saved: Any) -> Any:
    """Saved leaves with the types that the state has."""

    def one(own: Any, leaf: np.ndarray) -> Any:
        if _is_key(own):
            return jax.random.wrap_key_data(jax.numpy.asarray(leaf), impl=jax.random.key_impl(own))
        return jax.numpy.asarray(leaf, own.dtype)

    return jax.tree.map(one, like, saved)
