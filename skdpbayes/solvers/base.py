"""Solvers as the driver sees them: kinds of round, and pure functions over a typed state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import (
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
from jax.stages import Lowered

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Opening
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.posteriors.base import Posterior

Sums: TypeAlias = Mapping[str, Any]
"""Noisy sums by block, each of the structure of its contributions."""

Scales: TypeAlias = Mapping[str, jax.Array]
"""Standard deviation of the noise in each block of a sum."""

Query: TypeAlias = Callable[[Record], Mapping[str, Contribution]]
"""What one record contributes to each block."""

Point: TypeAlias = Any
"""Where a query is evaluated; every kind of round has its own structure."""

State = TypeVar("State")
ModelT = TypeVar("ModelT", contravariant=True)
StateT = TypeVar("StateT", contravariant=True)  # of which nothing is made


class Round(NamedTuple, Generic[State]):
    """One kind of round: what a record contributes, and how the noisy sum changes the state.

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

    point: Callable[[State, jax.Array], Point]
    query: Callable[[State, Point], Query]
    blocks: Callable[[State], Mapping[str, Block]]
    update: Callable[[State, Point, jax.Array, Sums, Scales], State]


class Solver(Protocol[ModelT, State]):
    """A pair of pure functions over a state, for each kind of round.

    A solver is a frozen dataclass registered as a pytree: what shapes the program is static,
    numbers are traced.
    """

    def init(self, model: ModelT, key: jax.Array) -> State:
        """State before the first round, independent of any data."""

    def rounds(self, model: ModelT, mechanism: Mechanism) -> tuple[Round[State], ...]:
        """Kinds of round."""

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round taken at a step, a function of the step alone.

        An index beyond the last kind means the last: for some models and guides a solver has fewer
        kinds.
        """

    def posterior(self, model: ModelT, state: State) -> Any:
        """Posterior described by a final state (`skdpbayes.posteriors`, or the model's own)."""

    def diagnostics(self, model: ModelT, state: State, posterior: Any) -> dict[str, Any]:
        """Public facts about the run, from the final state and the reported posterior."""


class GradientSolver(Solver[ModelT, State], Protocol[ModelT, State]):
    """A solver that releases clipped scores of a `Model`."""

    @property
    def clipping_norm(self) -> Number:
        """Clipping norm of a score, over the model's `score_unit`."""


@contextmanager
def arithmetic() -> Iterator[None]:
    """Context in which rounds and posteriors are traced, compiled and run.

    Positions in a sample and integer sums need 64 bits; everything else names its dtype. Products
    of matrices have the precision of their numbers, which accelerators do not give by default.
    """
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


@runtime_checkable
class HasPrograms(Protocol[ModelT, StateT]):
    """A solver whose posterior takes long to compile."""

    def programs(self, model: ModelT, state: StateT) -> Iterator[Lowered]:
        """Programs of the posterior, of arguments of these shapes, to be compiled ahead."""


@runtime_checkable
class HasQuiet(Protocol[ModelT, StateT]):
    """Solver that may know its posterior without the privacy noise of its main releases."""

    def without_noise(self, model: ModelT, state: StateT) -> Posterior | None:
        """That posterior; None if the solver inside does not know it."""


class OneKindOfRound:
    """Part of solvers whose rounds are all alike."""

    def which(self, step: jax.Array) -> jax.Array:
        """Zero, the index of the only kind of round."""
        return jnp.zeros_like(step)


class OneKindAfterOpenings:
    """Part of solvers that take a model's openings, once each, and then rounds that are alike."""

    n_openings: Number

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: each opening once, then the repeated round."""
        return jnp.minimum(step, self.n_openings)


def opening_rounds(openings: Iterable[Opening]) -> tuple[Round[Any], ...]:
    """Rounds of `openings`, for a solver whose state they change in its `params` alone."""

    def became(state: Any, params: Any, key: jax.Array) -> Any:
        del key
        return state._replace(params=params)

    return tuple(opening_round(opening, became) for opening in openings)


def opening_round(
    opening: Opening, became: Callable[[State, Any, jax.Array], State]
) -> Round[State]:
    """Round of an `Opening`, for a solver whose state has the model's `params`.

    Parameters
    ----------
    opening : Opening
    became : callable ``(state, params, key) -> state``
        Next state, given the parameters updated by the opening.
    """

    def update(
        state: Any, key: jax.Array, step: jax.Array, estimate: Sums, scales: Scales
    ) -> State:
        del step
        return became(state, opening.update(state.params, estimate, scales, key), key)

    def query(state: Any, key: jax.Array) -> Query:
        del key
        return opening.statistics(state.params)

    return Round(
        point=lambda state, key: key,
        query=query,
        blocks=lambda state: opening.blocks,
        update=update,
    )
