"""Integer noise has the discrete normal law, to the last bit of its tables; the grid keeps what it says."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from skdpbayes.mechanism import integer_noise as lattice
from skdpbayes.mechanism.draws import noise_of_steps
from skdpbayes.mechanism.integer_noise import integer_noise, levels_for, noise_std, overhead
from skdpbayes.mechanism.on_device import columns, integer_noise_of


@pytest.fixture(scope="module")
def mass():
    return lattice.masses()


def test_masses_are_those_of_the_discrete_normal_law(mass):
    """To 2^-112 in all, where a double has 2^-53: exact ratios of neighbours tell what a float cannot."""
    half = lattice.ENTRIES // 2
    assert sum(mass) == 2**128 and len(mass) == 2 * half
    assert mass[half + 1 :] == mass[half - 1 : 0 : -1]
    decimal = pytest.importorskip("decimal")
    context = decimal.Context(prec=60)
    for k in (1, 2, 1000, 2048, 5000, 9000):
        ratio = context.exp(context.divide(decimal.Decimal(-k * k), decimal.Decimal(2 * 2048**2)))
        found = context.divide(decimal.Decimal(mass[half + k]), decimal.Decimal(mass[half]))
        # the middle has what rounding left, less than one unit of each entry
        assert (
            abs(found / ratio - 1)
            < decimal.Decimal(2 * half) / mass[half + k] + decimal.Decimal(10) ** -50
        )


def test_the_table_stands_for_the_masses(mass):
    """Each entry's own columns and those that name it as alias add up to its mass, exactly."""
    table, capacity = lattice.table(), 2**112
    total = [0] * lattice.ENTRIES
    for i, (high, low, alias) in enumerate(zip(table.high, table.low, table.alias, strict=True)):
        threshold = (int(high) << 48) | int(low)
        total[i] += threshold
        total[int(alias) + lattice.ENTRIES // 2] += capacity - threshold
    assert total == mass


def made(words, levels):
    """A variable of given words, by the host; a device makes the same."""
    words = np.array([*words, *[0] * (8 - len(words))], np.uint64)
    (noise,) = integer_noise(words[None], levels)
    with jax.enable_x64(True):
        halves = jnp.asarray(words.view(np.uint32)[:, None])
        known = jnp.asarray(columns())
        assert integer_noise_of(tuple(halves), jnp.int32(levels), lambda *at: known[at]) == noise
    return noise


def test_a_draw_compares_all_bits_of_the_threshold():
    table, half = lattice.table(), lattice.ENTRIES // 2
    column = int(
        np.flatnonzero(
            (table.alias != np.arange(-half, half)) & (table.low > 5) & (table.high > 5)
        )[0]
    )
    high, low, own = int(table.high[column]), int(table.low[column]), column - half

    def drawn(word, rest):
        return made([word, rest << 16 | column], levels=1)

    most = 2**48 - 1
    assert drawn(high - 1, most) == own != table.alias[column]
    assert drawn(high + 1, 0) == table.alias[column]
    assert drawn(high, low - 1) == own
    assert drawn(high, low) == table.alias[column]


def test_ties_are_those_of_their_own_variables():
    """Of many variables at once, whose bits agree with a threshold's up to some place or to the last."""
    table, rng = lattice.table(), np.random.default_rng(0)
    words = rng.integers(0, 2**64, (3000, lattice.WORDS), np.uint64)
    column = (words[:, 1::2] & np.uint64(lattice.ENTRIES - 1)).astype(int)
    for agree in (16, 48, 64):
        below = np.uint64(2 ** (64 - agree) - 1)
        own = rng.random(column.shape) < 0.2
        words[:, ::2] = np.where(
            own, table.high[column] & ~below | words[:, ::2] & below, words[:, ::2]
        )
    for levels in (1, 2, 3, 4):
        expected = []
        for row, places in zip(words.tolist(), column.tolist(), strict=True):
            x = 0
            for level in range(levels):
                k = places[level]
                threshold = int(table.high[k]) << 48 | int(table.low[k])
                below = (row[2 * level] << 48 | row[2 * level + 1] >> 16) < threshold
                x = x * lattice.RADIX + (k - lattice.ENTRIES // 2 if below else int(table.alias[k]))
            expected.append(x)
        np.testing.assert_array_equal(lattice.integer_noise(words, levels), expected)


def test_levels_are_digits_of_their_own():
    """Each has its own column and its own word, some above and some below the column's threshold."""
    table, half = lattice.table(), lattice.ENTRIES // 2
    other = np.flatnonzero((table.alias != np.arange(-half, half)) & (table.high > 0))[
        [10, 200, 3000, 30_000]
    ]
    below = np.array([True, False, True, False])
    high = np.where(below, np.uint64(0), np.iinfo(np.uint64).max)
    words = [int(x) for pair in zip(high, other, strict=True) for x in pair]
    digits = [int(k) for k in np.where(below, other - half, table.alias[other])]
    for levels in (1, 2, 3, 4):
        expected = sum(k * 2 ** (10 * (levels - 1 - i)) for i, k in enumerate(digits[:levels]))
        assert made(words, levels) == expected


def test_convolutions_are_discrete_normal():
    """In small: radix 4, base 8, two levels; the relative error is below the bound of the proof, and not zero."""
    radix, base = 4, 8.0
    k = np.arange(-400, 401)
    weights = [Fraction(math.exp(-(x**2) / (2 * base**2))) for x in k]
    found = {}
    for i, x in enumerate(k):
        for j in range(max(0, 400 - 60), 400 + 61):
            y = radix * int(k[j]) + int(x)
            if abs(y) <= 120:
                found[y] = found.get(y, 0) + weights[i] * weights[j]
    variance = base**2 * (1 + radix**2)
    log = np.array([math.log(found[y]) + y**2 / (2 * variance) for y in sorted(found)])
    bound = 4 * math.exp(-2 * math.pi**2 * base**2 / (radix**2 + 1))
    assert np.ptp(log) < bound + 1e-12
    wide = 4 * math.exp(-2 * math.pi**2 * 4)  # as in use: the base is two radices wide
    assert wide < 1e-33
    assert lattice._BASE == 2 * lattice.RADIX


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_noise_is_normal_in_its_bulk_tails_and_last_digits(levels):
    noise = noise_of_steps(b"n" * 32, levels, 0, [400_000])
    scale = noise_std(levels)
    squares = np.sum((noise / scale) ** 2)
    assert 1e-7 < stats.chi2.cdf(squares, noise.size) < 1 - 1e-7
    jittered = noise + np.random.default_rng(0).uniform(-0.5, 0.5, noise.size)
    assert stats.kstest(jittered / scale, "norm").pvalue > 1e-6
    for digit in range(levels):
        last = (noise // 2 ** (10 * digit)) % 64
        assert stats.chisquare(np.bincount(last, minlength=64)).pvalue > 1e-7
    halves = noise[::2] / scale, noise[1::2] / scale
    assert abs(np.corrcoef(*halves)[0, 1]) < 6 / len(halves[0]) ** 0.5
    beyond = np.sum(np.abs(noise) > 4 * scale)
    assert stats.binomtest(int(beyond), noise.size, 2 * stats.norm.sf(4)).pvalue > 1e-6


def test_levels_keep_a_clipping_norm_below_2_to_the_43():
    for multiplier in (1e-5, 1e-3, 0.1, 0.25, 1.0, 1e4):
        assert (
            noise_std(levels_for(multiplier)) / multiplier <= 2**43 or levels_for(multiplier) == 1
        )
    assert [levels_for(x) for x in (1e9, 0.26, 0.24, 2.0**-13, 0.0)] == [4, 4, 3, 2, 1]


def test_what_tables_and_grid_add_is_negligible():
    epsilon, delta = overhead(4, 1.0)
    assert epsilon < 1e-13 and delta < 1e-22
    assert overhead(4, 20.0)[1] < 1e-14
    assert overhead(3, 1.0)[0] < 1e-7
    # The law of the grid is compared with the normal one, rounded: ratio of masses within (z^2 + 1)
    # / (24 S^2).
    scale, z = 64.0, np.arange(-8, 9)
    n = z * scale
    rounded = stats.norm.cdf((n + 0.5) / scale) - stats.norm.cdf((n - 0.5) / scale)
    rounded = np.where(
        n > 0, stats.norm.sf((n - 0.5) / scale) - stats.norm.sf((n + 0.5) / scale), rounded
    )
    ratio = np.log(rounded * scale / stats.norm.pdf(z))
    assert (np.abs(ratio) <= (z**2 + 1) / (24 * scale**2) * 1.001).all()
    assert np.abs(ratio[0]) > 0.9 * (64 - 1) / (24 * scale**2)
