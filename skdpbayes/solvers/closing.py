"""Scale of the logits of logistic regression, released once, when `na-dpvi` ends.

The noise of a score has one size in every direction, for rows as long as all columns together make
them. But curvature is least along the coefficients themselves: where labels are uncertain, logits
are near zero. So the scale of the coefficients, which all of them share, is known worst. One number
tells it: the score of b in the logits ``a + b d(x)``, where d is the deviation of the logit of a
row from the mean, at the estimate so far (Cox 1958, Platt 1999). Of uncertain rows it is short, so
that a small share of the budget releases it with little noise.

It is a sum over the records whose scores were released before, with whose sampling errors its own
is correlated. Derivation and measurements: ``docs/solvers/na-dpvi.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import RankOne
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import double, single
from skdpbayes.models.normal_rows import AtNodes, Bends, Expected
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.solvers.base import Query, Round, Scales, State, Sums
from skdpbayes.solvers.sums_of_persons import kept_of_sums

_UNRELEASED = 1e30  # variance
_TINY = 1e-12
_NORMS = (0.25, 2.25)
# Least share of its sampling variance that it does not share with the scores before, least
# variance, and ridge of a covariance over its trace: joint covariances are positive definite.
_DISTINCT, _LEAST, _RIDGE = 1e-3, 1e-6, 1e-9


class Closing(NamedTuple):
    """The deviation, where its score was released, and what was."""

    directions: jax.Array  # ``directions' z`` of a row z are the constant and the deviation, (p, 2)
    at: jax.Array  # their coefficients, (2,)
    score: jax.Array  # of the second, (1,)
    noise: jax.Array  # its variance
    subsampled: jax.Array  # variance of subsampling, over that of sampling

    @classmethod
    def none(cls, size: int) -> Closing:
        """Before the release."""
        zero = jnp.zeros(())
        return cls(jnp.zeros((size, 2)), jnp.zeros(2), jnp.zeros(1), zero + _UNRELEASED, zero)

    @property
    def point(self) -> jax.Array:
        """All coordinates there, (p,)."""
        return self.directions @ self.at


def closing_norm(clip: Number, n_columns: int) -> jax.Array:
    """Clipping norm of the scale's score, given that of a score.

    The square of the latter over the length of a typical row, within that of the default norms:
    where noise dominates, short scores of one length tell most.
    """
    return jnp.clip(jnp.asarray(clip, jnp.float32) ** 2 / n_columns, *_NORMS)


def closing_round(
    model: InCoordinates,
    mechanism: Mechanism,
    rows: Expected,
    clip: Number,
    n_persons: Number | None,
    *,
    point: Callable[[State], jax.Array],
    update: Callable[[State, Closing], State],
) -> Round[State]:
    """Round that releases the score.

    Parameters
    ----------
    model : InCoordinates
        Of one logit.
    mechanism : Mechanism
    rows : Expected
    clip : float
        Clipping norm of a score.
    n_persons : float, optional
        As `NADPVI` has it.
    point : callable ``state -> array of shape (p,)``
        Where scores are released.
    update : callable ``(state, closing) -> state``
    """
    norm = closing_norm(clip, model.model.n_columns)

    def ask(state: State, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        del key
        return single(_two_columns(model, point(state)))

    def query(state: State, at: tuple[jax.Array, jax.Array]) -> Query:
        del state
        directions, coefficients = at
        two = _in_two(model, directions)

        def one(record: Record) -> Mapping[str, Contribution]:
            own = two.score(coefficients[None], record)
            assert isinstance(own, RankOne)
            weight = _weight(two, coefficients, record, own.right, norm)
            return {"closing": own.left * weight * own.right[1]}

        return one

    def learn(
        state: State,
        at: tuple[jax.Array, jax.Array],
        step: jax.Array,
        estimate: Sums,
        scales: Scales,
    ) -> State:
        del step
        directions, coefficients = double(at)
        kept = jnp.ones(())
        if n_persons is not None:
            longest = mechanism.norm_of_record(norm, "score")
            variance = _expected_variance(rows, directions, coefficients, norm)
            kept = kept_of_sums(variance[None, None] / n_persons, longest)
        score, noise = (own["closing"].astype(jnp.float64) / kept for own in (estimate, scales))
        subsampled = jnp.asarray(1 / mechanism.rate - 1, jnp.float64)
        return update(state, Closing(directions, coefficients, score, noise**2, subsampled))

    return Round(ask, query, lambda state: {"closing": Block(norm, together="score")}, learn)


def _two_columns(model: InCoordinates, point: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Directions of the level and of the scale, (p, 2), and the coordinates of a point, (2,).

    Both columns have about unit mean square.
    """
    constant = model.constant()
    size = constant @ constant
    level = point @ constant / size
    deviation = point - level * constant
    scale = jnp.linalg.norm(deviation) / jnp.sqrt(size)
    return (
        jnp.column_stack([constant, deviation / scale.clip(_TINY)]),
        jnp.stack([level, scale]),
    )


def _in_two(model: InCoordinates, directions: jax.Array) -> InCoordinates:
    """The regression on the two columns."""
    return replace(
        model, axes=jnp.asarray(model.axes, directions.dtype) @ directions, row_axes=None
    )


def _weight(
    two: InCoordinates, at: jax.Array, record: Record, columns: jax.Array, norm: Number
) -> jax.Array:
    """Weight by which no label makes the score of the scale longer than `norm`."""
    p = two.model.probabilities(at @ columns)
    bound = jnp.maximum(p, 1 - p) * jnp.abs(columns[1])
    weight = norm / jnp.maximum(bound, jnp.finfo(bound.dtype).tiny)
    return jnp.minimum(weight, two.largest_weight(record))


def weights_of(rows: Expected, directions: jax.Array, at: jax.Array, norm: Number) -> jax.Array:
    """Weights of simulated rows in the score, (n,)."""
    two = _in_two(rows.model, directions)
    return jax.vmap(lambda record, own: _weight(two, at, record, own, norm))(
        rows.records, rows.rows @ directions
    )


def _expected_variance(
    rows: Expected, directions: jax.Array, at: jax.Array, norm: Number
) -> jax.Array:
    """Variance of the sum of the scores, if the estimate is the truth."""
    columns = rows.rows @ directions
    p = rows.model.model.probabilities(columns @ at)
    weights = weights_of(rows, directions, at, norm)
    return jnp.sum(rows.share * p * (1 - p) * (weights * columns[:, 1]) ** 2)


class ClosingInformation(NamedTuple):
    """What the release tells of the coordinates, by simulated rows."""

    side: jax.Array  # the deviation of a row z is ``side' z``, (p, 1)
    score: jax.Array  # as if it were released at the mean, (1,)
    slope: jax.Array  # of the expected score is ``side' slope``, at the mean, (p, p)
    bends: Bends
    spread: jax.Array  # its variance, (1, 1)
    shared: jax.Array  # covariance with the average of the scores before, (p, 1)


def seen(
    closing: Closing,
    rows: Expected,
    weights: jax.Array,
    mean: jax.Array,
    nodes: AtNodes,
    *,
    relative: jax.Array,
    before: jax.Array,
    sampling: jax.Array,
    alike: jax.Array,
    factor: jax.Array,
    unexplained: float,
) -> ClosingInformation:
    """What the release tells, about a mean of the coordinates.

    Parameters
    ----------
    closing : Closing
    rows : Expected
    weights : array of shape (n,)
        `weights_of` the rows.
    mean : array of shape (p,)
    nodes : AtNodes
        About the mean.
    relative : array of shape (p, p)
        The records' curvature over that of simulated rows.
    before : array of shape (n,)
        Weights of the rows in the average of the scores before.
    sampling : array of shape (p, p)
        Covariance of that average by sampling alone.
    alike, factor : float
        Share in which simulated rows are believed, and the factor of their curvature.
    unexplained : float
        Share of the square of a bend that they do not explain.
    """
    side = closing.directions[:, 1:]
    deviation = replace(rows, rows=rows.rows @ side)
    # The records' curvature with the weights of this score, as with those of the others.
    simulated = rows.slopes(mean[None], weights)
    values, vectors = jnp.linalg.eigh(simulated)
    root = (vectors * jnp.sqrt(values.clip(0))) @ vectors.T
    slope = root @ relative @ root
    away = closing.point - mean
    line = side.T @ slope @ away
    asked = rows.probabilities(closing.point[None])
    bend = factor * (
        deviation.scores(weights[None], asked[None], nodes.mean)[0] + side.T @ simulated @ away
    )
    missed = (1 - alike) * line**2 + alike * unexplained * bend**2

    p = rows.probabilities(mean[None])[:, 0]
    variance = rows.share * p * (1 - p)

    def products(of_x: jax.Array, of_y: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return (x * (variance * of_x * of_y)[:, None]).T @ y

    crossed = products(before, weights, rows.rows, deviation.rows)
    scores = products(before, before, rows.rows, rows.rows)
    ridge = _RIDGE * jnp.trace(scores) + _TINY
    gain = jnp.linalg.solve(scores + ridge * jnp.eye(len(scores)), crossed)
    whole = products(weights, weights, deviation.rows, deviation.rows)
    # Where nothing is clipped it is a sum of the scores before.
    rest = whole - (1 - _DISTINCT) * crossed.T @ gain
    shared = sampling @ gain
    sampled = gain.T @ shared + factor * rest
    spread = closing.noise + _LEAST + jnp.diag(missed) + (1 + closing.subsampled) * sampled
    bends = rows.bends(mean[None], nodes, alike * factor * weights)
    return ClosingInformation(
        side, closing.score + line - alike * bend, slope, bends, spread, shared
    )
