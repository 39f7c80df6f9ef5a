"""The private sum by itself: the clip is total, the noise is as accounted, every record has its chance and no more."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from whitebox import drawn

from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.contributions import Quadratic, RankOne, Scattered
from skdpbayes.mechanism.draws import draws_of_chain, undrawn
from skdpbayes.mechanism.private_sum import CHUNK, _as_number, private_sum
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.spec import MAX_SCHEDULE, Block, MechanismSpec
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.privacy import GaussianSteps

K, D = 3, 5


def traced(noise, rate):
    return MechanismSpec((GaussianSteps(noise, rate, 1),)).traced()


def summed(query, shares=(1.0,)):
    """A compiled private sum of a query with blocks 0, 1, ...: (records, clipping norms, noise, rate, seed) -> sums."""

    def blocks(norms):
        return {str(i): Block(norms[i], share) for i, share in enumerate(shares)}

    @jax.jit
    def program(records, norms, mechanism, draw):
        return private_sum(query, blocks(norms), mechanism, draw, 0, records)

    def call(records, norms=(1.0,), noise=0.0, rate=1.0, seed=0, numerics="secure"):
        spec = MechanismSpec((GaussianSteps(noise, rate, 1),), numerics=numerics)
        with jax.enable_x64(True):
            norms = tuple(np.float32(norm) for norm in norms)
            draw = drawn(query, blocks(norms), spec, records, seed)
            out = program(records, norms, jax.tree.map(jnp.asarray, spec.traced()), draw)
            return jax.tree.map(np.asarray, out)

    return call


@pytest.mark.parametrize("slots", [None, 64 * CHUNK], ids=["one by one", "many at once"])
@pytest.mark.parametrize("noise", [0.26, 0.0])
def test_sums_of_millions_are_not_cut_to_one_word(noise, slots):
    """At full length in one direction they would go round at 2^63 grid steps: here at 1 and 8 million."""
    n = 2_500_000 if noise else 9_000_000
    values = np.full((n, 2), [0.7, -0.7], np.float32)
    records = replace(pack_records(v=values), slots=slots)
    found = summed(lambda r: {"0": r["v"]})(records, noise=noise)["0"]
    np.testing.assert_allclose(found, values[0] * float(n), rtol=2e-6)


def test_a_release_does_not_tell_how_its_sum_lies_in_two_words():
    """Else it would be no function of the noisy sum, and noise would not cover it."""
    rng, number = np.random.default_rng(0), jax.jit(_as_number)
    for exponent in (20, 40, 52, 62, 75, 83):
        for _ in range(20):
            total = int(rng.integers(-(2**60), 2**60)) * 2 ** max(0, exponent - 60) + int(
                rng.integers(0, 2**32)
            )
            total = total if exponent > 60 else total >> (60 - exponent)
            with jax.enable_x64(True):
                found = {
                    float(number(jnp.int64((total - low) >> 32), jnp.int64(low)))
                    for more in (-(2**13), 0, 1, 2**10 + 1, 2**27)
                    for low in [total % 2**32 + more * 2**32]
                }
            assert found == {float(total)}


def test_rounding_does_not_grow_with_the_number_of_records():
    """In single precision a sum of a million rounds by more than one record may move it, by what came before."""
    values = np.random.default_rng(0).uniform(0.5, 1, (2**21, 1)).astype(np.float32)
    total = partial(summed(lambda r: {"0": r["v"]}), norms=(1.01,), numerics="fast")
    found = total(pack_records(v=values))["0"]
    exact = values.astype(np.float64).sum()
    assert abs(found[0] - exact) < 2e-6 * exact
    one_less = values.copy()
    one_less[2**20] = 0
    moved = found[0] - total(pack_records(v=one_less))["0"][0]
    assert abs(moved - values[2**20, 0]) <= 0.13  # the spacing of single precision there


# The clip

PLACES = np.arange(K) * 2
STRUCTURES = {
    "dense": lambda r: r["left"],
    "number": lambda r: r["left"][0],
    "one value": lambda r: r["left"][:1],
    "rank one": lambda r: RankOne(r["left"], r["right"]),
    "quadratic": lambda r: Quadratic(r["weight"], r["right"]),
    "rank one and dense": lambda r: {"a": RankOne(r["left"], r["right"]), "b": r["weight"]},
    "quadratic and dense": lambda r: {"a": Quadratic(r["weight"], r["right"]), "b": r["left"]},
    "scattered": lambda r: Scattered(PLACES, r["weight"], 2 * K),
    "scattered and dense": lambda r: {"a": Scattered(PLACES, r["weight"], 2 * K), "b": r["right"]},
    "all": lambda r: {
        "a": RankOne(r["left"], r["right"]), "b": Quadratic(r["weight"], r["right"]), "c": r["weight"], "d": r["right"],
    },
}  # fmt: skip
CLIPPED = {name: summed(lambda r, f=f: {"0": f(r)}) for name, f in STRUCTURES.items()}


def in_float64(name, record):
    """The contribution, formed in float64."""
    left, right, weight = (record[key].astype(np.float64) for key in ("left", "right", "weight"))
    outer, square = np.multiply.outer(left, right), np.einsum("ij,d,e->idje", weight, right, right)
    rows = np.zeros((2 * K, K))
    rows[PLACES] = weight
    parts = {
        "dense": [left], "number": [left[:1]], "one value": [left[:1]], "rank one": [outer], "quadratic": [square], "rank one and dense": [outer, weight],
        "quadratic and dense": [square, left], "all": [outer, square, weight, right],
        "scattered": [rows], "scattered and dense": [rows, right],
    }  # fmt: skip
    return np.concatenate([part.ravel() for part in parts[name]])


anything = st.floats(width=32) | st.sampled_from([1e-45, 1e-42, 1e-38, 1e-25, 1e-12, 1e12, 1e18, 1e30, 1e38, 3e38]).map(
    lambda v: float(np.float32(v))
)  # fmt: skip
NONE, ONES = np.zeros((K, K), "f"), np.ones((K, K), "f")
shapes = {"left": (K,), "right": (D,), "weight": (K, K)}


@pytest.mark.parametrize("name", STRUCTURES)
@settings(max_examples=20, deadline=None)
@given(
    record=st.fixed_dictionaries(
        {key: hnp.arrays(np.float32, shape, elements=anything) for key, shape in shapes.items()}
    ),
    log_norm=st.floats(-30, 30),
    numerics=st.sampled_from(["secure", "fast"]),
)
@example(
    {"left": np.full(K, 1e-12, "f"), "right": np.full(D, 1e14, "f"), "weight": NONE}, 0.0, "secure"
)
@example(
    {"left": np.full(K, 1e-12, "f"), "right": np.full(D, 1e14, "f"), "weight": ONES}, 0.0, "secure"
)
@example(
    {"left": np.ones(K, "f"), "right": np.full(D, 1e8, "f"), "weight": np.full((K, K), 1e-12, "f")},
    0.0,
    "fast",
)
@example(
    {"left": np.full(K, 1e14, "f"), "right": np.full(D, 1e-12, "f"), "weight": ONES}, 0.0, "secure"
)
@example(
    {"left": np.full(K, 1e-38, "f"), "right": np.full(D, 1e18, "f"), "weight": ONES}, 18.0, "secure"
)
@example(
    {"left": np.zeros(K, "f"), "right": np.full(D, np.inf, "f"), "weight": NONE}, 0.0, "secure"
)
def test_any_contribution_is_clipped(name, record, log_norm, numerics):
    norm = np.float32(10.0**log_norm)
    packed = pack_records(**{key: value[None] for key, value in record.items()})
    out = CLIPPED[name](packed, (norm,), numerics=numerics)["0"]
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(out)]).astype(np.float64)
    assert np.isfinite(flat).all()
    assert np.linalg.norm(flat) <= norm * (
        1 + 2.0 ** (-23 if numerics == "secure" else -20)
    )  # single precision
    with np.errstate(all="ignore"):
        truth = in_float64(name, record)
        length = np.linalg.norm(truth) / norm
        smallest = np.abs(truth[truth != 0]).min(initial=np.inf)
    if not np.isfinite(truth).all():
        assert not flat.any()
    elif 1e-4 < length < 1e4 and smallest > 1e-5 * np.abs(truth).max() and 1e-15 < norm < 1e15:
        if all(1e-8 < np.abs(value).max() < 1e8 for value in record.values()):
            np.testing.assert_allclose(
                flat, truth / max(1, length), rtol=1e-4, atol=1e-4 * norm * min(1, length)
            )


def ordinary(n, seed=0):
    rng = np.random.default_rng(seed)
    fields = {key: rng.normal(size=(n, *shape)).astype(np.float32) for key, shape in shapes.items()}
    return pack_records(**fields)


def test_structured_sums_equal_dense_sums():
    def structured(r):
        return {
            "0": RankOne(r["left"], r["right"]),
            "1": Quadratic(r["weight"], r["right"]),
            "2": Scattered(PLACES, r["weight"], 2 * K),
        }

    def dense(r):
        square = (
            r["weight"][:, None, :, None]
            * r["right"][None, :, None, None]
            * r["right"][None, None, None, :]
        )
        rows = jnp.zeros((2 * K, K)).at[PLACES].set(r["weight"])
        return {"0": jnp.outer(r["left"], r["right"]), "1": square, "2": rows}

    records, how = ordinary(700), dict(norms=(2.0, 8.0, 2.0), noise=1.0, rate=0.8)
    got, want = (summed(f, (0.5, 0.25, 0.25))(records, **how) for f in (structured, dense))
    for name, std in (
        ("0", 2.0 / 0.5**0.5),
        ("1", 8.0 / 0.25**0.5),
        ("2", 2.0 / 0.25**0.5),
    ):  # of the noise
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-3 * std)


@pytest.mark.parametrize("name", ["rank one", "quadratic"])
def test_contributions_far_below_the_clipping_norm_keep_their_digits(name):
    """A clipping norm may be a bound that no record comes near."""
    records = ordinary(200)
    record = {key: np.asarray(records.fields[key][:200], np.float64) for key in shapes}
    if name == "rank one":
        want = np.einsum("ni,nd->id", record["left"], record["right"])
    else:
        want = np.einsum("nij,nd,ne->idje", record["weight"], record["right"], record["right"])
    found = CLIPPED[name](records, (1e5,))["0"]
    np.testing.assert_allclose(found, want, atol=5e-3 * np.abs(want).max())


OF_ROWS = summed(lambda r: {"0": Scattered(r["rows"], r["values"], 6)})


def scattered(*rows, values=None):
    """Sum of one record for each list of rows, which all have the same values."""
    values = np.tile([[1.0], [2.0], [3.0]] if values is None else values, (len(rows), 1, 1)).astype(
        np.float32
    )
    return OF_ROWS(pack_records(rows=np.array(rows, np.int32), values=values), (10.0,))["0"][:, 0]


@pytest.mark.parametrize(
    "rows",
    [
        [2, 2, 4],
        [0, 4, 4],
        [3, 1, 5],
        [0, 5, 1],
        [-1, 2, 3],
        [-7, -6, -5],
        [2**31 - 1, -(2**31), 0],
        [6, 0, 1],
        [4, 6, 5],
    ],
    ids=str,
)
def test_rows_that_are_not_in_increasing_order_contribute_nothing(rows):
    """Values at rows that repeat add up, so that their sum is longer than they; negative rows count from the end."""
    good = [0, 2, 5]
    assert not scattered(rows).any()
    np.testing.assert_array_equal(scattered(good, rows, good), scattered(good, good))


def test_what_is_at_unused_rows_is_not_added_and_is_not_free():
    np.testing.assert_allclose(scattered([1, 6, 6]), [0, 1, 0, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(scattered([1, 7, 8]), [0, 1, 0, 0, 0, 0], rtol=1e-5)
    long = scattered([1, 6, 6], values=[[3.0], [40.0], [0.0]])
    np.testing.assert_allclose(long[1], 10 * 3 / np.hypot(3, 40), rtol=1e-5)
    assert not scattered([1, 6, 6], values=[[3.0], [np.nan], [0.0]]).any()


def test_a_scattered_record_that_is_not_sampled_adds_nothing():
    values = np.array([[[1.0]], [[np.nan]], [[np.inf]]], np.float32)
    records = Records({"rows": np.array([[1], [2], [3]], np.int32), "values": values}, np.int32(1))
    np.testing.assert_allclose(OF_ROWS(records, (10.0,))["0"][:, 0], [0, 1, 0, 0, 0, 0], rtol=1e-5)


class Generic:
    """A logistic regression without closed forms."""

    def __init__(self, model):
        self.log_likelihood = model.log_likelihood


def test_closed_forms_equal_the_generic_path():
    from skdpbayes.models.base import curvature, score

    model = LogisticRegression(D, K, np.ones(D, np.float32))
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(K, D)), jnp.float32)
    rng = np.random.default_rng(2)
    records = pack_records(
        x=rng.normal(size=(500, D)).astype(np.float32),
        y=rng.integers(-1, K + 1, 500).astype(np.int32),
    )

    def query(m):
        return lambda r: {"0": score(m, theta, r), "1": curvature(m, theta, r)}

    how = dict(norms=(1.0, 1.0), noise=1.0, rate=0.7)
    got, want = (summed(query(m), (0.9, 0.1))(records, **how) for m in (model, Generic(model)))
    for name in want:
        np.testing.assert_allclose(np.ravel(got[name]), np.ravel(want[name]), rtol=1e-4, atol=1e-3)


# Several blocks are one release

TWO_BLOCKS = summed(lambda r: {"0": 1e9 * r["v"], "1": -1e9 * r["w"]}, (0.8, 0.2))


def test_one_record_moves_all_blocks_together_by_at_most_one():
    record = pack_records(v=np.ones((1, 500), np.float32), w=np.ones((1, 500), np.float32))
    norms = (3.0, 0.01)
    out = TWO_BLOCKS(record, norms)
    lengths = [np.linalg.norm(out[str(i)].astype(np.float64)) / norms[i] for i in range(2)]
    assert max(lengths) <= 1 + 1e-7 and min(lengths) > 0.999


def test_noise_of_each_block_follows_its_share_and_is_its_own():
    null = pack_records(v=np.zeros((1, 500), np.float32), w=np.zeros((1, 500), np.float32))
    norms, noise, steps = (3.0, 0.01), 1.3, 40
    out = [TWO_BLOCKS(null, norms, noise=noise, seed=step) for step in range(steps)]
    scaled = [np.concatenate([o[str(i)] for o in out]) / noise / norms[i] for i in range(2)]
    for draws, share in zip(scaled, (0.8, 0.2), strict=True):
        squares = np.sum(draws.astype(np.float64) ** 2) * share
        assert 1e-8 < stats.chi2.cdf(squares, draws.size) < 1 - 1e-8
        assert len(np.unique(draws)) > 0.99 * draws.size
    correlation = np.corrcoef(*scaled)[0, 1]
    assert abs(correlation) < 6 / math.sqrt(500 * steps)


@pytest.mark.parametrize("shares", [(0.8, 0.3), (1.0, 1e-6), (1.0, 1e-10), (1.0, 0.0), (1.2, -0.2)])
def test_shares_that_are_not_a_budget_are_refused(shares):
    with pytest.raises(ValueError, match="Budget shares must be positive and sum to at most 1"):
        summed(lambda r: {"0": r["left"], "1": r["right"]}, shares)(ordinary(3), (1.0, 1.0))


def test_blocks_that_were_not_declared_are_refused():
    with pytest.raises(ValueError, match=r"returned blocks \['0', '1'\], declared are \['0'\]"):
        summed(lambda r: {"0": r["left"], "1": r["right"]})(ordinary(3))


# Batches

SIZE = 1024
INCLUDED = summed(lambda r: {"0": (jnp.arange(SIZE) == r["i"]).astype(jnp.float32)})


def records_up_to(n):
    return Records({"i": np.arange(SIZE, dtype=np.int32)}, np.int32(n))


def test_full_batches_use_each_record_exactly_once():
    for n in (
        1,
        63,
        64,
        65,
        CHUNK - 1,
        CHUNK,
        CHUNK + 1,
        2 * CHUNK - 1,
        2 * CHUNK,
        2 * CHUNK + 1,
        SIZE,
    ):
        np.testing.assert_allclose(
            INCLUDED(records_up_to(n))["0"], np.arange(SIZE) < n, atol=1e-3, err_msg=str(n)
        )


def test_an_empty_batch_is_pure_noise():
    noise = INCLUDED(records_up_to(0), noise=2.0, rate=1e-6)["0"]
    assert 1e-8 < stats.chi2.cdf(np.sum(noise.astype(np.float64) ** 2) / 4, SIZE) < 1 - 1e-8
    np.testing.assert_array_equal(INCLUDED(records_up_to(SIZE), noise=2.0, rate=1e-6)["0"], noise)


def test_batches_of_several_chunks_have_the_records_that_were_drawn():
    mask = np.stack([INCLUDED(records_up_to(1000), rate=0.6, seed=t)["0"] for t in range(20)]) > 0.5
    assert mask.sum(axis=1).min() > CHUNK + 100 and not mask[:, 1000:].any()
    assert stats.binomtest(int(mask.sum()), 20 * 1000, 0.6).pvalue > 1e-7


# Specification


def test_schedules_hold_up_to_their_boundaries():
    pieces = (GaussianSteps(2.0, 0.1, 3), GaussianSteps(1.0, 0.1, 1), GaussianSteps(5.0, 0.1, 4))
    spec = MechanismSpec(pieces)
    mechanism = spec.traced()
    got = [float(mechanism.noise_multiplier(step)) for step in range(9)]
    assert got == [2, 2, 2, 1, 5, 5, 5, 5, math.inf]
    assert spec.n_steps == mechanism.n_steps == 8
    assert MechanismSpec(pieces, n_chains=3).composed() == pieces * 3


def test_a_full_schedule_fits_and_a_longer_one_is_refused():
    pieces = tuple(GaussianSteps(1.0 + i, 0.1, 2) for i in range(MAX_SCHEDULE))
    mechanism = MechanismSpec(pieces).traced()
    assert float(mechanism.noise_multiplier(2 * MAX_SCHEDULE - 1)) == MAX_SCHEDULE
    with pytest.raises(ValueError, match=f"at most {MAX_SCHEDULE} pieces, got {MAX_SCHEDULE + 1}"):
        MechanismSpec((*pieces, GaussianSteps(1.0, 0.1, 1))).traced()


def test_no_noise_multiplier_is_below_what_is_charged():
    for noise in (1.1, 1 / 3, 1e-3, 1e-60, 7e-46):
        assert np.finfo(np.float32).tiny <= np.float64(traced(noise, 1.0).sigmas[0]) >= noise
    assert traced(0.0, 1.0).sigmas[0] == 0


def test_each_step_of_a_schedule_has_its_own_noise():
    """The grid follows the noise, whose integers are of one law."""
    pieces = tuple(GaussianSteps(sigma, 1.0, 1) for sigma in (2.0, 0.3, 70.0))
    spec, blocks = MechanismSpec(pieces), {"0": Block(np.float32(5.0), 0.5)}
    records = jax.tree.map(jnp.asarray, pack_records(v=np.zeros((1, 4000), np.float32)))
    with jax.enable_x64(True):
        mechanism = jax.device_put(spec.traced())
        for step, piece in enumerate(pieces):
            draw = drawn(lambda r: {"0": r["v"]}, blocks, spec, records, step)
            out = private_sum(lambda r: {"0": r["v"]}, blocks, mechanism, draw, step, records)["0"]
            scaled = np.asarray(out, float) / (piece.noise_multiplier * 5.0 / 0.5**0.5)
            assert 1e-7 < stats.chi2.cdf(np.sum(scaled**2), scaled.size) < 1 - 1e-7


@pytest.mark.parametrize("missing", [1, 3])  # in the last place, and without a place
@pytest.mark.parametrize("numerics", ["secure", "fast"])
def test_a_release_for_which_too_little_noise_was_drawn_is_not_a_number(numerics, missing):
    spec, blocks = (
        MechanismSpec((GaussianSteps(1.0, 1.0, 1),), numerics=numerics),
        {"0": Block(np.float32(1.0))},
    )
    records = jax.tree.map(jnp.asarray, pack_records(v=np.ones((3, 10), np.float32)))
    with jax.enable_x64(True):
        sizes = np.array([10 - missing])
        (draws,) = draws_of_chain(bytes(32), bytes(32), spec, sizes, [0, 3], 64)
        draw = jax.tree.map(jnp.asarray, draws).at(0)
        if missing == 1:
            draw = draw._replace(noise=jnp.append(draw.noise, undrawn(draw.noise.dtype)))
        out = private_sum(
            lambda r: {"0": r["v"]}, blocks, jax.device_put(spec.traced()), draw, 0, records
        )["0"]
    assert np.isnan(out).all()


def test_rates_too_small_for_the_sampler_are_refused():
    with pytest.raises(ValueError, match="sampling_rate must be at least 1e-06, got 1e-07"):
        traced(1.0, 1e-7)


def test_rates_that_differ_are_refused():
    pieces = (GaussianSteps(2.0, 0.1, 3), GaussianSteps(2.0, 0.2, 3))
    with pytest.raises(ValueError, match="must share one sampling rate"):
        MechanismSpec(pieces).traced()
