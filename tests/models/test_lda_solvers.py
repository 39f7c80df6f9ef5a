"""What dpvi, na-dpvi and sgld make of topics: local steps, missing information, draws, the chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped

from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models.lda import LatentDirichletAllocation, drawn_counts
from skdpbayes.models.lda_information import observed_share
from skdpbayes.models.lda_local import collapsed_step
from skdpbayes.privacy import GaussianSteps
from skdpbayes.solvers.topics_na_dpvi import TopicsNADPVI
from skdpbayes.solvers.topics_sgld import TopicsSGLD

f32 = np.float32
V, K, PRIOR = 40, 4, 0.1


def model(private=1.0):
    return LatentDirichletAllocation(V, K, V, f32(PRIOR), f32(0.1), f32(1.0), f32(private))


def topics_and_documents(n, length, *, n_words=V, n_topics=K, even=0.0):
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(n_words, 0.1), n_topics)
    topics = (1 - even) * topics + even * topics.mean(axis=0)
    proportions = rng.dirichlet(np.full(n_topics, PRIOR), n)
    return topics, rng.multinomial(length, proportions @ topics).astype(f32)


def test_at_the_true_topics_collapsed_counts_are_those_of_the_truth():
    topics, X = topics_and_documents(2000, 60, n_words=100, n_topics=8)
    given = jnp.asarray(topics.T, jnp.float32)

    def expected(counts):
        return collapsed_step(given, counts, PRIOR) * counts[:, None]

    counts = np.asarray(jax.jit(jax.vmap(expected))(X), float)
    np.testing.assert_allclose(counts.sum(axis=2), X, atol=1e-3)
    found = counts.sum(axis=0) / counts.sum(axis=(0, 1))
    assert np.abs(found - topics.T).sum(axis=0).max() < 0.06


def test_the_observed_share_is_that_of_topics_that_are_all_alike_or_disjoint():
    key = jax.random.key(0)
    alike = jnp.full((V, K), 1 / V, jnp.float32)
    # Documents of one topic each say nothing about which.
    share = observed_share(key, alike, 1e3, 32, 64)
    np.testing.assert_allclose(share, 1 / K, rtol=0.05)
    disjoint = jnp.asarray(np.repeat(np.eye(K), V // K, axis=0) * K / V, jnp.float32) + 1e-9
    share = np.asarray(observed_share(key, disjoint, PRIOR, 32, 64))
    np.testing.assert_allclose(share[np.asarray(disjoint) > 1e-6], 1, atol=0.01)


@pytest.mark.slow
def test_expected_counts_follow_topics_at_the_rate_of_missing_information():
    topics, X = topics_and_documents(2000, 40, even=0.3)
    given = jnp.asarray(topics.T, jnp.float32)

    @jax.jit
    def expected(topics, proportions):
        joint = topics * proportions[:, None]
        return jnp.sum(joint / jnp.sum(joint, axis=2, keepdims=True) * X[:, :, None], axis=0)

    labels = mapped(lambda counts: collapsed_step(given, counts, PRIOR) * counts[:, None])(X)
    proportions = PRIOR + jnp.sum(labels, axis=1)
    share = np.asarray(observed_share(jax.random.key(1), given, PRIOR, 40, 2000), float)
    counts = np.asarray(expected(given, proportions), float)
    for word, topic in [(int(counts[:, k].argmax()), k) for k in range(K)]:
        moved = expected(given.at[word, topic].multiply(1.02), proportions)
        rate = (float(moved[word, topic]) / counts[word, topic] - 1) / 0.02
        assert rate == pytest.approx(1 - share[word, topic], abs=0.05)


def mechanism(noise, steps=50):
    return MechanismSpec((GaussianSteps(noise, 1.0, steps),)).traced()


def test_na_dpvi_undoes_what_topics_filled_in(monkeypatch):
    """Releases that are (1 - f) times the counts of the present topics and f times others give these."""
    m, solver = model(), TopicsNADPVI(np.int32(0), f32(0), f32(1))
    rng = np.random.default_rng(0)
    share, truth = rng.uniform(0.3, 0.9, (V, K)), rng.uniform(50, 100, (V, K))
    monkeypatch.setattr(
        LatentDirichletAllocation, "observed", lambda self, params, key: jnp.asarray(share)
    )
    filled = rng.uniform(20, 200, (V, K))
    monkeypatch.setattr(
        LatentDirichletAllocation, "expected_counts", lambda *_: jnp.asarray(filled)
    )
    *_, repeated = solver.rounds(m, mechanism(1.0))
    state = solver.init(m, jax.random.key(0))
    state = state._replace(params=state.params._replace(words=jnp.full(V, 1 / V)))
    for step in range(3):
        point = repeated.point(state, jax.random.key(step))
        released = (1 - share) * filled + share * truth
        state = repeated.update(
            state,
            point,
            jnp.int32(step),
            {"topics": jnp.asarray(released)},
            {"topics": jnp.asarray(0.5)},
        )
    np.testing.assert_allclose(state.params.seen, truth, rtol=1e-4)
    weights = np.array([1, 2, 3]) / 6  # of the rounds, by 2 / (t + 2)
    noise = 0.5 * np.sqrt((weights**2).sum()) / share
    np.testing.assert_allclose(state.params.noise, noise, rtol=1e-4)
    assert solver.diagnostics(None, state, None)["observed_share"] == pytest.approx(
        share.mean(), rel=0.1
    )


@pytest.mark.slow
def test_draws_of_the_guide_are_draws_of_the_posterior():
    m, rng = model(), np.random.default_rng(0)
    seen, expected = rng.gamma(1, 20, (V, K)), rng.gamma(5, 4, (V, K))
    params = m.init()._replace(
        seen=jnp.asarray(seen, jnp.float32),
        expected=jnp.asarray(expected, jnp.float32),
        noise=jnp.asarray(rng.uniform(2, 12, (V, K)), jnp.float32),
        ratios=jnp.asarray(rng.dirichlet(np.ones(26)), jnp.float32),
        counts=jnp.asarray(seen, jnp.float32),
    )
    keys = jax.random.split(jax.random.key(0), 4000)
    ours = np.asarray(jax.jit(jax.vmap(lambda key: drawn_counts(key, params)))(keys), float)
    posterior = m.posterior(params)
    theirs = np.stack([posterior._counts(rng, 4000, k) for k in range(K)], axis=2)
    error = theirs.std(axis=0) / 4000**0.5
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).max() < 6 * error.max()
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) / error).max() < 7
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.12)
    topics = m.drawn_topics(params, keys[0]).topics
    np.testing.assert_allclose(topics.sum(axis=0), 1, rtol=1e-4)
    begun = m.drawn_topics(m.init(), keys[0]).topics
    np.testing.assert_array_equal(begun, m.init().topics)


@pytest.mark.parametrize("noise", [0.0, 60.0])
def test_the_chain_has_its_gamma_law_whatever_part_of_the_noise_is_privates(noise):
    """Were the expected counts constant: with any split between the privacy noise and the chain's own."""
    m, solver = model(), TopicsSGLD(1, np.int32(0), f32(0.2), f32(1))
    rng = np.random.default_rng(0)
    counts = rng.uniform(500, 900, (V, K)).astype(f32)
    *_, langevin = solver.rounds(m, mechanism(1.0))
    state = solver.init(m, jax.random.key(0))
    state = state._replace(theta=jnp.asarray(counts))

    def step(state, key):
        own, private = jax.random.split(key)
        point = langevin.point(state, own)
        released = counts + noise * jax.random.normal(private, counts.shape, jnp.float32)
        new = langevin.update(
            state, point, jnp.int32(1), {"topics": released}, {"topics": jnp.float32(noise)}
        )
        return new, new.theta

    keys = jax.random.split(jax.random.key(1), 6000)
    state, chain = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(state, keys)
    chain = np.asarray(chain[200:], float)
    wanted = counts + 0.1
    assert (chain.mean(axis=0) / wanted).mean() == pytest.approx(1, abs=0.01)
    # Euler steps of size h make the variance 1 / (1 - h / 4) times as large.
    ratio = chain.var(axis=0) / wanted * (1 - 0.2 / 4)
    assert ratio.mean() == pytest.approx(1, abs=0.05)
    assert float(state.heated) == 0
