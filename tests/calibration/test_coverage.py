"""TARP and marginal coverage: right posteriors pass, wrong ones do not, and bands are what they say."""

import numpy as np
import pytest
from conjugate import STD, WRONG, conjugate
from scipy import stats

from skdpbayes.calibration import (
    Coverage,
    expected_coverage_error,
    marginal_coverage,
    rmse_band,
    tarp_coverage,
)
from skdpbayes.calibration._check import generator

OPTIONS = [{}, {"references": "permute"}, {"whiten": False}, {"marginal": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tarp_passes_a_right_posterior(options):
    found = tarp_coverage(*conjugate(seed=1), random_state=0, confidence=0.99, **options)
    assert np.all(found.within_band)
    outside = (found.coverage < found.lower) | (found.coverage > found.upper)
    assert outside.mean() < 0.1


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tarp_fails_a_wrong_posterior(options, wrong):
    found = tarp_coverage(
        *conjugate(1000, **WRONG[wrong]), random_state=0, confidence=0.999, **options
    )
    assert not np.any(found.within_band)
    excess = found.coverage - found.levels  # which way it is wrong shows
    early, late = (
        excess[..., found.levels < 0.1].mean(axis=-1),
        excess[..., found.levels > 0.7].mean(axis=-1),
    )
    assert np.all({"narrow": late < -0.1, "wide": late > 0.05, "shifted": early > 0.03}[wrong])


def test_shares_are_uniform_with_few_draws_and_ties():
    """At levels that no number of draws divides; half of the draws and truths are rounded, so that many are equal."""
    draws, truth = conjugate(20_000, 4, 2)
    for k in (draws, truth):
        k[::2] = np.round(k[::2])
    found = tarp_coverage(
        draws,
        truth,
        levels=[0.07, 0.5, 0.93],
        random_state=0,
        confidence=0.999,
        references="normal",
    )
    # Rounding after the draw keeps truth and draws exchangeable: the posterior of the rounded truth
    # stays right.
    assert np.all((found.lower <= found.coverage) & (found.coverage <= found.upper))


def test_all_draws_tied_with_the_truth_say_nothing():
    truth = np.random.default_rng(0).standard_normal((2000, 1))
    found = tarp_coverage(
        np.repeat(truth[:, None], 9, axis=1), truth, random_state=0, confidence=0.999
    )
    assert found.within_band


def test_references_do_not_depend_on_the_truth_of_their_own_replicate():
    """With three replicates, moments that included the truth would pull references to it: ranks would be low."""
    rng = np.random.default_rng(0)
    truth, draws = rng.standard_normal((3, 4000)), rng.standard_normal((3, 1, 4000))
    found = tarp_coverage(draws, truth, levels=[0.5], marginal=True, random_state=0)
    assert abs(found.coverage.mean() - 0.5) < 4 * 0.5 / np.sqrt(3 * 4000)
    fixed = truth.mean(axis=0) + truth.std(axis=0) * rng.standard_normal(truth.shape)
    pulled = tarp_coverage(
        draws, truth, levels=[0.5], marginal=True, random_state=0, references=fixed
    )
    assert abs(pulled.coverage.mean() - 0.5) > 4 * 0.5 / np.sqrt(3 * 4000)


def test_a_seed_shared_with_the_simulation_does_no_harm():
    """The truths are the first normal numbers of seed 7; were the reference points the same, all ranks would be 0."""
    assert tarp_coverage(*conjugate(seed=7), random_state=7, confidence=0.99).within_band


def test_whitening_takes_the_units_away():
    unit = np.array([1.0, 1e6, 1e-3])
    plain, scaled = (
        tarp_coverage(*conjugate(unit=u), random_state=0).coverage for u in (1.0, unit)
    )
    np.testing.assert_allclose(scaled, plain, atol=1e-12)
    by_hand = tarp_coverage(
        *conjugate(), whiten=np.array([1.0, 1e6, 1e-3]), random_state=0
    ).coverage
    raw = tarp_coverage(*conjugate(), whiten=False, random_state=0).coverage
    assert not np.allclose(by_hand, raw)


def test_moments_of_the_other_replicates():
    from skdpbayes.calibration._coverage import _others

    truth = np.random.default_rng(0).standard_normal((7, 2)) + 5.0
    mean, std = _others(truth)
    for k in range(7):
        others = np.delete(truth, k, axis=0)
        np.testing.assert_allclose(mean[k], others.mean(axis=0))
        np.testing.assert_allclose(std[k], others.std(axis=0, ddof=1))


def test_a_permutation_has_one_cycle():
    from skdpbayes.calibration._coverage import _reference_points

    truth = np.arange(6.0)[:, None]
    points = _reference_points("permute", truth, truth, truth, np.random.default_rng(0))[
        :, 0
    ].astype(int)
    seen, k = [], 0
    for _ in range(6):
        seen.append(k)
        k = points[k]
    assert k == 0 and sorted(seen) == list(range(6))


def test_given_references_against_brute_force():
    draws, truth = conjugate(12, 30, 2)
    points = np.random.default_rng(3).standard_normal((12, 2))
    found = tarp_coverage(
        draws, truth, references=points, whiten=False, levels=[0.25, 0.5], random_state=5
    )
    uniform = generator(5)
    for _ in range(12):
        uniform.integers(0, np.array([1]))
    uniform = uniform.random((12, 1))[:, 0]
    shares = []
    for k in range(12):
        radius = np.linalg.norm(truth[k] - points[k])
        nearer = sum(np.linalg.norm(draw - points[k]) < radius for draw in draws[k])
        shares.append((nearer + uniform[k]) / 31)
    np.testing.assert_allclose(
        found.coverage, [np.mean(np.array(shares) <= a) for a in (0.25, 0.5)]
    )


def test_the_band_of_the_rmse_is_that_of_cramer_and_von_mises():
    """n times the mean square is their statistic; .0366 and .4614 are its tabulated 5 % and 95 % points."""
    np.testing.assert_allclose(
        rmse_band(500, confidence=0.9), np.sqrt(np.array([0.0366, 0.4614]) / 500), rtol=0.03
    )
    assert rmse_band(500) == rmse_band(500)
    narrow, wide = rmse_band(500, n_curves=4), rmse_band(500)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_band_of_the_rmse_holds_right_posteriors():
    rng = np.random.default_rng(0)
    truth, draws = rng.standard_normal((200, 300)), rng.standard_normal((200, 49, 300))
    found = tarp_coverage(draws, truth, marginal=True, random_state=0, confidence=0.9)
    inside = (found.rmse_band[0] <= found.rmse) & (found.rmse <= found.rmse_band[1])
    assert stats.binomtest(int(inside.sum()), 300, 0.9).pvalue > 0.001
    pointwise = (found.lower <= found.coverage) & (found.coverage <= found.upper)
    assert 0.9 <= pointwise.mean() < 0.95  # binomials are discrete: at least the nominal level


def test_the_band_is_binomial():
    found = tarp_coverage(*conjugate(50), levels=[0.3], random_state=0)
    inside = stats.binom.cdf(found.upper * 50, 50, 0.3) - stats.binom.cdf(
        found.lower * 50 - 1, 50, 0.3
    )
    assert 0.95 <= inside[0] < 0.98


def test_expected_coverage_error():
    found = tarp_coverage(*conjugate(), levels=[0.2, 0.6], random_state=0)
    assert found.error == pytest.approx(np.mean(np.abs(found.coverage - [0.2, 0.6])))
    with pytest.warns(FutureWarning, match=r"take coverage\.error"):
        assert expected_coverage_error(found) == found.error
    marginal = tarp_coverage(*conjugate(), marginal=True, random_state=0)
    assert marginal.error.shape == (3,)
    narrow = tarp_coverage(*conjugate(width=0.5), marginal=True, random_state=0)
    assert np.all(narrow.error > 2 * marginal.error)


def test_marginal_coverage_of_a_right_posterior():
    found = marginal_coverage(*conjugate(2000, 99, seed=2), 0.8, confidence=0.999)
    assert found.within_band.all()
    np.testing.assert_allclose(found.standard_error, 0.4 / np.sqrt(2000), rtol=0.1)


@pytest.mark.parametrize("wrong", WRONG)
def test_marginal_coverage_of_a_wrong_posterior(wrong):
    found = marginal_coverage(*conjugate(2000, **WRONG[wrong]), 0.8, confidence=0.999)
    assert not found.within_band.any()
    width, shift = WRONG[wrong].get("width", 1.0), WRONG[wrong].get("shift", 0.0)
    half = width * stats.norm.ppf(0.9)
    np.testing.assert_allclose(
        found.coverage, stats.norm.cdf(half - shift) - stats.norm.cdf(-half - shift), atol=0.04
    )


def test_few_draws_do_not_make_intervals_too_short():
    """NumPy's default quantiles of 19 draws would cover 0.81 instead of 0.9."""
    found = marginal_coverage(*conjugate(20_000, 19, 1), 0.9, confidence=0.999)
    assert found.within_band.all()


@pytest.mark.parametrize("held", [0, 3, 10])
def test_the_confidence_interval_is_clopper_and_pearson(held):
    truth = np.where(np.arange(10) < held, 10.0, 100.0)[:, None]
    draws = np.broadcast_to(np.arange(20.0)[None, :, None], (10, 20, 1))
    found = marginal_coverage(draws, truth)
    exact = stats.binomtest(held, 10).proportion_ci(0.95, "exact")
    np.testing.assert_allclose([found.lower[0], found.upper[0]], [exact.low, exact.high])
    assert found.coverage[0] == held / 10


def test_what_tarp_cannot_see():
    """The prior is calibrated: the docstring says that it passes."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((400, 1))
    assert tarp_coverage(
        rng.standard_normal((400, 99, 1)), truth, random_state=0, confidence=0.99
    ).within_band
    assert STD < 0.6  # while the posterior is much narrower


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": np.zeros((5, 9))}, "add a last axis"),
        ({"draws": np.zeros((5, 0, 2))}, "none of them 0"),
        ({"truth": np.zeros((4, 2))}, r"\(n_replicates, n_parameters\) = \(5, 2\)"),
        ({"truth": np.full((5, 2), np.nan)}, "truth must be finite"),
        ({"draws": np.full((5, 9, 2), np.inf)}, "draws must be finite"),
        ({"truth": np.full((5, 2), 0.1)}, "must vary"),
        ({"levels": [0.5, 0.4]}, "levels"),
        ({"levels": [0.0, 0.4]}, "levels"),
        ({"whiten": [1.0]}, "2 positive scales"),
        ({"whiten": [1.0, 0.0]}, "2 positive scales"),
        ({"references": "uniform"}, "'normal', 'permute'"),
        ({"references": np.zeros((5, 1))}, r"shape \(5, 2\)"),
        ({"confidence": 1.0}, "confidence"),
    ],
    ids=str,
)
def test_tarp_refuses(change, message):
    rng = np.random.default_rng(0)
    arguments = {
        "draws": rng.standard_normal((5, 9, 2)),
        "truth": rng.standard_normal((5, 2)),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        tarp_coverage(**arguments)


def test_other_refusals():
    draws, truth = conjugate(5, 9, 2)
    with pytest.raises(ValueError, match="at least 3 replicates"):
        tarp_coverage(draws[:2], truth[:2])
    with pytest.raises(ValueError, match="at least 19 draws"):
        marginal_coverage(draws, truth, 0.9)
    with pytest.raises(ValueError, match="level"):
        marginal_coverage(draws, truth, 90)
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ValueError, match="tarp_coverage returns"),
    ):
        expected_coverage_error(np.zeros(3))
    with pytest.raises(ValueError, match="n_curves"):
        rmse_band(10, n_curves=0)


def test_a_result_is_frozen():
    found = tarp_coverage(*conjugate(5), random_state=0)
    assert (
        isinstance(found, Coverage)
        and isinstance(found.within_band, bool)
        and isinstance(found.rmse, float)
    )
    with pytest.raises(AttributeError):
        found.rmse = 0.0
