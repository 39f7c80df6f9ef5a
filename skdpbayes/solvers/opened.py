"""Gradient solver that starts where a model's openings lead.

The openings of an `OpenedModel` (a private sketch of a mixture, a histogram of score norms) find a
start. Given the start, ``marginal(params)`` is a model without latent variables, in coordinates
about it, and the gradient solver takes the remaining rounds:

    params_k = opening_k.update(params_{k-1}, private_sum(opening_k.statistics)),   k = 1, ..., K
    state_t  = solver.update(state_{t-1}, private_sum(score of marginal(params_K))),    t > K

This is ours; for the start of a mixture see ``docs/solvers/vips.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.stages import Lowered

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import LooksAgain, OpenedModel, Opening
from skdpbayes.models.protocols import HasHyperPrior, Number, Params
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.posteriors.base import MappedPosterior, Posterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import (
    GradientSolver,
    Point,
    Query,
    Round,
    Scales,
    Sums,
    arithmetic,
    opening_round,
)
from skdpbayes.solvers.na_dpvi import NADPVI


class OpenedState(NamedTuple):
    """State of the openings, and of the solver (unused before the last opening)."""

    params: Params
    solver: Any


@pytree
@dataclass(frozen=True)
class Opened:
    """Openings, then a gradient solver on ``model.marginal(params)``.

    Attributes
    ----------
    solver : DPVI, NADPVI, SGLD or AwareSGLD
    n_openings : int
        Number of the model's openings.
    second_look : int, optional
        Step at which the first opening is made once more, where the solver has arrived by then. The
        solver starts anew from there, since coordinates may be others.
    """

    solver: GradientSolver[Any, Any]
    n_openings: Number
    second_look: Number | None = None

    @property
    def clipping_norm(self) -> Number:
        """Clipping norm of the inner solver."""
        return self.solver.clipping_norm

    def init(self, model: OpenedModel, key: jax.Array) -> OpenedState:
        """State before any release."""
        params = model.init()
        return OpenedState(params, self.solver.init(model.marginal(params), key))

    def rounds(self, model: OpenedModel, mechanism: Mechanism) -> tuple[Round[OpenedState], ...]:
        """The model's openings, once each, and the solver's rounds on the rest of the schedule."""

        def part(step: jax.Array) -> Mechanism:
            """The steps between openings to which a step belongs."""
            first = self._first_of_part(step)
            after = mechanism.n_steps
            if self.second_look is not None:
                after = jnp.where(step < self.second_look, self.second_look, after)
            return mechanism.between(first, after)

        def begun(state: OpenedState, params: Params, key: jax.Array) -> OpenedState:
            del state
            return OpenedState(
                params, self.solver.init(model.marginal(params), jax.random.fold_in(key, 1))
            )

        def delegated(i: int) -> Round[OpenedState]:
            # Updates alone depend on the schedule.
            def inner(state: OpenedState, schedule: Mechanism = mechanism) -> Round[Any]:
                return self.solver.rounds(model.marginal(state.params), schedule)[i]

            def query(state: OpenedState, point: Point) -> Query:
                return inner(state).query(state.solver, point)

            def blocks(state: OpenedState) -> Mapping[str, Block]:
                return inner(state).blocks(state.solver)

            def update(
                state: OpenedState, point: Point, step: jax.Array, estimate: Sums, scales: Scales
            ) -> OpenedState:
                own, solver = step - self._first_of_part(step), inner(state, part(step))
                updated = solver.update(state.solver, point, own, estimate, scales)
                return state._replace(solver=updated)

            return Round(
                point=lambda state, key: inner(state).point(state.solver, key),
                query=query,
                blocks=blocks,
                update=update,
            )

        def opened(opening: Opening) -> Round[OpenedState]:
            found = opening_round(opening, begun)
            if self.second_look is None:
                return found

            def arrived(state: OpenedState) -> OpenedState:
                assert isinstance(model, LooksAgain)
                return state._replace(params=model.looked_at(state.params, state.solver.centre))

            return found._replace(
                query=lambda state, key: found.query(arrived(state), key),
                update=lambda state, *release: found.update(arrived(state), *release),
            )

        kinds = len(self.solver.rounds(model.marginal(model.init()), mechanism))
        return *map(opened, model.openings()), *(delegated(i) for i in range(kinds))

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: each opening once, then the solver's kinds."""
        kind = self.n_openings + self.solver.which(step - self._first_of_part(step))
        if self.second_look is not None:
            kind = jnp.where(step == self.second_look, 0, kind)
        return jnp.where(step < self.n_openings, step, kind).astype(jnp.int32)

    def _first_of_part(self, step: jax.Array) -> jax.Array | Number:
        """First step after the openings before a step."""
        if self.second_look is None:
            return self.n_openings
        return jnp.where(step < self.second_look, self.n_openings, self.second_look + 1)

    def posterior(self, model: OpenedModel, state: OpenedState) -> Posterior:
        """The solver's posterior, in the model's own parameters."""
        marginal = self._marginal(model, state)
        integrated = isinstance(marginal, HasHyperPrior)
        if integrated and isinstance(self.solver, NADPVI):
            found: Posterior = marginal.integrated(
                self.solver.posterior_and_likelihood(marginal, state.solver)[1]
            )
            return found
        return marginal.natural(self.solver.posterior(marginal, state.solver))

    def programs(self, model: OpenedModel, state: OpenedState) -> Iterator[Lowered]:
        """Those of `na-dpvi`."""
        if isinstance(self.solver, NADPVI):
            with arithmetic():
                marginal = jax.eval_shape(_marginal, model, state.params)
            # As from the host, where numbers have lost their weak types.
            own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), marginal)
            yield from self.solver.programs(own, state.solver)

    def without_noise(self, model: OpenedModel, state: OpenedState) -> Posterior | None:
        """Posterior of `na-dpvi` without the noise of scores; None of another solver."""
        if not isinstance(self.solver, NADPVI):
            return None
        return self.posterior(model, state._replace(solver=self.solver.quiet(state.solver)))

    def posterior_and_likelihood(
        self, model: OpenedModel, state: OpenedState
    ) -> tuple[Posterior, NormalLikelihood]:
        """What `na-dpvi` finds, in the model's own parameters."""
        assert isinstance(self.solver, NADPVI)
        marginal = self._marginal(model, state)
        found = self.solver.posterior_and_likelihood(marginal, state.solver)
        posterior, likelihood = (marginal.natural(own) for own in found)
        if isinstance(marginal, InCoordinates):
            likelihood = replace(likelihood, moments=marginal.moments())
        return posterior, likelihood

    def _marginal(self, model: OpenedModel, state: OpenedState) -> Any:
        with arithmetic():  # as in the run, for the same coordinates
            return jax.device_get(_marginal(model, state.params))

    def diagnostics(
        self, model: OpenedModel, state: OpenedState, posterior: Posterior
    ) -> dict[str, Any]:
        """Diagnostics of the solver, on its posterior of the coordinates."""
        own = posterior.posterior if isinstance(posterior, MappedPosterior) else posterior
        return self.solver.diagnostics(self._marginal(model, state), state.solver, own)


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _marginal(model: OpenedModel, params: Params) -> Any:
    return model.marginal(params)
