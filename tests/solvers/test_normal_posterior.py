"""Posteriors under normal and Student t priors, given a quadratic log-likelihood."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.solvers.normal_posterior import (
    Under,
    _factors,
    normal_given,
    over_common_scales,
    posterior_given,
)


class Model(NamedTuple):
    """Prior about a centre that is not zero."""

    centre: np.ndarray
    scale: np.ndarray
    prior_df: float | None = None
    common_scale: np.ndarray | None = None

    def init(self):
        return jnp.asarray(self.centre)

    def prior_precision(self):
        return jnp.asarray(self.scale) ** -2.0

    def prior_degrees(self):
        return None if self.prior_df is None else jnp.full(self.scale.shape, self.prior_df)

    def prior_common_scale(self):
        return self.common_scale


CENTRE, SCALE = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.5, 1.0])


def likelihood(strength, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    return strength * root @ root.T, strength * rng.normal(size=4)


def moments(model, information, linear, steps=200, believed=1.0):
    """Mean and covariance at the fixed point."""
    with jax.enable_x64(True):
        information, linear = jnp.asarray(information), jnp.asarray(linear)
        mean, covariance = jnp.asarray(model.centre), jnp.diag(jnp.asarray(model.scale) ** 2)
        given = jax.jit(lambda before: normal_given(model, information, linear, before, believed))
        for _ in range(steps):
            mean, precision = given((mean, covariance))
            covariance = jnp.linalg.inv(precision)
    return np.asarray(mean), np.asarray(covariance)


def test_a_normal_prior():
    information, linear = likelihood(3.0)
    mean, covariance = moments(Model(CENTRE, SCALE), information, linear, steps=1)
    precision = information + np.diag(SCALE**-2)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(
        mean, np.linalg.solve(precision, linear + CENTRE / SCALE**2), rtol=1e-6
    )


@pytest.mark.parametrize("seen", [-3.0, 0.3, 2.0, 12.0])
@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_a_student_t_prior_is_near_to_the_exact_posterior(seen, noise):
    """One parameter seen with noise, beside quadrature; a normal prior would be off by far more where it is large."""
    model, df = Model(np.array([0.5]), np.array([1.5])), 4.0
    information, linear = np.array([[noise**-2]]), np.array([seen / noise**2])
    mean, covariance = moments(model._replace(prior_df=df), information, linear)
    grid = np.linspace(-40, 60, 200_001)
    weights = stats.t(df, 0.5, 1.5).pdf(grid) * stats.norm(seen, noise).pdf(grid)
    weights /= weights.sum()
    wanted = weights @ grid
    assert abs(mean[0] - wanted) < 0.1 * noise
    np.testing.assert_allclose(
        np.sqrt(covariance[0, 0]), np.sqrt(weights @ (grid - wanted) ** 2), rtol=0.1
    )


def test_variational_bayes_of_a_student_t_prior():
    """The fixed point is that of coordinate ascent over normal parameters and gamma distributed precisions."""
    information, linear = likelihood(1.0)
    df, about = 5.0, linear - information @ CENTRE
    found = moments(Model(CENTRE, SCALE, df), information, linear)
    precisions = np.ones(4)
    for _ in range(500):
        covariance = np.linalg.inv(information + np.diag(precisions / SCALE**2))
        mean = covariance @ about
        rate = df / 2 + (mean**2 + np.diag(covariance)) / SCALE**2 / 2
        precisions = stats.gamma(df / 2 + 0.5, scale=1 / rate).mean()
    np.testing.assert_allclose(found[0], CENTRE + mean, rtol=1e-6)
    np.testing.assert_allclose(found[1], covariance, rtol=1e-6)


def test_without_data_the_scale_of_the_prior_remains():
    mean, covariance = moments(Model(CENTRE, SCALE, 4.0), np.zeros((4, 4)), np.zeros(4))
    np.testing.assert_allclose(np.diag(covariance), SCALE**2, rtol=1e-6)
    np.testing.assert_allclose(mean, CENTRE, atol=1e-6)


def test_many_degrees_of_freedom_are_a_normal_prior():
    information, linear = likelihood(3.0)
    many, normal = (moments(Model(CENTRE, SCALE, df), information, linear) for df in (1e6, None))
    np.testing.assert_allclose(many[0], normal[0], rtol=1e-4)
    np.testing.assert_allclose(many[1], normal[1], rtol=1e-4)


@pytest.mark.parametrize("believed", [1.0, 0.5, 0.0])
def test_variational_bayes_of_a_common_scale(believed):
    """The fixed point is that of coordinate ascent."""
    rng, p, df = np.random.default_rng(0), 12, 5.0
    root = rng.normal(size=(p, p))
    information, scale = 30 * (root @ root.T + np.eye(p)), rng.uniform(0.5, 2, p)
    centre, shared = rng.normal(size=p), np.r_[np.ones(p - 1), 0]
    about = information @ np.r_[0.02 * rng.normal(size=p - 1), 3.0]
    linear = about + information @ centre
    model = Model(centre, scale, df)
    found = moments(model._replace(common_scale=shared), information, linear, believed=believed)
    own, common = np.ones(p), 1.0
    for _ in range(500):
        precisions = own * np.where(shared, common, 1) / scale**2
        covariance = np.linalg.inv(information + np.diag(precisions))
        mean = covariance @ about
        square = (mean**2 + np.diag(covariance)) / scale**2
        own = (df + 1) / (df + np.where(shared, common, 1) * square)
        common = (p / (1 + np.sum(shared * own * square))) ** believed  # of p - 1 coefficients
    assert common == 1 if believed == 0 else 1.05 < common < 60
    np.testing.assert_allclose(found[0], centre + mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1], covariance, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "size, believed, expected",
    [
        (0.5, 1, 21 / 6),  # the prior is worth one coefficient
        (1.2, 1, 2 / 2.44),  # and as many as there are
        (3.0, 1, 0.2),
        (3.0, 0.5, 0.2**0.5),
        (1e3, 1, 1 / 64),
        (1e3, 0.5, 1 / 8),
    ],
)
def test_the_common_scale_follows_large_parameters(size, believed, expected):
    p = 20
    model = Model(np.zeros(p), np.ones(p), 1e9, np.ones(p))
    truth = size * np.tile([1.0, -1.0], p // 2)
    with jax.enable_x64(True):
        state = jnp.asarray(truth), jnp.zeros((p, p))
        factors = _factors(model, *state, believed)
    np.testing.assert_allclose(factors, expected, rtol=2e-3)


def test_large_parameters_are_shrunk_less_under_a_common_scale():
    p = 20
    information, model = 4 * np.eye(p), Model(np.zeros(p), np.ones(p), 1e9)
    truth = 3.0 * np.tile([1.0, -1.0], p // 2)
    plain, common = (
        moments(model._replace(common_scale=shared), information, information @ truth)[0]
        for shared in (None, np.ones(p))
    )
    np.testing.assert_allclose(plain, truth * 4 / 5, rtol=1e-3)
    np.testing.assert_allclose(common, truth, rtol=0.06)


def test_large_parameters_among_small_ones_do_not_hide_the_common_scale():
    """One sweep of the caller finds the fixed point of the common scale, nearly."""
    p, large = 300, 50
    model = Model(np.zeros(p), np.ones(p), 4.0, np.ones(p))
    mean = np.r_[np.full(large, 3.0), np.full(p - large, 0.2)]
    with jax.enable_x64(True):
        factors = _factors(model, jnp.asarray(mean), jnp.zeros((p, p)), 1.0)
    common = 1.0
    for _ in range(1000):
        size = np.sum(5 * mean**2 / (4 + common * mean**2))
        common = (1 + p) / (1 + size)
    assert common > 2
    np.testing.assert_allclose(factors, 5 * common / (4 + common * mean**2), rtol=0.1)


def exact_over_factors(model, information, linear, believed):
    """Posterior moments under normal priors, by quadrature over the logarithm of the factor."""
    log_factors = np.linspace(np.log(1 / 16), np.log(8), 2_001)
    shared, found, log_weights = model.common_scale > 0, [], []
    about = linear - information @ model.centre
    for log_factor in log_factors:
        prior = np.where(shared, np.exp(-2 * believed * log_factor), 1) / model.scale**2
        precision = information + np.diag(prior)
        mean = np.linalg.solve(precision, about)
        evidence = np.sum(np.log(prior)) - np.linalg.slogdet(precision)[1] + about @ mean
        own = stats.logistic.logpdf(2 * log_factor)
        own -= (shared.sum() + 3) * (1 - np.exp(-max(log_factor, 0)))
        found.append((mean, np.linalg.inv(precision)))
        log_weights.append(own + evidence / 2)
    weights = np.exp(np.array(log_weights) - max(log_weights))
    weights /= weights.sum()
    means, covariances = (np.array(x) for x in zip(*found, strict=True))
    mean = weights @ means
    away = means - mean
    return model.centre + mean, np.tensordot(weights, covariances, 1) + (away.T * weights) @ away


@pytest.mark.parametrize("believed", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(
    "strength, size",
    [(0.0, 0.0), (0.5, 1.0), (30.0, 0.1), (30.0, 0.8), (3.0, 3.0), (300.0, 6.0)],
)
def test_the_posterior_is_averaged_over_the_common_scale(strength, size, believed):
    """Beside quadrature, under priors that are nearly normal; two of the parameters have none.

    Between factors of two moments are interpolated: chords of squares are a bit above them.
    """
    rng, p = np.random.default_rng(3), 8
    root = rng.normal(size=(p, p))
    information = strength * (root @ root.T / p + np.eye(p))
    centre, scale = rng.normal(size=p), rng.uniform(0.5, 2, p)
    truth = size * scale * np.r_[rng.normal(size=p - 2), 1, -1]
    linear = information @ (centre + truth) + rng.normal(size=p) * strength**0.5
    model = Model(centre, scale, 1e9, np.r_[np.ones(p - 2), 0, 0])
    found = posterior_given(
        model, NormalLikelihood(information, linear, information, believed=believed)
    )
    mean, covariance = exact_over_factors(model, information, linear, believed)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(found.mean - mean) < 0.08 * std).all()
    np.testing.assert_allclose(found.std, std, rtol=0.085)


def test_the_reported_information_is_that_of_the_covariance_alone():
    p = 6
    model = Model(np.zeros(p), np.ones(p), 1e9, np.ones(p))
    information, linear = 30 * np.eye(p), 30 * np.linspace(-1, 1, p)
    one, other = (
        posterior_given(model, NormalLikelihood(information, linear, reported))
        for reported in (information, 4 * information)
    )
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_allclose(other.std, one.std / 2, rtol=0.12)  # and how r moves means


def test_no_coefficient_need_have_the_common_scale():
    model = Model(np.zeros(1), np.ones(1), 1e9, np.zeros(1))
    found = posterior_given(model, NormalLikelihood(np.eye(1), np.ones(1), np.eye(1)))
    np.testing.assert_allclose([found.mean[0], found.std[0]], [0.5, 0.5**0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "sizes, largest",
    [
        ([167, 129, 98.9, 104, 131, 89, 30, 8], 0.25),  # of a fit that noise led astray
        ([167, 129, 95, 99, 131, 89, 30, 8], 0.5),  # below J the density falls in any case
        ([100, 99, 101, 103, 107, 90, 30, 8], np.inf),  # a fall by a hundredth is none
        ([100, 110, 140, 150, 120, 70, 20, 5], np.inf),
    ],
)
def test_large_solutions_beyond_a_first_maximum_do_not_count(sizes, largest):
    p, factors = 100, 2.0 ** np.arange(-4, 4)
    model = Model(np.zeros(p), np.ones(p), 1e9, np.ones(p))
    means = np.sqrt(np.array(sizes) / p) * factors

    def found(start, factor):
        mean = jnp.asarray(means)[factor] * jnp.ones(p)
        return start, Under(mean, jnp.zeros((p, p)), jnp.zeros((p, p)), ())

    with jax.enable_x64(True):
        averaged, _ = over_common_scales(model, found, jnp.zeros(()))
    mean, most = float(averaged.mean[0]), means[factors <= largest].max()
    assert 0.1 < mean < (most if np.isfinite(largest) else 8)
    assert np.isfinite(largest) or mean > 0.7
