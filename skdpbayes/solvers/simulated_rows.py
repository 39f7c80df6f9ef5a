"""Posterior of `na-dpvi` where simulated rows tell what the releases leave open.

Simulations show three errors of the plain posterior (`na_dpvi`), which hide each other:

* Curvatures of rows are clipped, so the released curvature is too small: by a quarter where a label
  is uncertain, hardly where it is sure.
* It is smallest, and known worst, in the direction of the coefficients themselves.
* Scores are released at points that follow the noise. A logistic score bends between them and the
  estimate, always in the same direction, which moves the intercepts of rare outcomes.

`NormalRows` have the same errors, and say how large each is. The correction is in proportion to the
similarity of both curvatures. Besides, slopes of scores are as uncertain as the parameters are
(`bent`). Derivation and measurements: ``docs/solvers/na-dpvi.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.base import (
    Model,
    double,
    flat_start,
    identified,
    identified_part,
    parameter_blocks,
)
from skdpbayes.models.denoising import mean_curvature_error, share_told
from skdpbayes.models.normal_rows import Bends, Expected
from skdpbayes.models.protocols import Number
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.solvers import closing as closings
from skdpbayes.solvers.averages import Averages, average, doubted
from skdpbayes.solvers.closing import Closing, ClosingInformation
from skdpbayes.solvers.normal_posterior import (
    REACH,
    Under,
    common_of,
    normal_given,
    over_common_scales,
    within_reach,
)
from skdpbayes.solvers.released_curvature import Curvature, sampling_covariance

_FACTOR = 0.01  # prior variance of the ratio of the records' curvature to that of simulated rows
_APART, _ALONE = 0.25, 0.5  # relative difference at which both count the same: least and most
_ERRORS = 0.7  # standard errors that are taken off the square of that difference
_PLAUSIBLE = 1.0  # prior mean of the square (exponential)
_BENT = 0.75  # share of the square of a score's bend that they explain where they are believed
_SWEEPS, _ARRIVED = 40, 0.001  # at most; the move that ends them, in posterior standard deviations
_STEP = 0.5  # towards the likelihood about a new mean and covariance
_LONGEST_MOVE = 0.5  # Euclidean, in whitened coordinates
_UNEQUAL = 2.0  # prior variance of the difference, over the mean: some directions differ by more
# Of the released curvature by itself, the part that does not follow simulated rows outward. Far
# outside these have no curvature, and an estimate would know no bound.
_HELD = 0.3
_LEAST_EIGENVALUE = 1e-9  # over the largest: classes have directions without any curvature


class Likelihood(NamedTuple):
    """`NormalLikelihood`: information, linear term, and the information that is reported."""

    information: jax.Array  # (P, P)
    linear: jax.Array  # (P,)
    reported: jax.Array  # (P, P)


class Found(NamedTuple):
    """Posterior, and the likelihood that it comes from."""

    mean: jax.Array  # (P,)
    precision: jax.Array  # (P, P)
    likelihood: Likelihood
    alike: jax.Array  # share in which simulated rows are believed; one without
    by_factor: Likelihood | None = None  # of the prior's common scale, with a first axis


class Sweep(NamedTuple):
    """Mean and covariance on their way to the fixed point."""

    number: jax.Array
    moved: jax.Array  # by the last sweep, in standard deviations
    mean: jax.Array
    covariance: jax.Array
    information: jax.Array  # of the likelihood
    linear: jax.Array


class Start(NamedTuple):
    """State after the rounds, and two estimates of the released curvature."""

    mean: jax.Array  # (P,)
    covariance: jax.Array  # (P, P)
    curvature: jax.Array  # as it was used during the run, (P, P)
    reported_curvature: jax.Array  # its best estimate, (P, P)


class Likeness(NamedTuple):
    """The records' curvature beside that of simulated rows."""

    factor: jax.Array  # of the simulated rows' curvature
    difference: jax.Array  # of the records' from that, less what is noise; `relative`, (P, P)
    sizes: jax.Array  # eigenvalues of the simulated rows' curvature, (P,)
    axes: jax.Array  # its eigenvectors, (P, P)
    spread: jax.Array  # variance of an entry of the difference among these, over their sizes
    noise: jax.Array  # variance of an off-diagonal entry of the records' curvature
    errors: jax.Array  # variances of the entries of what is left of the difference, (P, P)
    factor_variance: jax.Array
    alike: jax.Array  # share in which the curvature of simulated rows is believed
    alike_reported: jax.Array  # the same for the reported covariance, to be cautious

    @property
    def believed(self) -> jax.Array:
        """The records' curvature, if the rows are alike; relative, (P, P)."""
        return self.factor * jnp.eye(len(self.difference)) + self.difference

    @property
    def units(self) -> jax.Array:
        """Inverse root of the simulated rows' curvature, (P, P)."""
        sizes = self.sizes.clip(_LEAST_EIGENVALUE * self.sizes[-1].clip(1))
        return (self.axes * sizes**-0.5) @ self.axes.T

    def noise_along(self, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Noise variance of ``v' H v`` for each column, and the share of the difference without."""
        noise = self.noise * jnp.sum(vectors**2, axis=0) ** 2
        signal = self.spread * (self.sizes @ (self.axes.T @ vectors) ** 2) ** 2
        return 2 * noise, signal / (signal + noise)

    def error_of_scores(self, away: jax.Array) -> jax.Array:
        """Covariance of scores that are as far away as a vector, by the error of the difference.

        It is that where curvature was released, which is nearer to the points than the estimate is.
        """
        away = self.axes.T @ away
        own = jnp.diag(self.errors @ away**2)
        # Entries (i, j) and (j, i) are one.
        both = self.errors * jnp.outer(away, away) * (1 - jnp.eye(len(away)))
        return self.axes @ (own + both) @ self.axes.T


def likeness_of(model: Model, known: Curvature) -> Likeness:
    """Comparison of the released curvature with the one foreseen, which `known` must have."""
    assert isinstance(model, InCoordinates)  # as `NormalRows.of` says
    basis, doubt = identified(model), model.count_variance
    if basis is not None:
        return likeness(known, size=basis.shape[1], count_variance=doubt)
    return likeness(known, parameter_blocks(model), count_variance=doubt)


def likeness(
    known: Curvature,
    blocks: Sequence[slice] = (slice(None),),
    *,
    size: int | None = None,
    count_variance: Number = 0.0,
) -> Likeness:
    """As `likeness_of`, of matrices that are zero but for blocks, or but for a block in some basis.

    Parameters
    ----------
    known : Curvature
    blocks : sequence of slices
    size : int, optional
        Of the one block in another basis; None: `blocks` are those.
    count_variance : float
        Variance of the number of records that rows stand for, over its square.
    """
    assert known.foreseen is not None
    released, foreseen, variance = (
        x.astype(jnp.float64) for x in (known.matrix, known.foreseen.matrix, known.variance)
    )
    p = len(released)
    together = np.zeros((p, p))
    for block in blocks:
        together[block, block] = 1
    n, n_entries = (p, together.sum()) if size is None else (size, size**2)
    trace = jnp.trace(foreseen)
    error = 2 * n * variance / trace**2
    prior = jnp.asarray(_FACTOR + count_variance)
    sure = prior / (prior + error)
    factor = (1 + sure * (jnp.trace(released) / trace - 1)).clip(0)
    difference = released - factor * foreseen
    entries = float(n_entries + n)  # twice those that are not equal by symmetry
    told = share_told(difference, variance, entries)
    # A direction of little curvature differs by little, and has as much noise as the others.
    sizes, axes = jnp.linalg.eigh(foreseen)
    twice = 1 + jnp.eye(p)  # variances on the diagonal
    sizes = sizes.clip(0)
    shape = (axes**2).T @ together @ axes**2 * jnp.outer(sizes, sizes) * twice
    spread = _UNEQUAL * told * jnp.sum(difference**2) / jnp.sum(shape)
    signal, noise = spread * shape, variance.clip(1e-300) * twice
    kept = signal / (signal + noise)
    learnt = kept * (axes.T @ difference @ axes)
    # Noise alone often passes for a difference. Part of the standard error of its square is
    # taken off, and where it is large, as much as gives the mode under an exponential prior.
    whole = jnp.sum(foreseen**2)
    deviation = 2 * jnp.sqrt(entries) * variance / whole
    chance = deviation * jnp.maximum(_ERRORS, deviation / _PLAUSIBLE)
    apart = (told * jnp.sum(difference**2) / whole - chance).clip(0)
    # What counts in their place, the released curvature by itself, has an error too.
    alone = (entries * variance / whole).clip(_APART**2, _ALONE**2)
    alike, reported = (e / (e + apart) for e in (alone, _APART**2))
    found = Likeness(
        factor=factor,
        difference=axes @ learnt @ axes.T,
        sizes=sizes,
        axes=axes,
        spread=spread,
        noise=variance.clip(1e-300),
        errors=kept * noise,
        factor_variance=sure * error,
        alike=alike,
        alike_reported=reported,
    )
    return found._replace(difference=relative(found.difference, found.units))


def relative(curvature: jax.Array, units: jax.Array) -> jax.Array:
    """A curvature over that of simulated rows, whose inverse root is `units`.

    It is taken to be the same where simulated rows have another curvature.
    """
    return units @ curvature @ units


def spectrum(
    like: Likeness, simulated: jax.Array, alone: jax.Array, held: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues and eigenvectors of the records' curvature, which no clip has shortened.

    Parameters
    ----------
    like : Likeness
    simulated : array of shape (P, P)
        Whole curvature of simulated rows.
    alone : array of shape (P, P)
        The `relative` released curvature by itself, which counts as far as the rows are not
        believed.
    held : array of shape (P, P), optional
        The same, not relative: a part of it counts wherever simulated rows are.
    """
    root = _power(simulated, 0.5)
    believed, alone = (root @ own @ root for own in (like.believed, alone))
    if held is not None:
        alone = alone + _HELD * (held - alone)
    return _positive_spectrum(like.alike * believed + (1 - like.alike) * alone)


def reported_spectrum(
    like: Likeness, simulated: jax.Array, alone: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """As `spectrum`, with inverses averaged, since a covariance is one.

    Along the coefficients the released curvature may be many times too large. Along an empty column
    both are nearly zero, in directions that differ by noise, and the mean of the whole inverses
    would be huge in two directions: they are averaged along the axes of the mean.
    """
    share, back = like.alike_reported, _power(simulated, -0.5)
    _, axes = jnp.linalg.eigh(share * like.believed + (1 - share) * alone)
    believed, other = (jnp.sum(axes * (own @ axes), axis=0) for own in (like.believed, alone))
    least = _LEAST_EIGENVALUE * jnp.maximum(believed, other).max().clip(1)
    inverse = share / believed.clip(least) + (1 - share) / other.clip(least)
    values, vectors = jnp.linalg.eigh(back @ ((axes * inverse) @ axes.T) @ back)
    return 1 / values, vectors


def _positive_spectrum(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = jnp.linalg.eigh(matrix)
    return values.clip(_LEAST_EIGENVALUE * values[-1].clip(1)), vectors


def _power(matrix: jax.Array, exponent: float) -> jax.Array:
    values, vectors = _positive_spectrum(matrix)
    return (vectors * values**exponent) @ vectors.T


def step_curvature(model: Model, known: Curvature, alone: jax.Array) -> jax.Array:
    """Curvature of the steps of a run, which no clip has shortened, (P, P).

    Parameters
    ----------
    model : Model
    known : Curvature
        With ``foreseen``.
    alone : array of shape (P, P)
        The released curvature by itself, as the clip has left it.
    """
    assert known.foreseen is not None
    foreseen = double(known.foreseen)
    like = likeness_of(model, known)
    values, vectors = spectrum(like, foreseen.whole, relative(alone, like.units))
    # Far outside no curvature is left, and steps would know no bound.
    values = values.clip(mean_curvature_error(len(values), known.variance))
    return identified_part(model, (vectors * values) @ vectors.T)


def bent(
    bends: Bends,
    covariance: jax.Array,
    h: jax.Array,
    spread: jax.Array,
    score: jax.Array,
    mean: jax.Array,
    closing: ClosingInformation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Information and linear term of a normal approximation where scores bend.

    The log likelihood of parameters t is ``-r(t)' spread^-1 r(t) / 2``, r(t) what the average score
    misses. The approximation has its mean slope and mean curvature over normal parameters (Opper
    and Archambeau 2009), where r is linear but for what `Bends` say.

    Parameters
    ----------
    bends : Bends
    covariance : array of shape (P, P)
        Of the parameters.
    h : array of shape (P, P)
        Curvature at the mean.
    spread : array of shape (P, P)
        Covariance of the average score.
    score : array of shape (P,)
        The average score over its expectation.
    mean : array of shape (P,)
    closing : ClosingInformation, optional
        The last score, of the scale.
    """
    # Where the released curvature is far below that of the rows, the change alone would be larger.
    values, vectors = _positive_spectrum(h + bends.slope)
    slope, p = (vectors * values) @ vectors.T, len(mean)
    if closing is not None:
        shared = closing.shared
        spread = jnp.block([[spread, shared], [shared.T, closing.spread]])
        of_closing = closing.side.T @ (closing.slope + closing.bends.slope)
        slope, score = jnp.vstack([slope, of_closing]), jnp.append(score, closing.score)
    back = jnp.linalg.solve(spread, jnp.column_stack([slope, score]))
    gain, missed = back[:, :-1].T, back[:, -1]
    # Where the score misses more than expected, the slope is smaller: both are correlated.
    moved = gain.T @ covariance
    bend, turn = bends.turned(moved[:p], missed[:p])
    if closing is not None:
        more = closing.bends.turned(closing.side @ moved[p:], closing.side @ missed[p:])
        bend, turn = bend + more[0], turn + more[1]
    information = gain @ slope - turn
    values, vectors = jnp.linalg.eigh((information + information.T) / 2)
    information = (vectors * values.clip(0)) @ vectors.T
    return information, gain @ score - bend + information @ mean


def found_with(
    model: Model,
    rows: Expected,
    clip: Number,
    start: Start,
    averages: Averages,
    known: Curvature,
    closing: Closing | None = None,
) -> Found:
    """Posterior and likelihood at the fixed point of mean and covariance.

    Parameters
    ----------
    model : Model
    rows : Expected
    clip : float
        Clipping norm of the scores.
    start : Start
    averages : Averages
        Over blocks of rounds.
    known : Curvature
    closing : Closing, optional
    """
    unravel = flat_start(model)[1]
    like = likeness_of(model, known)
    # Where logits are hardly known these errors do not count: intervals would be too narrow.
    logits_known = 1 / (1 + rows.logit_variance(start.covariance) ** 2)
    points = jax.vmap(unravel)(averages.point)
    weights = jax.vmap(lambda at: rows.weights(at, clip))(points)
    asked = jax.vmap(rows.probabilities)(points)
    assert known.foreseen is not None
    foreseen = double(known.foreseen)
    seen_variances = foreseen.variances.clip(1e-9)
    alone = relative(start.curvature, _power(foreseen.whole, -0.5))
    reported_alone = relative(start.reported_curvature, like.units)
    if closing is not None:
        norm = closings.closing_norm(clip, start.mean.size)
        last_weights = closings.weights_of(rows, closing.directions, closing.at, norm)

    def learnt(
        mean: jax.Array, covariance: jax.Array, *, reported: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """Information and linear term; with the curvature of the reported covariance, if so."""
        whole = rows.curvature(unravel(mean), clip)
        values, vectors = spectrum(like, whole, alone, start.curvature)
        h = (vectors * values) @ vectors.T
        away = averages.point - mean
        line = away @ h  # by which scores differ from those at the mean, if linear
        nodes = rows.at_nodes(unravel(mean), covariance)
        bend = like.factor * (rows.scores(weights, asked, nodes.mean) + away @ whole)
        missed = (1 - like.alike) * line**2 + like.alike * (1 - _BENT) * bend**2
        corrected = averages._replace(score=averages.score + line - like.alike * bend)
        doubtful = doubted(corrected, jnp.mean(missed, axis=1, keepdims=True))
        seen = average(doubtful)
        share = jnp.mean(doubtful.weight / seen.weight.clip(1e-300), axis=1)
        bends = rows.bends(unravel(mean), nodes, like.alike * like.factor * (share @ weights))

        clipped = rows.variances(unravel(mean), clip) / seen_variances
        variances = known.variances * (1 + like.alike * (clipped - 1))
        if reported:
            # Variances are about values**-2: over errors e their mean is 1 + 3 Var e as large.
            values, vectors = reported_spectrum(like, whole, reported_alone)
            released = like.units @ _power(whole, 0.5) @ vectors  # of these there
            noise, told = like.noise_along(released)
            noisy = 1 - logits_known * like.alike_reported * (1 - told)
            error = logits_known * (
                noisy * noise / values**2 + like.factor_variance / like.factor**2
            )
            # Rows of wrong second moments have a wrong curvature; by more than itself it is not.
            of_moments = rows.model.error_along(vectors)
            error = error + logits_known * like.alike_reported * of_moments / (1 + of_moments)
            # Errors are infinite where nothing is known, and without noise h is all of the spread.
            values = (values / jnp.sqrt(1 + 3 * error)).clip(_LEAST_EIGENVALUE)
            h = (vectors * values) @ vectors.T
        # Released variances are those of whole curvatures: mean weights are their ratio.
        matrix = known.matrix + like.alike * (h - known.matrix)
        own = known._replace(kept_matrix=matrix, kept=jnp.ones(()), variances=variances)
        sampling = sampling_covariance(own, h, model)
        spread = jnp.diag(seen.noise) + (1 + seen.subsampled) * sampling
        spread = spread + like.error_of_scores(share @ away)
        how = (bends, covariance, h, spread, seen.score, mean)
        if closing is None:
            return bent(*how)
        last = closings.seen(
            closing,
            rows,
            last_weights,
            mean,
            nodes,
            relative=relative(h, _power(whole, -0.5)),
            before=share @ weights,
            sampling=sampling,
            alike=like.alike,
            factor=like.factor,
            unexplained=1 - _BENT,
        )
        return bent(*how, last)

    def sweep(last: Sweep, common: jax.Array | None) -> Sweep:
        number, _, mean, covariance, *before = last
        # Whole steps may oscillate: a wide posterior has little information, and a narrow one much.
        share = jnp.where(number > 0, _STEP, 1)
        information, linear = (
            old + share * (new - old)
            for old, new in zip(before, learnt(mean, covariance), strict=True)
        )
        at = (mean, covariance)
        found, precision = normal_given(model, information, linear, at, like.alike, common)
        covariance = jnp.linalg.inv(precision)
        move = found - mean
        moved = jnp.sqrt(jnp.mean(move**2 / jnp.diag(covariance)))
        move = move * jnp.minimum(1, _LONGEST_MOVE / jnp.linalg.norm(move).clip(1e-9))
        mean = within_reach(model, mean + move, REACH)
        return Sweep(number + 1, moved, mean, covariance, information, linear)

    def goes_on(last: Sweep) -> jax.Array:
        return (last.number < _SWEEPS) & (last.moved > _ARRIVED)

    size, zero = start.mean.size, jnp.zeros(())
    nothing = jnp.zeros((size, size)), jnp.zeros(size)
    first = Sweep(zero, zero + jnp.inf, start.mean, start.covariance, *nothing)

    def found(first: Sweep, factor: jax.Array | None) -> tuple[Sweep, Under]:
        common = common_of(factor)
        last = jax.lax.while_loop(goes_on, lambda x: sweep(x, common), first)
        _, _, mean, covariance, information, linear = last
        at = (mean, covariance)
        reported = learnt(*at, reported=True)[0]
        precision = normal_given(model, reported, linear, at, like.alike, common)[1]
        under = Under(*at, jnp.linalg.inv(precision), Likelihood(information, linear, reported))
        return last._replace(number=zero + 1, moved=first.moved), under

    averaged, under = over_common_scales(model, found, first, like.alike)
    precision = jnp.linalg.inv(averaged.reported)
    by_factor = None if under is None else under.likelihood
    return Found(averaged.mean, precision, averaged.likelihood, like.alike, by_factor)
