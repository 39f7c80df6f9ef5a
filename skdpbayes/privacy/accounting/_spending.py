"""What a ledger is charged with, and what it has to know of it.

A release that was fixed beforehand is a composition of rounds (`GaussianRounds`); a private search
is a `Selection`. A ledger asks both the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from skdpbayes.privacy.accounting._curve import compose
from skdpbayes.privacy.accounting._rdp import rdp_at
from skdpbayes.privacy.accounting._selection import Selection
from skdpbayes.privacy.accounting._steps import GaussianSteps, as_steps


class Spending(Protocol):
    """A mechanism that is fixed before it runs."""

    @property
    def rounds(self) -> tuple[GaussianSteps, ...] | None:
        """Its releases, if they are fixed too; None if chance decides which of them are made."""

    @property
    def has_noise(self) -> bool:
        """Whether each of its releases has noise."""

    def epsilon(self, delta: float, adjacency: str) -> float:
        """Upper bound on epsilon, if nothing else is ever released."""

    def divergence(self, order: float, adjacency: str) -> float:
        """Upper bound on the Renyi divergence at an order above 1; noise is above 0."""

    def to_entry(self) -> dict[str, Any]:
        """Fields of a ledger's entry, of JSON's types."""


@dataclass(frozen=True)
class GaussianRounds:
    """Rounds of the Poisson-subsampled Gaussian mechanism, all of them fixed beforehand."""

    rounds: tuple[GaussianSteps, ...]

    @property
    def has_noise(self) -> bool:
        """Whether each round has noise."""
        return all(step.noise_multiplier > 0 for step in self.rounds)

    def epsilon(self, delta: float, adjacency: str) -> float:
        """Epsilon of the exact composition (`compose`)."""
        return compose(self.rounds, adjacency).epsilon(delta)

    def divergence(self, order: float, adjacency: str) -> float:
        """Sum of the rounds' divergences."""
        return rdp_at(self.rounds, order, adjacency)

    def to_entry(self) -> dict[str, Any]:
        """Fields of a ledger's entry."""
        return {"steps": [step.to_dict() for step in self.rounds]}


def as_spending(given: GaussianSteps | Iterable[GaussianSteps] | Selection) -> Spending:
    """Return rounds as `GaussianRounds`, and a `Selection` as it is; or raise ValueError."""
    return given if isinstance(given, Selection) else GaussianRounds(as_steps(given))


def from_entry(entry: Mapping[str, Any]) -> Spending:
    """Rebuild from a ledger's entry."""
    if "selection" in entry:
        return Selection.from_dict(entry["selection"])
    return GaussianRounds(tuple(GaussianSteps(**step) for step in entry["steps"]))
