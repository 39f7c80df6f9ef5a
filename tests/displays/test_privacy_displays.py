"""Pictures of guarantees and budgets: what is drawn are the numbers of curves and ledgers."""

import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skdpbayes import DPBetaBernoulli
from skdpbayes.displays import LedgerDisplay, PrivacyProfileDisplay, TradeOffDisplay
from skdpbayes.privacy import GaussianSteps, PrivacyLedger, PrivacySpent, baselines, compose
from skdpbayes.privacy.report import rounded

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

STEPS = GaussianSteps(2.0, 0.02, 100)
SAMPLED, WHOLE = compose(STEPS), compose(GaussianSteps(4.0, 1.0, 3))


def report(**fields):
    given = {
        "epsilon": SAMPLED.epsilon(1e-6),
        "delta": 1e-6,
        "adjacency": "zero_out",
        "steps": [STEPS],
    }
    return PrivacySpent(**given | {"clipping_norm": 1.0} | fields)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def labels(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_a_profile_is_the_curve_and_the_report_a_point_of_it():
    spent = report()
    display = PrivacyProfileDisplay.from_spent([spent, WHOLE], names=["sampled", "whole"])
    for line, curve in zip(display.lines_, (SAMPLED, WHOLE), strict=True):
        for delta, epsilon in line.get_xydata()[::9]:
            assert epsilon == pytest.approx(curve.epsilon(delta))
    (point,) = display.points_  # a curve reports none
    assert point.get_xydata().tolist() == [[1e-6, spent.epsilon]]
    assert labels(display) == ["sampled", "whole"]
    first, second = labels(PrivacyProfileDisplay.from_spent([spent, WHOLE]))
    assert first == f"epsilon {rounded(spent.epsilon, 3)} at delta 1e-06"
    assert second == f"epsilon {rounded(WHOLE.epsilon(1e-5), 3)} at delta 1e-05"
    assert display.ax_.get_xscale() == "log" and display.ax_.get_yscale() == "linear"


def test_a_profile_includes_overheads():
    spent = report(epsilon=1.0, delta=1e-4, epsilon_overhead=0.25, delta_overhead=1e-6)
    line = PrivacyProfileDisplay(spent).plot(deltas=[1e-7, 1e-3]).lines_[0]
    assert line.get_ydata().tolist() == [np.inf, spent.epsilon_at(1e-3)]
    with pytest.raises(ValueError, match="overheads"):
        TradeOffDisplay.from_spent(spent)


def test_earlier_accountants_say_more():
    display = PrivacyProfileDisplay(SAMPLED, earlier=True).plot(deltas=[1e-8, 1e-5])
    for name, line in display.earlier_lines_.items():
        assert line.get_ydata()[1] == pytest.approx(baselines(STEPS, 1e-5)[name])
        assert (line.get_ydata() >= display.lines_[0].get_ydata()).all()
    assert set(display.earlier_lines_) == {"zcdp", "linear", "advanced", "moments", "rdp"}
    assert len(labels(display)) == 6 and display.ax_.get_yscale() == "log"


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_trade_off_is_the_curves(scale):
    display = TradeOffDisplay.from_spent([SAMPLED, report()], fpr=0.05, scale=scale)
    for line, point in zip(display.lines_, display.points_, strict=True):
        rates, found = line.get_data()
        np.testing.assert_allclose(found, SAMPLED.tpr(rates))
        assert point.get_xydata().tolist() == [[0.05, SAMPLED.tpr(0.05)]]
    found = rounded(100 * float(SAMPLED.tpr(0.05)), 3)
    assert labels(display)[0].endswith(f"finds {found}%") and labels(display)[2] == "guessing"
    assert "5% false positives" in display.ax_.get_legend().get_title().get_text()
    low, _ = display.guessing_line_.get_xydata()
    assert low[0] == low[1] and display.ax_.get_xscale() == scale


def test_without_a_named_rate_nothing_is_marked():
    display = TradeOffDisplay.from_spent(WHOLE, fpr=None)
    assert display.points_ == [] and "finds" not in labels(display)[0]


def test_a_fitted_estimator_shows_its_report_and_with_earlier_fits_both():
    rows = np.arange(200)[:, None] % 2
    model = DPBetaBernoulli(0.5, delta=1e-6).fit(rows)
    display = PrivacyProfileDisplay.from_estimator(model)
    assert display.points_[0].get_ydata() == [model.privacy_spent_.epsilon]
    assert labels(display)[0].startswith("epsilon 0.5")
    spent = model.fit(rows).privacy_spent_
    one, both = PrivacyProfileDisplay.from_estimator(model).lines_
    assert one.get_ydata()[9] < both.get_ydata()[9]
    name = labels(PrivacyProfileDisplay.from_estimator(model))[1]
    assert (
        name == f"with earlier fits: epsilon {rounded(spent.cumulative_epsilon, 3)} at delta 1e-06"
    )
    one, both = TradeOffDisplay.from_estimator(model).lines_
    np.testing.assert_allclose(
        both.get_ydata(), compose(spent.cumulative + spent.releases).tpr(both.get_xdata())
    )
    for display in (PrivacyProfileDisplay, TradeOffDisplay):
        for unreported in (DPBetaBernoulli(), LogisticRegression()):
            with pytest.raises(ValueError, match="privacy_spent_"):
                display.from_estimator(unreported)


def test_a_void_guarantee_is_said():
    assert (
        labels(TradeOffDisplay.from_spent(report(voided_by=("seeds",))))[0].count("guarantee void")
        == 1
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PrivacyProfileDisplay([]), "empty"),
        (lambda: PrivacyProfileDisplay([1.0]), "PrivacySpent, a PrivacyCurve"),
        (lambda: TradeOffDisplay(WHOLE, names=["a", "b"]), "each of the 1 curves"),
        (lambda: TradeOffDisplay(WHOLE, fpr=1.0), "fpr must be"),
        (lambda: TradeOffDisplay(WHOLE, scale="logit"), "scale must be"),
        (lambda: PrivacyProfileDisplay(WHOLE).plot(deltas=[1.0]), "delta"),
        (lambda: LedgerDisplay(PrivacyLedger(1.0, 1e-5), max_shown=0), "max_shown"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bars_are_shares_one_after_the_other():
    ledger = PrivacyLedger(1.0, 1e-5)
    for noise in (20.0, 30.0, 40.0):
        ledger.charge(GaussianSteps(noise, 1.0, 10), label=f"noise {noise:g}")
    display = LedgerDisplay.from_ledger(ledger)
    widths = [bar.get_width() for bar in display.bars_]
    assert sum(widths) == pytest.approx(100) and widths[-1] == pytest.approx(
        100 * (1 - ledger.spent)
    )
    assert widths[:-1] == pytest.approx([100 * share for _, share in ledger.shares])
    assert widths[0] / widths[2] == pytest.approx(4.0)
    assert [bar.get_x() for bar in display.bars_] == pytest.approx([0, *np.cumsum(widths[:-1])])
    ticks = [tick.get_text() for tick in display.ax_.get_yticklabels()]
    assert ticks == ["noise 20", "noise 30", "noise 40", "left"]
    may = float(display.ax_.get_title(loc="right").rpartition(" ")[2])
    assert 0.999 * ledger.affordable_epsilon() < may <= ledger.affordable_epsilon()
    assert display.ax_.get_ylim()[0] > display.ax_.get_ylim()[1]  # the first fit is on top


def test_many_fits_none_and_a_plan():
    ledger = PrivacyLedger(1.0, 1e-5)
    assert [bar.get_width() for bar in LedgerDisplay.from_ledger(ledger).bars_] == [100]
    for k in range(9):
        ledger.charge(GaussianSteps(50.0, 1.0, 10), label=f"fit {k}")
    display = LedgerDisplay.from_ledger(ledger, max_shown=4)
    ticks = [tick.get_text() for tick in display.ax_.get_yticklabels()]
    assert ticks == ["6 earlier fits", "fit 6", "fit 7", "fit 8", "left"]
    assert display.bars_[0].get_width() == pytest.approx(6 * display.bars_[1].get_width())
    plan = PrivacyLedger(3.0, 1e-5, composition="plan", plan=[[STEPS], [STEPS]])
    plan.charge(STEPS)
    display = LedgerDisplay.from_ledger(plan)
    assert [bar.get_width() for bar in display.bars_] == [50, 50]
    assert "may take" not in display.ax_.get_title(loc="right")


def test_axes_are_taken_as_given():
    figure, axes = matplotlib.pyplot.subplots(1, 3)
    drawn = [
        PrivacyProfileDisplay.from_spent(WHOLE, ax=axes[0]),
        TradeOffDisplay.from_spent(WHOLE, ax=axes[1]),
        LedgerDisplay.from_ledger(PrivacyLedger(1.0, 1e-5), ax=axes[2]),
    ]
    assert [display.ax_ for display in drawn] == list(axes)
    assert {display.figure_ for display in drawn} == {figure}


def test_two_displays_in_one_picture_differ():
    _, ax = matplotlib.pyplot.subplots()
    one = PrivacyProfileDisplay.from_spent(WHOLE, ax=ax)
    two = PrivacyProfileDisplay.from_spent(SAMPLED, ax=ax)
    alone = PrivacyProfileDisplay.from_spent([WHOLE, SAMPLED])
    assert [line.get_color() for line in one.lines_ + two.lines_] == [
        line.get_color() for line in alone.lines_
    ]
    assert len({line.get_color() for line in alone.lines_}) == 2


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (
        PrivacyProfileDisplay(WHOLE),
        TradeOffDisplay(WHOLE),
        LedgerDisplay(PrivacyLedger(1.0, 1e-5)),
    ):
        with pytest.raises(ImportError, match=r"skdpbayes\[plot\]"):
            draw.plot()
