"""What is made of noisy symmetric matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.mechanism.persons import blocks_of_persons, of_person
from skdpbayes.mechanism.records import Person
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models import denoising
from skdpbayes.privacy.accounting import GaussianSteps
from skdpbayes.solvers.released_curvature import (
    Curvature,
    ScoreCovariance,
    curvature_blocks,
    curvature_query,
    sampling_covariance,
    sampling_weight,
)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def noise_of(p, seed):
    """Symmetric noise whose entries off the diagonal have variance 1/2."""
    noise = np.random.default_rng(seed).normal(size=(p, p))
    return (noise + noise.T) / 2


def test_spectrum_and_diagonal_are_told_from_noise():
    p = 60
    noise = noise_of(p, 0)
    edge = denoising.noise_edge(p, 0.5)
    assert 0.85 * edge < np.abs(np.linalg.eigvalsh(noise)).max() < 1.15 * edge
    direction = np.full(p, p**-0.5)
    truth = 5 * edge * np.outer(direction, direction) + np.diag(
        np.where(np.arange(p) < 10, 8.0, 0.0)
    )
    learnt, error = denoising.learnt_curvature(truth + noise, 0.5, np)
    assert 0.5 < error < 1.1  # about that of one diagonal entry
    assert np.linalg.eigvalsh(learnt).min() > -1e-9
    np.testing.assert_allclose(direction @ learnt @ direction, 5 * edge, rtol=0.2)
    rest = np.diag(learnt - 5 * edge * np.outer(direction, direction))
    assert np.abs(rest[:10].mean() - 8) < 1 and np.abs(rest[10:].mean()) < 1
    vectors, levels = (
        np.asarray(x) for x in denoising.known_spectrum(jnp.asarray(truth + noise), 0.5)
    )
    assert 1 <= (levels > edge).sum() <= 10 and np.abs(vectors[:, -1] @ direction) > 0.95
    assert levels.min() == pytest.approx(error, rel=1e-3)


def test_noise_alone_is_a_multiple_of_the_identity():
    learnt, error = denoising.learnt_curvature(5 * np.eye(40) + noise_of(40, 1), 0.5, np)
    np.testing.assert_allclose(learnt, 5 * np.eye(40), atol=1)
    assert error < 0.6


TRUTHS = {
    "equal": lambda p: 8 * np.eye(p),
    "one large": lambda p: 8 * np.eye(p) + 40 * np.ones((p, p)) / p,
    "one small": lambda p: 60 * np.eye(p) - 55 * np.ones((p, p)) / p,
    "rank 4": lambda p: np.kron(np.eye(4), np.ones((p // 4, p // 4))) * 160 / p,
    "all sizes": lambda p: np.diag(np.geomspace(0.1, 80, p)),
}


CASES = [("estimated_curvature", name, 0.9) for name in TRUTHS]
CASES += [("cautious_curvature", name, 0.9) for name in TRUTHS if name != "one small"]
CASES += [
    ("cautious_curvature", "one small", 3)
]  # the others are a diagonal to it, whatever they share


@pytest.mark.parametrize(("estimate", "truth", "limit"), CASES)
def test_estimates_are_nearer_the_truth_than_what_was_seen(estimate, truth, limit):
    """In the mean over draws of the noise; and positive, and the noisy matrix itself as noise vanishes."""
    p, estimate = 24, getattr(denoising, estimate)
    truth = TRUTHS[truth](p)
    errors = []
    for seed in range(10):
        seen = truth + noise_of(p, seed)
        found = np.asarray(estimate(jnp.asarray(seen), jnp.asarray(0.5)))
        assert np.linalg.eigvalsh(found).min() > -1e-9
        errors.append([np.sum((found - truth) ** 2), np.sum((seen - truth) ** 2)])
    ours, theirs = np.mean(errors, axis=0)
    assert ours < limit * theirs
    for variance in (0.0, 1e-20):
        np.testing.assert_allclose(
            estimate(jnp.asarray(truth), jnp.asarray(variance)), truth, rtol=1e-6, atol=1e-6
        )


def test_the_estimate_is_what_each_eigenvector_has_of_the_truth():
    """Its eigenvalues are ``u' H u`` for the eigenvectors u of the noisy matrix: the best that they can be."""
    p = 60
    truth, best, found, raw = TRUTHS["rank 4"](p), [], [], []
    for seed in range(20):
        seen = truth + noise_of(p, seed)
        values, vectors = np.linalg.eigh(seen)
        estimate = np.asarray(denoising.estimated_curvature(jnp.asarray(seen), jnp.asarray(0.5)))
        best.append(np.einsum("ij,ik,kj->j", vectors, truth, vectors))
        found.append(np.einsum("ij,ik,kj->j", vectors, estimate, vectors))
        raw.append(values)
    best, found, raw = (np.mean(x, axis=0) for x in (best, found, raw))
    assert np.abs(found - best).mean() < 0.6 and np.abs(raw - best).mean() > 4


def test_positive_means():
    x = jnp.array([-3.0, 0.0, 0.5, 5.0, 50.0])
    found = np.asarray(denoising._positive_mean(x, jnp.asarray(1.0)))
    grid = np.linspace(0, 80, 400_001)[:, None]
    density = np.exp(-((np.asarray(x) - grid) ** 2) / 2 - grid / np.asarray(x).mean())
    np.testing.assert_allclose(found, (grid * density).sum(axis=0) / density.sum(axis=0), rtol=1e-3)
    np.testing.assert_allclose(denoising._positive_mean(x[2:], jnp.asarray(0.0)), x[2:])


def test_eigenvalues_that_noise_hides_are_known_by_their_mean_alone():
    def possible(values, variance):
        found = denoising.possible_eigenvalues(values, variance, 64, np)
        also = denoising.possible_eigenvalues(jnp.asarray(values), variance, 64, jnp)
        np.testing.assert_allclose(also, found, rtol=1e-4)
        return found

    values = np.array([4.0] * 20 + [500.0])
    sure = possible(values, 0.0)
    np.testing.assert_allclose(sure, np.broadcast_to(values, sure.shape), rtol=1e-4)
    seen = possible(values, 1.0)  # the edge is at 9: noise hides differences of 4.6
    np.testing.assert_allclose(seen.mean(axis=0), values, rtol=0.02)
    assert seen[:, 0].std() == pytest.approx(4 / 2**0.5, rel=0.1)
    assert seen[:, -1].std() == pytest.approx(1.4, rel=0.1)
    little = possible(values, 0.05)
    assert little[:, 0].std() == pytest.approx((21 * 0.05) ** 0.5, rel=0.1)
    assert not possible(np.zeros(3), 1.0).any()


@pytest.mark.parametrize(("noise", "power"), [(0.0, 3), (0.1, 3), (1000.0, 1)])
def test_late_curvatures_weigh_more_the_more_so_with_little_noise(noise, power):
    known, of_rows = Curvature.none(2), MechanismSpec((GaussianSteps(1.0, 1.0, 1),)).traced()
    for k in range(1, 101):
        estimate = {"curvature": k * jnp.eye(2), "variances": jnp.zeros(3)}
        known = known.after(estimate, dict.fromkeys(estimate, jnp.float32(noise)), of_rows)
    weights = np.arange(1, 101.0) ** power
    weights /= weights.sum()
    np.testing.assert_allclose(known.matrix[0, 0], weights @ np.arange(1, 101), rtol=0.02)
    np.testing.assert_allclose(known.variance, noise**2 * (weights**2).sum() / 2, rtol=0.03)


class Rows:
    """A linear model of two rows of parameters, whose long records have smaller weights."""

    def __init__(self, formed):
        self.formed = formed

    def curvature(self, params, record):
        own = Quadratic(jnp.array([[2.0, 0.5], [0.5, 1.0]]), record["x"])
        whole = jnp.einsum("ij,a,b->iajb", own.weight, own.vector, own.vector)
        return whole.reshape(6, 6) if self.formed else own

    def score_bound(self, params, record):
        return jnp.sqrt(jnp.sum(record["x"] ** 2))

    def log_likelihood(self, params, record):
        raise AssertionError("the curvature is known")


def released(formed, X):
    """Sums of `curvature_query` over rows, and the longest of each."""
    params, of = jnp.zeros((2, 3)), Rows(formed)
    query = mapped(lambda x: curvature_query(of, params, jnp.float64(1.0), False)({"x": x}))
    each = query(X)
    matrix = each["curvature"] if formed else each["curvature"].total().reshape(6, 6)
    return jnp.sum(matrix, axis=0) if formed else matrix, each["variances"]


def test_the_sampling_covariance_knows_that_long_rows_say_little_of_the_intercept():
    """Exactly on the diagonal, with the correlations of the curvature beside it."""
    X = np.random.default_rng(0).normal(size=(4000, 3)) * [3.0, 1.0, 0.0] + [0.0, 0.0, 1.0]
    matrix, variances = released(False, X)
    formed, again = released(True, X)
    np.testing.assert_allclose(matrix, formed, rtol=1e-6)
    np.testing.assert_allclose(variances, again, rtol=1e-6)
    w = np.minimum(1, 1 / np.linalg.norm(X, axis=1))
    most = 3 * (w * np.linalg.norm(X, axis=1)) ** 2  # sum of the variances
    assert np.all(np.linalg.norm(variances, axis=1) <= most * (1 + 1e-6))

    def covariance(variance):
        known = Curvature.none(6)._replace(
            kept_matrix=matrix,
            kept_variance=jnp.float64(variance),
            variances=2**0.5 * variances.sum(axis=0),
            doubt=jnp.float64(variance),
        )
        return np.asarray(sampling_covariance(known, matrix))

    exact = np.kron([[2.0, 0.5], [0.5, 1.0]], (X.T * w**2) @ X)
    found, hidden = covariance(0.0), covariance(1e12)
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=1e-4)
    np.testing.assert_allclose(found, exact, rtol=0, atol=0.02 * exact.max())
    # Noise hides all of it: then there is one weight.
    np.testing.assert_allclose(hidden / np.asarray(matrix), 0.3, rtol=0.05)


def test_correlations_of_scores_are_taken_from_the_release_as_far_as_noise_allows():
    """Where weights follow the covariates they are not those of the curvature."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(20_000, 3)), np.ones(20_000)])
    rate = np.exp(X @ [1.5, -1.5, 0.3, 0.0])  # of counts
    w = np.minimum(1, 1 / np.sqrt(rate * np.sum(X**2, axis=1)))
    h, exact = (X.T * rate * w) @ X, (X.T * rate * w**2) @ X
    assert np.linalg.eigvalsh(np.linalg.solve(h, exact)).max() < 1

    def std(variance, released=True):
        scores = ScoreCovariance(jnp.asarray(exact), jnp.float64(variance)) if released else None
        known = Curvature.none(4)._replace(
            kept_matrix=jnp.asarray(h),
            variances=jnp.asarray([np.trace(exact), *np.diag(exact)]),
            scores=scores,
        )
        spread = np.asarray(sampling_covariance(known, jnp.asarray(h)))
        assert np.linalg.eigvalsh(spread).min() > 0
        return np.sqrt(np.diag(np.linalg.inv(h) @ spread @ np.linalg.inv(h)))

    truth = np.sqrt(np.diag(np.linalg.inv(h) @ exact @ np.linalg.inv(h)))
    np.testing.assert_allclose(std(0.0), truth, rtol=1e-3)
    without = std(0.0, released=False)
    assert without[3] < 0.8 * truth[3]  # the intercept's interval would be too narrow
    np.testing.assert_allclose(std(1e12), without, rtol=1e-3)
    noisy = Curvature.none(4, scores=True)
    estimate = {
        "curvature": jnp.asarray(h),
        "variances": jnp.zeros(5),
        "scores": jnp.asarray(exact),
    }
    scales = {"curvature": 1.0, "variances": 1.0, "scores": 3.0}
    of_rows = MechanismSpec((GaussianSteps(1.0, 1.0, 1),)).traced()
    once = noisy.after(estimate, scales, of_rows).scores
    np.testing.assert_allclose(once.matrix, exact, rtol=1e-6)
    assert once.variance == 3.0**2 / 2


def test_released_correlations_count_by_their_noise_and_stay_below_the_curvature():
    h = np.diag([4.0, 1.0])
    known = Curvature.none(2)._replace(
        kept_matrix=jnp.asarray(h),
        kept_variance=jnp.float64(0.02),
        variances=jnp.asarray([2.4, 2.0, 0.4]),
    )

    def found(matrix, variance=0.0):
        own = ScoreCovariance(jnp.asarray(matrix), jnp.float64(variance))
        return np.asarray(sampling_covariance(known._replace(scores=own), jnp.asarray(h)))

    mean, old = (
        float(sampling_weight(known)),
        np.asarray(sampling_covariance(known, jnp.asarray(h))),
    )
    released = old + 0.1 * np.array([[1.0, 2.0], [2.0, 3.0]])
    noise = (0.03 + mean**2 * 0.02) * np.array([[2 / 16, 1 / 4], [1 / 4, 2 / 1]])
    gain = 1 / (1 + noise / (mean**2 / 16 / 2))
    np.testing.assert_allclose(found(released, 0.03), old + gain * (released - old), rtol=1e-5)
    for matrix, ratio in ((9 * h, 1), (-9 * h, 0.02)):
        np.testing.assert_allclose(found(matrix), ratio * h, rtol=1e-5, atol=1e-9)
    blocks = curvature_blocks(5.0, 0.7, True, True)
    assert blocks["scores"] == blocks["variances"]  # whose sum bounds the norm of the covariance
    np.testing.assert_allclose(blocks["scores"].clipping_norm, 0.49)
    assert sum(own.share for own in blocks.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("lost", "noise", "kept"),
    [(0.3, 0.01, 0.7), (0.3, 0.5, 1.0), (-0.3, 0.01, 1.0), (0.9, 0.1, 0.45)],
)
def test_what_noise_may_make_of_the_share_counts_as_nothing_lost(lost, noise, kept):
    """Divided by a share that noise makes small, curvatures would be too large."""
    spec = MechanismSpec((GaussianSteps(1.0, 1.0, 1),), most_rows=5).traced()
    sums = {
        "curvature": jnp.eye(2),
        "variances": jnp.ones(3),
        "whole": 1e3,
        "kept": 1e3 * (1 - lost),
    }
    scales = dict.fromkeys(sums, jnp.float32(noise * 1e3))
    known = Curvature.none(2).after(jax.tree.map(jnp.float32, sums), scales, spec)
    np.testing.assert_allclose(known.kept, kept, rtol=0.05)
    np.testing.assert_allclose(known.matrix, np.eye(2) / known.kept, rtol=1e-6)


@pytest.mark.parametrize(("copies", "kept"), [(5, 5**-0.5), (1, 1.0)])
def test_curvature_that_persons_lose_is_made_up_for(copies, kept):
    """The norms of the rows' curvatures, whole and as persons keep them, tell of its share."""
    X = np.random.default_rng(0).normal([0, 0, 1], size=(200, 3)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)  # each row has the whole norm
    spec = MechanismSpec((GaussianSteps(1.0, 1.0, 1),), most_rows=5).traced()
    model, params = Rows(True), jnp.zeros((2, 3))
    query = curvature_query(model, params, jnp.float64(1.0), spec.several_rows)
    whole = float(jnp.linalg.norm(model.curvature(params, {"x": X[0]})))
    blocks = curvature_blocks(whole, 1.0, spec.several_rows)
    assert sum(own.share for own in blocks.values()) == 1
    longer = blocks_of_persons(blocks, spec)
    rows = jnp.repeat(jnp.asarray(X)[:, None], copies, axis=1)
    of_each = mapped(of_person(query, blocks, longer))(
        Person({"x": rows}, jnp.ones(rows.shape[:2], bool))
    )
    norms = jnp.linalg.norm(of_each["curvature"], axis=(1, 2))
    assert np.all(norms <= longer["curvature"].clipping_norm * (1 + 1e-5))
    estimate = {name: own.sum(axis=0) for name, own in of_each.items()}
    known = Curvature.none(6)
    after = jax.jit(
        lambda known: known.after(estimate, dict.fromkeys(blocks, jnp.float32(0)), spec)
    )
    for _ in range(3):
        known = after(known)
    np.testing.assert_allclose(known.kept, kept, rtol=1e-4)
    truth = copies * np.kron([[2.0, 0.5], [0.5, 1.0]], X.T @ X)
    np.testing.assert_allclose(known.matrix, truth, rtol=1e-3, atol=1e-3)
