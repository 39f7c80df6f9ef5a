"""Noise-aware inference: a normal posterior from averages of private scores, and a private curvature.

Every release of summed scores is an observation of the optimum ``t*`` of the (weighted)
log-likelihood,

    g_t = H (t* - theta_t) + N(0, R_t),

linear in t* as far as the scores are (NA-DPVI, Alrawajfeh et al. 2025, equation 20, with the prior
outside). The paper runs NUTS over a stored trace, for t*, a diagonal H and the variance. Here H is
the full curvature, itself released privately in some rounds (or what the model expects it to be),
and all that is kept of the trace is the weighted averages of scores and points, which tell t* as
well: ``mean g = H (t* - mean theta) + noise``. There is no learning rate; the next point to ask at
is the posterior mean of the parameters. As it nears t*, errors of H matter less and less.

What a release counts for in the averages follows from what is unclear about it: the privacy noise,
of known variance; subsampling; and scores that are not linear between theta and t*, more so the
less the parameters are known (`_nonlinearity`, or what the model says at its `working_point`). One
that the earlier ones did not foresee takes away from their weight and from its own.

The posterior of the parameters (`_given`): with ``omega H`` the covariance that the sampling of the
data gives the summed scores (omega: `_mean_weight`) and ``nu`` the variance of the averaged noise,
the averages observe them as

    mean g + H mean theta = H theta + N(0, omega H + nu I),

to be combined with the prior. It is the usual posterior where nu is small and the prior where it is
large. What is known of H itself enters by estimates of its spectrum: while asking, one that rather
overrates it, which keeps steps short (`cautious_curvature`), and in the end the best one
(`estimated_curvature`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import block_diag

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_variance,
    score_unit,
    unbiased_total,
    weighted_score,
)
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.guides import Curvature, curvature_blocks, curvature_query
from skdpbayes.solvers.normal import normal_given, reach
from skdpbayes.solvers.spectra import cautious_curvature, estimated_curvature

_REACH = 6.0  # prior standard deviations within which the next point lies
_TINY = 1e-7  # of the prior precision: curvature where none is known


class TraceState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: Any  # posterior mean of the parameters
    covariance: Any  # their covariance
    weight: Any  # sums of weights, by coordinate (equal where the curvature relates them)
    score: Any  # weighted averages: of scores over their factors,
    point: Any  # and of what the parameters were thought to be
    noise: Any  # variance of the noise in the averaged score
    subsampled: Any  # and of the sampling of rows, in units of that of the data
    known: Any  # the released curvatures, or the one that the model expects
    curvature: Any  # what is made of them while asking
    spread: Any = None  # covariance that the sampling of the data gives a sum of scores, of a model that knows it


class View(NamedTuple):
    """Where a score is asked, and what the model says of it."""

    point: Any
    factors: Any  # of the score, public
    unclear: Any  # variance of the score over its factors that the model declares, a matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NADPVI:
    """Bayesian inference from private scores and curvatures.

    Attributes
    ----------
    clipping_norm, curvature_norm : float
        Of a record's weighted score, over the model's `score_unit`, and of its weighted curvature,
        over its square.
    curvature_every : int
        Rounds between two that ask for the curvature.
    """

    clipping_norm: Any
    curvature_norm: Any
    curvature_every: Any = 10

    def init(self, model: Model, key) -> TraceState:
        """Nothing known but the prior."""
        del key
        theta = flat_start(model)[0].astype(jnp.float64)
        nothing = jnp.zeros_like(theta)
        state = TraceState(
            theta=theta,
            covariance=jnp.diag(prior_variance(model)),
            weight=nothing,
            score=nothing,
            point=theta,
            noise=nothing,
            subsampled=jnp.zeros(()),
            known=Curvature.none(theta.size),
            curvature=jnp.zeros((theta.size, theta.size)),
        )
        return _informed(model, state, self.clipping_norm)

    def which(self, step):
        """Index of the round: the curvature is asked for first, and more often while it changes much."""
        early = (step < self.curvature_every) & (step % 3 == 0)
        return ((step % self.curvature_every == 0) | early).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A score round and a curvature round."""
        unravel = flat_start(model)[1]
        unit = score_unit(model)
        clip, norm = self.clipping_norm * unit, self.curvature_norm * unit**2

        def ask_score(state, key):
            del key
            view = _look(model, state, norm)
            return view.point.astype(jnp.float32), view

        def score_of(state, point):
            del state
            theta = unravel(point[0])
            return lambda record: {"score": weighted_score(model, theta, record, clip)[0]}

        def learn_score(state, point, step, estimate, scales):
            del step
            view = point[1]
            score = unbiased_total(model, unravel(point[0]), estimate["score"], clip) / view.factors
            noise = (scales["score"] / view.factors) ** 2
            subsampled = 1 / mechanism.rate - 1
            # Something, where there is no noise at all.
            unclear = view.unclear + _sampling(
                model, state, _asked(model, state), subsampled + 1e-6
            )
            keep = _trust(model, state, score, noise, unclear)
            state = _averaged(model, state, score, noise, unclear, keep, subsampled)
            theta, precision = _given(model, state, _asked(model, state), view.unclear)
            # Where scores are far from linear a step could leave the region where they tell
            # anything.
            start, most = flat_start(model)[0], reach(model, _REACH)
            state = state._replace(
                theta=jnp.clip(theta, start - most, start + most),
                covariance=jnp.linalg.inv(precision),
            )
            return _informed(model, state, clip)

        def learn_curvature(state, point, step, estimate, scales):
            del point, step
            known = state.known.after(estimate, scales)
            return state._replace(known=known, curvature=_cleared(cautious_curvature, model, known))

        asked = Round(ask_score, score_of, lambda state: {"score": Block(clip)}, learn_score)
        if hasattr(model, "information"):
            return (asked,)
        return (
            asked,
            Round(
                lambda state, key: state.theta.astype(jnp.float32),
                lambda state, point: curvature_query(model, unravel(point), clip),
                lambda state: curvature_blocks(norm),
                learn_curvature,
            ),
        )

    def posterior(self, model: Model, state: TraceState) -> GaussianPosterior:
        """Normal posterior."""
        with jax.enable_x64(True):
            found = normal_posterior(model, jax.tree.map(jnp.asarray, state))
        return GaussianPosterior.from_precision(*map(np.asarray, found))

    def diagnostics(self, state: TraceState, posterior) -> dict:
        """The mean weight of the records."""
        del posterior
        return {"mean_weight": float(_mean_weight(state.known))}


def normal_posterior(model: Model, state: TraceState):
    """Mean and precision of the parameters.

    The mean is that of the last round. One by the final estimate of the curvature follows the
    noise: it takes whole steps in directions of little curvature, where errors of the other
    coefficients show.
    """
    h = _positive(model, _cleared(estimated_curvature, model, state.known))
    return state.theta, _given(model, state, h, _look(model, state).unclear)[1]


def _informed(model, state, clip):
    """With the curvature at the present parameters, of a model that knows what to expect of it."""
    if not hasattr(model, "information"):
        return state
    params = flat_start(model)[1](state.theta.astype(jnp.float32))
    matrix, spread = model.information(params, jnp.asarray(clip, jnp.float32))
    traces = jnp.stack([jnp.trace(matrix), jnp.trace(spread)])
    known = Curvature(matrix, jnp.zeros((), jnp.float32), traces, state.known.n + 1)
    return state._replace(
        known=known, curvature=matrix.astype(jnp.float64), spread=spread.astype(jnp.float64)
    )


def _given(model, state, h, unclear):
    """Mean and precision of the parameters, given the averages."""
    noise, observed = jnp.diag(state.noise) + unclear, state.score + h @ state.point
    if hasattr(model, "start_variance"):
        # The start is an estimate too: of where the sum of all scores is zero, as the rounds are.
        start = (
            ravel_pytree(x)[0].astype(jnp.float64) for x in (model.init(), model.start_variance())
        )
        noise, observed = _with_start(h, noise, observed, *start)
    spread = noise + _sampling(model, state, h, 1 + state.subsampled)
    gain = jnp.linalg.solve(spread, h).T
    information = gain @ h
    linear = gain @ observed
    return normal_given(
        model, (information + information.T) / 2, linear, (state.theta, state.covariance)
    )


def _with_start(h, noise, observed, start, variance):
    """Covariance of the noise in what is observed of ``h t*``, and that, with an estimate of t* taken into account."""
    rounds = jnp.linalg.solve(
        noise + 1e-6 * jnp.diag(jnp.diag(h)), h
    ).T  # h / noise, of which there may be none
    both = jnp.linalg.inv(rounds @ h + jnp.diag(1 / variance))
    return h @ both @ h, h @ both @ (rounds @ observed + start / variance)


def _trust(model, state, score, noise, unclear):
    """One, or less where a score is farther from what is foreseen than all that is unclear allows for.

    By three standard deviations of its squared norm: then the earlier ones were trusted too much,
    or this one is.
    """
    h, size = _asked(model, state), len(score)
    missed = score - state.score - h @ (state.point - state.theta)
    # Errors of h add to it as far as the optimum is unknown.
    spread = noise + state.noise + state.known.variance * jnp.trace(state.covariance)
    surprise = missed @ jnp.linalg.solve(jnp.diag(spread) + unclear, missed) / size
    return jnp.where(state.weight[0] > 0, jnp.minimum(1, (1 + 3 * (2 / size) ** 0.5) / surprise), 1)


def _averaged(model, state, score, noise, unclear, keep, subsampled):
    """With one more score in the averages."""
    noise, unclear = noise / keep, jnp.diag(unclear)
    # Coordinates that the curvature relates must have one weight: of what is unclear they share the
    # mean.
    weight = 1 / (
        noise
        + jnp.concatenate(
            [jnp.full_like(x, x.mean()) for x in (unclear[b] for b in _blocks(model))]
        )
    )
    total = keep * state.weight + weight
    new = weight / total
    return state._replace(
        weight=total,
        score=(1 - new) * state.score + new * score,
        point=(1 - new) * state.point + new * state.theta,
        noise=(1 - new) ** 2 * state.noise + new**2 * noise,
        subsampled=jnp.mean((1 - new) ** 2) * state.subsampled + jnp.mean(new**2) * subsampled,
    )


def _look(model, state, norm=0.0) -> View:
    """Where to ask, with what is unclear there: what the model declares, or scores that are not linear (by `norm`)."""
    if not hasattr(model, "working_point"):
        unclear = _nonlinearity(_asked(model, state), state.covariance, norm)
        return View(state.theta, jnp.ones_like(state.theta), unclear)
    point, factors, doubt = model.working_point(state.theta, state.curvature, state.covariance)
    return View(point, factors, jnp.diag(doubt / factors**2))


def _asked(model, state):
    """The curvature while asking."""
    return _positive(model, state.curvature)


def _positive(model, curvature):
    return curvature + _TINY * jnp.diag(1 / prior_variance(model))


def _cleared(estimate, model, known: Curvature):
    """What is made of a noisy curvature, by `estimate`; zero where the model knows it to be."""
    matrix, variance = known.matrix.astype(jnp.float64), known.variance.astype(jnp.float64)
    return block_diag(*(estimate(matrix[block, block], variance) for block in _blocks(model)))


def _blocks(model):
    return model.blocks() if hasattr(model, "blocks") else (slice(None),)


def _sampling(model, state, h, factor):
    """Covariance that the sampling of the data gives a sum of scores over their factors, times `factor`.

    By the factors at what the parameters are thought to be: at a `working_point` residuals are as
    small as ever.
    """
    if state.spread is not None:
        return factor * state.spread
    factors = jnp.ones_like(state.theta)
    if hasattr(model, "precondition"):
        unravel = flat_start(model)[1]
        factors = ravel_pytree(model.precondition(unravel(state.theta.astype(jnp.float32))))[
            0
        ].astype(jnp.float64)
    return factor * _mean_weight(state.known).astype(jnp.float64) * h / factors[:, None] / factors


def _nonlinearity(h, covariance, norm):
    """Covariance of what keeps a score from being linear in t*: a share of that of ``h (t* - theta)``.

    The slope of a record's score changes by about its own size as the parameters move its logit by
    two. The mean square of what is unknown of the logits is ``tr(h covariance)`` over the sum of
    the records' slopes, of which `norm` bounds one (times the square of its covariates).
    """
    share = jnp.clip(0.5 * jnp.sum(h * covariance) * norm / jnp.trace(h), 0, 0.25)
    return share * h @ covariance @ h


def _mean_weight(known: Curvature):
    """Covariance of the weighted scores over their curvature, taken for the mean weight; towards .3 by its noise."""
    return known.mean_weight(towards=0.3, errors=0.1, least=0.02)
