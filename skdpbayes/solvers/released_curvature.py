"""Private curvature of the log-likelihood: what a round releases, and the average of the releases.

A record contributes its curvature (negative Hessian) times the weight of its score, and the
variances of that weighted score. Shared by `dpvi` with a full-rank guide, by `na-dpvi` and by
`sgld`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import Quadratic, contribution_norm, scaled
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    curvature,
    double,
    flat_start,
    identified,
    identified_part,
    like_vector,
    single,
    unbiased_weight,
)
from skdpbayes.models.denoising import noise_edge
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.models.responses import fair_score, knows_responses
from skdpbayes.solvers.base import Point, Query, Round, Scales, State, Sums

_SMALL = 0.1  # edge of small noise's spectrum, over the mean eigenvalue
SIDE_SHARE = 0.05  # budget share, in curvature rounds, of each release beside the curvature
_VARIED = 0.25  # relative spread of the weights of coordinates about the mean weight
_LEAST_WEIGHT = 0.02
_FLAT = 1e-6  # variance where the likelihood is flat, over the mean one, to be inverted
_ROOT_2 = 2**0.5  # two values, each at most the norm, are root 2 times the norm together


class Foreseen(NamedTuple):
    """What simulated rows keep of the same, clipped as the records' is."""

    matrix: jax.Array  # (P, P)
    variances: jax.Array  # (1 + P,)
    whole: jax.Array  # the matrix, were nothing clipped


class ScoreCovariance(NamedTuple):
    """Released covariance of the summed scores."""

    matrix: jax.Array  # (P, P)
    variance: jax.Array  # noise variance of one of its off-diagonal entries


class Curvature(NamedTuple):
    """Average of the released curvatures, and of what is released beside them.

    A person whose curvature is too long is shortened. The norms tell which share is kept.
    """

    kept_matrix: jax.Array  # what persons keep of the curvature, (P, P)
    kept_variance: jax.Array  # noise variance of one of its off-diagonal entries
    variances: jax.Array  # of the summed scores: their sum, and those of the coordinates, (1 + P,)
    doubt: jax.Array  # noise variance of one of these
    kept: jax.Array  # the share
    norms: jax.Array  # sums of the norms, whole and as they are kept
    n: jax.Array  # number of releases
    foreseen: Foreseen | None = None
    scores: ScoreCovariance | None = None  # where it is released

    @classmethod
    def none(cls, p: int, *, foreseen: bool = False, scores: bool = False) -> Curvature:
        """Before the first release."""
        zero, zeros = jnp.zeros((), jnp.float32), jnp.zeros((p, p), jnp.float32)
        return cls(
            kept_matrix=zeros,
            kept_variance=zero,
            variances=jnp.zeros(1 + p, jnp.float32),
            doubt=zero,
            kept=zero + 1,
            norms=jnp.zeros(2, jnp.float32),
            n=jnp.zeros((), jnp.int32),
            foreseen=single(Foreseen(zeros, jnp.zeros(1 + p), zeros)) if foreseen else None,
            scores=ScoreCovariance(zeros, zero) if scores else None,
        )

    @property
    def matrix(self) -> jax.Array:
        """Curvature, (P, P)."""
        return self.kept_matrix / self.kept

    @property
    def variance(self) -> jax.Array:
        """Noise variance of one off-diagonal entry of the curvature."""
        return self.kept_variance / self.kept**2

    def after(
        self,
        estimate: Sums,
        scales: Scales,
        mechanism: Mechanism,
        foreseen: Foreseen | None = None,
    ) -> Curvature:
        """Average with one more release; late rounds, nearer the optimum, have larger weights."""
        matrix, n = estimate["curvature"], self.n + 1
        # Long averages serve to reduce noise. Early points are far from the optimum, and where the
        # noise is small that is the larger error.
        edge = noise_edge(len(matrix), scales["curvature"] ** 2 / 2)
        lateness = jnp.where(edge > _SMALL * jnp.trace(matrix) / len(matrix), 1, 3)
        new = (lateness + 1) / (n.astype(jnp.float32) + lateness)

        def average(old: jax.Array, value: jax.Array) -> jax.Array:
            return (1 - new) * old + new * value

        def noise(old: jax.Array, value: jax.Array) -> jax.Array:
            return (1 - new) ** 2 * old + new**2 * value

        norms, kept, scores = self.norms, self.kept, self.scores
        if scores is not None:
            covariance = estimate["scores"].reshape(matrix.shape)
            scores = ScoreCovariance(
                average(scores.matrix, (covariance + covariance.T) / 2),
                noise(scores.variance, scales["scores"] ** 2 / 2),
            )
        if "whole" in estimate:
            # In double precision: their difference shows the last bits, and a replay has others.
            both = double(jnp.stack([estimate["whole"], estimate["kept"]]))
            norms = single(average(double(norms), both))
            # What noise alone may make of it counts as nothing lost: curvatures are too small then,
            # and intervals too wide. Rows that are alike keep the least.
            whole, short = double(norms)
            lost = jnp.maximum(whole - short, 1e-30)
            error = _ROOT_2 * jnp.sqrt(new) * scales["whole"]
            told = (1 - (error / lost) ** 2).clip(0)
            share = 1 - told * lost / jnp.maximum(whole, lost)
            kept = single(share.clip(1 / jnp.sqrt(mechanism.most_rows), 1))
        return Curvature(
            kept_matrix=average(self.kept_matrix, (matrix + matrix.T) / 2),
            kept_variance=noise(self.kept_variance, scales["curvature"] ** 2 / 2),
            variances=average(self.variances, _ROOT_2 * estimate["variances"]),
            doubt=noise(self.doubt, (_ROOT_2 * scales["variances"]) ** 2),
            kept=kept,
            norms=norms,
            n=n,
            foreseen=jax.tree.map(average, self.foreseen, foreseen),
            scores=scores,
        )

    def mean_weight(self, *, towards: float, errors: float, least: float) -> jax.Array:
        """Ratio of the traces of covariance and curvature, which is the mean weight of the records.

        Shrunk `towards` a value by `errors` standard errors of the traces, and not below `least`.
        """
        # In operators and methods alone, so that arrays of NumPy are computed by NumPy.
        error = errors * (self.doubt + 2 * len(self.kept_matrix) * self.variance) ** 0.5 + 1e-30
        trace = self.matrix.trace().clip(0)
        return ((self.variances[0] + towards * error) / (trace + error)).clip(least, 1)


def sampling_weight(known: Curvature) -> jax.Array:
    """Mean weight of the records, shrunk towards 0.3 by its noise."""
    return known.mean_weight(towards=0.3, errors=0.1, least=_LEAST_WEIGHT)


def sampling_covariance(known: Curvature, h: jax.Array, model: Model | None = None) -> jax.Array:
    """Covariance of the summed weighted scores over data sets, given their curvature.

    Where the likelihood of `model` is flat it is nearly zero, as the curvature is. Otherwise small
    differences of the ratios below would make scores certain in a direction that has curvature.

    It is ``sum_i w_i^2 I_i`` where the curvature is ``sum_i w_i I_i``, and that of the clipped
    scores where responses are known (`Fair`). Long rows have small weights and tell little of the
    intercept, say: the ratio of both is larger there than on average. It is known from the
    diagonals; correlations are those of the curvature, unless they are released too.
    """
    mean = sampling_weight(known).astype(h.dtype)
    curvature = jnp.diag(known.matrix).astype(h.dtype).clip(0)
    noise = known.doubt + mean**2 * 2 * known.variance
    varied = (_VARIED * mean) ** 2 * curvature
    gain = varied / (varied * curvature + noise.astype(h.dtype) + 1e-30)
    ratio = mean + gain * (known.variances[1:].astype(h.dtype) - mean * curvature)
    ratio = jnp.clip(ratio, _LEAST_WEIGHT, 1)
    covariance = jnp.sqrt(ratio)[:, None] * h * jnp.sqrt(ratio)
    if known.scores is not None:
        return _with_correlations(covariance, h, known, mean)
    if model is None or identified(model) is None:
        return covariance
    size = len(h)
    flat = jnp.eye(size) - identified_part(model, jnp.eye(size, dtype=h.dtype))
    return identified_part(model, covariance) + _FLAT * jnp.trace(covariance) / size * flat


def _with_correlations(
    covariance: jax.Array, h: jax.Array, known: Curvature, mean: jax.Array
) -> jax.Array:
    """Sampling covariance, nearer to the released one as far as that is no noise.

    Along the principal axes of the curvature, and over it: no ratio is larger than one. Of many
    parameters less is taken, since the largest eigenvalues of what noise is left grow with them.
    """
    assert known.scores is not None
    values, vectors = jnp.linalg.eigh(h)
    root = jnp.sqrt(values.clip(_FLAT * values[-1]))
    released = known.scores.matrix.astype(h.dtype)

    def ratio(matrix: jax.Array) -> jax.Array:
        return (vectors.T @ matrix @ vectors) / root[:, None] / root

    noise = known.scores.variance + mean**2 * known.variance
    noise = noise.astype(h.dtype) * (1 + jnp.eye(len(h))) / (root[:, None] * root) ** 2
    varied = (_VARIED * mean) ** 2 / len(h)
    own = ratio(covariance)
    own = own + varied / (varied + noise) * (ratio(released) - own)
    shares, axes = jnp.linalg.eigh(own)
    half = vectors @ (root[:, None] * axes)
    return (half * shares.clip(_LEAST_WEIGHT, 1)) @ half.T


def curvature_query(
    model: Model, params: Params, clip: jax.Array, several_rows: bool, correlated: bool = False
) -> Query:
    """Weighted curvature of one record, and the variances of its score, or their covariance too.

    The weight is that of the record's score at norm `clip`. The curvature of a person is shortened
    if it is too long; the norms as they are, and as they are then, tell by how much.
    """

    def one(record: Record) -> Mapping[str, Contribution]:
        if knows_responses(model):
            fair = fair_score(model, params, record, clip)
            weighted, variances, covariance = fair.curvature, fair.variances, fair.covariance
        else:
            own = like_vector(params, record)
            weight = unbiased_weight(model, own, record, clip)
            weighted = scaled(curvature(model, own, record), weight)
            variances, covariance = weight * _diagonal(weighted), scaled(weighted, weight)
        sums = {"curvature": weighted, "variances": with_sum(variances) / _ROOT_2}
        if correlated:
            sums["scores"] = covariance
        if not several_rows:
            return sums
        norm = contribution_norm(weighted)
        return sums | {"whole": norm, "kept": norm}

    return one


def with_sum(variances: jax.Array) -> jax.Array:
    """Variances of the coordinates after their sum, (1 + P,)."""
    return jnp.concatenate([jnp.sum(variances, keepdims=True), variances])


def _diagonal(curvature: Contribution) -> jax.Array:
    """Diagonal of a record's curvature, (P,)."""
    if isinstance(curvature, Quadratic):
        return jnp.outer(jnp.diag(curvature.weight), curvature.vector**2).ravel()
    return jnp.diag(curvature)


def curvature_blocks(
    norm: Number, clip: Number, several_rows: bool, correlated: bool = False
) -> Mapping[str, Block]:
    """Blocks of `curvature_query`, with curvatures of norm `norm` and scores of norm `clip`."""
    # Of scores no longer than the clipping norm the variances have a sum of its square at most, and
    # no covariance has a larger norm than that sum.
    beside = {"variances": Block(jnp.minimum(norm, clip**2), SIDE_SHARE)}
    if correlated:
        beside["scores"] = beside["variances"]
    if several_rows:
        beside["whole"] = Block(norm, SIDE_SHARE)
        beside["kept"] = Block(norm, SIDE_SHARE, "weight")
    rest = 1 - SIDE_SHARE * len(beside)
    return {"curvature": Block(norm, rest, "statistic")} | beside


def curvature_round(
    model: Model,
    mechanism: Mechanism,
    *,
    point: Callable[[State, jax.Array], Point],
    params: Callable[[Point], Params],
    clip: Callable[[State], jax.Array],
    norm: Callable[[State], Number],
    update: Callable[[State, Point, jax.Array, Sums, Scales], State],
    correlated: bool = False,
) -> Round[State]:
    """Round that releases the curvature.

    Parameters
    ----------
    model : Model
    mechanism : Mechanism
    point, update : callable
        As `Round`'s.
    params : callable
        Parameters of the model at a point.
    clip, norm : callable
        Clipping norms of the score and of the curvature of a row, given the state.
    correlated : bool
        Whether the covariance of the summed scores is released beside it.
    """
    several_rows, size = mechanism.several_rows, flat_start(model)[0].size

    def learn(state: State, at: Point, step: jax.Array, estimate: Sums, scales: Scales) -> State:
        matrix = identified_part(model, estimate["curvature"].reshape(size, size))
        return update(state, at, step, {**estimate, "curvature": matrix}, scales)

    return Round(
        point,
        lambda state, at: curvature_query(model, params(at), clip(state), several_rows, correlated),
        lambda state: curvature_blocks(norm(state), clip(state), several_rows, correlated),
        learn,
    )
