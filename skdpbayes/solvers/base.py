"""What the driver needs to know of a solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Model


class Round(NamedTuple):
    """One kind of round: what a record contributes, and what is done with the noisy sum.

    Attributes
    ----------
    point : callable ``(state, key) -> point``
        Where the query is evaluated (a draw of the parameters, say); computed once, for query and
        update.
    query : callable ``(state, point) -> (record -> {block: contribution})``
        Sees one record at a time, behind the private sum.
    blocks : callable ``(state) -> {block: Block}``
        Clipping norm and budget share of each block; public.
    update : callable ``(state, point, step, estimate, scales) -> state``
        Post-processing. `estimate` is the release over the sampling rate, an estimate of the
        full-data sums, and `scales` the standard deviation of the privacy noise in each block of
        it. Sees no record.
    """

    point: Callable[..., Any]
    query: Callable[..., Callable[[Any], Mapping[str, Any]]]
    blocks: Callable[..., Mapping[str, Block]]
    update: Callable[..., Any]


class Solver(Protocol):
    """A pair of pure functions over a state, for each kind of round.

    A solver is a frozen dataclass registered as a pytree: what shapes the program is static,
    numbers are traced.
    """

    def init(self, model: Model, key) -> Any:
        """State before the first round, independent of any data."""

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """Return the kinds of round."""

    def which(self, step) -> Any:
        """Index of the round taken at a step (a function of the step alone); asked if there are several kinds.

        An index beyond the last kind means the last: for some models and guides a solver has fewer
        kinds.
        """

    def posterior(self, model: Model, state) -> Any:
        """Return the posterior that a final state describes (`skdpbayes.posteriors`, or one of the model's own)."""

    def diagnostics(self, state, posterior) -> dict:
        """Public facts about the run, from the final state and the posterior that it gave."""


def opening_round(opening, became: Callable[..., Any]) -> Round:
    """Round of an `Opening`, for a solver whose state has the model's `params`.

    Parameters
    ----------
    opening : Opening
    became : callable ``(state, params, key) -> state``
        Next state, given what the opening made of the parameters.
    """

    def update(state, key, step, estimate, scales):
        del step
        return became(state, opening.update(state.params, estimate, scales, key), key)

    return Round(
        point=lambda state, key: key,
        query=lambda state, key: opening.statistics(state.params),
        blocks=lambda state: opening.blocks,
        update=update,
    )
