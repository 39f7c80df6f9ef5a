"""Scores against closed forms."""

import numpy as np
import pytest
from conjugate import STD, WRONG, conjugate
from scipy import stats

from skdpbayes.calibration import crps, interval_width


def normal_crps(error, std):
    """Gneiting and Raftery (2007), page 367."""
    z = error / std
    return std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))


def test_crps_of_a_normal():
    rng = np.random.default_rng(0)
    truth = np.array([[-3.0, 0.0, 1.5]])
    draws = rng.normal(1.0, 2.0, (1, 200_000, 3))
    np.testing.assert_allclose(crps(draws, truth), normal_crps(truth - 1.0, 2.0), atol=0.015)


def test_crps_is_unbiased_with_two_draws():
    rng = np.random.default_rng(0)
    scores = crps(rng.standard_normal((100_000, 2, 1)), np.full((100_000, 1), 0.7))
    assert abs(scores.mean() - normal_crps(0.7, 1.0)) < 4 * scores.std() / np.sqrt(100_000)


def test_crps_against_all_pairs():
    draws, truth = conjugate(4, 13, 2)
    apart = np.abs(draws[:, :, None] - draws[:, None]).sum(axis=(1, 2)) / (13 * 12)
    expected = np.abs(draws - truth[:, None]).mean(axis=1) - apart / 2
    np.testing.assert_allclose(crps(draws, truth), expected)
    np.testing.assert_allclose(
        crps(draws + 1e6, truth + 1e6), expected, atol=1e-9
    )  # digits are kept far from 0


@pytest.mark.parametrize("wrong", WRONG)
def test_the_right_posterior_scores_best(wrong):
    right, other = crps(*conjugate(2000)), crps(*conjugate(2000, **WRONG[wrong]))
    gain = (other - right).mean(axis=1)
    assert gain.mean() > 4 * gain.std() / np.sqrt(2000)


def test_crps_tells_the_prior_from_the_posterior():
    draws, truth = conjugate(2000)
    prior = np.random.default_rng(9).standard_normal(draws.shape)
    assert crps(draws, truth).mean() < 0.7 * crps(prior, truth).mean()


def test_interval_width():
    draws, _ = conjugate(50, 4000)
    np.testing.assert_allclose(
        interval_width(draws, 0.8).mean(axis=0), 2 * STD * stats.norm.ppf(0.9), rtol=0.02
    )
    np.testing.assert_allclose(interval_width(draws / 2), interval_width(draws) / 2)


def test_refusals():
    with pytest.raises(ValueError, match="at least 2 draws"):
        crps(np.zeros((3, 1, 1)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="truth must have the shape"):
        crps(np.zeros((3, 5, 1)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="at least 199 draws, got 198"):
        interval_width(np.zeros((3, 198, 1)), 0.99)
    assert interval_width(np.zeros((3, 199, 1)), 0.99).shape == (3, 1)
    with pytest.raises(ValueError, match="n_replicates, n_draws, n_parameters"):
        interval_width(np.zeros((3, 199)))
