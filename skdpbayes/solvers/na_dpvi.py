"""Noise-aware variational inference: a Bayesian filter for the optimum that the noisy scores point to.

Every release of summed scores is an observation of the optimum ``t*`` of the (weighted) log-likelihood,

    g_t = H (t* - theta_t) + N(0, R_t),

linear in t* where the scores are (NA-DPVI, Alrawajfeh et al. 2025, equation 20, with the prior outside). The paper runs
NUTS over a stored trace for a diagonal H, t* and the variance; here H is the full curvature, released privately every
tenth round, and what is known of t* is kept in closed form: information ``J`` and ``J t*`` (`FilterState`). No trace, no
learning rate: the next point is the posterior mean.

``R_t`` holds what an observation cannot tell:

* the privacy noise, of known variance;
* subsampling: a Poisson sample estimates the sum of scores with covariance ``(1/q - 1) omega H``;
* that H is not known: its own privacy noise, and that it changes between theta_t and t*. Both act on ``t* - theta_t``,
  of which the filter knows the covariance, and both are the same in all rounds: they are counted as if every round had
  all of it, so that averaging does not make them disappear.

The posterior of the parameters follows from that of t*, which is scattered about them by the sampling of the data, with
covariance ``omega H^-1``: precision ``P + H (omega J + H)^-1 J``. Where privacy noise is small (J large) this is the usual
one; where it is large it is the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.models.base import Model, flat_start, prior_score, weighted_score
from skdpbayes.posteriors import GaussianPosterior
from skdpbayes.privacy.mechanism import Block, Mechanism
from skdpbayes.solvers._guides import WEIGHT_SHARE, Curvature, FullRank, learnt_curvature
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.dpvi import prior_precision

_BURN, _KEEP = 0.3, 0.7
_DEBUG = False
_SHIFT = 1.0
_PULLW = 0.1
_CORR = 1.0
_BEND = 0.1  # square of the relative error of H between two points as far apart as the filter is unsure


class FilterState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: Any
    information: Any  # J, of t* given the scores
    pull: Any  # J t*
    known: Any  # released curvatures
    curvature: Any  # what is learnt of them
    log_clip: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NADPVI:
    """Bayesian filter on private scores and curvatures."""

    clipping_norm: Any
    curvature_bound: Any = np.inf
    every: int = 10
    n_records: Any = 5000.0

    def init(self, model: Model, key) -> FilterState:
        del key
        theta = flat_start(model)[0].astype(jnp.float64)
        p = theta.size
        zero = jnp.zeros((p, p), theta.dtype)
        one = jnp.zeros((), jnp.float32)
        known = Curvature(zero.astype(jnp.float32), one, jnp.zeros(2, jnp.float32), jnp.zeros((), jnp.int32))
        return FilterState(theta, zero, jnp.zeros_like(theta), known, zero, jnp.log(jnp.asarray(self.clipping_norm, jnp.float32)))

    def which(self, step):
        return (step % self.every == 0).astype(jnp.int32)

    def rounds(self, model: Model, mechanism: Mechanism):
        unravel = flat_start(model)[1]
        full = FullRank(self.curvature_bound)

        def point(state, key):
            return (state.theta.astype(jnp.float32),)

        def query(state, at):
            theta, clip = unravel(at[0]), jnp.exp(state.log_clip)
            return lambda record: {"score": weighted_score(model, theta, record, clip)[0]}

        def update(state, at, step, estimate, scales):
            theta = at[0].astype(jnp.float64)
            view = View.of(model, self, state, theta)
            score = view.factors * ravel_pytree(estimate["score"])[0]
            variance = (view.factors * scales["score"]) ** 2
            n_rounds = mechanism.n_steps
            h = view.h
            # What is not known of H acts on what is not known of t*.
            cov = view.covariance(state)
            unsure = state.known.variance * view.factors**2 * jnp.sum(view.factors**2 * jnp.diag(cov))
            bent = h @ jnp.linalg.inv(view.prior_of_optimum() + state.information) @ h
            noise = jnp.diag(variance + _CORR * unsure) + (1 / mechanism.rate - 1) * view.omega * h + _BEND * (jnp.trace(h @ cov)) ** 2 / (view.omega * self.n_records) * h
            if hasattr(model, "shift"):
                shift = model.shift(h, cov)
                score, noise = score - shift, noise + _SHIFT * jnp.diag(shift**2)
            noise = noise + 1e-9 * jnp.diag(jnp.diag(noise))
            gain = jnp.linalg.solve(noise, h).T  # H R^-1
            keep = jnp.where(step < _BURN * n_rounds, _KEEP, 1.0)
            after = state._replace(
                information=keep * state.information + gain @ h,
                pull=keep * state.pull + gain @ (score + h @ theta),
            )
            new = view.mean(after)
            if _DEBUG:
                jax.debug.print("{s} lv {l:.3f} w {w} sdw {c:.4f} sdu {u:.4f} om {o:.2f} h {h} noise {n}", s=step, l=theta[0] * model.unit, w=theta[1:4], c=jnp.sqrt(cov[1, 1]), u=jnp.sqrt(cov[0, 0]) * model.unit, o=view.omega, h=jnp.diag(h)[:3], n=jnp.sqrt(jnp.diag(noise)[:3]))
            return after._replace(theta=new)

        curvature_round = full.more_rounds(model, prior_precision(model), None)[0]

        def cupdate(state, at, step, estimate, scales):
            p = len(state.theta)
            before, matrix = state.known, estimate["curvature"].reshape(p, p)
            n = before.n + 1
            new = 2 / (n.astype(jnp.float32) + 1)
            known = Curvature(
                matrix=(1 - new) * before.matrix + new * (matrix + matrix.T) / 2,
                variance=(1 - new) ** 2 * before.variance + new**2 * scales["curvature"] ** 2 / 2,
                weights=(1 - new) * before.weights + new * estimate["weights"],
                n=n,
            )
            learnt, error = learnt_curvature(known.matrix, known.variance, jnp)
            values, vectors = jnp.linalg.eigh(learnt)
            learnt = (vectors * jnp.maximum(values, 0)) @ vectors.T
            return state._replace(known=known, curvature=learnt.astype(jnp.float64))

        return (
            Round(point, query, lambda s: {"score": Block(jnp.exp(s.log_clip))}, update),
            Round(point, curvature_round.query, lambda s: {"curvature": Block(jnp.asarray(self.curvature_bound, jnp.float32), 1 - WEIGHT_SHARE), "weights": Block(jnp.asarray(self.curvature_bound, jnp.float32), WEIGHT_SHARE)}, cupdate),
        )

    def posterior(self, model: Model, state: FilterState) -> GaussianPosterior:
        with jax.enable_x64(True):
            state = jax.tree.map(jnp.asarray, state)
            view = View.of(model, self, state, state.theta, final=True)
            total, pull = view.posterior(state)
            mean, total = np.asarray(jnp.linalg.solve(total, pull)), np.asarray(total)
        values, vectors = np.linalg.eigh(total)
        return GaussianPosterior(mean, vectors / np.sqrt(values))

    def diagnostics(self, state, posterior):
        return {"clipping_norm": float(np.exp(state.log_clip))}


class View(NamedTuple):
    """The prior and the curvature as seen from a point."""

    theta: Any
    factors: Any
    h: Any
    omega: Any
    precision: Any
    prior_pull: Any

    @classmethod
    def of(cls, model, solver, state, theta, final=False):
        unravel = flat_start(model)[1]
        at = theta.astype(jnp.float32)
        factors = ravel_pytree(model.precondition(unravel(at)))[0].astype(jnp.float64) if hasattr(model, "precondition") else jnp.ones_like(theta)
        log_prior = lambda flat: model.log_prior(unravel(flat))
        start = prior_precision(model)
        if final:
            precision = jnp.maximum(jnp.diag(-jax.hessian(log_prior)(at)), 0.1 * start).astype(jnp.float64)
            pull = precision * theta + jax.grad(log_prior)(at).astype(jnp.float64)
        else:
            precision = start.astype(jnp.float64)
            mode = ravel_pytree(model.prior_mean())[0] if hasattr(model, "prior_mean") else flat_start(model)[0]
            pull = precision * mode.astype(jnp.float64)
        norms, weighted = state.known.weights
        least = 0.5 * _PULLW
        error = _PULLW * (state.known.variance * 2 * (1 / WEIGHT_SHARE - 1)) ** 0.5 + 1e-30
        omega = ((weighted + error * 0.3) / (norms.clip(0) + error)).clip(0.02, 1).astype(jnp.float64)
        h = factors[:, None] * state.curvature * factors + 1e-7 * jnp.diag(precision)
        return cls(theta, factors, h, omega, precision, pull)

    def prior_of_optimum(self):
        """Precision of t* before any score: its covariance is the prior's plus ``omega H^-1``."""
        p = jnp.diag(self.precision)
        out = self.h @ jnp.linalg.solve(self.omega * p + self.h, p)
        return (out + out.T) / 2

    def mean(self, state):
        known = self.prior_of_optimum()
        return jnp.linalg.solve(known + state.information, known @ (self.prior_pull / self.precision) + state.pull)

    def posterior(self, state):
        """Precision of the parameters, and the precision times their mean."""
        observed = jnp.linalg.solve(self.omega * state.information + self.h, jnp.concatenate([state.information, state.pull[:, None]], axis=1))
        observed = self.h @ observed
        square = observed[:, :-1]
        return (square + square.T) / 2 + jnp.diag(self.precision), observed[:, -1] + self.prior_pull

    def covariance(self, state):
        return jnp.linalg.inv(self.posterior(state)[0])
