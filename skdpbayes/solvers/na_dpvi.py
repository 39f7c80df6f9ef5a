"""Noise-aware variational inference: a Bayesian filter for the optimum that the noisy scores point to.

Every release of summed scores is an observation of the optimum ``t*`` of the (weighted) log-likelihood,

    g_t = H (t* - theta_t) + N(0, R_t),

linear in t* as far as the scores are (NA-DPVI, Alrawajfeh et al. 2025, equation 20, with the prior outside). The paper
runs NUTS over a stored trace, for t*, a diagonal H and the variance. Here H is the full curvature, itself released
privately (every fifth round), and what is known of t* is kept in closed form, as information ``J`` and ``J t*``
(`FilterState`): no trace is stored, there is no learning rate, and the next point to ask at is the posterior mean of
the parameters.

``R_t`` holds all that keeps a release from telling t*:

* the privacy noise, of known variance;
* subsampling: a Poisson sample estimates a sum of scores with covariance ``(1/q - 1) omega H``;
* the privacy noise E in H, which adds ``E (t* - theta_t)``, taken to be as large as the parameters are uncertain;
* what the model says of scores at a point that is not known well (`working_point`).

The posterior of the parameters follows from that of t*, which the sampling of the data scatters about them with
covariance ``omega H^-1`` (omega: `_mean_weight`). Its precision is ``P + H (omega J + H)^-1 J``: the usual one
where the privacy noise is small (J large), the prior's where it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.models.base import Model, flat_start, weighted_score
from skdpbayes.posteriors import GaussianPosterior
from skdpbayes.privacy.mechanism import Block, Mechanism
from skdpbayes.solvers._guides import (
    WEIGHT_SHARE,
    Curvature,
    curvature_blocks,
    curvature_query,
    learnt_curvature,
)
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.dpvi import prior_precision

CURVATURE_EVERY = 5
_REACH = 6.0  # prior standard deviations within which the next point lies
_TINY = 1e-7  # of the prior precision: curvature where none is known


class FilterState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: Any  # posterior mean of the parameters
    information: Any  # J, of t* given the scores
    pull: Any  # J t*
    known: Any  # the released curvatures
    curvature: Any  # what is learnt of them


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NADPVI:
    """Bayesian filter on private scores and curvatures.

    Attributes
    ----------
    clipping_norm, curvature_norm : float
        Of a record's weighted score and of its weighted curvature.
    """

    clipping_norm: Any
    curvature_norm: Any

    def init(self, model: Model, key) -> FilterState:
        """Nothing known but the prior."""
        del key
        theta = flat_start(model)[0].astype(jnp.float64)
        zeros = jnp.zeros((theta.size, theta.size))
        return FilterState(theta, zeros, jnp.zeros_like(theta), Curvature.none(theta.size), zeros)

    def which(self, step):
        """Every fifth round, the first included, asks for the curvature."""
        return (step % CURVATURE_EVERY == 0).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A score round and a curvature round."""
        unravel = flat_start(model)[1]
        clip, norm = (jnp.asarray(x, jnp.float32) for x in (self.clipping_norm, self.curvature_norm))

        def ask_score(state, key):
            del key
            view = look(model, state)
            return view.point.astype(jnp.float32), view

        def score_of(state, point):
            del state
            theta = unravel(point[0])
            return lambda record: {"score": weighted_score(model, theta, record, clip)[0]}

        def learn_score(state, point, step, estimate, scales):
            del step
            view = point[1]
            score, noise = ravel_pytree(estimate["score"])[0], scales["score"] ** 2
            h, unsure = view.h, view.covariance
            # Noise E in H adds E (t* - theta) to the score, with covariance E[E x x' E].
            spread = state.known.variance * jnp.sum(view.slopes**2 * jnp.diag(unsure))
            noise = jnp.diag(view.slopes**2 * (noise + view.doubt + spread))
            noise += (1 / mechanism.rate - 1) * view.omega * h
            noise += 1e-6 * (h + jnp.diag(jnp.diag(noise)))  # invertible, without privacy noise too
            gain = jnp.linalg.solve(noise, h).T  # H R^-1
            # A score farther from zero than all of this allows for says that t* was believed to be known too well.
            seen = view.slopes * score
            missed = seen - h @ (view.optimum(state) - state.theta)
            surprise = missed @ jnp.linalg.solve(noise + h @ view.optimum_covariance(state) @ h, missed) / len(seen)
            keep = jnp.minimum(1, (1 + 3 * (2 / len(seen)) ** 0.5) / surprise)
            after = state._replace(
                information=keep * state.information + gain @ h,
                pull=keep * state.pull + gain @ (seen + h @ state.theta),
            )
            # Where scores are far from linear a step could leave the region where they tell anything.
            reach = _REACH / jnp.sqrt(view.precision)
            total, pull = view.posterior(after)
            return after._replace(theta=jnp.clip(jnp.linalg.solve(total, pull), view.mode - reach, view.mode + reach))

        def ask_curvature(state, key):
            del key
            return state.theta.astype(jnp.float32)

        def learn_curvature(state, point, step, estimate, scales):
            del point, step
            known = state.known.after(estimate, scales)
            values, vectors = jnp.linalg.eigh(learnt_curvature(known.matrix, known.variance, jnp)[0])
            learnt = (vectors * jnp.maximum(values, 0)) @ vectors.T
            return state._replace(known=known, curvature=learnt.astype(jnp.float64))

        return (
            Round(ask_score, score_of, lambda state: {"score": Block(clip)}, learn_score),
            Round(
                ask_curvature,
                lambda state, point: curvature_query(model, unravel(point), clip),
                lambda state: curvature_blocks(norm),
                learn_curvature,
            ),
        )

    def posterior(self, model: Model, state: FilterState) -> GaussianPosterior:
        """Normal posterior."""
        with jax.enable_x64(True):
            mean, total = (np.asarray(x) for x in normal_posterior(model, jax.tree.map(jnp.asarray, state)))
        values, vectors = np.linalg.eigh(total)
        return GaussianPosterior(mean, vectors / np.sqrt(values))

    def diagnostics(self, state: FilterState, posterior) -> dict:
        """The mean weight of the records."""
        del posterior
        return {"mean_weight": float(_mean_weight(state.known))}


class View(NamedTuple):
    """Prior and curvature as they look from the present state."""

    point: Any  # where to ask for a score
    slopes: Any  # public factors of score and curvature (`precondition`)
    doubt: Any  # variance of the score that the model declares
    h: Any
    omega: Any
    precision: Any  # of the prior
    prior_pull: Any  # its precision times its mean
    covariance: Any = None  # of the parameters

    @property
    def mode(self):
        """Of the prior."""
        return self.prior_pull / self.precision

    def optimum_prior(self):
        """Prior precision of t*: its covariance is that of the parameters and ``omega H^-1``."""
        prior = jnp.diag(self.precision)
        return self.h @ jnp.linalg.solve(self.omega * prior + self.h, prior)

    def optimum_covariance(self, state):
        """Posterior covariance of t*."""
        return jnp.linalg.inv(self.optimum_prior() + state.information)

    def optimum(self, state):
        """Posterior mean of t*."""
        known = self.optimum_prior()
        return jnp.linalg.solve(known + state.information, known @ self.mode + state.pull)

    def posterior(self, state):
        """Precision of the parameters, and that times their mean."""
        both = jnp.concatenate([state.information, state.pull[:, None]], axis=1)
        observed = self.h @ jnp.linalg.solve(self.omega * state.information + self.h, both)
        square = observed[:, :-1]
        return (square + square.T) / 2 + jnp.diag(self.precision), observed[:, -1] + self.prior_pull


def normal_posterior(model: Model, state: FilterState):
    """Mean and precision of the parameters."""
    total, pull = look(model, state, final=True).posterior(state)
    return jnp.linalg.solve(total, pull), total


def look(model: Model, state: FilterState, *, final: bool = False) -> View:
    """Prior and curvature from where we are; `final` asks for no working point."""
    start, unravel = flat_start(model)
    theta, precision = state.theta, prior_precision(model).astype(jnp.float64)
    slopes = jnp.ones_like(theta)
    if hasattr(model, "precondition"):
        slopes = ravel_pytree(model.precondition(unravel(theta.astype(jnp.float32))))[0].astype(jnp.float64)

    def seen(slopes):
        return slopes[:, None] * state.curvature * slopes + _TINY * jnp.diag(precision)

    omega = _mean_weight(state.known).astype(jnp.float64)
    view = View(theta, slopes, 0 * theta, seen(slopes), omega, precision, precision * start)
    covariance = jnp.linalg.inv(view.posterior(state)[0])
    if hasattr(model, "working_point") and not final:
        point, slopes, doubt = model.working_point(theta, state.curvature, covariance)
        view = view._replace(point=point, slopes=slopes, doubt=doubt, h=seen(slopes))
    return view._replace(covariance=covariance)


def _mean_weight(known: Curvature):
    """Covariance of the weighted scores over their curvature, taken for the mean weight; towards .3 by its noise."""
    norms, weighted = known.weights
    error = 0.1 * (2 * known.variance * (1 / WEIGHT_SHARE - 1)) ** 0.5 + 1e-30
    return ((weighted + 0.3 * error) / (norms.clip(0) + error)).clip(0.02, 1)
