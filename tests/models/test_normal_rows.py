"""Simulated rows: moments as declared, and sums as the model's own over the same rows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped, slow_but
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.models.base import unbiased_weight, weighted_score
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.standard_rows import standard_rows
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.solvers.released_curvature import curvature_query

P, N_RECORDS, CLIP = 4, 3000.0, 0.8
RNG = np.random.default_rng(0)
MEAN, ROOT = np.array([0.5, -0.2, 0.0]), np.tril(RNG.normal(size=(3, 3))) + np.eye(3)
SECOND = np.eye(P)  # moments of (x, 1)
SECOND[:3, :3] = ROOT @ ROOT.T + np.outer(MEAN, MEAN)
SECOND[:3, 3] = SECOND[3, :3] = MEAN


def expected_of(n_classes=2):
    """Rows given axes that know the moments up to a factor."""
    values, vectors = np.linalg.eigh(0.4 * SECOND)
    model = LogisticRegression(P, n_classes, np.ones(P, np.float32), row_norm=1.5)
    seen = InCoordinates(model, vectors / np.sqrt(values))
    return seen, NormalRows(standard_rows(P), N_RECORDS).of(seen)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_rows_have_the_moments_of_the_axes_and_a_constant_column():
    seen, rows = expected_of()
    own = np.linalg.solve(np.asarray(seen.axes).T, np.asarray(rows.rows).T).T
    np.testing.assert_allclose(own[:, -1], 1, rtol=1e-5)
    np.testing.assert_allclose(own.T @ own / len(own), SECOND, rtol=1e-4, atol=1e-4)
    assert float(rows.share) * len(own) == pytest.approx(N_RECORDS)


def test_rows_have_the_likeliest_moments_where_these_are_not_those_of_the_axes():
    seen, _ = expected_of()
    seen = replace(seen, axes=np.diag([1.0, 2.0, 0.5, 1.0]), row_axes=seen.axes)
    rows = NormalRows(standard_rows(P), N_RECORDS).of(seen)
    own = np.asarray(rows.records["x"])
    np.testing.assert_allclose(own[:, -1], 1, rtol=1e-5)
    np.testing.assert_allclose(own.T @ own / len(own), SECOND, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows.rows, own @ seen.axes, rtol=1e-6)
    np.testing.assert_allclose(
        replace(seen, model=replace(seen.model, constant=True)).moments(),
        SECOND,
        rtol=1e-4,
        atol=1e-4,
    )


def test_there_are_enough_rows_for_many_columns():
    """Curvatures of normal rows are equal in all directions but two; few rows spread them."""
    p = 100
    model = LogisticRegression(p, 2, np.ones(p, np.float32), row_norm=np.float32(p))
    rows = NormalRows(standard_rows(p), 1.0).of(InCoordinates(model, np.eye(p)))
    theta = 2 * np.random.default_rng(0).normal(size=(1, p)) / p**0.5
    values = np.linalg.eigvalsh(rows.curvature(theta, 1e3))[2:]  # the coefficients', and constant
    assert values.std() < 0.15 * values.mean()


@pytest.mark.parametrize("n_classes", slow_but([2, 3], 3))
def test_sums_are_those_of_the_model(n_classes):
    """Curvatures, whole and clipped, and scores with labels that other parameters draw."""
    seen, rows = expected_of(n_classes)
    own = jnp.linalg.solve(jnp.asarray(seen.axes).T, rows.rows.T).T
    asked, truth = (jnp.asarray(RNG.normal(size=seen.init().shape)) for _ in range(2))

    def sum_over_rows(one):
        return sum(jax.tree.map(lambda x: x.sum(axis=0), mapped(one)(own)).values())

    def curvature(x, longest):
        record = {"x": x, "y": 0}
        weight, matrix = unbiased_weight(seen, asked, record, CLIP), seen.curvature(asked, record)
        length = weight * contribution_norm(matrix)
        dense = jnp.einsum("ij,a,b->iajb", matrix.weight, matrix.vector, matrix.vector)
        size = asked.size
        return {"": weight * jnp.minimum(1, longest / length) * dense.reshape(size, size)}

    whole_curvature = jax.jit(lambda: rows.curvature(asked, CLIP))()
    for longest in (None, 0.15):
        found = jax.jit(lambda longest=longest: rows.curvature(asked, CLIP, longest))()
        whole = sum_over_rows(lambda x, longest=longest: curvature(x, longest or jnp.inf))
        np.testing.assert_allclose(found, whole * rows.share, rtol=1e-4, atol=1e-3)
    assert np.trace(found) < 0.9 * np.trace(whole_curvature)  # the clip bites

    def variances(x, longest):
        part = curvature_query(seen, asked, jnp.asarray(CLIP), False)({"x": x, "y": 0})["variances"]
        return {"": 2**0.5 * part * jnp.minimum(1, longest / jnp.linalg.norm(part))}

    for longest in (None, 0.05):
        found = jax.jit(lambda longest=longest: rows.variances(asked, CLIP, longest))()
        whole = sum_over_rows(lambda x, longest=longest: variances(x, longest or jnp.inf))
        np.testing.assert_allclose(found, whole * rows.share, rtol=1e-4, atol=1e-3)
    assert found[0] < 0.9 * rows.variances(asked, CLIP)[0]

    def score(x, y):
        record = {"x": x, "y": y}
        part = weighted_score(seen, asked, record, CLIP)[0]
        likely = jnp.exp(seen.log_likelihood(truth, record))
        return {"": likely * jnp.outer(part.left, part.right).ravel()}

    total = sum(sum_over_rows(lambda x, y=y: score(x, y)) for y in range(n_classes))
    found = rows.scores(
        rows.weights(asked, CLIP)[None], rows.probabilities(asked)[None], rows.probabilities(truth)
    )
    np.testing.assert_allclose(found[0], total * rows.share, rtol=1e-4, atol=1e-3)
    zero = rows.scores(
        rows.weights(asked, CLIP)[None], rows.probabilities(asked)[None], rows.probabilities(asked)
    )
    np.testing.assert_allclose(zero, 0, atol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_unknown_parameters_are_averaged_over(n_classes):
    seen, rows = expected_of(n_classes)
    mean = jnp.asarray(RNG.normal(size=seen.init().shape))
    root = np.tril(RNG.normal(size=(mean.size, mean.size))) * 0.5
    draws = ravel_pytree(mean)[0] + RNG.normal(size=(4000, mean.size)) @ root.T
    some = rows.rows[:20]
    logits = np.einsum("tia,na->tni", draws.reshape(-1, *mean.shape), some)
    found = rows.at_nodes(mean, root @ root.T).mean[:20]
    by_draws = np.asarray(seen.model.probabilities(jnp.asarray(logits))).mean(axis=0)
    np.testing.assert_allclose(found, by_draws, atol=0.04)
    assert np.abs(found - rows.probabilities(mean)[:20]).max() > 0.1
    known = rows.at_nodes(mean, np.zeros_like(root)).mean
    np.testing.assert_allclose(known, rows.probabilities(mean), atol=1e-3)
    if n_classes == 3:
        logits = logits - logits.mean(axis=2, keepdims=True)
        unknown = logits.var(axis=0).sum(axis=1).mean() / 2
    else:
        unknown = logits.var(axis=0).mean()
    few = replace(rows, rows=some)
    assert float(few.logit_variance(root @ root.T)) == pytest.approx(unknown, rel=0.1)
