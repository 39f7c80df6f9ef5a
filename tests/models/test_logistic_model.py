"""Logistic regression: closed forms against autodiff and against the formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from scipy import stats
from scipy.special import log_softmax, softmax

from skdpbayes.mechanism.contributions import Quadratic, RankOne, contribution_norm
from skdpbayes.models.base import (
    curvature,
    identified,
    identified_part,
    score,
    unbiased_weight,
    weighted_score,
)
from skdpbayes.models.logistic import LogisticRegression

D = 4
CLASSES = [2, 3, 5]


def case(n_classes, seed=0):
    rng = np.random.default_rng(seed)
    model = LogisticRegression(D, n_classes, np.linspace(0.5, 2, D).astype(np.float32))
    theta = rng.normal(size=model.init().shape).astype(np.float32)
    return model, theta, rng.normal(size=D).astype(np.float32)


def record(x, label):
    return {"x": jnp.asarray(x), "y": jnp.int32(label)}


def labels(n_classes):
    return [-1, *range(n_classes), n_classes, 99]


@pytest.mark.parametrize("n_classes", CLASSES)
def test_likelihood_is_the_softmax(n_classes):
    model, theta, x = case(n_classes)
    logits = theta @ x
    want = log_softmax(np.r_[0, logits] if n_classes == 2 else logits)
    got = [float(model.log_likelihood(theta, record(x, k))) for k in range(n_classes)]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert np.exp(got).sum() == pytest.approx(1, abs=1e-5)
    for label in (-1, n_classes, 99):
        assert float(model.log_likelihood(theta, record(x, label))) == 0


@pytest.mark.parametrize("n_classes", slow_but(CLASSES, 2, 3))
def test_score_and_curvature_equal_autodiff(n_classes):
    model, theta, x = case(n_classes)
    gradient = jax.jit(jax.grad(model.log_likelihood))
    hessian = jax.jit(jax.hessian(model.log_likelihood))
    for label in labels(n_classes):
        one = record(x, label)
        closed, curved = score(model, theta, one), curvature(model, theta, one)
        assert isinstance(closed, RankOne) and isinstance(curved, Quadratic)
        outer = np.outer(closed.left, closed.right)
        np.testing.assert_allclose(outer, gradient(theta, one), atol=1e-5)
        square = np.einsum("ij,d,e->idje", curved.weight, curved.vector, curved.vector)
        np.testing.assert_allclose(square, -hessian(theta, one), atol=1e-5)
        assert float(contribution_norm(closed)) == pytest.approx(
            np.linalg.norm(outer), rel=1e-4, abs=1e-9
        )
        assert float(contribution_norm(curved)) == pytest.approx(
            np.linalg.norm(square), rel=1e-4, abs=1e-9
        )
        if label not in range(n_classes):
            assert not outer.any() and not square.any()
        else:
            assert outer.any() and square.any()


@pytest.mark.parametrize("n_classes", CLASSES)
def test_norms_stay_below_their_bounds(n_classes):
    """sqrt(2) (1 for two classes) times the row's norm for the score, half its square (a quarter) for the curvature."""
    bound, curve = (1, 0.25) if n_classes == 2 else (2**0.5, 0.5)
    model, *_ = case(n_classes)

    @jax.jit
    @jax.vmap
    def norms(theta, x, label):
        one = {"x": x, "y": label}
        return contribution_norm(score(model, theta, one)), contribution_norm(
            curvature(model, theta, one)
        )

    rng = np.random.default_rng(0)
    theta = rng.normal(size=(500, *model.init().shape)).astype(np.float32) * rng.choice(
        [0, 0.1, 1, 30], (500, 1, 1)
    )
    x = rng.normal(size=(500, D)).astype(np.float32)
    slopes, curves = norms(theta.astype(np.float32), x, np.arange(500) % n_classes)
    length = np.linalg.norm(x, axis=1)
    assert (np.asarray(slopes) <= bound * length * (1 + 1e-5)).all()
    assert (np.asarray(curves) <= curve * length**2 * (1 + 1e-5)).all()
    assert (np.asarray(slopes) / length).max() > 0.9 * bound
    assert (np.asarray(curves) / length**2).max() > 0.9 * (
        curve if n_classes == 2 else 1 / n_classes
    )


def test_prior_is_independent_and_normal():
    model, theta, _ = case(3)
    want = stats.norm(0, np.linspace(0.5, 2, D)).logpdf(theta).sum()
    assert float(model.log_prior(theta)) == pytest.approx(want, rel=1e-5)


def test_two_classes_have_one_row_of_weights():
    assert [case(k)[0].init().shape for k in CLASSES] == [(1, D), (3, D), (5, D)]


@pytest.mark.parametrize("n_classes", CLASSES)
def test_score_bound_is_the_largest_norm_over_labels(n_classes):
    for seed in range(5):
        model, theta, x = case(n_classes, seed)
        norms = [
            float(contribution_norm(model.score(theta, record(x, k)))) for k in range(n_classes)
        ]
        for label in labels(n_classes):
            assert float(model.score_bound(theta, record(x, label))) == pytest.approx(
                max(norms), rel=1e-5
            )


@pytest.mark.parametrize("n_classes", CLASSES)
def test_weighted_scores_are_bounded_and_unbiased(n_classes):
    """Their expectation over labels is zero at the truth; that of clipped scores is not."""
    model, theta, x = case(n_classes)
    probability = np.exp(
        [float(model.log_likelihood(theta, record(x, k))) for k in range(n_classes)]
    )
    scores = [
        np.outer(one.left, one.right)
        for one in (model.score(theta, record(x, k)) for k in range(n_classes))
    ]
    norms = np.array([np.linalg.norm(one) for one in scores])
    clip = 0.7 * norms.max()
    weights = [float(unbiased_weight(model, theta, record(x, k), clip)) for k in range(n_classes)]
    assert weights == [pytest.approx(0.7, rel=1e-5)] * n_classes
    assert (weights * norms).max() <= clip * (1 + 1e-6)
    expected = np.einsum("k,kij->ij", probability * weights, scores)
    np.testing.assert_allclose(expected, 0, atol=1e-6)
    clipped = np.einsum("k,kij->ij", probability * np.minimum(1, clip / norms), scores)
    assert np.abs(clipped).max() > 1e-3
    assert float(unbiased_weight(model, theta, record(x, 0), 2 * norms.max())) == 1


def test_prior_precision_is_that_of_the_log_prior():
    model, theta, _ = case(3)
    hessian = jax.hessian(lambda v: model.log_prior(v.reshape(theta.shape)))(
        jnp.asarray(theta).ravel()
    )
    np.testing.assert_allclose(
        -hessian, np.diag(np.ravel(model.prior_precision())), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("n_classes", CLASSES)
@pytest.mark.parametrize("norm", [0.3, 1e6])
def test_a_long_row_loses_weight_without_bias(n_classes, norm):
    """Score and curvature stay within the bounds of a row of the public norm, the expected score is zero at the
    truth, and the weight is the same for every label. The row keeps its logits: its direction is that of x, its
    residual that of x.
    """
    plain, theta, x = case(n_classes)
    row_norm = 0.4 * np.linalg.norm(x)
    model = dataclasses.replace(plain, row_norm=np.float32(row_norm))
    most = model.bounds(row_norm)
    p = softmax(np.r_[0, theta @ x] if n_classes == 2 else theta @ x)
    expected, weights = 0.0, []
    for label in range(n_classes):
        one = record(x, label)
        weighted, shortened = weighted_score(model, theta, one, np.float32(norm))
        weight = float(unbiased_weight(model, theta, one, np.float32(norm)))
        weights.append(weight)
        outer = np.outer(weighted.left, weighted.right)
        own = plain.score(theta, one)
        np.testing.assert_allclose(outer, weight * np.outer(own.left, own.right), rtol=1e-4)
        assert np.linalg.norm(outer) <= min(norm, most[0]) * (1 + 1e-5)
        bent = weight * float(contribution_norm(curvature(model, theta, one)))
        assert bent <= most[1] * (1 + 1e-5)
        assert float(shortened) == pytest.approx(weight / 0.4**2, rel=1e-5)
        expected = expected + p[label] * outer
    assert np.ptp(weights) == 0 and weights[0] == pytest.approx(0.4**2 if norm > 1 else weights[0])
    np.testing.assert_allclose(expected, 0, atol=1e-5)


def test_rows_within_the_public_norm_have_their_full_weight():
    plain, _, x = case(2)
    length = np.linalg.norm(x)
    for row_norm in (1.01 * length, np.inf):
        model = dataclasses.replace(plain, row_norm=np.float32(row_norm))
        assert float(model.largest_weight(record(x, 0))) == 1
    assert float(plain.largest_weight(record(0 * x, 0))) == 1
    tiny = dataclasses.replace(plain, row_norm=np.float32(1e-6))
    assert 0 < float(tiny.largest_weight(record(np.float32(1e-3) * x / length, 0))) < 1.1e-6


@pytest.mark.parametrize("n_classes", CLASSES)
def test_only_contrasts_of_classes_are_identified(n_classes):
    """Curvatures are zero along what all classes share, and noise there is dropped."""
    model, theta, x = case(n_classes)
    basis, size = identified(model), theta.size
    noise = jnp.asarray(np.random.default_rng(1).normal(size=(size, size)), jnp.float32)
    if n_classes == 2:
        assert basis is None and identified_part(model, noise) is noise
        return
    assert basis.shape == (size, size - D)
    np.testing.assert_allclose(basis.T @ basis, np.eye(size - D), atol=1e-6)
    shared = np.tile(np.eye(D), (n_classes, 1))
    np.testing.assert_allclose(basis.T @ shared, 0, atol=1e-6)
    found = curvature(model, jnp.asarray(theta), record(x, 1))
    matrix = jnp.einsum("ij,a,b->iajb", found.weight, found.vector, found.vector)
    matrix = matrix.reshape(size, size)
    np.testing.assert_allclose(identified_part(model, matrix), matrix, atol=1e-5)
    seen = identified_part(model, noise)
    np.testing.assert_allclose(seen @ shared, 0, atol=1e-4)
    np.testing.assert_allclose(basis.T @ seen @ basis, basis.T @ noise @ basis, atol=1e-4)
