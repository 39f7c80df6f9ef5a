"""The benchmark of balanced participation: its accountant, and the variances it compares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import participation
from skdpbayes.privacy.accounting._gaussian import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize("sigma", [1.2, 4.0])
def test_one_round_is_a_full_batch(sigma):
    exact = gaussian_epsilon(1e-5, math.sqrt(3) / sigma)
    found = participation.balanced_epsilon(sigma, 1, 3)
    assert exact < found < 1.005 * exact


def test_epsilon_lies_in_the_range_of_another_accountant():
    """PLD_accounting 2.0, one of 100 rounds, two windows, discretisation .01: .8006 to .8075."""
    assert 0.8006 < participation.balanced_epsilon(1.0, 100, 2) < 0.8075


@pytest.mark.parametrize("remove", [True, False])
def test_delta_of_a_window_agrees_with_simulation(remove):
    """delta is the mean of (ratio - e^eps)+ or of (1 - e^eps ratio)+, under Q."""
    sigma, rounds, epsilon = 1.2, 5, 0.5
    z = np.random.default_rng(0).standard_normal((400_000, rounds))
    ratio = np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)
    side = ratio - math.exp(epsilon) if remove else 1 - math.exp(epsilon) * ratio
    excess = np.maximum(side, 0)
    error = excess.std() / math.sqrt(len(excess))
    loss = participation.window_losses(sigma, rounds)[0 if remove else 1]
    found = participation.LossDistribution(loss).delta(epsilon)
    assert abs(found - excess.mean()) < 4 * error < 0.05 * found


@pytest.mark.parametrize("rounds, windows", [(10, 3), (40, 2)])
def test_no_less_than_full_batches(rounds, windows):
    """The sum of a window's releases is one of all records, with the noise of all of them."""
    sigma = 1.5
    full = gaussian_epsilon(1e-5, math.sqrt(windows) / (sigma * math.sqrt(rounds)))
    balanced = participation.balanced_epsilon(sigma, rounds, windows)
    assert full < balanced < 1.2 * gaussian_epsilon(1e-5, math.sqrt(windows) / sigma)


def test_a_finer_grid_has_a_smaller_epsilon_close_by():
    coarse, fine = (participation.balanced_epsilon(0.9, 20, 2, points=2**n) for n in (13, 17))
    assert fine <= coarse * (1 + 1e-4)
    assert coarse == pytest.approx(fine, rel=0.02)


def test_noise_reaches_epsilon_from_between_full_and_poisson():
    sigma = participation.balanced_noise(1.0, 20, 4)
    assert participation.balanced_epsilon(sigma, 20, 4) == pytest.approx(1.0, rel=3e-3)
    least = participation.full_noise(1.0, 4) / math.sqrt(20)
    assert least < sigma < participation.poisson_noise(1.0, 20, 4)


def test_variances_are_those_of_samplers():
    rng = np.random.default_rng(1)
    rounds, windows = 8, 3
    n = 20_000
    chosen = rng.integers(rounds, size=(windows, n))
    counts = np.stack([np.bincount(c * n + np.arange(n), minlength=rounds * n) for c in chosen])
    counts = counts.reshape(windows * rounds, n)
    for averaged in (24, 16, 13, 5):
        met = counts[-averaged:].sum(axis=0) * rounds / averaged  # weight of a record in the mean
        expected = participation.balanced_variance(rounds, averaged)
        assert met.var() == pytest.approx(expected, rel=0.05, abs=1e-12)
    met = rng.binomial(24, 1 / rounds, size=200_000) * rounds / 24
    assert met.var() == pytest.approx(participation.poisson_variance(1 / rounds, 24), rel=0.02)


def test_privacy_variance_of_full_batches_does_not_depend_on_their_number():
    few, many = (
        participation.privacy_variance(participation.full_noise(1.0, p), 1.0, p, 1000, 8)
        for p in (2, 50)
    )
    assert few == pytest.approx(many, rel=1e-3)
    mu = math.sqrt(2) / participation.full_noise(1.0, 2)
    assert few == pytest.approx(8 / (mu**2 * 1000), rel=1e-6)
    assert float(gaussian_delta(1.0, mu)) == pytest.approx(1e-5, rel=1e-2)
