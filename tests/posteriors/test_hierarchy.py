"""Posteriors of hierarchies: hyper-parameters integrated over, against sums on a grid."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from skdpbayes.posteriors import GaussianPosterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.posteriors.hierarchy import (
    Levels,
    given,
    likelihood_of,
    linearised,
    with_hyper_parameters,
)

M, Q = 3, 4  # values that records tell of, normal coordinates
SLOPE = np.random.default_rng(0).normal(size=(M, Q))
ORDER = np.array([3, 0, 1, 2, 4])  # of draws of hyper-parameter and z


def levels(hyper):
    """Values of spread ``exp(h)`` about ``h``."""
    spread, centre = np.exp(hyper[:, :1, None]), hyper * np.array([1.0, 0.0, -1.0])
    return Levels(centre, spread * SLOPE, stats.norm.logpdf(hyper[:, 0]))


def found(scale=0.3):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(M, M))
    precision = np.eye(M) + root @ root.T / scale**2
    return GaussianPosterior.from_precision(rng.normal(size=M) / 2, precision)


def on_a_grid(gaussian):
    """Means and covariance of hyper-parameter and z, in this order."""
    precision = np.linalg.inv(gaussian.covariance)
    linear = precision @ gaussian.mean
    precision -= np.eye(M)
    grid = np.linspace(-5, 3, 4000)[:, None]
    at = levels(grid)
    logs, means, squares = [], [], []
    for centre, slope, log_prior in zip(*at, strict=True):
        own = slope.T @ precision @ slope + np.eye(Q)
        b = slope.T @ (linear - precision @ centre)
        mean = np.linalg.solve(own, b)
        log = centre @ linear - centre @ precision @ centre / 2 + b @ mean / 2
        logs.append(log - np.linalg.slogdet(own)[1] / 2 + log_prior)
        means.append(mean)
        squares.append(np.linalg.inv(own) + np.outer(mean, mean))
    share = np.exp(np.array(logs) - np.max(logs))
    share /= share.sum()
    mean = np.concatenate([share @ grid, share @ np.array(means)])
    covariance = np.einsum("i,ijk->jk", share, squares) - np.outer(mean[1:], mean[1:])
    return mean, np.sqrt(share @ grid[:, 0] ** 2 - mean[0] ** 2), covariance


def test_moments_are_those_of_a_grid():
    exact = found()
    posterior = with_hyper_parameters(likelihood_of(exact), levels, 1, ORDER)
    draws = posterior.sample(np.random.default_rng(0), 100_000)
    back = np.empty(len(ORDER), int)
    back[ORDER] = np.arange(len(ORDER))
    draws = draws[:, back]  # hyper-parameter, z
    mean, spread, covariance = on_a_grid(exact)
    std = np.append(spread, np.sqrt(np.diag(covariance)))
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / std, 0, atol=0.1)
    np.testing.assert_allclose(draws.std(axis=0) / std, 1, atol=0.05)
    correlations = covariance / np.outer(std[1:], std[1:])
    np.testing.assert_allclose(np.corrcoef(draws[:, 1:].T), correlations, atol=0.05)


@pytest.mark.parametrize("std", [1.0, 2.0])  # a solver may report more than the prior's
def test_without_information_hyper_parameters_keep_their_prior(std):
    """A mean that is only the solver's error would otherwise be a sign of an endless spread."""
    nothing = GaussianPosterior(np.array([0.4, -0.3, 0.2]), np.full(3, std))
    posterior = with_hyper_parameters(likelihood_of(nothing), levels, 1, np.arange(1 + Q))
    np.testing.assert_allclose(posterior.hyper.mean(), 0, atol=0.1)
    np.testing.assert_allclose(posterior.hyper.std(), 1, atol=0.1)
    np.testing.assert_allclose(posterior.std[1:], 1, atol=0.05)
    assert "5 parameters, 1 of them" in repr(posterior)


def test_hardly_any_information_gives_no_endless_spread():
    little = GaussianPosterior(np.full(3, 0.3), np.full(3, 0.999))
    posterior = with_hyper_parameters(likelihood_of(little), levels, 1, np.arange(1 + Q))
    assert np.abs(posterior.hyper).max() < 4


def test_draws_have_each_hyper_parameter_equally_often():
    posterior = with_hyper_parameters(likelihood_of(found()), levels, 1, np.arange(1 + Q))
    n = len(posterior.hyper)
    draws = posterior.sample(np.random.default_rng(0), 3 * n)[:, 0]
    assert (np.unique(draws, return_counts=True)[1] % 3 == 0).all()
    few = [posterior.sample(np.random.default_rng(seed), 1)[0, 0] for seed in range(40)]
    assert len(set(few)) > 20


@pytest.mark.parametrize("k", [1, 3])
def test_hyper_parameters_far_from_their_prior_are_found(k):
    """Spreads of 40 values each, which are known: far from the centre, and narrow."""
    truth = np.array([2.5, -2.0, 1.0])[:k]
    size = 40 * k

    def spreads(hyper):
        slope = np.zeros((len(hyper), size, size))
        slope[:, range(size), range(size)] = np.repeat(np.exp(hyper), 40, axis=1)
        log_prior = stats.norm.logpdf(hyper).sum(axis=1)
        return Levels(np.zeros((len(hyper), size)), slope, log_prior)

    u = np.exp(np.repeat(truth, 40)) * np.random.default_rng(0).normal(size=size)
    told = 1e4
    known = GaussianPosterior(u * told / (told + 1), np.full(size, (told + 1) ** -0.5))
    posterior = with_hyper_parameters(likelihood_of(known), spreads, k, np.arange(k + size))
    grid = np.linspace(-5, 5, 4000)[:, None]
    square = np.square(u).reshape(k, 40).sum(axis=1)
    logs = stats.norm.logpdf(grid) - 40 * grid - square * np.exp(-2 * grid) / 2
    share = np.exp(logs - logs.max(axis=0))
    share /= share.sum(axis=0)
    mean = (share * grid).sum(axis=0)
    std = np.sqrt((share * grid**2).sum(axis=0) - mean**2)
    np.testing.assert_allclose((posterior.hyper.mean(axis=0) - mean) / std, 0, atol=0.4)
    np.testing.assert_allclose(posterior.hyper.std(axis=0), std, rtol=0.3)


def test_spreads_follow_the_information_and_covariances_what_is_reported():
    told = likelihood_of(found())
    wide = with_hyper_parameters(replace(told, reported=told.information / 4), levels, 1, ORDER)
    plain = with_hyper_parameters(told, levels, 1, ORDER)
    np.testing.assert_array_equal(wide.hyper, plain.hyper)
    np.testing.assert_array_equal(wide.means, plain.means)
    for (spread,), root in zip(wide.hyper, wide.roots, strict=True):
        slope = np.exp(spread) * SLOPE
        expected = np.eye(Q) + slope.T @ told.information @ slope / 4
        np.testing.assert_allclose(root @ root.T, expected)


def saturating(mean, variance):
    """Mean of the hyperbolic tangent, and of its slope, by coordinate."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    value = np.tanh(mean + np.sqrt(variance) * nodes[:, None])
    weights = weights / weights.sum()
    return weights @ value, weights @ (1 - value**2)


@pytest.mark.parametrize("seen", [0.3, 0.6])
def test_a_function_that_saturates_tells_less_of_wide_spreads(seen):
    """Spread of 30 values, of whose hyperbolic tangents records tell, against sums on a grid."""
    size, error, rng = 30, 0.15, np.random.default_rng(0)
    truth = np.arctanh(seen) * rng.choice([-1, 1], size) * rng.uniform(0.5, 1.5, size)
    observed = np.tanh(truth) + error * rng.normal(size=size)
    information = np.eye(size) / error**2
    told = NormalLikelihood(information, observed / error**2, information)

    def spreads(hyper):
        slope = np.exp(hyper[:, :1, None]) * np.eye(size)
        return Levels(np.zeros((len(hyper), size)), slope, stats.norm.logpdf(hyper[:, 0]))

    nodes = np.linspace(-3, 3, 25)
    offsets, slopes = linearised(told, spreads(nodes[:, None]), saturating)
    assert (np.diff(slopes.mean(axis=1)) < 0).all()  # the wider, the flatter

    def linear(hyper):
        offset, slope = (
            np.stack([np.interp(hyper[:, 0], nodes, own) for own in x.T], axis=1)
            for x in (offsets, slopes)
        )
        at = spreads(hyper)
        return at._replace(centre=offset, slope=slope[:, :, None] * at.slope)

    posterior = with_hyper_parameters(told, linear, 1, np.arange(1 + size))
    z = np.linspace(-6, 6, 601)
    logs = []
    for spread in np.exp(nodes):
        away = observed - np.tanh(spread * z[:, None])
        density = np.exp(-(away**2) / (2 * error**2)) * stats.norm.pdf(z)[:, None]
        logs.append(np.log(density.sum(axis=0)).sum())
    share = np.exp(np.array(logs) - max(logs) + stats.norm.logpdf(nodes))
    share /= share.sum()
    mean = share @ nodes
    std = np.sqrt(share @ nodes**2 - mean**2)
    assert posterior.hyper.mean() == pytest.approx(mean, abs=0.6 * std)
    assert posterior.hyper.std() == pytest.approx(std, rel=0.2)
    # As if records told of the values themselves, large ones would be taken for small.
    plain = with_hyper_parameters(told, spreads, 1, np.arange(1 + size))
    assert plain.hyper.mean() < mean - (0.7 if seen < 0.5 else 2) * std


def test_precise_information_in_large_units_has_a_factor():
    """The identity is lost in a product whose rank is less than its size."""
    slope = 1e6 * SLOPE
    told = NormalLikelihood(1e12 * np.eye(M), np.ones(M), 1e12 * np.eye(M))
    mean, root, log = given(told, np.zeros(M), slope)
    assert np.isfinite(mean).all() and np.isfinite(log)

    def large(hyper):
        at = levels(hyper)
        return at._replace(centre=0 * at.centre, slope=1e6 * at.slope)

    posterior = with_hyper_parameters(replace(told, reported=told.reported.copy()), large, 1, ORDER)
    at = large(posterior.hyper)
    for centre, own, found in zip(at.centre, at.slope, posterior.roots, strict=True):
        np.testing.assert_array_equal(found, given(told, centre, own)[1])
    null = np.linalg.svd(SLOPE)[2][-1]
    assert np.linalg.norm(root.T @ null) == pytest.approx(1, rel=1e-2)
