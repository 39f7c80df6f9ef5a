"""A number of records, released with noise."""

from __future__ import annotations

from typing import NamedTuple


class NoisyCount(NamedTuple):
    """A number of records, released with noise.

    Attributes
    ----------
    estimate : float
        May be negative, or above the number of rows.
    std : float
        Standard deviation of its noise.

    Examples
    --------
    >>> from skdpbayes.privacy import NoisyCount
    >>> print(NoisyCount(1987.4, 37.3))
    1987 +- 37
    """

    estimate: float
    std: float

    def __str__(self) -> str:
        return f"{self.estimate:.0f} +- {self.std:.0f}"
