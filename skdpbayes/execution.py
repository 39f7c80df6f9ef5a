"""Where fits run, and how they go on after an interruption: neither changes what they release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Execution:
    """How fits run, as `execution` says."""

    devices: int | str | None = None
    checkpoint: Path | None = None
    every: float = 60.0


_DEFAULT = Execution()
_IN_FORCE: ContextVar[Execution] = ContextVar("execution", default=_DEFAULT)


def execution_in_force() -> Execution:
    """What the innermost `execution` says."""
    return _IN_FORCE.get()


@contextmanager
def execution(
    *,
    devices: int | str | None = None,
    checkpoint: str | Path | None = None,
    every: float = 60.0,
) -> Iterator[None]:
    """Run the fits of a block on several devices, or so that they can be resumed.

    Parameters
    ----------
    devices : int or "all", default=None
        Records are divided over so many of JAX's devices, or over all of them, those of other
        processes too. Each device adds up the contributions of its own records; the sums are added
        up, and noise is added once. With ``"all"`` in several processes each of them calls `fit`
        with its own rows, after ``jax.distributed.initialize``. None: JAX's first device.
    checkpoint : path, default=None
        File that a fit writes now and then, and deletes when it is over. If it is there when a fit
        begins, that fit goes on from it and is not charged again. It holds the fit's secret keys:
        keep it as you keep the records, and see Notes.
    every : float, default=60.0
        Seconds between two writings.

    Raises
    ------
    ValueError
        For parameters out of range. `fit` raises if there are fewer devices; if its records cannot
        be divided, as documents and persons cannot; if a checkpoint is of another fit: of other
        parameters, records or versions.

    Notes
    -----
    Sums are of integers (``numerics="secure"``), which add up to the same number however records
    are divided: a fit releases the same, bit for bit, on one device and on many. So it does if it
    was interrupted, at any round.

    A fit that goes on takes the noise that it would have taken. Two fits with the same noise and
    other records would give away what differs. So a checkpoint has a keyed digest of the records
    and of all that the plan holds, and another fit is refused. Do not copy a checkpoint.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression, execution
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = (X[:, 0] + rng.normal(size=500) > 0).astype(int)
    >>> model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1])
    >>> with execution(devices="all"):
    ...     model = model.fit(X, y)
    >>> model.n_features_in_
    2
    """
    from skdpbayes.checks import check_number

    if devices is not None and devices != "all":
        check_number("devices", devices, 1, integral=True, closed=True)
    check_number("every", every, 0, closed=True)
    own = Execution(devices, None if checkpoint is None else Path(checkpoint), float(every))
    token = _IN_FORCE.set(own)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)
