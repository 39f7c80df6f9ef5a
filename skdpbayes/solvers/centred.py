"""Release of the sums of a family's statistics where records are persons of several rows.

Statistics of rows do not cancel, so that a sum of m is m times as long as one. About their mean
they are scores, which do: the noise of their sums grows with the root of m alone. So there are two
releases. The first, of the mean over each person's rows, finds a centre c. The second is of

    clip(sum_j (t(x_j) - c)) - E clip(sum_j (t(x_j) - c))

of each person, entry by entry, beside the number of their rows. The expectation, of as many
independent rows whose mean is c, is exact (`clipped_sums`). So clipping moves no estimate: what is
released has mean zero if c is the truth. Otherwise it is ``kept * n (mean - c)``, by the slope
`kept` of clipped sums, which gives the sum of n rows and, of that, the exact posterior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.mechanism.records import Person
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import NORM, CentredModel, single
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.posteriors.conjugate import CountedPosterior
from skdpbayes.solvers.base import Point, Round, Scales, Sums

FIRST_SHARE = 0.2  # of the budget, for the centre
SHORTER = 0.85  # norm of a row in a sum, over the bound on its statistic: noise is smaller
_COUNT_SHARE = 0.05  # of a release, for the number of persons or of rows
_MOST = 32  # rows whose sums are computed exactly; more are taken as so many parts of a person
_TINY = 1e-30


class Clipped(NamedTuple):
    """Clipped sums of k rows about their mean, k = 1, ..., `_MOST`."""

    mean: jax.Array  # (_MOST, P)
    kept: jax.Array  # slope of the mean, over that of the sums themselves, (_MOST, P)


class Centred(NamedTuple):
    """State; every entry is a function of the releases and public values."""

    centre: jax.Array  # (P,)
    total: jax.Array  # second release, (P,)
    scale: jax.Array  # standard deviation of its noise
    rows: jax.Array  # released number of rows
    rows_scale: jax.Array
    persons: jax.Array  # released number of persons with rows


@jax.tree_util.register_dataclass
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
        return Centred(zeros, zeros, zero, zero, zero, zero)

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: the means, then the sums."""
        return jnp.minimum(step, 1).astype(jnp.int32)

    def rounds(self, model: CentredModel, mechanism: Mechanism) -> tuple[Round[Centred], ...]:
        """The two releases."""
        norm, most = jnp.asarray(self.clipping_norm, jnp.float32), mechanism.most_rows
        half = self.clipping_norm / model.n_statistics**0.5  # of the range of an entry
        # Without noise nothing is clipped: about a mean, entries are as long as the whole range.
        short = jnp.where(jnp.asarray(mechanism.sigmas)[0] > 0, jnp.float32(SHORTER), 2)

        def means(record: Record) -> Mapping[str, Contribution]:
            return {"mean": model.statistic(record), "persons": model.known(record)[None]}

        def find_centre(
            state: Centred, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> Centred:
            del point, step
            total, persons = (estimate[x].astype(float) for x in ("mean", "persons"))
            persons = jnp.maximum(persons[0], jnp.maximum(2 * scales["persons"], 1))
            variance = (scales["mean"].astype(float) / persons) ** 2
            # That of a uniform distribution on the range, whose centre is zero.
            prior = half**2 / 3
            centre = total / persons * prior / (prior + variance)
            return state._replace(centre=jnp.clip(centre, *model.range_of_means()), persons=persons)

        def query_of(state: Centred) -> tuple[PersonQuery, jax.Array]:
            """Query of the second release, and what clipped sums of its rows keep."""
            longest = mechanism.norm_of_record(short * half, "statistic")
            own = clipped_sums(
                *model.rows_about(state.centre), longest * jnp.sqrt(jnp.minimum(1, _MOST / most))
            )
            # With its expectation taken off, a sum may be longer by that.
            held = jnp.arange(_MOST) < most  # numbers of rows that occur
            room = 1 / (1 + jnp.max(jnp.abs(own.mean) * held[:, None]) / longest)
            numbers = single((state.centre, own.mean, longest, room))  # the same on all devices
            return PersonQuery(model, *numbers, jnp.asarray(most)), own.kept

        def learn_sums(
            state: Centred, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> Centred:
            del point, step
            query, kept = query_of(state)
            rows = jnp.clip(estimate["rows"].astype(float)[0], 1, self.n_records)
            each = jnp.clip(rows / state.persons, 1, most)  # of a mean person
            kept = jax.vmap(jnp.interp, (None, None, 1))(
                each * jnp.minimum(1, _MOST / most), jnp.arange(1.0, _MOST + 1), kept
            )
            return state._replace(
                total=estimate["sum"].astype(float) / (query.room * kept),
                scale=scales["sum"].astype(float) / (query.room * jnp.sqrt(jnp.mean(kept**2))),
                rows=estimate["rows"].astype(float)[0],
                rows_scale=scales["rows"].astype(float),
            )

        return (
            Round(
                point=lambda state, key: (),
                query=lambda state, point: means,
                blocks=lambda state: {
                    "mean": Block(norm, 1 - _COUNT_SHARE, "mean"),
                    "persons": Block(NORM, _COUNT_SHARE, "mean"),
                },
                update=find_centre,
            ),
            Round(
                point=lambda state, key: (),
                query=lambda state, point: query_of(state)[0],
                blocks=lambda state: {
                    "sum": Block(short * NORM * norm, 1 - _COUNT_SHARE, "statistic"),
                    "rows": Block(NORM, _COUNT_SHARE, "weight"),
                },
                update=learn_sums,
            ),
        )

    def posterior(self, model: CentredModel, state: Centred) -> Any:
        """The exact posterior given the sums of all rows: a mixture over their number."""
        told = jax.tree.map(np.asarray, state)
        return CountedPosterior.given(
            lambda n: model.noisy_posterior(told.total + n * told.centre, float(told.scale), n),
            float(told.rows),
            float(told.rows_scale),
            int(self.n_records),
        )

    def diagnostics(self, model: CentredModel, state: Centred, posterior: Any) -> dict[str, Any]:
        """The standard deviation of the noise in each sum."""
        del model, posterior
        return {"noise_std": float(state.scale)}


@dataclass(frozen=True)
class PersonQuery:
    """Second release of a record: a person, or one row."""

    model: CentredModel
    centre: jax.Array
    expected: jax.Array  # of clipped sums, by number of rows, (_MOST, P)
    limit: jax.Array  # of an entry
    room: jax.Array  # factor of all
    most: jax.Array

    def __call__(self, record: Record) -> Mapping[str, Contribution]:
        """Contribution of one row."""
        return self.person(Person(jax.tree.map(lambda x: x[None], record), jnp.ones(1, bool)))

    def person(self, record: Person) -> Mapping[str, Contribution]:
        """Contribution of a person's rows."""
        rows = jax.vmap(self.model.statistic)(record.rows)
        known = record.present & (jax.vmap(self.model.known)(record.rows) == 1)
        total = jnp.sum(jnp.where(known[:, None], rows - self.centre, 0), axis=0)
        n = jnp.sum(known)
        place = jnp.ceil(n * jnp.minimum(1, _MOST / self.most)).astype(jnp.int32)
        expected = jnp.where(n > 0, self.expected[place - 1], 0)
        score = self.room * (jnp.clip(total, -self.limit, self.limit) - expected)
        return {"sum": score, "rows": n[None].astype(score.dtype)}


def clipped_sums(values: jax.Array, shares: jax.Array, limit: jax.Array) -> Clipped:
    """Exact moments of clipped sums of independent rows, entry by entry.

    Parameters
    ----------
    values : array of shape (P, g)
        Evenly spaced values of each entry, less its mean.
    shares : array of shape (P, g)
        Their probabilities.
    limit : float
        Largest absolute value of an entry.
    """
    g = values.shape[1]
    size = 2 ** int(np.ceil(np.log2(_MOST * (g - 1) + 1)))
    transform = jnp.fft.rfft(shares, size, axis=1)
    variance = jnp.sum(shares * values**2, axis=1).clip(_TINY)
    step = (values[:, -1] - values[:, 0]) / (g - 1)

    def of(k: jax.Array) -> tuple[jax.Array, jax.Array]:
        density = jnp.fft.irfft(transform**k, size, axis=1)
        sums = k * values[:, :1] + step[:, None] * jnp.arange(size)
        clipped = jnp.clip(sums, -limit, limit)
        mean = jnp.sum(density * clipped, axis=1)
        return mean, jnp.sum(density * clipped * sums, axis=1) / (k * variance)

    return Clipped(*jax.lax.map(of, jnp.arange(1, _MOST + 1)))
