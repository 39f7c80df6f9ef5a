"""Gradient solver of a network whose last rounds calibrate its predictions.

    state_t = solver.update(state_{t-1}, private_sum(score of the weights)),     t <= T
    state_t = outputs.update(state_{t-1}, private_sum(score of the outputs)),    t > T

The outputs' scale and offsets (`skdpbayes.models.networks.outputs`) are a model of few parameters,
given draws of the posterior of the weights; `na-dpvi` fits it, and shrinks what noise hides to the
outputs as they are. Scaled and shifted weights of the last layer are what is reported.

This is ours: recalibration (Platt 1999; Guo et al. 2017) on a release of the training records. With
so few parameters it cannot overfit as on its own it would, and noise keeps a network from fitting
single records. ``docs/networks.md`` has measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import flat_start
from skdpbayes.models.networks.outputs import Outputs
from skdpbayes.models.networks.perceptron import Classifier
from skdpbayes.models.protocols import Number
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import GradientSolver, Point, Query, Round, Scales, Sums
from skdpbayes.solvers.na_dpvi import NADPVI, TraceState

_DRAWS = 10  # of the weights, in each round
_KINDS = 2  # of round on the outputs: scores and curvatures


class WeightSolver(GradientSolver[Classifier, Any], Protocol):
    """A solver whose posterior can be drawn from in the compiled loop."""

    def draws(self, model: Classifier, state: Any, key: jax.Array, n: int) -> jax.Array:
        """At most n draws of the posterior that the state describes, (draws, n_weights)."""


class RecalibratedState(NamedTuple):
    """States of the solver and of the outputs' solver; one of them changes in a round."""

    weights: Any
    outputs: TraceState


@pytree
@dataclass(frozen=True)
class Recalibrated:
    """A gradient solver on the weights, then `NADPVI` on the outputs.

    Attributes
    ----------
    solver : DPVI, Adam or SGLD
    outputs : NADPVI
    first : int
        The first round on the outputs.
    """

    solver: WeightSolver
    outputs: NADPVI
    first: Number

    @property
    def clipping_norm(self) -> Number:
        """Clipping norm of the scores of the weights."""
        return self.solver.clipping_norm

    def init(self, model: Classifier, key: jax.Array) -> RecalibratedState:
        """State before any release."""
        return RecalibratedState(
            self.solver.init(model, key), self.outputs.init(Outputs(model), key)
        )

    def rounds(
        self, model: Classifier, mechanism: Mechanism
    ) -> tuple[Round[RecalibratedState], ...]:
        """The rounds on the outputs, then those on the weights."""
        early = mechanism.between(0, self.first)
        late = mechanism.between(self.first, mechanism.n_steps)
        return (
            *(self._of_outputs(i, model, late) for i in range(_KINDS)),
            *map(_of_weights, self.solver.rounds(model, early)),
        )

    def _of_outputs(
        self, i: int, model: Classifier, mechanism: Mechanism
    ) -> Round[RecalibratedState]:
        def inner(draws: jax.Array | None = None) -> Round[TraceState]:
            return self.outputs.rounds(Outputs(model, draws), mechanism)[i]

        def point(state: RecalibratedState, key: jax.Array) -> tuple[jax.Array, Point]:
            draws = self.solver.draws(model, state.weights, key, _DRAWS)
            return draws, inner().point(state.outputs, key)

        def query(state: RecalibratedState, point: tuple[jax.Array, Point]) -> Query:
            return inner(point[0]).query(state.outputs, point[1])

        def blocks(state: RecalibratedState) -> Mapping[str, Block]:
            return inner().blocks(state.outputs)

        def update(
            state: RecalibratedState,
            point: tuple[jax.Array, Point],
            step: jax.Array,
            estimate: Sums,
            scales: Scales,
        ) -> RecalibratedState:
            own = step - self.first
            found = inner().update(state.outputs, point[1], own, estimate, scales)
            return state._replace(outputs=found)

        return Round(point, query, blocks, update)

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round; both kinds of the outputs come first."""
        kind = _KINDS + self.solver.which(step)
        return jnp.where(step < self.first, kind, self.outputs.which(step - self.first)).astype(
            jnp.int32
        )

    def posterior(
        self, model: Classifier, state: RecalibratedState
    ) -> GaussianPosterior | DrawsPosterior:
        """Posterior of the weights, those of the last layer scaled and shifted."""
        found: GaussianPosterior | DrawsPosterior = self.solver.posterior(model, state.weights)
        outputs = Outputs(model)
        return found.rescaled(*outputs.rescaling(self._found(outputs, state)))

    def diagnostics(
        self, model: Classifier, state: RecalibratedState, posterior: Any
    ) -> dict[str, Any]:
        """Those of the solver, and by what the outputs were scaled and shifted."""
        found = self._found(Outputs(model), state)
        own = self.solver.diagnostics(model, state.weights, posterior)
        return {
            **own,
            "output_scale": float(np.exp(found["log_scale"])),
            "output_offsets": found["offsets"],
        }

    def _found(self, outputs: Outputs, state: RecalibratedState) -> dict[str, np.ndarray]:
        """Parameters of the outputs."""
        theta = np.asarray(state.outputs.theta, np.float32).ravel()
        return jax.tree.map(np.asarray, flat_start(outputs)[1](jnp.asarray(theta)))


def _of_weights(own: Round[Any]) -> Round[RecalibratedState]:
    def update(
        state: RecalibratedState, point: Point, step: jax.Array, estimate: Sums, scales: Scales
    ) -> RecalibratedState:
        return state._replace(weights=own.update(state.weights, point, step, estimate, scales))

    return Round(
        point=lambda state, key: own.point(state.weights, key),
        query=lambda state, point: own.query(state.weights, point),
        blocks=lambda state: own.blocks(state.weights),
        update=update,
    )
