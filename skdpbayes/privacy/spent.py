"""What private steps have spent: the common part of all reports, and the rule that adds them up.

Steps that were all fixed in advance spend, together, at most the sum of their epsilons at the sum
of their deltas, and at most the composition of their releases; `composed` takes the smaller.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from skdpbayes.privacy.accounting._steps import GaussianSteps
from skdpbayes.privacy.card import guarantee


class Total(NamedTuple):
    """Privacy parameters of some steps together.

    Attributes
    ----------
    epsilon, delta : float
    adjacency, unit : str
    releases : tuple of GaussianSteps, or None
        All that was released; None if it is not known, or no fixed sequence of steps.
    epsilon_overhead, delta_overhead : float
        Shares of `epsilon` and `delta` that do not come from `releases`.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    releases: tuple[GaussianSteps, ...] | None = None
    epsilon_overhead: float = 0.0
    delta_overhead: float = 0.0

    @classmethod
    def composed(cls, parts: Sequence[Total]) -> Total:
        """Total of at least one part.

        Parameters
        ----------
        parts : sequence of Total

        Raises
        ------
        ValueError
            If adjacencies or units differ.

        Notes
        -----
        **Formal guarantee.** The steps are jointly (epsilon, delta)-private, if each part is
        private as stated whatever the others have released, and all privacy parameters were fixed
        in advance. A step may read what earlier ones released, as a model reads what a private
        scaler made of its rows.

        *Proof.* For two neighbouring tables, each part has a dominating pair of distributions: that
        of its steps where they are known, and randomised response with its (epsilon, delta) of
        any. Under adaptive composition the product of the pairs dominates the whole (Zhu, Dong and
        Wang 2022, theorem 10), in any order, so the fits of one part may lie between those of
        another. (1) Hence sums of epsilons and deltas bound the whole: basic composition. (2) If
        all releases are known, `compose` bounds the idealised whole, with exact numbers, at every
        epsilon. Replacing it by what runs costs the sum of the epsilon overheads, and, at epsilon
        E, a delta proportional to 1 + exp(E): a part's overhead d, stated at epsilon e, is at most
        ``d exp(E - e)`` there for E above e (`grown`). At the smaller of both bounds the overheads
        are at most those at the bound of (1), which are taken here. QED

        ``tests/test_pipelines.py``: `test_its_report_is_of_all_steps` dies if a part is left out,
        `test_refits_of_what_a_column_transformer_copies_add_up` if an earlier fit is.
        ``tests/privacy/test_report.py::test_overheads_grow_in_a_composition`` dies if overheads do
        not grow.
        """
        meanings = {(part.adjacency, part.unit) for part in parts}
        if len(meanings) > 1:
            raise ValueError(
                "The private steps have different adjacencies or units: no total can be given. "
                "Give all of them one adjacency, and max_rows_per_person to all or to none."
            )
        ((adjacency, unit),) = meanings
        epsilon = float(sum(part.epsilon for part in parts))
        delta = float(sum(part.delta for part in parts))
        releases = _all_of(part.releases for part in parts)
        more_epsilon = float(sum(part.epsilon_overhead for part in parts))
        more_delta = sum(grown(part.delta_overhead, part.epsilon, epsilon) for part in parts)
        if releases is not None and math.isfinite(epsilon) and more_delta < delta:
            from skdpbayes.privacy.accounting import compose

            tight = compose(releases, adjacency).epsilon(delta - more_delta) + more_epsilon
            epsilon = min(epsilon, float(tight))
        more_delta = min(more_delta, math.nextafter(delta, 0.0))
        return cls(epsilon, delta, adjacency, unit, releases, more_epsilon, more_delta)


def grown(overhead: float, epsilon: float, at: float) -> float:
    """Overhead of delta, stated at `epsilon`, at a larger or equal one.

    It grows as ``1 + exp(epsilon)``, whose ratio at a > b is at most ``exp(a - b)``.
    """
    if overhead == 0.0 or not at > epsilon:
        return overhead
    return overhead * math.exp(min(at - epsilon, 700.0))


class Spent(ABC):
    """What a step has spent: a fit, a search, or several of them.

    Attributes
    ----------
    epsilon, delta : float
        Upper bounds; infinity if there was no noise.
    adjacency, unit : str
        What "one record" means.
    numerics : {"secure", "fast"}
        ``"fast"`` is idealised: real-number noise is assumed where floats are used.
    seeded : bool
        Whether the keys follow from a seed somebody may know.
    voided_by : tuple of str
        Reasons why the guarantee does not hold; empty when it does.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    numerics: str
    seeded: bool
    voided_by: tuple[str, ...]

    @property
    def guarantee_holds(self) -> bool:
        """Whether nothing in `voided_by` voids the guarantee."""
        return not self.voided_by

    @property
    @abstractmethod
    def releases(self) -> tuple[GaussianSteps, ...] | None:
        """All that was released; None if it is no fixed sequence of steps."""

    @property
    @abstractmethod
    def total(self) -> Total:
        """Of this step and earlier fits of the same object."""

    @classmethod
    @abstractmethod
    def composed(
        cls,
        reports: Mapping[str, Spent],
        earlier: Sequence[Spent] = (),
        *,
        public: Mapping[str, Any] | None = None,
        covered: Collection[str] = (),
    ) -> Self:
        """Report of several steps, by `Total.composed`; the last is of this class.

        Parameters
        ----------
        reports : mapping of str to Spent
            Steps by name, in their order.
        earlier : sequence of Spent
            Of steps that were replaced since.
        public : mapping, optional
            What was taken as public beside the steps' own.
        covered : collection of str
            Entries of ``not_covered`` that the whole does cover.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON's types; infinity becomes the string ``"inf"``."""

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as strict JSON with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=indent, allow_nan=False)

    @abstractmethod
    def _rows(self) -> list[tuple[str, str]]:
        """Rows of the card that notebooks show."""

    def _repr_html_(self) -> str:
        return guarantee(self.epsilon, self.delta, self.voided_by, self._rows())


def weaker_before(earlier: Spent, *, numerics: str, adjacency: str, unit: str) -> Iterator[str]:
    """Reasons for which earlier fits of an object do not keep a promise of this kind."""
    if earlier.numerics == "fast" and numerics != "fast":
        yield "an earlier fit was private in idealised arithmetic only"
    if earlier.adjacency != adjacency:
        yield f"an earlier fit was private under adjacency={earlier.adjacency!r} only"
    if earlier.unit != unit:  # a person has several rows, and a row may change a person's others
        yield f"an earlier fit was private per {earlier.unit} only"


def least_secure(reports: Iterable[Spent]) -> str:
    """``"fast"`` if the numerics of one report are."""
    return "fast" if any(report.numerics == "fast" for report in reports) else "secure"


def all_voids(reports: Iterable[Spent], earlier: Iterable[Spent]) -> tuple[str, ...]:
    """Reasons of all reports, each once."""
    own = [why for report in reports for why in report.voided_by]
    before = [f"an earlier fit: {why}" for report in earlier for why in report.voided_by]
    return tuple(dict.fromkeys(own + before))


def _all_of(
    sequences: Iterable[tuple[GaussianSteps, ...] | None],
) -> tuple[GaussianSteps, ...] | None:
    out: tuple[GaussianSteps, ...] = ()
    for sequence in sequences:
        if sequence is None:
            return None
        out += sequence
    return out
