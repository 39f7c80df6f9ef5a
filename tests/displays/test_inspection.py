"""Pictures of posteriors and of the price of privacy; what notebooks show of a fitted estimator."""

import dataclasses
import html
import sys
from typing import ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBetaBernoulli,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
)
from skdpbayes.displays import PosteriorIntervalDisplay, PrivacyUtilityDisplay
from skdpbayes.estimators._arviz import ArvizMixin
from skdpbayes.preprocessing import BoundedScaler
from skdpbayes.privacy import BudgetError, PrivacyLedger
from skdpbayes.privacy.selection import SelectionSpent

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
DRAWS = RNG.normal([0.1, -3.0, 1.0], [0.1, 0.5, 0.2], size=(400, 3))
ROWS = RNG.integers(0, 2, size=(400, 1))
X, Y = RNG.uniform(-1, 1, size=(400, 2)), np.arange(400) % 3


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


class Classifier(ArvizMixin, BaseEstimator):
    """What a fit to three classes leaves."""

    _dims: ClassVar = {"coef": ("class", "feature"), "intercept": ("class",)}

    def __init__(self, n_classes=3):
        self.n_classes = n_classes

    def fit(self, X, y):
        rows = self.n_classes if self.n_classes > 2 else 1
        self.n_features_in_, self.classes_ = X.shape[1], np.arange(self.n_classes)
        self.posterior_samples_ = {
            "coef": RNG.normal(np.arange(2), size=(50, rows, 2)),
            "intercept": RNG.normal(size=(50, rows)),
        }
        return self


def shown_names(display):
    return [tick.get_text() for tick in display.ax_.get_yticklabels()]


# Intervals


def test_intervals_are_quantiles_the_largest_first():
    display = PosteriorIntervalDisplay.from_draws(DRAWS, names="abc", reference=[0.0, -2.5, 1.5])
    assert shown_names(display) == ["b", "c", "a"] and display.shown_.tolist() == [1, 2, 0]
    for level, lines in zip((0.5, 0.95), display.lines_, strict=True):
        found = np.array([segment[:, 0] for segment in lines.get_segments()])
        expected = np.quantile(DRAWS[:, [1, 2, 0]], [(1 - level) / 2, (1 + level) / 2], axis=0).T
        np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(display.medians_.get_xdata(), np.median(DRAWS, axis=0)[[1, 2, 0]])
    assert display.reference_.get_xdata().tolist() == [-2.5, 1.5, 0.0]
    legend = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert legend == ["50% interval", "95% interval", "median", "reference"]


def test_only_the_largest_are_shown_and_this_is_said():
    display = PosteriorIntervalDisplay.from_draws(DRAWS, max_shown=2, level=0.9)
    assert shown_names(display) == ["parameter 1", "parameter 2"] and len(display.lines_) == 1
    assert display.ax_.get_title(loc="left") == "the 2 largest of 3"
    assert display.reference_ is None


def test_columns_and_classes_name_coefficients():
    assert sorted(
        shown_names(PosteriorIntervalDisplay.from_estimator(Classifier(2).fit(X, Y)))
    ) == ["x0", "x1"]
    classifier = Classifier(3).fit(X, Y)
    display = PosteriorIntervalDisplay.from_estimator(classifier)
    assert sorted(shown_names(display)) == ["0: x0", "0: x1", "1: x0", "1: x1", "2: x0", "2: x1"]
    medians = np.median(classifier.posterior_samples_["coef"], axis=0).ravel()
    np.testing.assert_allclose(
        display.medians_.get_xdata(), medians[np.argsort(-np.abs(medians))], rtol=1e-6
    )
    assert display.ax_.get_xlabel() == "coefficient"
    intercepts = PosteriorIntervalDisplay.from_estimator(classifier, parameter="intercept")
    assert (
        sorted(shown_names(intercepts)) == ["0", "1", "2"]
        and intercepts.ax_.get_xlabel() == "intercept"
    )
    alone = PosteriorIntervalDisplay.from_estimator(Classifier(2).fit(X, Y), parameter="intercept")
    assert shown_names(alone) == ["intercept"]
    with pytest.raises(ValueError, match=r"'weights': pass as parameter one of \['coef', 'inter"):
        PosteriorIntervalDisplay.from_estimator(classifier, parameter="weights")
    del classifier.posterior_samples_["coef"]
    only = PosteriorIntervalDisplay.from_estimator(classifier)
    assert only.ax_.get_xlabel() == "intercept"


def test_a_pipeline_names_columns_by_its_steps():
    table = pd.DataFrame(X, columns=["age", "pressure"])
    model = DPBayesianLinearRegression(5.0, bounds=((-1, 1), (0, 2)), solver="vips", random_state=0)
    pipeline = make_pipeline(BoundedScaler(([-1, -1], [1, 1])), model).fit(table, Y)
    display = PosteriorIntervalDisplay.from_estimator(pipeline)
    assert sorted(shown_names(display)) == ["age", "pressure"]
    assert display.ax_.get_xlabel() == "coefficient of prepared columns"
    scaled = pipeline[-1].posterior_samples_["coef"]
    np.testing.assert_array_equal(display.draws, scaled.reshape(len(scaled), -1))
    noise = PosteriorIntervalDisplay.from_estimator(pipeline, parameter="noise_std")
    assert shown_names(noise) == ["noise_std"] and noise.ax_.get_xlabel() == "noise_std"


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_axes_are_named_by_what_they_stand_for():
    """Not by their length: here there are as many components as columns, and as many groups as classes."""
    table = pd.DataFrame(X, columns=["age", "pressure"])
    mixture = DPGaussianMixture(n_components=2, bounds=(-1, 1), solver="vips", random_state=0).fit(
        table
    )
    with pytest.raises(ValueError, match=r"one of \['covariances', 'means', 'weights'\]"):
        PosteriorIntervalDisplay.from_estimator(mixture)
    names = PosteriorIntervalDisplay.from_estimator(mixture, parameter="weights").names
    assert names == ["component 0", "component 1"]
    names = PosteriorIntervalDisplay.from_estimator(mixture, parameter="means").names
    assert names == [f"component {k}: {column}" for k in range(2) for column in table]
    wards = DPHierarchicalLogisticRegression(
        groups=["a", "b"], group_column="ward", classes=[0, 1], n_steps=20, random_state=0
    ).fit(table.assign(ward=np.where(Y > 1, "a", "b")), Y % 2)
    names = PosteriorIntervalDisplay.from_estimator(wards, parameter="weights").names
    assert names == [
        f"{ward}: {column}" for ward in "ab" for column in ("age", "pressure", "intercept")
    ]


def test_draws_without_names():
    model = DPBetaBernoulli(1.0, random_state=0).fit(ROWS)
    display = PosteriorIntervalDisplay.from_estimator(
        model, names=["share"], quantity="share of ones"
    )
    assert shown_names(display) == ["share"] and display.ax_.get_xlabel() == "share of ones"
    plain = PosteriorIntervalDisplay.from_estimator(model)
    assert plain.ax_.get_xlabel() == "probability" and shown_names(plain) == ["x0"]
    assert display.medians_.get_xdata()[0] == pytest.approx(
        np.median(model.posterior_samples_), rel=1e-6
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"draws": DRAWS[:, 0]}, "draws must have shape"),
        ({"names": ["a"]}, "each of the 3 parameters"),
        ({"reference": [1.0]}, "each of the 3 parameters"),
        ({"level": (0.5, 1.0)}, "level must be"),
        ({"max_shown": 0}, "max_shown"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        PosteriorIntervalDisplay(**{"draws": DRAWS} | parameters)


# What privacy costs


def test_scores_are_drawn_in_the_order_of_epsilon():
    scores = [[0.8, 0.9], [0.5, 0.7]]
    display = PrivacyUtilityDisplay.from_scores(
        [1.0, 0.1], scores, reference=0.95, score_name="accuracy"
    )
    np.testing.assert_allclose(display.line_.get_xydata(), [[0.1, 0.6], [1.0, 0.85]])
    band = display.band_.get_paths()[0].vertices
    assert {(0.1, 0.5), (0.1, 0.7), (1.0, 0.8), (1.0, 0.9)} <= {tuple(vertex) for vertex in band}
    assert set(display.reference_line_.get_ydata()) == {0.95}
    assert display.ax_.get_xscale() == "log" and display.ax_.get_ylabel() == "accuracy"
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["0.1", "1"]


@pytest.mark.filterwarnings("ignore:The guarantee is void")  # by an epsilon that hides no row
def test_clones_are_fitted_and_scored_on_held_out_rows():
    model = DPBetaBernoulli(random_state=3)
    held_out = np.ones((10, 1))
    display = PrivacyUtilityDisplay.from_estimator(
        model,
        ROWS,
        None,
        held_out,
        None,
        epsilons=[0.1, 10.0],
        n_repeats=2,
        reference=DPBetaBernoulli(1e3),
    )
    expected = [
        [DPBetaBernoulli(epsilon, random_state=seed).fit(ROWS).score(held_out) for seed in (3, 4)]
        for epsilon in (0.1, 10.0)
    ]
    np.testing.assert_allclose(display.scores, expected)
    assert not hasattr(model, "posterior_") and model.epsilon == 1.0
    assert display.reference == pytest.approx(np.log(ROWS.mean()), abs=0.01)
    assert display.ax_.get_ylabel() == "mean log density"


def test_epsilon_of_a_pipeline_is_that_of_its_last_step_or_named():
    model = make_pipeline(BoundedScaler((0, 1)), DPBetaBernoulli(random_state=0))
    epsilons = []

    def scoring(fitted, X, y):
        epsilons.append(fitted[-1].epsilon)
        return float(len(X))

    for name in (None, "dpbetabernoulli__epsilon"):
        display = PrivacyUtilityDisplay.from_estimator(
            model,
            ROWS,
            None,
            ROWS[:7],
            None,
            epsilons=[0.5, 2.0],
            n_repeats=1,
            scoring=scoring,
            param_name=name,
        )
        assert display.scores.tolist() == [[7.0], [7.0]] and display.ax_.get_ylabel() == "scoring"
    assert epsilons == [0.5, 2.0] * 2
    with pytest.raises(ValueError, match="no parameter 'eps'"):
        PrivacyUtilityDisplay.from_estimator(model, ROWS, None, ROWS, None, param_name="eps")
    with pytest.raises(ValueError, match="n_repeats"):
        PrivacyUtilityDisplay.from_estimator(model, ROWS, None, ROWS, None, n_repeats=0)


def test_an_open_ledger_is_charged():
    with PrivacyLedger(1.0, 1e-5), pytest.raises(BudgetError):
        PrivacyUtilityDisplay.from_estimator(
            DPBetaBernoulli(), ROWS, None, ROWS, None, epsilons=[2.0]
        )


@pytest.mark.parametrize(
    ("epsilons", "scores"),
    [([0.0, 1.0], [[1.0], [1.0]]), ([1.0], [[1.0], [1.0]]), ([1.0], [1.0]), ([1.0], [[]])],
)
def test_scores_that_make_no_sense_are_refused(epsilons, scores):
    with pytest.raises(ValueError, match=r"epsilons must be|scores must have shape"):
        PrivacyUtilityDisplay(epsilons, scores)


# All of them


def test_axes_are_taken_as_given():
    figure, (one, two) = matplotlib.pyplot.subplots(1, 2)
    intervals = PosteriorIntervalDisplay.from_draws(DRAWS, ax=one)
    utility = PrivacyUtilityDisplay.from_scores([1.0], [[1.0]], ax=two)
    assert (
        intervals.ax_ is one
        and utility.ax_ is two
        and intervals.figure_ is utility.figure_ is figure
    )


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for display in (PosteriorIntervalDisplay(DRAWS), PrivacyUtilityDisplay([1.0], [[1.0]])):
        with pytest.raises(ImportError, match=r"skdpbayes\[plot\]"):
            display.plot()


# Cards


def test_a_notebook_shows_what_a_fit_has_cost():
    model = DPBetaBernoulli(0.5)
    assert "differential privacy" not in model._repr_html_()
    model.fit(ROWS)
    card = model.privacy_spent_._repr_html_()
    shown = model._repr_html_()
    assert "guarantee holds" in card and card in shown
    assert shown.endswith(f"usable records: {model.usable_records_}</div>")
    assert card in model._repr_mimebundle_()["text/html"]


def test_a_card_escapes_what_a_user_can_name():
    evil = "<script>alert('x')</script>"
    model = DPBetaBernoulli(0.5).fit(ROWS)
    model.privacy_spent_ = dataclasses.replace(model.privacy_spent_, public={evil: evil}, unit=evil)
    assert evil not in model._repr_html_() and model._repr_html_().count(html.escape(evil)) == 4
    ledger = PrivacyLedger(1.0, 1e-5, unit=evil)
    ledger.charge(model.privacy_spent_.steps, unit=evil, label=evil)
    assert evil not in ledger._repr_html_() and ledger._repr_html_().count(html.escape(evil)) == 2


def test_the_best_of_a_search_shows_the_cost_of_the_search():
    spent = SelectionSpent(
        2.0, 1e-5, 3.0, 2e-5, "secure", "zero_out", "row", 0.7, 10.0, voided_by=("a < b",)
    )
    model = DPBetaBernoulli().fit(ROWS)
    model.privacy_spent_ = spent
    shown = model._repr_html_()
    assert "guarantee void: a &lt; b" in shown and "each with epsilon 0.7" in shown
    assert "epsilon 3, delta 2e-05" in shown
