"""A gradient solver that starts where a model's openings lead.

The openings of an `OpenedModel` find a start. Given that, the model becomes one without latents, in
coordinates about the start (`marginal`), and the gradient solver takes the rounds that are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import OpenedModel
from skdpbayes.solvers.base import Round, opening_round


class OpenedState(NamedTuple):
    """Of the openings, and of the solver (of no meaning before the last opening)."""

    params: Any
    solver: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Opened:
    """Openings, then a gradient solver on ``model.marginal(params)``.

    Attributes
    ----------
    solver : DPVI, NADPVI or SGLD
    n_openings : int
        Of the model.
    """

    solver: Any  # a Solver
    n_openings: Any

    @property
    def clipping_norm(self):
        """Of the solver; for the report."""
        return self.solver.clipping_norm

    @property
    def clip_fraction(self):
        """Of the solver, if it adapts its clipping norm."""
        return getattr(self.solver, "clip_fraction", None)

    def init(self, model: OpenedModel, key) -> OpenedState:
        """Nothing known."""
        params = model.init()
        return OpenedState(params, self.solver.init(model.marginal(params), key))

    def rounds(self, model: OpenedModel, mechanism: Mechanism) -> tuple[Round, ...]:
        """The model's openings, once each, and the rounds of the solver, which sees its own part of the schedule."""
        remaining = mechanism._replace(
            n_steps=mechanism.n_steps - self.n_openings,
            ends=jnp.maximum(mechanism.ends - self.n_openings, 0),
        )

        def begun(state, params, key):
            del state
            return OpenedState(
                params, self.solver.init(model.marginal(params), jax.random.fold_in(key, 1))
            )

        def delegated(i):
            def inner(state):
                return self.solver.rounds(model.marginal(state.params), remaining)[i]

            def update(state, point, step, estimate, scales):
                step = step - self.n_openings
                return state._replace(
                    solver=inner(state).update(state.solver, point, step, estimate, scales)
                )

            return Round(
                point=lambda state, key: inner(state).point(state.solver, key),
                query=lambda state, point: inner(state).query(state.solver, point),
                blocks=lambda state: inner(state).blocks(state.solver),
                update=update,
            )

        kinds = len(self.solver.rounds(model.marginal(model.init()), remaining))
        opened = (opening_round(opening, begun) for opening in model.openings())
        return *opened, *(delegated(i) for i in range(kinds))

    def which(self, step):
        """One opening after the other, then what the solver says."""
        kind = (
            self.solver.which(step - self.n_openings) if hasattr(self.solver, "which") else 0
        )  # of one kind: SGLD
        return jnp.where(step < self.n_openings, step, self.n_openings + kind).astype(jnp.int32)

    def posterior(self, model: OpenedModel, state: OpenedState):
        """The solver's posterior, in the model's own parameters."""
        with jax.enable_x64(True):  # as in the run, for the same coordinates
            marginal = jax.device_get(model.marginal(jax.tree.map(jnp.asarray, state.params)))
        return marginal.natural(self.solver.posterior(marginal, state.solver))

    def diagnostics(self, state: OpenedState, posterior) -> dict:
        """Those of the solver."""
        return self.solver.diagnostics(state.solver, getattr(posterior, "posterior", posterior))
