"""The second opinion counts only where it can be trusted."""

import math
import sys
import warnings

import fourier_accountant
import pytest
from scipy import stats

from skdpbayes.privacy import GaussianSteps, calibrate_noise, compose, crosscheck, epsilon
from skdpbayes.privacy.accounting import _crosscheck, _rdp
from skdpbayes.privacy.accounting._gaussian import gaussian_delta, gaussian_mu


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [(0.01, 2.0, 10**4), (0.1, 20.0, 10**4), (0.01, 1.0, 100), (0.5, 3.0, 100), (0.1, 1.0, 1)],
)
def test_agrees_with_the_accountant(adjacency, q, sigma, steps):
    blocks = GaussianSteps(sigma, q, steps)
    check = crosscheck(blocks, compose(blocks, adjacency).epsilon(1e-5), 1e-5, adjacency)
    assert check.accepted, check.reason
    assert 0.98 <= check.ratio <= 1.001
    assert not check.disagrees
    assert check.estimate == pytest.approx(check.ratio * 1e-5)
    assert "0.99" in str(check) or "1.00" in str(check)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "silently_wrong", "truth"),
    [(1e-3, 0.5, 100, 6.95, 2.108), (0.1, 0.5, 10**4, 19.8, 782.3)],
)
def test_known_silent_failures_are_rejected(q, sigma, steps, silently_wrong, truth):
    alone = fourier_accountant.get_epsilon_R(1e-5, sigma, q, steps)
    assert alone == pytest.approx(
        silently_wrong, rel=0.01
    )  # the library by itself, at its defaults
    blocks = GaussianSteps(sigma, q, steps)
    for claim in (silently_wrong, truth):
        check = crosscheck(blocks, claim, 1e-5)
        assert not check.accepted
        assert check.estimate is None and check.ratio is None and not check.disagrees
        assert "not applicable" in str(check)
    with pytest.raises(ValueError, match="pld"):
        epsilon(blocks, 1e-5, method="fourier")


@pytest.mark.parametrize("factor", [0.9, 1.25])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_a_wrong_epsilon_is_seen(factor, adjacency):
    blocks = [GaussianSteps(1.0, 0.02, 300), GaussianSteps(2.0, 0.01, 100)]
    right = compose(blocks, adjacency).epsilon(1e-5)
    assert crosscheck(blocks, factor * right, 1e-5, adjacency).disagrees
    assert not crosscheck(blocks, right, 1e-5, adjacency).disagrees


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0, 200.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-15])
def test_releases_of_all_records_are_checked_by_quadrature(adjacency, sigma, delta):
    blocks = [GaussianSteps(sigma, 1.0, 3), GaussianSteps(2 * sigma, 1.0, 1)]
    right = compose(blocks, adjacency).epsilon(delta)
    check = crosscheck(blocks, right, delta, adjacency)
    assert (
        check.accepted and check.ratio == pytest.approx(1, rel=1e-6) and "quadrature" in str(check)
    )
    assert crosscheck(blocks, 0.9 * right, delta, adjacency).disagrees
    assert crosscheck(blocks, 1.25 * right, delta, adjacency).disagrees


def test_quadrature_where_delta_is_large():
    for epsilon_, mu in ((0.1, 5.0), (2.0, 12.0), (1e-3, 0.1)):
        assert _crosscheck._quadrature(epsilon_, mu) == pytest.approx(
            gaussian_delta(epsilon_, mu), rel=1e-8
        )


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    ("eps", "q", "steps"), [(1.0, 0.1, 500), (0.1, 0.13, 500), (3.0, 0.5, 200)]
)
def test_a_release_of_all_records_beside_sampled_ones_is_checked(adjacency, eps, q, steps):
    one = GaussianSteps(10 * (1 + (adjacency == "replace_one")) / gaussian_mu(eps, 1e-5), 1.0, 1)
    found = calibrate_noise(eps, 1e-5, q, steps, adjacency=adjacency, along=[one])
    assert found.crosscheck.accepted and 0.98 <= found.crosscheck.ratio <= 1.001
    assert found.along == (one,) and found.steps[0].steps == steps
    assert (
        compose((*found.steps, one), adjacency).epsilon(1e-5)
        == found.epsilon
        == found.curve.epsilon(1e-5)
        <= eps
    )
    alone = calibrate_noise(eps, 1e-5, q, steps, adjacency=adjacency)
    assert 1 < found.noise_multiplier / alone.noise_multiplier < 1.007  # a hundredth of the budget
    large = GaussianSteps(one.noise_multiplier / 2, 1.0, 1)
    assert crosscheck((*found.steps, large), found.epsilon, 1e-5, adjacency).disagrees


def test_a_wrong_adjacency_is_seen():
    blocks = GaussianSteps(2.0, 0.05, 500)
    assert crosscheck(blocks, compose(blocks).epsilon(1e-5), 1e-5, "replace_one").disagrees


def test_nothing_is_printed_or_warned(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        crosscheck(GaussianSteps(2.0, 0.01, 1000), 0.6, 1e-5)
        crosscheck(GaussianSteps(0.3, 0.01, 1000), 30.0, 1e-5, "replace_one")
    out = capfd.readouterr()
    assert out.out == out.err == ""


@pytest.mark.parametrize(
    ("steps", "eps", "delta", "reason"),
    [
        ([GaussianSteps(1.0, 1.0, 10), GaussianSteps(1.0, 0.1, 10)], 1.0, 1e-5, "larger part"),
        ([GaussianSteps(7.5, 1.0, 1), GaussianSteps(8.5, 0.1, 500)], 1.0, 1e-5, "too large a part"),
        (GaussianSteps(0.0, 0.1, 10), 1.0, 1e-5, "no noise"),
        (GaussianSteps(1.0, 0.1, 10), math.inf, 1e-5, "positive finite"),
        (GaussianSteps(1.0, 0.1, 10), 0.0, 1e-5, "positive finite"),
        (GaussianSteps(1.0, 0.1, 10), 1.0, 1e-12, "floor"),
    ],
)
def test_what_it_cannot_do_is_rejected_with_a_reason(steps, eps, delta, reason):
    check = crosscheck(steps, eps, delta)
    assert not check.accepted
    assert reason in check.reason


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "fourier_accountant", None)
    check = crosscheck(GaussianSteps(1.0, 0.1, 10), 1.0, 1e-5)
    assert not check.accepted and "not installed" in check.reason


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_fourier_epsilon_is_a_guarded_estimate(adjacency):
    blocks = GaussianSteps(2.0, 0.05, 300)
    answer = epsilon(blocks, 1e-5, adjacency, method="fourier")
    assert answer == pytest.approx(epsilon(blocks, 1e-5, adjacency), rel=1e-3)
    assert answer.is_upper_bound is False and answer.method == "fourier"
    assert epsilon(GaussianSteps(0.0, 0.1, 1), 1e-5, adjacency, "fourier") == math.inf


def test_results_are_plain_data():
    check = crosscheck(GaussianSteps(2.0, 0.05, 300), 2.0, 1e-5)
    record = check.to_dict()
    assert record["accepted"] is True and set(map(type, record.values())) <= {bool, str, float, int}


def test_an_answer_that_moves_with_the_grid_is_rejected(monkeypatch):
    sizes = []

    def drifting(library, blocks, eps, adjacency, size, radius):
        sizes.append(size)
        return 1e-5 * (1 + 2**17 / size)

    monkeypatch.setattr(_crosscheck, "_library_delta", drifting)
    check = crosscheck(GaussianSteps(2.0, 0.05, 300), 2.0, 1e-5)
    assert not check.accepted and "no convergence" in check.reason
    assert sizes == [2**k for k in range(15, 22)]
    monkeypatch.setattr(_crosscheck, "_library_delta", lambda *a: -1e-9)
    assert not crosscheck(GaussianSteps(2.0, 0.05, 300), 2.0, 1e-5).accepted


def test_a_grid_that_does_not_resolve_one_round_is_never_asked(monkeypatch):
    monkeypatch.setattr(_crosscheck, "_library_delta", lambda *a: 1e-5)  # agrees with anything
    check = crosscheck(GaussianSteps(0.5, 0.1, 10**4), 19.8, 1e-5)
    assert not check.accepted and "too coarse" in check.reason
    assert crosscheck(GaussianSteps(2.0, 0.05, 300), 2.0, 1e-5).accepted


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_mass_defect_vanishes_on_a_fine_grid(adjacency):
    blocks = (GaussianSteps(2.0, 0.3, 10),)
    coarse, fine = (
        _crosscheck._mass_defect(blocks, adjacency, size, 30.0) for size in (2**6, 2**15)
    )
    assert coarse > 1e-2
    assert fine < 1e-6


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_the_window_holds_the_loss(mu):
    orders = _rdp.ORDERS
    radius = _rdp.log_moment_radius(orders * mu**2 / 2, 1e-6)
    outside = stats.norm.sf(radius, mu**2 / 2, mu) + stats.norm.cdf(-radius, mu**2 / 2, mu)
    assert outside <= 1e-6
    assert radius <= mu**2 / 2 + 7.0 * mu


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_window_holds_the_smallest_loss_at_high_sampling_rates(steps):
    # With log(1 - q) left of its window the library wraps around: it said .366 of the true delta at
    # steps=1.
    calibration = calibrate_noise(1.0, 1e-5, 0.9, steps)
    assert calibration.crosscheck.accepted
    assert abs(calibration.crosscheck.ratio - 1) < 0.01
