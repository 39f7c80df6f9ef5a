"""Topics as a model of expected statistics: its E-step, what it makes of noisy counts, and its start."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped, slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import LatentDirichletAllocation as Theirs
from whitebox import drawn, integer_sums

from skdpbayes.intake.packing import pack_ragged, pack_records
from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.mechanism.private_sum import private_sum
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models import lda, lda_local
from skdpbayes.models.base import NORM
from skdpbayes.models.cooccurrence import topics_of_pairs
from skdpbayes.models.lda import LatentDirichletAllocation
from skdpbayes.models.lda_local import e_step
from skdpbayes.posteriors.topics import BETWEEN, TopicsPosterior
from skdpbayes.privacy import GaussianSteps

f32 = np.float32
factorised = jax.jit(topics_of_pairs, static_argnums=2)
shrunk = jax.jit(lda.shrunk)
V, K, L = 12, 3, 6


def model(n_paired=V, norm=1.0, private=1.0):
    return LatentDirichletAllocation(V, K, n_paired, f32(0.3), f32(0.1), f32(norm), f32(private))


def params_of(m, seed=0):
    """Words and topics that are known, with scales that are not equal."""
    rng = np.random.default_rng(seed)
    params, topics = m.init(), rng.dirichlet(np.full(V, 0.3), K).T + 1e-6
    return params._replace(
        words=jnp.asarray(topics.mean(axis=1), jnp.float32),
        topics=jnp.asarray(topics, jnp.float32),
        scales=jnp.asarray(np.geomspace(0.3, 5, V), jnp.float32),
    )


def record_of(counts):
    """A document as it is gathered: its words, then entries that are not used."""
    counts = np.asarray(counts, f32)
    words = np.flatnonzero(counts)
    columns, values = np.full(V + 2, V, np.int32), np.zeros(V + 2, f32)
    columns[: len(words)], values[: len(words)] = words, counts[words]
    return {"columns": columns, "values": values}


def dense(scattered):
    """The rows of one contribution."""
    out = np.zeros((scattered.n_rows + 1, scattered.values.shape[1]))
    np.add.at(out, np.asarray(scattered.rows), np.asarray(scattered.values))
    return out[:-1]


# The E-step


def documents(n=40, seed=1):
    rng = np.random.default_rng(seed)
    components = 200 * rng.dirichlet(np.full(V, 0.2), K) + 0.1
    topics = components / components.sum(axis=1, keepdims=True)
    return components, rng.poisson(30 * rng.dirichlet(np.full(K, 0.3), n) @ topics).astype(float)


@pytest.mark.parametrize(("iterations", "tolerance"), [(None, 0.06), (300, 1e-3)])
def test_the_local_step_is_scikit_learns(iterations, tolerance, monkeypatch):
    if iterations:
        monkeypatch.setattr(lda_local, "ITERATIONS", iterations)
    components, X = documents()
    theirs = Theirs(K, max_doc_update_iter=5000, mean_change_tol=1e-10)
    theirs.components_, theirs.doc_topic_prior_ = components, 0.3
    from sklearn.decomposition._online_lda_fast import _dirichlet_expectation_2d

    theirs.exp_dirichlet_component_ = np.exp(_dirichlet_expectation_2d(components))
    concentration, statistics = theirs._e_step(X, cal_sstats=True, random_init=False)
    topics = theirs.exp_dirichlet_component_.T.astype(f32)
    proportions, ratio = mapped(lambda counts: e_step(jnp.asarray(topics), counts, 0.3))(
        X.astype(f32)
    )
    expected = topics * proportions[:, None] * ratio[:, :, None]  # documents, words, topics
    np.testing.assert_allclose(expected.sum(axis=2), X, rtol=1e-4, atol=1e-4)
    ours = 0.3 + expected.sum(axis=1)
    np.testing.assert_allclose(ours, concentration, atol=tolerance * X.sum(axis=1).mean())
    np.testing.assert_allclose(
        expected.sum(axis=0).T, statistics, atol=2 * tolerance * statistics.mean()
    )


def test_a_document_without_words_has_the_prior():
    proportions, ratio = e_step(jnp.full((L, K), 0.1), jnp.zeros(L), 0.3)
    np.testing.assert_allclose(proportions / proportions.sum(), np.full(K, 1 / K), rtol=1e-5)
    assert not np.asarray(ratio).any()


def test_statistics_are_counts_over_scales():
    m, counts = model(), np.array([0, 3, 0, 1, 2, 0, 0, 7, 0, 0, 0, 1])
    params = params_of(m)
    got = dense(m.statistics(params)(record_of(counts))["topics"])
    np.testing.assert_allclose(got.sum(axis=1) * params.scales, counts, rtol=1e-4)
    assert (got >= 0).all()


# What is made of noisy counts

GRID = lda._RATIOS


def test_without_noise_counts_are_returned_as_they_are():
    seen = f32([[0.0, 3.7, 1e-3, 2e5], [-1e-3, 1, 2, 3]])
    np.testing.assert_array_equal(shrunk(seen, f32(0), np.ones_like(seen), GRID)[0], seen.clip(0))


def test_where_noise_is_small_counts_are_not_moved_to_points_of_the_grid():
    """By no more than the noise, between any two points."""
    between = np.exp(np.linspace(np.log(GRID[1]), np.log(GRID[-2]), 1000))[None].astype(f32) * 50
    for noise in (1e-3, 1e-2, 0.1):
        means = shrunk(between, f32(noise), np.full_like(between, 50), GRID)[0]
        clear = between[0] > 20 * noise
        assert np.abs(means - between)[0, clear].max() < 0.6 * noise + 1e-6 * between.max()


def test_counts_are_posterior_means_under_the_prior_that_is_reported():
    """Against quadrature of the mixture of normals."""
    rng = np.random.default_rng(0)
    expected = rng.uniform(5, 50, (2, 400)).astype(f32)
    seen = (
        expected * rng.gamma(0.5, 2, expected.shape) + 4 * rng.normal(size=expected.shape)
    ).astype(f32)
    means, prior = (np.asarray(x, float) for x in shrunk(seen, f32(4), expected, GRID))
    assert prior.sum() == pytest.approx(1, abs=1e-5) and (prior > 0).all()
    width = BETWEEN * (GRID[1] / GRID[0] - 1)
    for i, j in [
        (0, 0),
        (0, 7),
        (1, 3),
        (1, 200),
        (0, int(np.argmax(seen[0]))),
        (0, int(np.argmin(seen[0]))),
    ]:
        centre = np.float64(expected[i, j]) * GRID
        spread = width * centre
        count = np.linspace(-20, 8 * centre.max(), 400_001)
        density = np.zeros_like(count)
        for weight, c, s in zip(prior, centre, spread, strict=True):
            density += weight * np.exp(-0.5 * ((count - c) / s) ** 2) / s
        density *= np.exp(-0.5 * ((seen[i, j] - count) / 4) ** 2)
        want = max(0, (count * density).sum() / density.sum())
        assert means[i, j] == pytest.approx(want, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("shape", [0.1, 1.0, 20.0])
def test_shrunk_counts_are_nearer_to_the_truth_than_noisy_ones(shape):
    rng = np.random.default_rng(0)
    expected = 10 * rng.dirichlet(np.full(500, 2.0), 4) * 500
    truth = expected * rng.gamma(shape, 1 / shape, expected.shape)
    for noise in (1.0, 10.0, 40.0):
        seen = truth + noise * rng.normal(size=truth.shape)
        means = np.asarray(shrunk(seen.astype(f32), f32(noise), expected.astype(f32), GRID)[0])
        ours, raw = ((x - truth) ** 2 for x in (means, seen.clip(0)))
        assert ours.mean() < 1.02 * raw.mean(), "where there is little noise, it is no worse"
        if noise >= 10:
            assert ours.mean() < 0.8 * raw.mean()


def test_draws_of_the_posterior_have_its_means_and_cover_the_truth():
    rng = np.random.default_rng(0)
    expected = np.full((2, 3000), 10.0)
    scales, noise = np.geomspace(0.5, 2, 3000), 5.0
    truth = expected * rng.gamma(1, 1, expected.shape)
    seen = truth + noise * rng.normal(size=truth.shape)
    means, prior = (
        np.asarray(x, float) for x in shrunk(f32(seen), f32(noise), f32(expected), GRID)
    )
    posterior = TopicsPosterior(0.1, means * scales, seen, expected, scales, noise, GRID, prior)
    draws = np.stack([posterior._counts(rng, 300, k) for k in range(2)], axis=1)
    assert np.abs(draws.mean(axis=0) - means).mean() < 0.15 * noise
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert 0.87 < ((low <= truth) & (truth <= high)).mean() < 0.95
    topics = posterior.sample(rng, 50).reshape(50, 2, 3000)
    np.testing.assert_allclose(topics.sum(axis=2), 1, rtol=1e-4)
    assert posterior.mean.shape == posterior.std.shape == (
        6000,
    ) and "2 topics of 3000 words" in repr(posterior)


def test_where_there_is_no_noise_draws_are_of_a_dirichlet_distribution():
    counts = np.array([[3.0, 0, 7]])
    posterior = TopicsPosterior(
        0.5, counts, counts, counts, np.ones(3), 0.0, GRID, np.zeros(len(GRID))
    )
    draws = posterior.sample(np.random.default_rng(0), 20_000)
    a = np.array([3.5, 0.5, 7.5])
    mean = a / a.sum()
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.005)
    np.testing.assert_allclose(
        draws.std(axis=0), np.sqrt(mean * (1 - mean) / (a.sum() + 1)), rtol=0.05
    )
    np.testing.assert_allclose(posterior.mean, mean)


# The start


def separated(m=30, seed=0):
    """Topics that have words of their own, and how often they occur together."""
    rng = np.random.default_rng(seed)
    topics = np.zeros((m, K))
    for k in range(K):
        topics[10 * k : 10 * k + 10, k] = rng.dirichlet(np.ones(10))
    together = np.eye(K) + 0.1
    return topics, 1e5 * topics @ together @ topics.T


def symmetric_noise(m, seed):
    noise = np.random.default_rng(seed).normal(size=(m, m))
    return (noise + noise.T) / 2**0.5


def test_separated_topics_are_found_from_their_pairs():
    topics, pairs = separated()
    noisy = (pairs + 20 * symmetric_noise(30, 1)).astype(f32)
    found, clear = factorised(jax.random.key(0), noisy, K, 20.0)
    found = np.asarray(found)
    assert float(clear) == 1
    assert (found >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-4)
    cosine = found.T @ (topics / np.linalg.norm(topics, axis=0))
    best = cosine[linear_sum_assignment(-cosine)]
    assert best.min() > 0.99


def test_noise_is_not_taken_for_topics():
    for seed in range(20):
        found, clear = factorised(
            jax.random.key(0), 20 * symmetric_noise(30, seed).astype(f32), K, 20.0
        )
        assert float(clear) == 0 and np.isfinite(found).all()


def test_topics_that_noise_may_have_made_are_not_used():
    m, key = model(), jax.random.key(0)
    params = m.init()._replace(words=jnp.asarray(np.full(V, 1 / V), jnp.float32))
    noise = np.random.default_rng(0).normal(size=(V, V)).astype(f32)
    sums = {"pairs": (jnp.asarray(noise)[None, :, None], jnp.zeros(V))}
    started = m._after_pairs(params, sums, {"pairs": 1.0}, key)
    np.testing.assert_allclose(started.topics, np.full((V, K), 1 / V), rtol=1e-5)


def test_pairs_are_of_different_occurrences():
    """A document of counts c has c_i c_j pairs of two words, and c_i (c_i - 1) of one."""
    m, counts = model(), np.array([0, 3, 0, 1, 2, 0, 0, 7, 0, 0, 0, 1.0])
    params = params_of(m)
    pairs, with_itself = m.openings()[1].statistics(params)(record_of(counts))["pairs"]
    scales, (chosen, _) = np.asarray(params.scales), m._paired(params)
    got = float(pairs.weight[0, 0]) * np.outer(pairs.vector, pairs.vector) - np.diag(with_itself)
    want = (np.outer(counts, counts) - np.diag(counts)) / np.outer(scales, scales)
    want = want[np.ix_(chosen, chosen)]
    np.testing.assert_allclose(got / got.sum(), want / want.sum(), atol=1e-6)


anything = st.sampled_from([0.0, 1e-45, 1e-30, 1e-12, 1.0, 2.0, 1e3, 1e6, 1e12, 1e20, 1e30, 3e38])
COUNTS = hnp.arrays(f32, V, elements=anything)
OPENINGS = {name: (i, n) for i, name in enumerate(("words", "pairs")) for n in (V,)} | {
    "pairs of some": (1, 5)
}


def _norm(statistics, record):
    (block,) = statistics(record).values()
    return contribution_norm(block)


def _total(statistics, blocks, records, mechanism, draw):
    return private_sum(statistics, blocks, mechanism, draw, 0, records)


@pytest.fixture(scope="module")
def opening():
    """A compiled opening round, without noise, of one document: its norm before the clip, and its sum."""
    programs = {}
    for name, (i, n_paired) in OPENINGS.items():
        m = model(n_paired)
        params = params_of(m)
        chosen = m.openings()[i]

        statistics = chosen.statistics(params)
        how = statistics, chosen.blocks
        programs[name] = (
            jax.jit(partial(_norm, statistics)),
            jax.jit(partial(_total, *how)),
            partial(drawn, *how),
        )
    return programs


@pytest.mark.parametrize("name", slow_but(OPENINGS, "words", "pairs of some"))
@settings(max_examples=25, deadline=None)
@given(counts=COUNTS)
def test_any_document_contributes_at_most_one_to_an_opening(name, counts, opening):
    norm, total, draw_for = opening[name]
    record = record_of(counts)
    length = float(norm(record))
    assert not length >= NORM  # it may be NaN, which the private sum takes for nothing
    if 1 <= counts.max() < 1e35 and name != "pairs of some":
        assert length == pytest.approx(1, abs=1e-4), "a document, long or short, counts in full"
    with jax.enable_x64(True):
        spec = MechanismSpec((GaussianSteps(0.0, 1.0, 2),))
        packed = pack_records(**{k: v[None] for k, v in record.items()})
        out = total(packed, jax.device_put(spec.traced()), draw_for(spec, packed))
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(out)]).astype(float)
    assert np.isfinite(flat).all()
    got = np.linalg.norm(flat)
    assert got < NORM
    if counts.max() < 1e35:  # its reciprocal is zero, in some programs
        assert got == pytest.approx(0 if np.isnan(length) else length, rel=1e-2, abs=1e-6), (
            "the clip does not shorten it"
        )


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("topics", [5, 200]),
        pytest.param("topics", [5, 40, 100, 200, 400, 600], marks=pytest.mark.slow),
        pytest.param("words", [5, 40, 100, 200, 400, 600], marks=pytest.mark.slow),
    ],
)
def test_documents_do_not_see_where_they_stand(name, lengths):
    """A document that is left out moves others to other slots, as they are sorted by length: their sums stay."""
    rng, n_words = np.random.default_rng(3), 700
    m = LatentDirichletAllocation(n_words, K, 1, f32(0.3), f32(0.1), f32(1.0), f32(1.0))
    topics = rng.dirichlet(np.full(n_words, 0.3), K).T + 1e-6
    params = m.init()._replace(
        words=jnp.asarray(topics.mean(axis=1), jnp.float32),
        topics=jnp.asarray(topics, jnp.float32),
        scales=jnp.asarray(np.geomspace(0.3, 5, n_words), jnp.float32),
    )
    opening = m.openings()[0]
    query, blocks = (
        (opening.statistics(params), opening.blocks)
        if name == "words"
        else (m.statistics(params), m.blocks())
    )
    spec, X = MechanismSpec((GaussianSteps(3.0, 1.0, 1),)), np.zeros((90, n_words), f32)
    for i, length in enumerate(rng.choice(lengths, 90)):
        X[i, rng.choice(n_words, length, replace=False)] = rng.integers(1, 9, length)

    def total(rows):
        return integer_sums(query, blocks, spec, pack_ragged(sparse.csr_array(rows)))

    everything, order = total(X), rng.permutation(90)
    assert everything.dtype == np.int64 and everything.any()
    np.testing.assert_array_equal(total(X[order]), everything)
    length = (X > 0).sum(axis=1)
    out = np.isin(np.arange(90), [length.argmin(), length.argmax(), *order[:5]])
    np.testing.assert_array_equal(total(X[~out]) + total(X[out]), everything)
