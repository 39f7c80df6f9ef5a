"""Simulation-based calibration against brute force, and against posteriors that are wrong."""

import numpy as np
import pytest
from conjugate import WRONG, conjugate
from scipy import stats

from skdpbayes.calibration import simulation_based_calibration


def test_ranks_against_brute_force():
    draws, truth = conjugate(7, 11, 2)
    found = simulation_based_calibration(draws, truth, bins=12)
    for k in range(7):
        for j in range(2):
            rank = sum(draw < truth[k, j] for draw in draws[k, :, j])
            assert found.ranks[k, j] == rank
            assert found.counts[j, rank] > 0  # a bin for each rank
    assert (found.counts.sum(axis=1) == 7).all()


def test_bins_need_not_divide_the_ranks():
    found = simulation_based_calibration(*conjugate(50, 9), bins=3)
    np.testing.assert_array_equal(found.edges, [0, 3, 7, 10])
    np.testing.assert_allclose(found.expected, [15, 20, 15])
    for j in range(3):
        inside = [
            np.sum((found.ranks[:, j] >= a) & (found.ranks[:, j] < b))
            for a, b in [(0, 3), (3, 7), (7, 10)]
        ]
        np.testing.assert_array_equal(found.counts[j], inside)
        assert found.p_value[j] == pytest.approx(
            stats.chisquare(found.counts[j], found.expected).pvalue
        )


def test_a_right_posterior_has_uniform_p_values():
    draws, truth = conjugate(300, 99, 200)
    found = simulation_based_calibration(draws, truth)
    assert found.counts.shape == (200, 15)
    assert stats.kstest(found.p_value, "uniform").pvalue > 0.001
    inside = (found.lower <= found.counts) & (found.counts <= found.upper)
    assert 0.95 <= inside.mean() < 0.98


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_posterior_is_seen(wrong):
    found = simulation_based_calibration(*conjugate(**WRONG[wrong]))
    assert (found.p_value < 1e-6).all()
    ends, middle = found.counts[:, [0, -1]], found.counts[:, 8:12].mean(axis=1)
    if wrong == "narrow":
        assert (ends.min(axis=1) > 1.5 * middle).all()
    elif wrong == "wide":
        assert (1.5 * ends.max(axis=1) < middle).all()
    else:  # draws are too large, so truths rank low
        assert (ends[:, 0] > 3 * ends[:, 1]).all()


def test_ties_are_broken_at_random():
    draws, truth = conjugate(4000, 9, 1)
    found = simulation_based_calibration(np.round(draws), np.round(truth), random_state=0)
    assert found.p_value[0] > 0.001
    assert (
        found.ranks
        == simulation_based_calibration(np.round(draws), np.round(truth), random_state=0).ranks
    ).all()
    assert (
        simulation_based_calibration(
            np.zeros((4000, 9, 1)), np.zeros((4000, 1)), random_state=0
        ).p_value
        > 0.001
    )


@pytest.mark.parametrize(
    ("bins", "message"), [(1, "at least 2"), (11, "at most n_draws"), (2.5, "integer")]
)
def test_refusals(bins, message):
    with pytest.raises(ValueError, match=message):
        simulation_based_calibration(*conjugate(5, 9), bins=bins)


def test_bad_shapes():
    with pytest.raises(ValueError, match="n_replicates, n_draws, n_parameters"):
        simulation_based_calibration(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="truth must have the shape"):
        simulation_based_calibration(np.zeros((3, 9, 1)), np.zeros(3))
