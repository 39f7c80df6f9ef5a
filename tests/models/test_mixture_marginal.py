"""The likelihood of a mixture with its labels summed out, and its prior, in coordinates about a start."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from jax.flatten_util import ravel_pytree
from scipy import stats
from scipy.special import logsumexp

from skdpbayes.models.mixtures.marginal import MarginalMixture, nodes_for
from skdpbayes.posteriors.base import GaussianPosterior

K, D = 3, 2
KINDS = ("full", "tied", "diag", "spherical")
CENTRE, SCATTER = np.array([0.3, -0.2]), np.array([[1.5, 0.4], [0.4, 0.9]])
ALPHA, KAPPA, NU = 1.5, 0.7, 4.0


def mixture(kind):
    """A mixture about a start of this type, and the matrix of a few points in its coordinates."""
    rng = np.random.default_rng(0)
    factor = np.tril(rng.standard_normal((K, D, D)) / 3) + np.eye(D)
    factor = {"tied": factor[:1] + 0 * factor, "diag": factor * np.eye(D), "full": factor}.get(
        kind, 0 * factor + np.eye(D)
    )
    scatter = SCATTER if kind in ("full", "tied") else SCATTER * np.eye(D)
    if kind == "spherical":
        scatter = np.trace(scatter) / D * np.eye(D)
    sizes = np.ones(K) if kind == "tied" else np.array([1.0, 0.3, 2.0])
    scatter = sizes[:, None, None] * scatter
    fields = (
        ALPHA, KAPPA, NU, CENTRE, scatter, [0.5, 0.3, 0.2], rng.standard_normal((K, D)), factor, np.ones((3, K)), 1000,
        nodes_for(1000, D, 17),
    )  # fmt: skip
    model = MarginalMixture(kind, K, D, *(np.asarray(x, np.float32) for x in fields))
    size = ravel_pytree(model.init())[0].size
    return model, (0.4 * rng.standard_normal((5, size))).astype(np.float32)


def natural(model, points):
    """Weights, means and covariances at points."""
    rows = model.natural(None).function(points.astype(np.float64))
    weights, means, covariances = np.split(rows, [K, K + K * D], axis=1)
    return weights, means.reshape(-1, K, D), covariances.reshape(-1, K, D, D)


def unravel(model):
    return ravel_pytree(model.init())[1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_density_of_a_mixture(kind):
    model, points = mixture(kind)
    x = np.array([0.7, -1.1])
    for point, weights, means, covariances in zip(points, *natural(model, points), strict=True):
        parts = zip(weights, means, covariances, strict=True)
        wanted = logsumexp(
            [np.log(w) + stats.multivariate_normal(m, c).logpdf(x) for w, m, c in parts]
        )
        found = model.log_likelihood(unravel(model)(point), {"x": x.astype(np.float32)})
        assert found - D / 2 * np.log(2 * np.pi) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_the_gradient_and_the_curvature_its_outer_product(kind):
    model, points = mixture(kind)
    of, record = unravel(model), {"x": jnp.array([0.7, -1.1], jnp.float32)}
    for point in points[:2]:
        wanted = jax.grad(lambda v: model.log_likelihood(of(v), record))(point)
        score = ravel_pytree(model.score(of(point), record))[0]
        np.testing.assert_allclose(score, wanted, atol=2e-6)
        product = model.curvature(of(point), record)
        np.testing.assert_allclose(
            product.weight * jnp.outer(product.vector, product.vector),
            jnp.outer(wanted, wanted),
            atol=1e-5,
        )


def independent(kind, weights, means, covariances):
    """Numbers that determine a mixture, of which each is free."""
    i, j = np.tril_indices(D)
    own = {"full": covariances[:, i, j], "tied": covariances[0, i, j]}
    own |= {"diag": covariances[:, range(D), range(D)], "spherical": covariances[:, 0, 0]}
    return np.concatenate([weights[:-1], means.ravel(), own[kind].ravel()])


def density(kind, weights, means, covariances):
    """Logarithm of the prior density of those numbers."""
    scatter = mixture(kind)[0].scatter.astype(np.float64)
    total = stats.dirichlet(np.full(K, ALPHA)).logpdf(weights / weights.sum())
    total += sum(
        stats.multivariate_normal(CENTRE, c / KAPPA).logpdf(m)
        for m, c in zip(means, covariances, strict=True)
    )
    if kind == "full":
        return total + sum(
            stats.invwishart(NU, s).logpdf(c) for s, c in zip(scatter, covariances, strict=True)
        )
    if kind == "tied":
        return total + stats.invwishart(K * NU, K * scatter[0]).logpdf(covariances[0])
    if kind == "diag":
        return total + sum(
            stats.invgamma(NU / 2, scale=s[j, j] / 2).logpdf(c[j, j])
            for s, c in zip(scatter, covariances, strict=True)
            for j in range(D)
        )
    return total + sum(
        stats.invgamma(NU * D / 2, scale=np.trace(s) / 2).logpdf(c[0, 0])
        for s, c in zip(scatter, covariances, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_prior_is_that_of_weights_means_and_covariances(kind):
    """Up to a constant, the log prior is their density plus the volume that the coordinates take."""
    model, points = mixture(kind)
    gaps = []
    for point in points.astype(np.float64):
        steps = 1e-5 * np.eye(point.size)
        ends = [zip(*natural(model, point + s * steps), strict=True) for s in (1, -1)]
        above, below = (np.array([independent(kind, *one) for one in end]) for end in ends)
        volume = np.linalg.slogdet((above - below) / 2e-5)[1]
        (one,) = zip(*natural(model, point[None]), strict=True)
        gaps.append(
            model.log_prior(unravel(model)(point.astype(np.float32))) - density(kind, *one) - volume
        )
    np.testing.assert_allclose(gaps, gaps[0], atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_at_zero(kind):
    model, points = mixture(kind)
    weights, means, covariances = natural(model, np.asarray(ravel_pytree(model.init())[0])[None])
    np.testing.assert_allclose(weights[0], model.weights, rtol=1e-6)
    np.testing.assert_allclose(means[0], model.mean, atol=1e-6)
    np.testing.assert_allclose(
        model.factor @ covariances[0] @ np.swapaxes(model.factor, 1, 2),
        np.eye(D) + np.zeros((K, 1, 1)),
        atol=1e-5,
    )
    posterior = model.natural(GaussianPosterior(points[0].astype(float), np.zeros(points[0].size)))
    for found, (wanted,) in zip(posterior.estimate(), natural(model, points[:1]), strict=True):
        np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind != "spherical" else kind for kind in KINDS],
)
def test_what_clipping_takes_off_is_known(kind):
    """With it added back, clipped scores of rows of the mixture sum to zero, which by themselves they do not."""
    model, points = mixture(kind)
    params, norm, size = unravel(model)(points[0]), np.float32(1.5), 50_000
    weights, means, covariances = (x[0] for x in natural(model, points[:1]))
    rng = np.random.default_rng(1)
    label = rng.choice(K, size, p=weights)
    x = means[label] + np.einsum(
        "nij,nj->ni", np.linalg.cholesky(covariances)[label], rng.standard_normal((size, D))
    )
    scores = mapped(lambda row: ravel_pytree(model.score(params, {"x": row}))[0])(
        x.astype(np.float32)
    )
    clipped = scores * jnp.minimum(1, norm / jnp.linalg.norm(scores, axis=1))[:, None]
    mean, error = np.mean(clipped, axis=0), np.std(clipped, axis=0) / size**0.5
    bias = jax.jit(lambda norm: ravel_pytree(model.clipping_bias(params, norm))[0])
    known = bias(norm) / model.n_records
    assert (np.abs(mean - known) < 5 * error + 2e-3).all()
    assert (np.abs(mean) > 20 * error).any()
    assert not bias(np.float32(1e3)).any()


@pytest.mark.slow
def test_expectations_are_exact_beside_the_records_errors():
    """Their errors are taken for the records': they move the optimum by a part of its deviation."""
    n, norm = 200_000, np.float32(2.8)
    model, _ = mixture("diag")

    def bias_and_information(nodes):
        own = replace(model, n_records=np.float32(n), nodes=nodes)
        found = ravel_pytree(own.clipping_bias(own.init(), norm))[0]
        return np.float64(found), np.float64(own.information(own.init(), norm)[0])

    exact, information = bias_and_information(nodes_for(10**6, D, 17))

    def deviations(nodes):
        error = bias_and_information(nodes)[0] - exact
        return np.sqrt(error @ np.linalg.solve(information, error) / len(error))

    assert deviations(nodes_for(n, D, 17)) < 0.2 < deviations(nodes_for(1_000, D, 17))


def test_more_records_have_more_nodes():
    sizes = [len(nodes_for(n, 2, 11)) for n in (500, 10_000, 100_000, 10**6, 10**9, None)]
    assert sizes == [2**12, 2**12, 2**15, 2**18, 2**18, 2**18]
    assert len(nodes_for(10**9, 2, 2_000)) == 2**13  # the scores of all fit in memory
