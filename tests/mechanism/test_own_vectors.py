"""Vectors on a grid: rounded once, each by itself; no query can claim another grid."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from whitebox import drawn, in_one

from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.contributions import RankOne
from skdpbayes.mechanism.grid import Grid, peaks, put_on_grid
from skdpbayes.mechanism.private_sum import partial_sums
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.privacy import GaussianSteps

MOST = np.finfo(np.float32).max


def some_vectors(d):
    rng = np.random.default_rng(d)
    some = rng.normal(size=(40, d)) * 10.0 ** rng.uniform(-30, 30, (40, 1))
    some *= 10.0 ** rng.uniform(-8, 0, some.shape)
    odd = [0, 1, -1, MOST, -MOST, np.nextafter(np.float32(2), 0), 1e-45, 1e-38, 3e-31, 2.0**-100]
    odd = np.array([*odd, np.nan, np.inf, -np.inf])
    spread = np.where(np.arange(d) == 0, odd[:, None], rng.normal(size=(len(odd), d)))
    with np.errstate(over="ignore"):
        all_ = np.concatenate([some, np.repeat(odd[:, None], d, axis=1), spread])
        return all_.astype(np.float32)


@pytest.mark.parametrize("d", [1, 2, 5, 105, 1000])
def test_vectors_are_on_their_grid(d):
    vectors = some_vectors(d)
    ours = vectors.copy()
    scale, length = put_on_grid(ours)
    assert np.isfinite(ours).all() and (np.frexp(scale)[0] == 0.5).all()
    finite = np.isfinite(vectors).all(axis=1)
    np.testing.assert_array_equal(np.isnan(length), ~finite)
    assert not ours[~finite].any()
    some = (of_each[finite] for of_each in (vectors, ours, scale, length))
    for was, own, one, norm in zip(*some, strict=True):
        steps = [Fraction(float(x)) * Fraction(float(one)) for x in own]
        assert all(step.denominator == 1 for step in steps)
        square = sum(step * step for step in steps)
        assert square <= 2**32
        exact = square / Fraction(float(one)) ** 2
        if np.isinf(norm):
            assert exact > Fraction(float(MOST)) ** 2
            continue
        assert exact <= Fraction(float(norm)) ** 2 <= exact * (1 + Fraction(1, 2**21))
        peak = np.abs(was).max()
        if peak >= 2.0**-100:  # within half a step, but for the largest, which may lose one
            assert np.abs(own.astype(float) - was).max() <= 1 / one
            assert square >= 2**28 or d > 1
        else:
            assert not own.any() and norm == 0


def test_each_vector_is_rounded_by_itself_and_once():
    vectors = some_vectors(7)
    together = vectors.copy()
    grid = put_on_grid(together)
    for i in range(len(vectors)):
        alone = vectors[i : i + 1].copy()
        own = put_on_grid(alone)
        np.testing.assert_array_equal(alone[0], together[i])
        np.testing.assert_array_equal(own, [of_each[i : i + 1] for of_each in grid])
    again = together.copy()
    put_on_grid(again)
    np.testing.assert_array_equal(again, together)


def test_few_digits_stay_as_they_are():
    X = np.array([[1, 0, -3, 0.5], [0, 0, 1, 0], [0.25, 100, 7, 1]], np.float32)
    ours = X.copy()
    put_on_grid(ours)
    np.testing.assert_array_equal(ours, X)


FORGED = Grid(jnp.float32(1), jnp.float32(1e-3))  # claims that the vector is short
QUERIES = {
    "own": lambda r: RankOne(r["y"], r["x"]),
    "own, forged": lambda r: RankOne(r["y"], r["x"], FORGED),
    "of another": lambda r: RankOne(r["y"], 3 * r["x"], r["grid"]),
    "forged": lambda r: RankOne(r["y"], r["x"][::-1], FORGED),
    "nested": lambda r: [RankOne(r["y"], r["x"] + 0.1, FORGED), r["y"]],
}


@pytest.mark.parametrize("numerics", slow_but(["secure", "fast"], "secure"))
def test_only_a_records_own_vector_has_its_grid(numerics, monkeypatch):
    """Whatever grid a query claims, no record adds more than the clipping norm."""

    def longest(query):
        spec = MechanismSpec((GaussianSteps(1.0, 1.0, 1),), numerics=numerics)
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(12, 4)), 30 * rng.normal(size=(12, 2))
        worst = 0.0
        blocks = {"sum": Block(np.float32(0.5))}
        with jax.enable_x64(True):
            traced = jax.device_put(spec.traced())
            units = float(traced.units(0, 1.0))

            @jax.jit
            def sums(draw, records):
                return in_one(partial_sums(asked, blocks, traced, draw, 0, records))

            def asked(record):
                return {"sum": query(record)}

            for i in range(len(X)):
                fields = {"x": X[[i]].astype(np.float32), "y": y[[i]].astype(np.float32)}
                records = pack_records(**fields, on_grid=True)
                found = sums(drawn(asked, blocks, spec, records, 0), jax.device_put(records))
                parts = [np.ravel(leaf) for leaf in jax.tree.leaves(found)]
                worst = max(worst, np.linalg.norm(np.concatenate(parts)) / units)
        return worst

    for query in QUERIES.values():
        assert 0.99 < longest(query) <= 1 + (numerics == "fast") * 1e-6  # floats are rounded
    # A mutant that believes what a query claims is found.
    monkeypatch.setattr(mechanism, "_with_own_grids", lambda query: query)
    assert not longest(QUERIES["forged"]) <= 1  # longer, or not a number


def test_sums_are_those_of_vectors_that_were_rounded_before():
    """With and without a grid a sum is that of the same numbers, up to rounding."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(500, 6)).astype(np.float32), rng.normal(size=(500, 3))
    spec, blocks = MechanismSpec((GaussianSteps(0.0, 1.0, 1),)), {"sum": Block(np.float32(2.0))}

    def query(record):
        return {"sum": RankOne(record["y"], record["x"])}

    def summed(on_grid):
        records = pack_records(x=X.copy(), y=y.astype(np.float32), on_grid=on_grid)
        with jax.enable_x64(True):
            traced = jax.device_put(spec.traced())
            draw = drawn(query, blocks, spec, records, 0)
            found = partial_sums(query, blocks, traced, draw, 0, jax.device_put(records))
            sums = in_one(found)["sum"]
            return np.asarray(sums) / float(traced.units(0, 1.0)) * 2.0

    norm = np.linalg.norm(X, axis=1) * np.linalg.norm(y, axis=1)
    exact = (y * np.minimum(1, 2 / norm)[:, None]).T @ X
    np.testing.assert_allclose(summed(True), exact, atol=2e-3)
    np.testing.assert_allclose(summed(False), exact, atol=2e-3)


@pytest.mark.parametrize("d", [0, 1, 20, 64, 65])
def test_peaks_of_narrow_and_of_wide_vectors(d: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((9000, d)).astype(np.float32)
    if d:
        places = rng.integers(0, d, 3000)
        vectors[np.arange(3000), places] = rng.choice([np.nan, np.inf, -np.inf], 3000)
    if d:
        vectors.view(np.uint32)[3000, 0] = 0x7F800001  # a signalling NaN
    with np.errstate(all="raise"):
        found = peaks(vectors)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.abs(vectors).max(axis=1, initial=0))
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(vectors).all(axis=1))
