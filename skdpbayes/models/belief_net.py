"""Sigmoid belief network with one layer of hidden units, as a `StatisticsModel`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logit
from scipy.special import expit

from skdpbayes.mechanism.contributions import RankOne
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, single
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.models.quadrature import normal_nodes, uniform_nodes
from skdpbayes.posteriors.belief_net import WeightsPosterior
from skdpbayes.pytrees import pytree

VISIBLE = 0.96  # budget share of the visible units' block in a round
_SWEEPS = 3  # of the local step
_ONE = 0.7  # constant entry beside the hidden units in a visible unit's statistic
_SHORT = 0.6  # clipping norm of statistics over their usual norm
_COUNT = 0.4  # constant entry beside a row, whose sum counts the rows
_START = 0.7  # standard deviation of the start's logits
_LIKELY = 0.003  # least distance of hidden units' probabilities from 0 and 1


class NetParams(NamedTuple):
    """Parameters and released summaries of the network; functions of the releases.

    Logits of the visible units are ``intercept + weights (z - active)``.
    """

    mean: jax.Array  # of the visible units, from the first release, (J,)
    mean_noise: jax.Array  # standard deviation of the noise in an entry of `mean`
    n_records: jax.Array  # noisy number of records
    weights: jax.Array  # (J, K)
    intercept: jax.Array  # (J,)
    active: jax.Array  # probabilities of the hidden units, (K,)
    tangent: jax.Array  # curvature of the bound of each visible unit's likelihood, (J,)
    spread: jax.Array  # covariance of the hidden units over records, (K, K)
    noise: jax.Array  # standard deviation of the noise in an entry of the visible-hidden covariance
    weight: jax.Array  # sum of the weights of the records


class Observed(NamedTuple):
    """Means per record in one release, and standard deviations of their noise.

    Statistics take the place of scores in the rounds of `vips`.
    """

    score: jax.Array  # of the weights, about the mean score of the intercepts, (J, K)
    hidden: jax.Array  # second moments of (1, h - p), (K + 1, K + 1)
    noise: jax.Array  # in an entry of `score`
    hidden_noise: jax.Array
    weight: jax.Array  # sum of the weights of the records


class HiddenUnits(NamedTuple):
    """Denoised law of the hidden units over records."""

    active: jax.Array  # probabilities, (K,)
    values: jax.Array  # eigenvalues of the covariance
    vectors: jax.Array

    @classmethod
    def denoised(cls, active: jax.Array, spread: jax.Array, noise: jax.Array) -> HiddenUnits:
        """Law, given a covariance whose entries have noise of this standard deviation."""
        values, vectors = jnp.linalg.eigh(towards_round(spread, noise))
        floor = 2 * len(active) ** 0.5 * noise + 1e-3
        return cls(active, jnp.maximum(values, floor), vectors)

    @property
    def spread(self) -> jax.Array:
        """Covariance, (K, K)."""
        return (self.vectors * self.values) @ self.vectors.T


@pytree
@dataclass(frozen=True)
class SigmoidBeliefNet:
    """``z_k ~ Bernoulli(p_k)``, ``y_j | z ~ Bernoulli(sigmoid(c_j + w_j z))``.

    A record is ``{"y": (n_visible,) in [0, 1], "known": 1 or 0}``; one that is not known
    contributes nothing.

    The likelihood of each visible unit has a bound quadratic in the hidden units (Jaakkola and
    Jordan 2000, or Polya-Gamma). One tangent serves all records and depends on released parameters
    alone. The bound then depends on the records through two sums: of ``(y - m)(z - p)'`` and of
    ``(z - p)(z - p)'``.

    Attributes
    ----------
    n_visible, n_hidden : int
    private : float
        1 with noise, 0 without: then no statistic is clipped.
    """

    n_visible: int = field(metadata={"static": True})
    n_hidden: int = field(metadata={"static": True})
    private: Number

    def init(self) -> NetParams:
        """Parameters before any release."""
        j, k = self.n_visible, self.n_hidden
        zero = jnp.zeros((), jnp.float32)
        half, active = jnp.full(j, 0.5, jnp.float32), jnp.full(k, 0.5, jnp.float32)
        weights, spread = jnp.zeros((j, k), jnp.float32), 0.25 * jnp.eye(k, dtype=jnp.float32)
        return NetParams(
            half, zero, zero, weights, 0 * half, active, 0.3 * half, spread, zero, zero
        )

    def zeros(self) -> Mapping[str, Any]:
        """Sums of no records."""
        j, k = self.n_visible, self.n_hidden
        return {
            "visible": jnp.zeros((j, k + 1), jnp.float32),
            "hidden": jnp.zeros((k + 1, k + 1), jnp.float32),
        }

    # ------------------------------------------------------------ the release that leads to a start

    def openings(self) -> tuple[Opening, ...]:
        """Release of the mean of all records; the start's weights are drawn."""
        return (Opening(lambda params: self._record, {"all": Block(NORM)}, self._after_all),)

    def _record(self, record):
        """Row about one half and a constant: of norm 1 for zeros and ones, so that none is clipped.

        A row that was shortened would count for less in the mean, which then were biased.
        """
        row = (record["y"].clip(0, 1) - 0.5) * (2 / math.sqrt(self.n_visible))
        return {"all": jnp.append(row, _COUNT) / math.sqrt(1 + _COUNT**2) * record["known"]}

    def _after_all(
        self,
        params: NetParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> NetParams:
        unit = math.sqrt(1 + _COUNT**2)
        weight = jnp.maximum(sums["all"][-1], 4 * scales["all"]).clip(1e-30) * unit / _COUNT
        half = unit * math.sqrt(self.n_visible) / 2
        unclear = jnp.clip(scales["all"] * half / weight, 0.003, 0.5)
        mean = jnp.clip(0.5 + sums["all"][:-1] * half / weight, unclear, 1 - unclear)
        drawn = jax.random.normal(key, params.weights.shape, jnp.float32)
        weights = _START * jnp.sqrt(mean * (1 - mean))[:, None] * drawn
        return single(
            params._replace(
                mean=mean,
                mean_noise=scales["all"] * half / weight,
                n_records=weight,
                weights=weights,
                intercept=logit(mean),
                weight=weight,
            )
        )

    # ------------------------------------------------------------ rounds of scores

    def scores(
        self, params: NetParams, own: bool = False
    ) -> Callable[[Record], Mapping[str, Contribution]]:
        """Score of one record's bound at its optimum, and products of its hidden units.

        At the optimal hidden probabilities h the bound has the gradient ``r (1, h - p)'`` in the
        intercepts and weights, with the residual ``r = y - m - t w (h - p)`` (envelope theorem).
        With `own` tangents, those of the record, which make its bound tightest, the residual is
        ``y - 1/2 - t x``.
        """
        begin, lengths = self._local(params), self.score_lengths(params)
        squares = params.weights**2

        def of(record):
            hidden = begin(record["y"])
            away = params.weights @ (hidden - params.active)
            residual = record["y"] - params.mean - params.tangent * away
            if own:
                x = params.intercept + away
                root = jnp.sqrt(x**2 + squares @ (hidden * (1 - hidden))).clip(1e-3)
                residual = record["y"] - 0.5 - jnp.tanh(root / 2) / (2 * root) * x
            return self._products(record, residual, hidden - params.active, lengths)

        return of

    def score_lengths(self, params: NetParams) -> tuple[jax.Array, jax.Array]:
        """Clipping norms of `scores`: as `_lengths`, less what hidden units explain."""
        alone = params.mean * (1 - params.mean)
        explained = params.tangent**2 * jnp.sum(
            (params.weights @ params.spread) * params.weights, 1
        )
        variance = jnp.sum(jnp.maximum(alone - explained, alone / 4))
        usual = _SHORT * jnp.sqrt(variance * (_ONE**2 + self.n_hidden / 4))
        bound, hidden = self._lengths(params)
        linear = jnp.sum((params.tangent * jnp.sum(jnp.abs(params.weights), 1)) ** 2)
        bound = bound + jnp.sqrt(linear * (_ONE**2 + self.n_hidden))
        return jnp.where(self.private > 0, usual, bound), hidden

    def observed(
        self,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        lengths: tuple[jax.Array, jax.Array],
    ) -> Observed:
        """Means per record in one release of `scores` or `statistics`, of these norms."""
        of_visible, of_hidden = lengths
        hidden = (sums["hidden"] + sums["hidden"].T) / 2 * of_hidden
        weight = jnp.maximum(hidden[0, 0], 4 * scales["hidden"] * of_hidden).clip(1e-30)
        hidden = (hidden / weight).at[0, 0].set(1)
        visible = sums["visible"] * of_visible / weight
        return Observed(
            score=visible[:, 1:] - visible[:, :1] / _ONE * hidden[0, 1:],
            hidden=hidden,
            noise=scales["visible"] * of_visible / weight,
            hidden_noise=scales["hidden"] * of_hidden / weight / 2**0.5,
            weight=weight,
        )

    def hidden_units(
        self, active: jax.Array, hidden: jax.Array, noise: jax.Array
    ) -> tuple[HiddenUnits, jax.Array, jax.Array]:
        """Law of the hidden units, given noisy second moments.

        Parameters
        ----------
        active : array of shape (K,)
            Probabilities about which `hidden` are second moments of ``(1, h - p)``.
        hidden : array of shape (K + 1, K + 1)
        noise : float
            Standard deviation of the noise in an entry of `hidden`.

        Returns
        -------
        units : HiddenUnits
        inside : array of shape (K,)
            Part of the variances that is uncertainty given the record.
        about : array of shape (K + 1, K + 1)
            `hidden` about the probabilities of `units`.
        """
        new = jnp.clip(active + hidden[0, 1:], _LIKELY, 1 - _LIKELY)
        shift = jnp.eye(self.n_hidden + 1).at[1:, 0].set(active - new)
        about = shift @ hidden @ shift.T
        inside = (new * (1 - new) - jnp.diag(about)[1:]).clip(0)
        units = HiddenUnits.denoised(new, about[1:, 1:] + jnp.diag(inside), noise)
        return units, inside, about

    def maximised(
        self,
        params: NetParams,
        covariance: jax.Array,
        noise: jax.Array,
        units: HiddenUnits,
        weight: jax.Array,
    ) -> NetParams:
        """Parameters that maximise the bound, given a noisy covariance of visible and hidden.

        With A this covariance and S that of the hidden units, a visible unit's row a has the
        weights ``S^-1 a / t``, and its tangent t follows from ``(m - 1/2)^2 + a' S^-1 a``.
        """
        turned = cleared(covariance, noise) @ units.vectors
        tangent = _tangent(params.mean, jnp.sum(turned**2 / units.values, axis=1))
        return params._replace(
            weights=(turned / units.values) @ units.vectors.T / tangent[:, None],
            intercept=(params.mean - 0.5) / tangent,
            active=units.active,
            tangent=tangent,
            spread=units.spread,
            noise=noise,
            weight=weight,
        )

    # ------------------------------------------------------------ rounds of statistics

    def statistics(self, params: NetParams) -> Callable[[Record], Mapping[str, Contribution]]:
        """Residuals and hidden units of one record, times a common weight, which keeps ratios."""
        begin, lengths = self._local(params), self._lengths(params)

        def of(record):
            hidden = begin(record["y"]) - params.active
            return self._products(record, record["y"] - params.mean, hidden, lengths)

        return of

    def _local(self, params):
        """Mean field of a row's hidden units under the bound whose tangents all rows share."""
        couplings = (params.weights.T * params.tangent) @ params.weights
        itself = jnp.diag(couplings)
        others = couplings - jnp.diag(itself)
        apart = params.intercept - params.weights @ params.active

        def of(y):
            field = (
                (y - 0.5 - params.tangent * apart) @ params.weights
                + logit(params.active)
                - itself / 2
            )
            return local_step(field, others, params.active)

        return of

    def _products(self, record, residual, hidden, lengths):
        """Products of residuals and centred hidden units, and of these, times a common weight."""
        of_visible, of_hidden = lengths
        left, right = jnp.append(_ONE, hidden), jnp.append(1.0, hidden)
        with_visible = jnp.sqrt(jnp.sum(residual**2) * jnp.sum(left**2)) / of_visible
        longest = jnp.maximum(with_visible, jnp.sum(right**2) / of_hidden)
        weight = record["known"] * jnp.where(self.private > 0, 1 / jnp.maximum(1, longest), 1)
        return {
            "visible": RankOne(weight / of_visible * residual, left),
            "hidden": RankOne(weight / of_hidden * right, right),
        }

    def _lengths(self, params):
        """Clipping norms of the statistics; without noise, bounds that no record exceeds."""
        squares = _ONE**2 + self.n_hidden / 4
        usual = _SHORT * jnp.sqrt(jnp.sum(params.mean * (1 - params.mean)) * squares)
        bound = jnp.sqrt(self.n_visible * (_ONE**2 + self.n_hidden))
        private = self.private > 0
        return jnp.where(private, usual, bound), jnp.where(
            private, 1 + self.n_hidden / 4, 1.0 + self.n_hidden
        )

    def blocks(self) -> Mapping[str, Block]:
        """Norms of 1; nearly all of the budget goes to the visible units."""
        shares = {"visible": VISIBLE, "hidden": 1 - VISIBLE}
        return {name: Block(NORM, share, "statistic") for name, share in shares.items()}

    def carry(self, sums: Mapping[str, Any], old: NetParams, new: NetParams) -> Mapping[str, Any]:
        """Sums about the old probabilities of the hidden units, as sums about the new ones."""
        moved = (old.active - new.active).astype(jnp.float32)
        visible, hidden = sums["visible"], sums["hidden"]
        visible = visible.at[:, 1:].add(visible[:, :1] / _ONE * moved)
        hidden = hidden.at[1:].add(moved[:, None] * hidden[0])
        return {"visible": visible, "hidden": hidden.at[:, 1:].add(hidden[:, :1] * moved)}

    def m_step(
        self, params: NetParams, sums: Mapping[str, Any], scales: Mapping[str, jax.Array]
    ) -> NetParams:
        """Optimal weights under the bound, in closed form, from denoised sums (`maximised`)."""
        params, sums, scales = double((params, sums, scales))
        seen = self.observed(sums, scales, self._lengths(params))
        moved = seen.hidden[0, 1:]
        active = jnp.clip(params.active + moved, _LIKELY, 1 - _LIKELY)
        spread = seen.hidden[1:, 1:] - jnp.outer(moved, moved)
        # A record's hidden units are uncertain: each has the variance of a Bernoulli variable.
        # Under noise this is ignored: the eigenvalues' floor adds as much.
        full = spread.at[jnp.diag_indices(self.n_hidden)].set(active * (1 - active))
        spread = jnp.where(self.private > 0, spread, full)
        units = HiddenUnits.denoised(active, spread, seen.hidden_noise)
        return single(self.maximised(params, seen.score, seen.noise, units, seen.weight))

    def posterior(self, params: NetParams) -> WeightsPosterior:
        """Posterior of weights and intercepts, with the privacy noise.

        At varying logits the bound is steeper than the likelihood's mean slope, so that its weights
        are too small, by up to ``sqrt(2 pi) / 2``. They are rescaled to the likelihood.
        """
        weights, intercept, active, tangent, spread = (
            np.asarray(x, np.float64)
            for x in (
                params.weights,
                params.intercept,
                params.active,
                params.tangent,
                params.spread,
            )
        )
        nodes, node_weights = normal_nodes(1)
        deviation = np.sqrt(np.sum((weights @ spread) * weights, axis=1))
        logits = intercept[:, None] + deviation[:, None] * nodes[:, 0]
        slope = (expit(logits) * expit(-logits)) @ node_weights
        larger = np.clip(tangent / slope.clip(1e-300), 1, math.sqrt(math.pi / 2))
        weights = weights * larger[:, None]
        mean = np.asarray(params.mean, np.float64)
        return WeightsPosterior(
            weights=weights,
            intercept=matching_intercepts(weights, active, mean),
            active=active,
            slope=tangent / larger,
            visible=mean,
            visible_std=np.sqrt(
                mean * (1 - mean) / max(float(params.n_records), 1) + float(params.mean_noise) ** 2
            ),
            spread=spread,
            noise=float(params.noise),
            weight=float(params.weight),
        )


def matching_intercepts(weights: np.ndarray, active: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Centred intercepts at which visible units have the probabilities `mean`, by bisection.

    Parameters
    ----------
    weights : array of shape (J, K)
    active : array of shape (K,)
    mean : array of shape (J,)
    """
    hidden = uniform_nodes(len(active), 1024) < active
    away = (hidden - active) @ weights.T
    low, high = np.full_like(mean, -60.0), np.full_like(mean, 60.0)
    for _ in range(40):
        middle = (low + high) / 2
        above = expit(middle + away).mean(axis=0) > mean
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def _tangent(mean, explained):
    """Optimal tangents, given means and the variances ``a' S^-1 a`` that hidden units explain."""
    likely = jnp.sqrt((mean - 0.5) ** 2 + explained).clip(0, 0.495)
    slope = jnp.arctanh(2 * likely).clip(1e-6)
    return jnp.tanh(slope) / (4 * slope)


def local_step(field, others, start):
    """Mean field of one record's hidden units: each given the others, in fixed sweeps."""

    def one(k, hidden):
        return hidden.at[k].set(jax.nn.sigmoid(field[k] - others[k] @ hidden))

    def sweep(i, hidden):
        return jax.lax.fori_loop(0, len(hidden), one, hidden)

    hidden = jax.lax.fori_loop(
        0, _SWEEPS, sweep, jnp.broadcast_to(start, field.shape).astype(field.dtype)
    )
    return jax.nn.sigmoid(field - others @ hidden)


def cleared(matrix, noise):
    """Matrix (m, n) denoised by shrinkage of its singular values.

    The rule is optimal in Frobenius norm for independent normal noise (Gavish and Donoho 2017).
    """
    m, n = matrix.shape
    if m < n:
        return cleared(matrix.T, noise).T
    unit = jnp.where(noise > 0, noise, 1) * m**0.5
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    seen, ratio = values / unit, n / m
    root = jnp.sqrt(((seen**2 - ratio - 1) ** 2 - 4 * ratio).clip(0)) / seen.clip(1e-30)
    kept = jnp.where(seen > 1 + ratio**0.5, root, 0) * unit
    return jnp.where(noise > 0, (left * kept) @ right, matrix)


def towards_round(matrix, noise):
    """Symmetric matrix shrunk towards a multiple of the identity by the noise's share."""
    k = len(matrix)
    centre = jnp.trace(matrix) / k * jnp.eye(k)
    square = jnp.sum((matrix - centre) ** 2).clip(1e-30)
    return centre + (1 - k * (k + 1) * noise**2 / square).clip(0, 1) * (matrix - centre)
