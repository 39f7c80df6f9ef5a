"""Batches are Poisson samples and noise is used once, whatever the cutting into segments."""

import itertools
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from skdpbayes.mechanism import draws
from skdpbayes.mechanism.draws import Sampler, draws_of_chain, noise_of_steps, poisson_sample
from skdpbayes.mechanism.integer_noise import WORDS, integer_noise
from skdpbayes.mechanism.keys import Blocks, Stream
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.privacy import GaussianSteps

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))


def spec_of(rate, n_steps=1000, noise=1.0, **how):
    return MechanismSpec((GaussianSteps(noise, rate, n_steps),), **how)


@pytest.mark.parametrize("rate", [1e-5, 0.01, 0.35, 0.97])
def test_gaps_are_geometric(rate):
    """Also beyond 4/q, where the sampler cuts a gap and goes on."""
    length = int(400_000 / rate)
    chosen = poisson_sample(Stream(KEY), rate, length)
    gaps, law = np.diff(chosen, prepend=-1), stats.geom(rate)
    assert gaps.min() >= 1 and chosen[-1] < length
    assert abs(len(gaps) / (length * rate) - 1) < 6 * math.sqrt((1 - rate) / (length * rate)) + 1e-5
    edges = np.unique(
        law.ppf([0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 1 - 2e-4, 1 - 2e-5])
    )
    edges = np.concatenate([[0], edges, [np.inf]])
    expected = np.diff(law.cdf(edges)) * len(gaps)
    observed = np.histogram(gaps, bins=np.concatenate([edges[:-1] + 0.5, [np.inf]]))[0]
    keep = expected > 5
    statistic = np.sum((observed - expected)[keep] ** 2 / expected[keep])
    assert stats.chi2.sf(statistic, keep.sum()) > 1e-7, (observed, expected)


def test_logarithms_are_as_exact_as_the_proof_takes_them_to_be():
    """docs/arithmetic.md, "Sampling on a grid": four units in the last place."""
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("no extended precision here")
    rng = np.random.default_rng(0)
    bits = [
        rng.integers(1, 2**53, 10**5),
        2**53 - rng.integers(1, 10**6, 10**5),
        rng.integers(1, 10**6, 10**5),
    ]
    uniform = np.concatenate(bits).astype(np.float64) * 2.0**-53
    exact = np.log(uniform.astype(np.longdouble))
    assert np.max(np.abs((np.log(uniform) - exact) / exact)) < 2.0**-51
    rates = np.concatenate([10.0 ** rng.uniform(-6, 0, 10**4), [1e-6, 0.5, 1 - 1e-6]])
    exact = np.log1p(-rates.astype(np.longdouble))
    ours = np.array([math.log1p(-rate) for rate in rates])
    assert np.max(np.abs((ours - exact) / exact)) < 2.0**-51


class Constant:
    """A stream of one and the same 64 bits."""

    def __init__(self, bits):
        self.bits = bits

    def integers(self, dtype, shape):
        return np.full(shape, self.bits, dtype)


def test_uniforms_of_the_sampler_have_53_bits():
    gaps = []
    for low in (0, 2**32 - 1):
        stream = Constant((int(np.exp(-3) * 2**32) << 32) | low)
        chosen = poisson_sample(stream, 1e-10, 10**12)
        gaps.append(chosen[0] + 1)
    assert 40 <= gaps[0] - gaps[1] <= 50  # 2^-32 / (e^-3 q) = 46.8 records


@pytest.mark.parametrize("log", [-4.1, -6.0, -12.0, -20.0])
def test_gaps_that_uniforms_tell_coarsely_are_cut(log):
    """Beyond four expected gaps the uniforms' grid is coarse."""
    assert len(poisson_sample(Constant(int(np.exp(log) * 2.0**64)), 1e-6, 10**8)) == 0


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_extreme_uniforms_choose_nothing_out_of_range(bits):
    """Zero asks for a gap far beyond 4/q, which is cut; all ones for a gap of one."""
    chosen = poisson_sample(Constant(bits), 0.5, 100)
    np.testing.assert_array_equal(chosen, np.arange(100) if bits else [])


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5, 0.999])
def test_the_sampler_stays_below_the_rate_that_is_charged(rate, monkeypatch):
    logs = []
    monkeypatch.setattr(
        draws.math, "log1p", lambda x, log1p=math.log1p: logs.append(log1p(x)) or logs[-1]
    )
    poisson_sample(Stream(KEY), rate, 10)
    assert 0 < -np.expm1(logs[0]) <= rate * (1 - 2**-21)


def masks(found, n):
    """Which of `n` records is in each step's batch."""
    out = []
    for part in found:
        for step in range(part.first, part.stop):
            start, stop = (int(x) for x in part.at(step).starts)
            out.append(np.isin(np.arange(n), part.indices[start:stop]))
    return np.array(out)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_batches_and_noise_of_many_segments(rate, monkeypatch):
    """As of one, but for where batches are cut: every step has its own, none is left out."""
    monkeypatch.setattr(draws, "_MOST_NOISE", 700)
    n, n_steps, sizes = 50, 400, np.where(np.arange(400) % 5, 7, 20)
    found = list(draws_of_chain(KEY, OTHER, spec_of(rate, n_steps), sizes, [0, n], 64))
    assert [part.first for part in found[1:]] == [part.stop for part in found[:-1]]
    assert found[0].first == 0 and found[-1].stop == n_steps and len(found) == 12
    assert (
        len({part.noise.shape + part.starts.shape + part.indices.shape for part in found}) == 1
    )  # of one program
    mask = masks(found, n)
    if rate == 1:
        assert mask.all()
    else:
        assert stats.binomtest(int(mask.sum()), mask.size, rate).pvalue > 1e-6
        assert np.abs(np.corrcoef(mask.T) - np.eye(n)).max() < 6 / n_steps**0.5
        assert np.abs(np.corrcoef(mask) - np.eye(n_steps)).max() < 7 / n**0.5
    noise = [
        part.noise[i, : sizes[part.first + i]]
        for part in found
        for i in range(part.stop - part.first)
    ]
    assert len(np.unique(np.concatenate(noise))) == sizes.sum()
    used = np.arange(20) < sizes[:35, None]
    assert (found[0].noise[~used] == np.iinfo(np.int64).min).all()
    np.testing.assert_array_equal(
        found[0].noise[used], noise_of_steps(OTHER, 4, 0, used.sum(axis=1))
    )


def test_groups_share_one_sample():
    bounds, n_steps = [0, 20, 20, 61, 100], 50
    (grouped,) = draws_of_chain(
        KEY, OTHER, spec_of(0.4, n_steps), np.ones(n_steps, int), bounds, 112
    )
    (plain,) = draws_of_chain(
        KEY, OTHER, spec_of(0.4, n_steps), np.ones(n_steps, int), [0, 100], 112
    )
    np.testing.assert_array_equal(grouped.indices, plain.indices)
    for step in range(n_steps):
        starts = grouped.starts[step]
        assert starts[0] == plain.starts[step, 0] and starts[-1] == plain.starts[step, 1]
        for low, high, start, stop in zip(
            bounds[:-1], bounds[1:], starts[:-1], starts[1:], strict=True
        ):
            rows = grouped.indices[start:stop]
            assert ((low <= rows) & (rows < high)).all()


def test_large_samples_come_few_steps_at_a_time():
    sampler = Sampler(KEY, 0.5, 10**6)
    assert sampler.window == 1 and Sampler(KEY, 1e-3, 1000).window == 2**9
    (part,) = draws_of_chain(KEY, OTHER, spec_of(0.5, 1), np.ones(1, int), [0, 10**6], 10**6)
    assert abs(part.starts[0, 1] - 5e5) < 4000 and part.starts[0, 0] == 0
    batch = part.indices[: part.starts[0, 1]]
    assert (np.diff(batch) > 0).all() and batch[-1] < 10**6
    assert len(part.indices) == draws.room(sampler) > 5e5 + 10 * 500
    # A sample has room, however large it is.
    assert draws.room(sampler, len(part.indices) + 1) == 4 * len(part.indices)


def test_blocks_of_records_are_sampled_independently_of_each_other(monkeypatch):
    monkeypatch.setattr(draws, "_HITS", 32)
    rate, stride, rounds = 0.3, 1000, 400
    sampler = Sampler(KEY, rate, stride)
    assert sampler.window == 1 and sampler.block == 128
    mask = np.zeros((rounds, stride))
    for step in range(rounds):
        mask[step, sampler.sample(step, 1, 0, stride)] = 1
    assert stats.binomtest(int(mask.sum()), mask.size, rate).pvalue > 1e-6
    assert np.abs(np.corrcoef(mask.T) - np.eye(stride)).max() < 7 / rounds**0.5
    assert np.abs(np.corrcoef(mask) - np.eye(rounds)).max() < 7 / stride**0.5
    counts = mask.sum(axis=0)  # also at the edges of blocks
    assert stats.kstest(counts, stats.binom(rounds, rate).cdf).pvalue > 1e-6


def test_no_two_blocks_and_windows_share_a_sample(monkeypatch):
    monkeypatch.setattr(draws, "_HITS", 32)
    sampler = Sampler(KEY, 0.3, 128 * 6)
    drawn = {
        tuple(sampler.sample(window, 1, low, low + 128) - low)
        for window in range(6)
        for low in range(0, 128 * 6, 128)
    }
    assert len(drawn) == 36


@pytest.mark.parametrize("hits", [32, 2**16])
def test_whoever_samples_a_range_finds_the_same_records(hits, monkeypatch):
    """However records are divided, and whichever window comes first."""
    monkeypatch.setattr(draws, "_HITS", hits)
    stride, steps = 1000, 1 if hits == 32 else 20
    own = Sampler(KEY, 0.3, stride).window
    whole = {w: Sampler(KEY, 0.3, stride).sample(w * own, steps, 0, 990) for w in (0, 1)}
    assert len(np.intersect1d(*whole.values())) < len(whole[0])
    for window in (1, 0):  # in another order
        for edges in ([0, 990], [0, 1, 500, 640, 990], [0, 128, 256, 990]):
            sampler = Sampler(KEY, 0.3, stride)
            parts = [
                sampler.sample(window * own, steps, low, high)
                for low, high in itertools.pairwise(edges)
            ]
            found = np.sort(np.concatenate(parts))
            np.testing.assert_array_equal(found, whole[window])
    for step in range(steps):  # by itself, or with others
        alone = Sampler(KEY, 0.3, stride).sample(own + step, 1, 0, 990)
        mine = whole[1] // stride == step
        np.testing.assert_array_equal(alone, whole[1][mine] - step * stride)


def test_a_fit_that_goes_on_draws_what_it_would_have_drawn(monkeypatch):
    monkeypatch.setattr(draws, "_MOST_NOISE", 700)
    how = (KEY, OTHER, spec_of(0.3, 400), np.full(400, 7), [0, 50], 64)
    found = list(draws_of_chain(*how))
    (last,) = draws_of_chain(*how, first=399)
    (again,) = draws_of_chain(*how, first=found[-1].first)
    for one, other in zip(found[-1], last, strict=True):
        np.testing.assert_array_equal(one, other)
    assert last.first == again.first == found[-1].first
    assert len({part.noise.tobytes() for part in found}) == len(found)
    assert len({part.indices.tobytes() for part in found}) == len(found)


def test_noise_does_not_depend_on_the_number_of_processors(monkeypatch):
    """Nor on how long steps are cut: each variable has a block of its own in its step's lane."""
    sizes = [3000, 5, 0, 2049]
    monkeypatch.setattr(draws, "_cores", lambda: 1)
    alone = noise_of_steps(KEY, 4, 7, sizes)
    monkeypatch.setattr(draws, "_cores", lambda: 3)
    for longest in (100, 1024, 2**16):
        monkeypatch.setattr(draws, "_LONG", longest)
        np.testing.assert_array_equal(noise_of_steps(KEY, 4, 7, sizes), alone)
    separately = [noise_of_steps(KEY, 4, 7 + i, [size]) for i, size in enumerate(sizes)]
    np.testing.assert_array_equal(np.concatenate(separately), alone)


@pytest.mark.parametrize("block", [0, 1, 2**16, 2**20 + 1, 2**24, 2**31, 2**32 - 2])
def test_a_lane_begins_at_any_of_its_blocks(block):
    """So no two pieces of a long release share a block: the counter of the cipher has 32 bits."""
    blocks, found = Blocks(KEY), np.empty((2, WORDS), np.uint64)
    blocks.begin(7, block)
    blocks.fill(found)
    start = block.to_bytes(4, "little") + bytes(4) + (7).to_bytes(8, "little")
    cipher = Cipher(algorithms.ChaCha20(KEY, start), mode=None).encryptor()
    assert found.tobytes() == cipher.update(bytes(found.nbytes))
    with pytest.raises(OverflowError):
        blocks.begin(7, 2**32)


def test_fast_noise_is_normal_in_single_precision_and_of_its_steps():
    noise, later = (noise_of_steps(KEY, None, first, [50_000]) for first in (0, 1))
    assert noise.dtype == np.float32
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise, later)[0, 1]) < 6 / len(noise) ** 0.5


@pytest.mark.parametrize("step", [0, 1, 512, 2**16, 2**31 - 1])
def test_each_step_has_a_lane_of_the_cipher(step):
    """Its number is the last half of the nonce; the blocks of a lane are its variables."""
    lane = bytes(8) + step.to_bytes(8, "little")
    cipher = Cipher(algorithms.ChaCha20(KEY, lane), mode=None).encryptor()
    words = np.frombuffer(cipher.update(bytes(64 * 300)), np.uint64).reshape(300, WORDS)
    drawn = noise_of_steps(KEY, 4, step, [100, 200])[:100]
    np.testing.assert_array_equal(drawn, integer_noise(words, 4)[:100])


@pytest.mark.parametrize("numerics", ["fast", "secure"])
def test_noise_of_all_windows_has_one_type(numerics, monkeypatch):
    """Programs would be compiled for each type."""
    monkeypatch.setattr(draws, "_MOST_NOISE", 50)
    spec, sizes = spec_of(1.0, 30, numerics=numerics), np.array([10] * 20 + [7] * 10)
    windows = list(draws_of_chain(KEY, OTHER, spec, sizes, [0, 3], 64))
    assert len(windows) > 2
    wanted = np.float32 if numerics == "fast" else np.int64
    assert {window.noise.dtype for window in windows} == {np.dtype(wanted)}


def test_steps_that_are_sampled_together_are_of_one_window():
    sampler = Sampler(KEY, 0.5, 1000)
    sampler.sample(sampler.window, sampler.window, 0, 1000)
    with pytest.raises(ValueError, match="one window"):
        sampler.sample(sampler.window - 1, 2, 0, 1000)


def test_plans_of_noise_count_their_levels():
    assert spec_of(0.1, noise=0.3).levels == 4 and spec_of(0.1, noise=0.2).levels == 3
    assert spec_of(0.1, noise=0.3, numerics="fast").levels is None
    steps = (GaussianSteps(50.0, 0.1, 3), GaussianSteps(0.01, 0.1, 1))
    assert MechanismSpec(steps).levels == 3  # of the least noise
