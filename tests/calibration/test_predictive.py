"""Calibration of predicted probabilities, against scikit-learn's bins and against known errors."""

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve

from skdpbayes.calibration import calibration_error, reliability


def predictions(n=20_000, power=1.0, seed=0):
    """Probabilities that are calibrated for power 1; their odds are raised to it."""
    rng = np.random.default_rng(seed)
    proba = rng.beta(1.0, 1.5, n)
    y = rng.random(n) < proba
    odds = (proba / (1 - proba)) ** power
    return y, odds / (1 + odds)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 7, 10, 40])
def test_bins_are_those_of_scikit_learn(strategy, n_bins):
    y, proba = predictions(300)
    proba[:5] = [0.0, 1.0, 0.1, 0.5, 0.3]  # edges belong to the bin below
    proba[proba > 0.8] = 0.75  # empty bins
    true, predicted = calibration_curve(y, proba, n_bins=n_bins, strategy=strategy)
    options = {"n_bins": n_bins, "strategy": strategy}
    assert calibration_error(y, proba, norm="rmse", **options) == pytest.approx(
        np.sqrt(np.mean((true - predicted) ** 2))
    )
    assert calibration_error(y, proba, norm="max", **options) == pytest.approx(
        np.abs(true - predicted).max()
    )
    found = reliability(y, proba, **options)
    filled = found.count > 0
    np.testing.assert_allclose(found.observed[filled], true)
    np.testing.assert_allclose(found.predicted[filled], predicted)
    assert (
        np.isnan(found.observed[~filled]).all()
        and len(found.count) == n_bins
        and found.count.sum() == 300
    )
    weighted = (found.count[filled] * np.abs(true - predicted)).sum() / 300
    assert calibration_error(y, proba, **options) == pytest.approx(weighted)


def test_rmse_counts_bins_alike_and_l1_predictions():
    y = np.r_[np.zeros(99), 1]
    proba = np.r_[np.zeros(99), 0.5]  # one bin of 99 right, one of a single half
    assert calibration_error(y, proba, norm="rmse") == pytest.approx(np.sqrt(0.25 / 2))
    assert calibration_error(y, proba, norm="l1") == pytest.approx(0.005)
    assert calibration_error(y, proba, norm="max") == pytest.approx(0.5)


@pytest.mark.parametrize("norm", ["l1", "rmse", "max"])
def test_error_of_wrong_predictions(norm):
    right = calibration_error(*predictions(), norm=norm)
    assert right < 0.03
    for power in (2.0, 0.5):  # too sure, not sure enough
        assert calibration_error(*predictions(power=power), norm=norm) > 2 * right
    y, proba = predictions()
    assert calibration_error(y, np.clip(proba + 0.1, 0, 1), norm=norm) > 2 * right


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_the_band_holds_calibrated_predictions_and_no_others(strategy):
    inside = []
    for seed in range(200):
        found = reliability(*predictions(500, seed=seed), strategy=strategy)
        inside.append((found.lower <= found.observed) & (found.observed <= found.upper))
    assert 0.95 <= np.mean(inside) < 0.98
    for power in (2.0, 0.5):
        found = reliability(*predictions(power=power), strategy=strategy)
        assert ((found.observed < found.lower) | (found.observed > found.upper)).sum() >= 6


def test_the_band_is_binomial():
    found = reliability([0, 1, 1, 0, 1], np.full(5, 0.3), n_bins=2)
    np.testing.assert_allclose(found.lower[0], stats.binom.ppf(0.025, 5, 0.3) / 5)
    np.testing.assert_allclose(found.upper[0], stats.binom.ppf(0.975, 5, 0.3) / 5)
    certain = reliability([0, 0, 1, 1, 1], [0.0, 0.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(certain.lower[[0, -1]], [0, 1])
    np.testing.assert_array_equal(certain.upper[[0, -1]], [0, 1])


@pytest.mark.parametrize("function", [calibration_error, reliability])
@pytest.mark.parametrize(
    ("y", "proba", "options", "message"),
    [
        ([0, 1], [[0.5, 0.5], [0.5, 0.5]], {}, r"proba\[:, 1\]"),
        ([0, 1, 1], [0.5, 0.5], {}, "same shape"),
        ([], [], {}, "not empty"),
        (["a", "b"], [0.5, 0.5], {}, "positive_label"),
        ([1, 2], [0.5, 0.5], {}, "0 and 1"),
        ([0, 1], [0.5, 1.5], {}, r"in \[0, 1\]"),
        ([0, 1], [0.5, np.nan], {}, r"in \[0, 1\]"),
        ([0, 1], [0.5, 0.5], {"n_bins": 0}, "n_bins"),
        ([0, 1], [0.5, 0.5], {"strategy": "even"}, "'uniform' or 'quantile'"),
    ],
    ids=str,
)
def test_refusals(function, y, proba, options, message):
    with pytest.raises(ValueError, match=message):
        function(y, proba, **options)


def test_an_unknown_norm():
    with pytest.raises(ValueError, match="'l1', 'rmse' or 'max'"):
        calibration_error([0, 1], [0.5, 0.5], norm="l2")
