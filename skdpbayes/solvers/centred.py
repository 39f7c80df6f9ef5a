"""Release of the sums of a family's statistics where records are persons of several rows.

Statistics of rows do not cancel, so that a sum of m is m times as long as one. About their mean
they are scores, which do: the noise of their sums grows with the root of m alone. So there are two
releases. The first, of the mean over each person's rows, finds a centre c. The second is of

    clip(sum_j (t(x_j) - c)) - E clip(sum_j (t(x_j) - c))

of each person, entry by entry, beside the number of their rows. The expectation, of as many
independent rows whose mean is c, is exact (`clipped_sums`). So clipping moves no estimate: what is
released has mean zero if c is the truth. Otherwise it is ``kept * n (mean - c)``, by the slope
`kept` of clipped sums. That gives the sum of n rows, with the noise over the slope and the variance
that clipping adds; given this sum the posterior is exact.

Rows of a person may be more alike than the model says. Then more of their sums are clipped than
expected, and skewed entries are biased; the mean over persons is not. Where both releases
contradict each other by more than their noise, the square of the contradiction counts as a variance
of the second, and the posterior follows the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from skdpbayes.mechanism.records import Person
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import NORM, CentredModel, released_count, single
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.posteriors.conjugate import Conjugate, CountedPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Point, Round, Scales, Sums

FIRST_SHARE = 0.2  # of the budget, for the centre
SHORTER = 0.85  # norm of a row in a sum, over the bound on its statistic: noise is smaller
_COUNT_SHARE = 0.05  # of a release, for the number of persons or of rows
_MOST = 32  # rows whose sums are computed exactly; more are taken as so many parts of a person
_TINY, _UNKNOWN = 1e-30, 1e15
_CONTRADICTS = 2.0  # square of a contradiction, over its variance, that is taken for chance


class Clipped(NamedTuple):
    """Clipped sums of rows about their mean, by the number of rows."""

    mean: jax.Array  # (n, P)
    kept: jax.Array  # slope of the mean, over that of the sums themselves, (n, P)
    spread: jax.Array  # variance over the square of the slope, and over that of the sums, (n, P)

    def of(self, rows: jax.Array, most: jax.Array) -> Clipped:
        """By interpolation at a number of rows, each (P,)."""

        def at(table: jax.Array) -> jax.Array:
            numbers, one = jnp.arange(1.0, _MOST + 1), (None, None, 1)
            few = jax.vmap(jnp.interp, one)(rows, numbers, table[:_MOST])
            many = jax.vmap(jnp.interp, one)(rows * _MOST / most, numbers, table[_MOST:])
            return jnp.where(rows <= _MOST, few, many)

        return Clipped(*map(at, self))


class Clipping(NamedTuple):
    """The second release: public, given the centre."""

    centre: jax.Array  # (P,)
    expected: jax.Array  # of clipped sums, by number of rows, and of parts, (2 * _MOST, P)
    limit: jax.Array  # of an entry
    room: jax.Array  # factor of all
    sums: Clipped
    variance: jax.Array  # of a row, (P,)


def noise_growth(model: CentredModel, most: int) -> float:
    """Noise of these sums of `most` rows over what they keep, over that of a row's whole statistic.

    Of an entry that is at either end of its range half of the time, which keeps the least.
    """
    low, high = (float(x) for x in model.range_of_means())
    limit = SHORTER * (most / model.n_statistics) ** 0.5 * model.statistic_bound() / (high - low)
    rows = np.arange(most + 1)
    density, sums = stats.binom.pmf(rows, most, 0.5), rows - most / 2
    kept = density @ (np.clip(sums, -limit, limit) * sums) / (density @ sums**2)
    return float(SHORTER * (most / ((1 - FIRST_SHARE) * (1 - _COUNT_SHARE))) ** 0.5 / kept)


class Centred(NamedTuple):
    """State; every entry is a function of the releases and public values."""

    centre: jax.Array  # (P,)
    first: jax.Array  # mean over persons, (P,)
    first_scale: jax.Array  # standard deviation of its noise, (P,)
    total: jax.Array  # sum of all rows about the centre, by both releases, (P,)
    scale: jax.Array  # standard deviation of its noise, and of what clipping adds, (P,)
    contradiction: jax.Array  # of both releases, in standard deviations, (P,)
    rows: jax.Array  # released number of rows
    rows_scale: jax.Array
    persons: jax.Array  # released number of persons with rows


@pytree
@dataclass(frozen=True)
class CentredRelease:
    """Release the mean statistics of persons, and then their sums about the mean of all.

    Attributes
    ----------
    clipping_norm : float
        Bound on the statistic of a row; sums are clipped to `SHORTER` of it, for each row.
    n_records : float
        Largest number of rows.
    """

    clipping_norm: Number
    n_records: Number

    def init(self, model: CentredModel, key: jax.Array) -> Centred:
        """State before any release."""
        del key
        zeros, zero = jnp.zeros(model.n_statistics), jnp.zeros(())
        unknown = zeros + _UNKNOWN
        return Centred(zeros, zeros, unknown, zeros, zeros, zeros, zero, zero, zero)

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: the means, then the sums."""
        return jnp.minimum(step, 1).astype(jnp.int32)

    def rounds(self, model: CentredModel, mechanism: Mechanism) -> tuple[Round[Centred], ...]:
        """The two releases."""
        norm, most = jnp.asarray(self.clipping_norm, jnp.float32), mechanism.most_rows
        limit = self.clipping_norm / model.n_statistics**0.5  # of an entry of a row
        # Without noise nothing is clipped: about a mean, entries are as long as the whole range.
        clips = jnp.asarray(mechanism.sigmas)[0] > 0
        short = jnp.where(clips, jnp.float32(SHORTER), 2)

        def means(record: Record) -> Mapping[str, Contribution]:
            return {"mean": model.statistic(record), "count": model.known(record)[None]}

        def find_centre(
            state: Centred, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> Centred:
            del point, step
            persons = released_count(estimate, scales)
            variance = (scales["mean"].astype(float) / persons) ** 2
            prior = limit**2 / 3  # for entries of half the range as for a uniform distribution
            first = estimate["mean"].astype(float) / persons
            number_scale = scales["count"].astype(float) / persons
            centre = first * prior / (prior + variance)
            return state._replace(
                centre=jnp.clip(centre, *model.range_of_means()),
                first=first,
                first_scale=jnp.sqrt(variance + (first * number_scale) ** 2),
                persons=persons,
            )

        def clipping(state: Centred, key: jax.Array) -> Clipping:
            """What the model says of clipped sums about the centre."""
            del key
            longest = mechanism.norm_of_record(short * limit, "statistic")
            parts, numbers = jnp.minimum(1, _MOST / most), jnp.arange(1, _MOST + 1)
            limits = longest * jnp.repeat(jnp.sqrt(jnp.array([1, parts])), _MOST)
            values, shares = model.rows_about(state.centre)
            own = clipped_sums(values, shares, jnp.tile(numbers, 2), limits)
            # With its expectation taken off, a sum may be longer by that.
            held = jnp.concatenate([numbers <= most, jnp.full(_MOST, most > _MOST)])
            room = 1 / (1 + jnp.max(jnp.abs(own.mean) * held[:, None]) / longest)
            told = single((state.centre, own.mean, longest, room))  # the same on all devices
            return Clipping(*told, own, jnp.sum(shares * values**2, axis=1))

        def learn_sums(
            state: Centred, point: Clipping, step: jax.Array, estimate: Sums, scales: Scales
        ) -> Centred:
            del step
            rows = jnp.clip(estimate["rows"].astype(float)[0], 1, self.n_records)
            own = point.sums.of(jnp.clip(rows / state.persons, 1, most), most)  # of a mean person
            added = rows * point.variance * (own.spread - 1).clip(0)
            factor = point.room * own.kept
            total = estimate["sum"].astype(float) / factor
            variance = (scales["sum"].astype(float) / factor) ** 2 + added
            # The mean over persons weighs rows by one over their number, which is not known.
            before = rows * (state.first - point.centre)
            apart = rows * (rows / state.persons - 1).clip(0) * point.variance
            before_variance = (rows * state.first_scale) ** 2 + apart
            square, chance = (total - before) ** 2, variance + before_variance
            # Where some entries contradict, rows are alike, and less is chance in the others.
            all_ = jnp.mean(square / chance.clip(_TINY)) / _CONTRADICTS
            excess = (square - _CONTRADICTS / all_.clip(1) * chance).clip(0)
            doubtful = variance + clips * excess
            share = doubtful / (doubtful + before_variance).clip(_TINY)
            return state._replace(
                total=total + share * (before - total),
                scale=jnp.sqrt(share * before_variance),
                contradiction=jnp.sqrt(square / chance.clip(_TINY)),
                rows=estimate["rows"].astype(float)[0],
                rows_scale=scales["rows"].astype(float),
            )

        return (
            Round(
                point=lambda state, key: (),
                query=lambda state, point: means,
                blocks=lambda state: {
                    "mean": Block(norm, 1 - _COUNT_SHARE, "mean"),
                    "count": Block(NORM, _COUNT_SHARE, "mean"),
                },
                update=find_centre,
            ),
            Round(
                point=clipping,
                query=lambda state, point: PersonQuery(model, point, jnp.asarray(most)),
                blocks=lambda state: {
                    "sum": Block(short * NORM * norm, 1 - _COUNT_SHARE, "statistic"),
                    "rows": Block(NORM, _COUNT_SHARE, "weight"),
                },
                update=learn_sums,
            ),
        )

    def posterior(self, model: CentredModel, state: Centred) -> CountedPosterior | Conjugate:
        """The exact posterior given the sum of all rows: a mixture over their number."""
        told = jax.tree.map(np.asarray, state)
        return CountedPosterior.given(
            lambda n: model.noisy_posterior(told.total + n * told.centre, told.scale, n),
            float(told.rows),
            float(told.rows_scale),
            int(self.n_records),
        )

    def diagnostics(self, model: CentredModel, state: Centred, posterior: Any) -> dict[str, Any]:
        """The standard deviation of the noise in each sum, (P,), and how releases differ."""
        del model, posterior
        return {
            "noise_std": np.asarray(state.scale),
            "contradiction": np.asarray(state.contradiction),
        }


@dataclass(frozen=True)
class PersonQuery:
    """Second release of a record: a person, or one row."""

    model: CentredModel
    clipping: Clipping
    most: jax.Array

    def __call__(self, record: Record) -> Mapping[str, Contribution]:
        """Contribution of one row."""
        return self.person(Person(jax.tree.map(lambda x: x[None], record), jnp.ones(1, bool)))

    def person(self, record: Person) -> Mapping[str, Contribution]:
        """Contribution of a person's rows."""
        rows = jax.vmap(self.model.statistic)(record.rows)
        known = record.present & (jax.vmap(self.model.known)(record.rows) == 1)
        total = jnp.sum(jnp.where(known[:, None], rows - self.clipping.centre, 0), axis=0)
        n = jnp.sum(known)
        parts = jnp.ceil(n * (_MOST / self.most)).astype(jnp.int32)
        place = jnp.where(n <= _MOST, n, _MOST + parts)
        expected = jnp.where(n > 0, self.clipping.expected[place - 1], 0)
        limit, room = self.clipping.limit, self.clipping.room
        score = room * (jnp.clip(total, -limit, limit) - expected)
        return {"sum": score, "rows": n[None].astype(score.dtype)}


def clipped_sums(
    values: jax.Array, shares: jax.Array, numbers: jax.Array, limits: jax.Array
) -> Clipped:
    """Exact moments of clipped sums of independent rows, entry by entry.

    Parameters
    ----------
    values : array of shape (P, g)
        Evenly spaced values of each entry, less its mean.
    shares : array of shape (P, g)
        Their probabilities.
    numbers : int array of shape (n,)
        Of rows, at most `_MOST`.
    limits : array of shape (n,)
        Largest absolute value of an entry, for each of them.
    """
    g = values.shape[1]
    size = 2 ** int(np.ceil(np.log2(_MOST * (g - 1) + 1)))
    transform = jnp.fft.rfft(shares, size, axis=1)
    variance = jnp.sum(shares * values**2, axis=1).clip(_TINY)
    step = (values[:, -1] - values[:, 0]) / (g - 1)

    def one(of: tuple[jax.Array, jax.Array]) -> Clipped:
        k, limit = of
        density = jnp.fft.irfft(transform**k, size, axis=1)
        sums = k * values[:, :1] + step[:, None] * jnp.arange(size)
        clipped = jnp.clip(sums, -limit, limit)
        mean = jnp.sum(density * clipped, axis=1)
        kept = jnp.sum(density * clipped * sums, axis=1) / (k * variance)
        spread = (jnp.sum(density * clipped**2, axis=1) - mean**2) / (kept**2 * k * variance)
        return Clipped(mean, kept, spread)

    return jax.lax.map(one, (numbers, limits))
