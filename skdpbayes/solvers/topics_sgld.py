"""Langevin dynamics of topics in expanded-mean coordinates, with the privacy noise in its noise.

Stochastic gradient Riemannian Langevin dynamics (Patterson and Teh 2013, equation 10 and section
4): topics are normalised counts, ``beta_kv = theta_kv / sum_v theta_kv`` with independent gamma
priors of shape eta and scale 1, and the metric is theta itself:

    theta' = |theta + h / 2 (eta + n(theta) - theta) + noise|,    noise of variance h theta,

where n(theta) is the sum of the documents' expected counts. In the square roots of the counts the
noise has the same variance everywhere, so that one step size suits rare and frequent words.

The released sum is ``n(theta)`` plus noise of standard deviation tau, so that a step has noise of
variance ``h^2 tau^2 / 4`` from privacy. Where that is less than ``h theta``, the solver adds the
difference, which is post-processing; the chain then has the law of Patterson and Teh's. Where it is
more, the count is small and its law too wide. The plan refuses budgets at which a word of average
frequency is one of them: no step size helps, since a chain that mixes in T rounds needs h
proportional to 1 / T, and tau^2 is proportional to T.

Where we differ: expected counts are those of `collapsed_step` in place of Gibbs samples (Fisher's
identity: the expected counts given a document are its gradient), and the chain starts at the
model's openings. See ``docs/solvers/topics-gradients.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import TopicModel
from skdpbayes.models.protocols import Number, Params
from skdpbayes.posteriors.topics import TopicsDraws
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import (
    OneKindAfterOpenings,
    Point,
    Round,
    Scales,
    Sums,
    opening_rounds,
)
from skdpbayes.solvers.sgld import chain_diagnostics

_BURN_IN = 0.5  # share of the rounds after the openings


class TopicsChain(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    params: Params
    theta: jax.Array  # counts, (V, K)
    draws: jax.Array  # topics at iterates, (n_draws, K, V), NaN where none fell
    heated: jax.Array  # share of the counts whose privacy noise exceeded the chain's own


@pytree
@dataclass(frozen=True)
class TopicsSGLD(OneKindAfterOpenings):
    """Langevin dynamics of topics, after the model's openings.

    Attributes
    ----------
    n_draws : int
        Iterates kept, evenly spaced in the second half of the chain.
    n_openings : int
        Number of the model's openings.
    step_size : float
        h.
    clipping_norm : float
        Clipping norm of a document, for the report.
    """

    n_draws: int = field(metadata={"static": True})
    n_openings: Number
    step_size: Number
    clipping_norm: Number

    def init(self, model: TopicModel, key: jax.Array) -> TopicsChain:
        """State before any release."""
        del key
        theta = model.zeros()["topics"]
        draws = jnp.full((self.n_draws, *theta.shape[::-1]), jnp.nan, theta.dtype)
        return TopicsChain(model.init(), theta, draws, jnp.zeros((), theta.dtype))

    def rounds(self, model: TopicModel, mechanism: Mechanism) -> tuple[Round[TopicsChain], ...]:
        """The model's openings, once each, and a Langevin step."""
        n_steps = jnp.asarray(mechanism.n_steps) - self.n_openings

        def point(state: TopicsChain, key: jax.Array) -> tuple[Params, jax.Array]:
            theta = jnp.where(jnp.any(state.theta > 0), state.theta, state.params.topics)
            topics = theta / jnp.sum(theta, axis=0) + 1e-12
            normal = jax.random.normal(key, theta.shape, theta.dtype)
            return state.params._replace(topics=topics.astype(jnp.float32)), normal

        def update(
            state: TopicsChain, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> TopicsChain:
            params, normal = point
            h = jnp.asarray(self.step_size, jnp.float32)
            unit = params.scales[:, None]
            released = estimate["topics"] * unit
            begun = jnp.any(state.theta > 0)
            expected = model.expected_counts(params, estimate["topics"], scales["topics"]) * unit
            theta = jnp.where(begun, state.theta, expected)
            private = (h * scales["topics"] * unit / 2) ** 2
            own = jnp.sqrt((h * theta - private).clip(0)) * normal
            drift = h / 2 * (model.topic_word_prior + released - theta)
            theta = (jnp.abs(theta + drift + own) + 1e-6).astype(jnp.float32)
            progress = ((step - self.n_openings + 1) / n_steps - _BURN_IN) / (1 - _BURN_IN)
            slot = jnp.ceil(progress * self.n_draws - 1e-4).astype(jnp.int32) - 1
            slot = slot.clip(0, self.n_draws - 1)
            topics = (theta / jnp.sum(theta, axis=0)).T
            kept = jnp.where(progress > 0, topics, state.draws[slot])
            heated = jnp.mean(private > h * theta).astype(jnp.float32)
            return TopicsChain(state.params, theta, state.draws.at[slot].set(kept), heated)

        langevin = Round(
            point=point,
            query=lambda state, point: model.collapsed_statistics(point[0]),
            blocks=lambda state: model.blocks(),
            update=update,
        )
        return *opening_rounds(model.openings()), langevin

    def posterior(self, model: TopicModel, state: TopicsChain) -> TopicsDraws:
        """Topics at the kept iterates."""
        draws = np.asarray(state.draws, np.float64)
        draws = draws[~np.isnan(draws).any(axis=(1, 2))]
        totals = np.asarray(state.theta, np.float64).sum(axis=0)
        return TopicsDraws(draws.reshape(1, len(draws), -1), totals)

    def diagnostics(
        self, model: TopicModel, state: TopicsChain, posterior: TopicsDraws
    ) -> dict[str, Any]:
        """Split R-hat and effective sample size of each probability; share of heated counts."""
        return chain_diagnostics(posterior) | {"heated_share": float(state.heated)}
