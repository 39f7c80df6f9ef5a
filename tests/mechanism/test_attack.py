"""What the last bits of a release tell: much in floating point, nothing on the integer grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from whitebox import drawn

from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.contributions import Quadratic, RankOne, Scattered
from skdpbayes.mechanism.grid import Grid, put_on_grid
from skdpbayes.mechanism.private_sum import CHUNK, private_sum
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.privacy import GaussianSteps

SIGMA, N_VALUES = np.float32(1.5), 4096


def release(x, numerics, seed):
    """Noisy sum of one record, clipped to norm one, and grid steps in one."""

    def query(record):
        return {"sum": record["x"]}

    blocks, records = {"sum": Block(np.float32(1.0))}, pack_records(x=x[None].astype(np.float32))
    spec = MechanismSpec((GaussianSteps(float(SIGMA), 1.0, 1),), numerics=numerics)
    with jax.enable_x64(True):
        traced = jax.device_put(spec.traced())
        draw = drawn(query, blocks, spec, records, seed)
        out = private_sum(query, blocks, traced, draw, 0, jax.device_put(records))["sum"]
        return np.asarray(out), None if spec.levels is None else float(traced.units(0, 1.0))


def impossible(values, sums, units):
    """Share of released values that no noise whatever gives with these sums."""
    if units is None:  # noise is a number in single precision, rounded with the sum
        noise = ((values.astype(np.float64) - sums) / SIGMA).astype(np.float32)

        def of(noise):
            return (sums + np.float64(SIGMA) * noise).astype(np.float32)
    else:  # an integer
        noise = np.rint(values.astype(np.float64) * units).astype(np.int64) - np.rint(
            sums * units
        ).astype(np.int64)

        def of(noise):
            return (
                (noise + np.rint(sums * units).astype(np.int64)) * (np.float64(1) / units)
            ).astype(np.float32)

    reached, up, down = of(noise) == values, noise, noise
    for _ in range(8):
        if units is None:
            up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))
        else:
            up, down = up + 1, down - 1
        reached |= (of(up) == values) | (of(down) == values)
    return 1 - reached.mean()


def test_an_adversary_who_knows_the_other_rows_reads_the_last_bits_of_floats_alone():
    nothing = np.zeros(N_VALUES)
    fast, _ = release(nothing, "fast", 1)
    secure, units = release(nothing, "secure", 1)
    assert (
        impossible(fast, nothing, None) == impossible(secure, nothing, units) == 0
    )  # what happened is possible
    told = impossible(fast, nothing + 0.7, None)
    print(
        f"Excluded for certain: fast {told:.0%}, secure {impossible(secure, nothing + 0.7, units):.0%}"
    )
    assert told > 0.2
    assert impossible(secure, nothing + 0.7, units) == 0


K, D = 2, 5
KINDS = {
    "dense": lambda r: r["left"],
    "rank one": lambda r: RankOne(r["left"], r["right"]),
    "quadratic": lambda r: Quadratic(r["weight"], r["right"]),
    "own vector": lambda r: RankOne(r["left"], r["own"], Grid(r["scale"], r["length"])),
    "scattered": lambda r: Scattered(jnp.array([1, 4]), r["weight"], 6),
    "all": lambda r: [
        RankOne(r["left"], r["right"]),
        Quadratic(r["weight"], r["right"]),
        r["left"],
    ],
}


def some_records(n, seed=0):
    """Records of very different lengths: on the bound, far below it, and beyond."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-6, 8, n)
    shapes = {"left": (K,), "right": (D,), "weight": (K, K)}
    fields = {
        name: (rng.normal(size=(n, *shape)) * size.reshape((-1,) + (1,) * len(shape))).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
    own = fields["right"].copy()
    return fields | {"own": own} | put_on_grid(own)._asdict()


@pytest.fixture(scope="module")
def summed():
    """For each kind, a compiled integer sum of a batch."""
    return {
        kind: jax.jit(lambda batch, included, units, f=f: mechanism._clipped_sum(
            jax.vmap(f)(batch), jnp.float32(0.7), included, units, exact=True))
        for kind, f in KINDS.items()
    }  # fmt: skip


def flat(tree):
    return [int(x) for leaf in jax.tree.leaves(tree) for x in np.ravel(leaf)]


@pytest.mark.parametrize("units", [2.0**43, 1.7e12, 3e9, 12345.6])
@pytest.mark.parametrize("kind", KINDS)
def test_no_record_is_longer_than_the_clipping_norm_in_exact_arithmetic(kind, units, summed):
    n = 64
    with jax.enable_x64(True):
        some = some_records(n)
        batch, longest = jax.device_put(some), 0.0
        least = 0.99 if units > 1e9 else 0.7
        if kind == "own vector" and units < 2**16:  # a step of its grid is longer
            least = -1.0
        for i in range(n):
            square = sum(
                x * x for x in flat(summed[kind](batch, jnp.arange(n) == i, jnp.float64(units)))
            )
            assert square <= units**2
            longest = max(longest, square**0.5 / units)
            if (
                min(np.linalg.norm(some[name][i]) for name in ("left", "right", "weight")) > 10
            ):  # far too long: as long as may be
                assert square**0.5 / units > least
        assert longest > (0.999 if units > 1e9 else min(0.9, least))


@pytest.mark.parametrize("size", [64, 4096])
def test_records_with_more_entries_than_rounding_leaves_room_for_count_as_zero(size):
    """Half a grid step in each of many entries is longer than a clipping norm of few steps."""
    one = jnp.zeros((1, size), jnp.float32).at[0, 0].set(1)
    with jax.enable_x64(True):
        for rows in (jnp.ones((1, size), jnp.float32), one, -one):
            for share in (
                0.01,
                0.1,
                0.49,
            ):  # of the root of the number of entries, of which rounding takes a half
                units = jnp.float64(share * size**0.5)
                total = mechanism._clipped_sum(
                    rows, jnp.float32(1.0), jnp.ones(1, bool), units, exact=True
                )
                assert not np.any(total)
            total = mechanism._clipped_sum(
                rows, jnp.float32(1.0), jnp.ones(1, bool), 40 * units, exact=True
            )
            assert 0 < np.linalg.norm(total) <= 40 * units


def test_sums_of_the_longest_records_are_exact():
    """As many as a chunk has, all in one direction, at the finest grid."""
    units, rng = 2.0**43 * 0.999, np.random.default_rng(2)
    values = (1 - 1e-3 * rng.random((CHUNK, 1))).astype(np.float32)
    with jax.enable_x64(True):
        norm = jnp.float32(values.max())
        one = jax.jit(
            lambda x: mechanism._clipped_sum(
                x, norm, jnp.ones(len(x), bool), jnp.float64(units), exact=True
            )
        )
        each = [int(one(values[i : i + 1])[0]) for i in range(CHUNK)]
        assert int(one(values)[0]) == sum(each) > 2**51


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_exact_and_records_do_not_see_where_they_stand(kind, summed):
    """The sum of a batch is that of its records, to the last digit, in every order and with any of them left out."""
    n, rng = CHUNK, np.random.default_rng(1)
    with jax.enable_x64(True):
        batch, units = some_records(n, 3), jnp.float64(1.7e12)
        total = np.array(flat(summed[kind](batch, jnp.ones(n, bool), units)), object)
        for _ in range(3):
            order = rng.permutation(n)
            moved = {name: field[order] for name, field in batch.items()}
            np.testing.assert_array_equal(
                flat(summed[kind](moved, jnp.ones(n, bool), units)), total
            )
        shifted = {
            name: np.concatenate([field[5:], 0 * field[:5]]) for name, field in batch.items()
        }
        first = flat(summed[kind](batch, jnp.arange(n) < 5, units))
        rest = flat(summed[kind](shifted, jnp.arange(n) < n - 5, units))
        np.testing.assert_array_equal(np.array(first, object) + np.array(rest, object), total)
