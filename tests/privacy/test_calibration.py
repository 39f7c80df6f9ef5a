"""Calibration: the noise returned was verified, and is the least that keeps the promise."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skdpbayes.privacy import (
    AccountingError,
    CrossCheck,
    GaussianSteps,
    bucket_schedule,
    calibrate_noise,
    compose,
    epsilon,
)
from skdpbayes.privacy.accounting import _calibration


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("eps", "delta", "q", "steps"),
    [
        (1.0, 1e-5, 0.01, 10**4),
        (0.1, 1e-5, 0.05, 200),
        (0.01, 1e-8, 0.01, 1000),
        (8.0, 1e-6, 0.2, 300),
        (3.0, 1e-5, 0.5, 1),
        (1.0, 1e-5, 1.0, 100),
        (1.0, 1e-12, 0.01, 1000),
        (1000.0, 1e-5, 0.3, 1000),
    ],
)
def test_achieved_epsilon_is_just_below_the_target(adjacency, eps, delta, q, steps):
    found = calibrate_noise(eps, delta, q, steps, adjacency=adjacency)
    assert found.steps == (GaussianSteps(found.noise_multiplier, q, steps),)
    # Verified again, from scratch
    again = epsilon(GaussianSteps(found.noise_multiplier, q, steps), delta, adjacency)
    assert again == found.epsilon
    assert eps * (1 - 1e-3) <= again <= eps
    assert found.curve.epsilon(delta) == again
    assert (found.delta, found.adjacency, found.target_epsilon) == (delta, adjacency, eps)
    # The smallest: a little less noise breaks the promise
    assert epsilon(GaussianSteps(found.noise_multiplier * 0.995, q, steps), delta, adjacency) > eps


def test_reference_noise():
    assert calibrate_noise(2.1605, 1e-5, 0.01, 10**4).noise_multiplier == pytest.approx(
        2.0, rel=3e-3
    )
    replaced = calibrate_noise(2.8435, 1e-5, 0.01, 1000, adjacency="replace_one").noise_multiplier
    assert replaced == pytest.approx(1.0, rel=3e-3)


@settings(max_examples=10, deadline=None)
@given(
    eps=st.floats(0.05, 20.0),
    delta=st.sampled_from([1e-4, 1e-6, 1e-9]),
    q=st.floats(0.005, 1.0),
    steps=st.integers(1, 3000),
    adjacency=st.sampled_from(["zero_out", "replace_one"]),
)
def test_calibration_always_ends_within_tolerance(eps, delta, q, steps, adjacency):
    found = calibrate_noise(eps, delta, q, steps, adjacency=adjacency)
    assert eps * (1 - 1e-3) <= found.epsilon <= eps
    assert not found.crosscheck.disagrees


def test_tolerance_is_respected():
    found = calibrate_noise(1.0, 1e-5, 0.02, 500, rtol=1e-5)
    assert 1 - 1e-5 <= found.epsilon <= 1.0


def test_schedule_scales_together():
    schedule = [(2.0, 100), (1.0, 300), (0.5, 50)]
    found = calibrate_noise(2.0, 1e-5, 0.02, 450, schedule=schedule)
    expected = tuple(GaussianSteps(found.noise_multiplier * r, 0.02, n) for r, n in schedule)
    assert found.steps == expected
    assert 2.0 * (1 - 1e-3) <= compose(expected).epsilon(1e-5) <= 2.0
    flat = calibrate_noise(2.0, 1e-5, 0.02, 450)
    assert calibrate_noise(
        2.0, 1e-5, 0.02, 450, schedule=[(3.0, 450)]
    ).noise_multiplier == pytest.approx(flat.noise_multiplier / 3, rel=1e-3)


def test_schedule_without_sampling_is_closed_form():
    found = calibrate_noise(1.0, 1e-6, 1.0, 5, schedule=[(1.0, 2), (2.0, 3)])
    total = (2 + 3 / 4) ** -0.5 * found.noise_multiplier
    assert compose(GaussianSteps(total, 1.0, 1)).epsilon(1e-6) == pytest.approx(found.epsilon)


def test_infinite_epsilon_gives_no_noise():
    found = calibrate_noise(math.inf, 1e-5, 0.1, 10)
    assert found.noise_multiplier == 0.0
    assert found.epsilon == math.inf
    assert found.curve.epsilon(1e-5) == math.inf


def test_results_are_cached_whatever_the_types():
    first = calibrate_noise(0.7, 1e-5, 0.03, 70, schedule=[(1, 30), (2, 40)])
    second = calibrate_noise(0.7, 1e-5, 0.03, 70.0, schedule=((1.0, 30), (2.0, 40)))
    assert first is second


def test_calibration_is_quick():
    calibrate_noise(1.0, 1e-5, 0.02, 777)  # imports
    times = []
    for steps in (10001, 10002, 10003):
        start = time.perf_counter()
        calibrate_noise(1.0, 1e-5, 0.01, steps)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


def test_few_evaluations(monkeypatch):
    seen = []

    class Counting(_calibration.PrivacyCurve):
        def epsilon(self, delta):
            seen.append(delta)
            return super().epsilon(delta)

    monkeypatch.setattr(_calibration, "PrivacyCurve", Counting)
    calibrate_noise(1.3, 1e-5, 0.013, 1313)
    assert 1 <= len(seen) <= 5


def test_only_a_verified_noise_is_returned(monkeypatch):
    """An accountant with a jump over the whole acceptance interval must end in an error, not in a guess."""

    class Jump:
        def __init__(self, blocks, adjacency):
            self.sigma = blocks[0].noise_multiplier

        def epsilon(self, delta):
            return 2.0 if self.sigma < 1.0 else 0.5

    monkeypatch.setattr(_calibration, "PrivacyCurve", Jump)
    with pytest.raises(ValueError, match="no noise multiplier"):
        calibrate_noise(1.0, 1.234e-5, 0.01, 1234)


def test_a_disagreement_raises(monkeypatch):
    def too_high(steps, epsilon, delta, adjacency):
        return CrossCheck(True, "converged", epsilon, delta, 2 * delta, 2.0, 65536)

    monkeypatch.setattr(_calibration, "crosscheck", too_high)
    with pytest.raises(AccountingError, match="disagree"):
        calibrate_noise(1.1, 1.1e-5, 0.011, 1111)


def test_every_calibration_is_cross_checked():
    found = calibrate_noise(1.0, 1e-5, 0.01, 10**4)
    assert found.crosscheck.accepted
    assert found.crosscheck.epsilon == found.epsilon
    assert 0.98 <= found.crosscheck.ratio <= 1.001


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.7}, "probability that a record is used"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"steps": 0}, "steps"),
        ({"rtol": 0.0}, "rtol"),
        ({"adjacency": "both"}, "adjacency"),
        ({"schedule": [(1.0, 5)]}, "5 rounds"),
        ({"schedule": [(0.0, 10)]}, "relative multiplier"),
        ({"schedule": []}, "schedule"),
    ],
)
def test_arguments_are_checked(arguments, message):
    given_ = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10} | arguments
    with pytest.raises(ValueError, match=message):
        calibrate_noise(**given_)


@settings(max_examples=20, deadline=None)
@given(sigmas=st.lists(st.floats(0.5, 50.0), min_size=1, max_size=60), rho=st.floats(0.001, 0.5))
def test_buckets_round_down_by_at_most_rho(sigmas, rho):
    buckets = bucket_schedule(sigmas, rho)
    assert sum(count for _, count in buckets) == len(sigmas)
    flat = [sigma for sigma, count in buckets for _ in range(count)]
    for kept, original in zip(flat, sorted(sigmas), strict=True):
        assert kept <= original <= kept * (1 + rho) * (1 + 1e-12)


def test_buckets_cost_little_and_are_sound():
    sigmas = [2.0 * (1 + t / 300) for t in range(300)]
    exact = epsilon([GaussianSteps(s, 0.05, 1) for s in sigmas], 1e-5)
    buckets = bucket_schedule(sigmas)
    bucketed = epsilon([GaussianSteps(s, 0.05, n) for s, n in buckets], 1e-5)
    assert len(buckets) <= 36
    assert exact * 0.9995 <= bucketed <= exact * 1.02
    # The root mean square of a schedule is no bound.
    rms = math.sqrt(sum(s * s for s in sigmas) / 300)
    assert epsilon(GaussianSteps(rms, 0.05, 300), 1e-5) < exact


@pytest.mark.parametrize(
    ("sigmas", "rho"), [([], 0.02), ([0.0], 0.02), ([math.nan], 0.02), ([1.0], 0.0)]
)
def test_buckets_reject_nonsense(sigmas, rho):
    with pytest.raises(ValueError, match=r"sigmas|rho"):
        bucket_schedule(sigmas, rho)
