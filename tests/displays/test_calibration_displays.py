"""Pictures: what is drawn are the numbers, and matplotlib is asked for only to draw."""

import sys

import numpy as np
import pytest
from conjugate import conjugate
from sklearn.linear_model import LinearRegression, LogisticRegression

from skdpbayes.calibration import reliability, simulation_based_calibration, tarp_coverage
from skdpbayes.displays import CoverageDisplay, RankDisplay, ReliabilityDisplay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture
def classifier():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 1))
    y = np.where(X[:, 0] > rng.logistic(size=2000), "yes", "no")
    return LogisticRegression().fit(X, y), X, y


def saved(display, path):
    display.figure_.savefig(path)
    return path.stat().st_size > 5000


def test_coverage_display(tmp_path):
    found = tarp_coverage(*conjugate(width=0.5), random_state=0)
    display = CoverageDisplay.from_coverage(found)
    (line,) = display.lines_
    np.testing.assert_array_equal(line.get_xdata()[1:-1], found.levels)
    np.testing.assert_array_equal(line.get_ydata()[1:-1], found.coverage)
    assert len(display.ax_.collections) == 1  # the band
    assert saved(display, tmp_path / "coverage.png")


def test_coverage_display_of_marginals(tmp_path):
    display = CoverageDisplay.from_draws(
        *conjugate(), marginal=True, random_state=0, names=["a", "b", "c"]
    )
    assert [line.get_label() for line in display.lines_] == ["a", "b", "c"]
    assert saved(display, tmp_path / "marginals.png")
    with pytest.raises(ValueError, match="each of the 3 curves"):
        CoverageDisplay(display.coverage, names=["a"]).plot()


def test_rank_display(tmp_path):
    histogram = simulation_based_calibration(*conjugate(width=0.5))
    display = RankDisplay.from_histogram(histogram, parameter=1, name="slope")
    heights = [bar.get_height() for bar in display.bars_]
    np.testing.assert_allclose(heights, histogram.counts[1] / histogram.expected)
    assert "slope" in display.ax_.get_xlabel()
    assert saved(display, tmp_path / "ranks.png")
    assert isinstance(RankDisplay.from_draws(*conjugate(), bins=5), RankDisplay)
    for parameter in (3, -1):
        with pytest.raises(ValueError, match="from 0 to 2"):
            RankDisplay(histogram, parameter=parameter).plot()


def test_reliability_display(tmp_path, classifier):
    model, X, y = classifier
    display = ReliabilityDisplay.from_estimator(model, X, y)
    found = reliability(y == "yes", model.predict_proba(X)[:, 1])
    np.testing.assert_array_equal(display.line_.get_ydata(), found.observed)
    assert display.line_.get_label() == "LogisticRegression"
    assert saved(display, tmp_path / "reliability.png")
    with pytest.raises(ValueError, match="labels"):
        ReliabilityDisplay.from_estimator(model, X, np.where(y == "yes", 1, 0))
    three = LogisticRegression().fit(X, np.arange(2000) % 3)
    with pytest.raises(ValueError, match="two classes"):
        ReliabilityDisplay.from_estimator(three, X, y)
    with pytest.raises(ValueError, match="LinearRegression is no classifier"):
        ReliabilityDisplay.from_estimator(LinearRegression(), X, y)


def test_axes_are_taken_as_given():
    figure, axes = matplotlib.pyplot.subplots(1, 3)
    draws, truth = conjugate(50)
    one = CoverageDisplay.from_draws(draws, truth, ax=axes[0])
    two = RankDisplay.from_draws(draws, truth, ax=axes[1])
    three = ReliabilityDisplay.from_predictions(
        [0, 1, 1], [0.2, 0.6, 0.9], name="forecast", n_bins=5, ax=axes[2]
    )
    assert [one.ax_, two.ax_, three.ax_] == list(axes)
    assert one.figure_ is two.figure_ is three.figure_ is figure


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"skdpbayes\[plot\]"):
        CoverageDisplay.from_draws(*conjugate(10))
