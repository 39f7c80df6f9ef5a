"""A private search costs what it says, chooses well, and exposes nothing of its losers."""

import json
import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import special
from sklearn.base import clone
from sklearn.callback import ProgressBar
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    Schema,
    model_selection,
)
from skdpbayes.estimators._base import SEEDED
from skdpbayes.facts import Shape
from skdpbayes.intake import scores as _scoring
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.models.moments import BoundedScore
from skdpbayes.pipelines import check_pipeline, search_spent
from skdpbayes.preprocessing import BoundedScaler, DPStandardScaler
from skdpbayes.privacy import (
    BudgetError,
    GaussianSteps,
    PrivacyLedger,
    Selection,
    calibrate_noise,
    compose,
    selection_epsilon,
)
from skdpbayes.privacy.accounting._selection import truncated_negative_binomial_odds

pytestmark = [
    pytest.mark.usefixtures("compiled_quickly"),
    pytest.mark.filterwarnings("ignore:delta=.* is not below"),  # tables of a few hundred rows
]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1200, 2))
Y = (X[:, 0] + 0.3 * RNG.normal(size=1200) > 0).astype(int)
MODEL = DPBayesianLogisticRegression(classes=[0, 1], solver="vips", n_posterior_samples=50)
GRID = {"prior_scale": [1e-3, 3.0]}


PLAN = model_selection._Plan(1.0, 1.0, (GaussianSteps(30.0, 1.0, 1),), Selection([GaussianSteps(1.0, 1.0, 1)], 1, 0),
                             "log_loss", 0.0, ())  # fmt: skip
EXACT = replace(PLAN, score_steps=(GaussianSteps(0.0, 1.0, 1),))


def search(**parameters):
    given = {"epsilon": 4.0, "n_iter": 6, "random_state": 0}
    return DPRandomizedSearchCV(MODEL, GRID, **(given | parameters))


@pytest.mark.parametrize("scoring", [None, "accuracy", lambda model, X, y: model.predict(X) == y])
def test_it_finds_the_better_candidate_within_its_budget(scoring):
    found = search(scoring=scoring, n_iter=12).fit(X, Y)
    assert found.best_params_ == {"prior_scale": 3.0} and found.score(X, Y) > 0.85
    assert found.predict(X).shape == Y.shape and found.predict_proba(X).shape == (1200, 2)
    assert found.privacy_spent_.epsilon <= 4
    assert 0.5 < found.best_score_ < 1.1
    assert found.best_estimator_.privacy_spent_ is found.privacy_spent_


def test_the_total_is_the_bound_of_one_run():
    """Of full batches, whose curves are all those of one Gaussian release."""
    spent, delta = search(epsilon=2.0).fit(X, Y).privacy_spent_, 1e-5
    curve = compose(calibrate_noise(spent.run_epsilon, delta / 6, 1.0, 1).steps)
    assert spent.epsilon == pytest.approx(selection_epsilon(curve, delta, 6, 0.0), rel=0.02)
    assert 0.9 * 2 < spent.epsilon <= 2 and spent.run_epsilon < 2


def test_a_report_is_kept_as_json():
    spent = search(epsilon=2.0).fit(X, Y).privacy_spent_
    for own in (spent, replace(spent, epsilon=np.inf, voided_by=("no noise was added",))):
        assert (
            type(own).from_json(own.to_json()) == own and json.loads(own.to_json())["delta"] == 1e-5
        )


def test_the_bound_is_of_the_worst_candidate_at_every_delta(monkeypatch):
    """Sampled steps and full ones have other profiles; also if one of them is never drawn."""
    few, many = compose(GaussianSteps(2.0, 1.0, 1)), compose(GaussianSteps(0.7, 0.01, 400))
    assert (few.epsilon(1e-1) > many.epsilon(1e-1)) != (few.epsilon(1e-9) > many.epsilon(1e-9))
    worst = Selection([few.steps, many.steps], 10, 0.0).epsilon
    alone = [Selection([own.steps], 10, 0.0).epsilon for own in (few, many)]
    for delta in (1e-2, 1e-9):
        assert worst(delta, "zero_out") >= max(one(delta, "zero_out") for one in alone)

    plans, original = [], model_selection._Plan
    monkeypatch.setattr(
        model_selection, "_Plan", lambda *of, **how: plans.append(original(*of, **how)) or plans[-1]
    )
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 1)
    candidates = [{}, {"solver": ["dpvi"], "n_steps": [200], "sampling_rate": [0.01]}]
    found = DPRandomizedSearchCV(MODEL, candidates, epsilon=1.0).fit(X, Y)
    assert found.privacy_spent_.epsilon <= 1 and len(plans[0].selection.runs) == 3


def test_no_noise_is_no_guarantee():
    free = DPRandomizedSearchCV(MODEL, GRID, epsilon=np.inf, n_iter=1, random_state=0).fit(X, Y)
    assert "no noise was added" in free.privacy_spent_.voided_by and not check_pipeline(free).passed


@pytest.mark.parametrize(("mean", "eta"), [(10, 0.0), (10, 1.0), (3, 0.5), (1000, 0.0), (1, 1.0)])
def test_the_number_of_runs_has_its_law(mean, eta):
    rng = np.random.default_rng(0)
    n, error = (20_000, 0.06) if mean < 100 else (4_000, 0.12)
    drawn = np.array([model_selection._number_of_runs(rng, mean, eta) for _ in range(n)])
    assert drawn.min() == 1 and drawn.mean() == pytest.approx(mean, rel=error)
    if mean == 1:
        return
    odds = truncated_negative_binomial_odds(mean, eta)
    k = np.arange(1, 200_000)
    log_mass = special.gammaln(k + eta) - special.gammaln(k + 1) + k * np.log(odds / (1 + odds))
    mass = np.exp(log_mass - special.logsumexp(log_mass))
    assert np.abs(np.mean(drawn[:, None] == k[:8], axis=0) - mass[:8]).max() < 0.015


def test_runs_are_what_the_bound_is_of(monkeypatch):
    """Budget and noise of each run, parts that have no row in common, and the law of their number."""
    fits, scored, asked = [], [], []
    fit, score = model_selection._fit_quietly, DPRandomizedSearchCV._private_score
    monkeypatch.setattr(model_selection, "_fit_quietly", lambda *how: fits.append(how) or fit(*how))
    monkeypatch.setattr(
        model_selection, "_number_of_runs", lambda rng, *law: asked.append(law) or 3
    )
    monkeypatch.setattr(
        DPRandomizedSearchCV, "_private_score", lambda *how: scored.append(how) or score(*how)
    )
    found = search(eta=1.0, random_state=None).fit(X, Y)
    assert asked == [(6, 1.0)] and len(fits) == len(scored) == 3
    own = calibrate_noise(found.privacy_spent_.run_epsilon, 1e-5 / 6, 1.0, 1).noise_multiplier
    rows = {row.tobytes() for row in X}
    for (model, X_fit, _), (_, scoring, X_test, _, _, plan, seed) in zip(fits, scored, strict=True):
        steps = plan.score_steps
        assert scoring is model and seed is None and model.random_state is None
        assert (model.epsilon, model.delta) == (found.privacy_spent_.run_epsilon, 1e-5 / 6)
        one, other = ({row.tobytes() for row in part} for part in (X_fit, X_test))
        assert not one & other and one | other == rows and len(other) == 240
        assert len(steps) == 1 and steps[0].noise_multiplier >= own * (1 - 1e-9)
        noise = steps[0].noise_multiplier * np.hypot(found.best_score_, 1 - found.best_score_)
        assert found.score_noise_std_ == pytest.approx(noise / 240, rel=0.3)


def scored(found, model, rows, labels, plan, seed=0, usable=None):
    """Private score of a fitted model on rows that are all usable, unless told."""
    usable = np.ones(len(rows), bool) if usable is None else usable
    return found._private_score(model, rows, labels, usable, plan, seed)


def test_scores_have_the_noise_that_is_accounted_for():
    found = search().fit(X, Y)
    model = found.best_estimator_
    right = np.mean(scored(found, model, X, Y, EXACT).value)
    # With all rows, with half of them, and with so few that noise may make as many of none.
    for share, rows, atol in ((1.0, 1200, 0.3), (0.5, 600, 0.3), (0.02, 120, 1e9)):
        usable = np.arange(1200) < share * 1200
        runs = [scored(found, model, X, Y, PLAN, seed, usable) for seed in range(150)]
        values = np.array([run.value for run in runs])
        told = np.mean([run.noise_std for run in runs])
        assert np.std(values) == pytest.approx(told, rel=0.35 if share == 1 else 0.25)
        exact = scored(found, model, X, Y, EXACT, 0, usable).value
        assert rows * abs(values.mean() - exact) < atol * 30 + 4 * 30 / 150**0.5
        assert rows * told < 30 * (1.01 if share > 0.1 else 1.5)
    assert right == scored(found, model, X, Y, EXACT, 5).value


def test_rows_that_a_fit_would_not_use_have_no_score():
    """Whatever the model makes of them; what has no number from the model is wrong instead."""
    found = search(scoring="accuracy", epsilon=np.inf).fit(X, Y)
    plan, model = replace(EXACT, scoring="accuracy"), found.best_estimator_
    rows, labels = X.copy(), Y.astype(float)
    rows[:200], labels[100:400] = np.nan, 7.0
    usable = model_selection._usable(clone(MODEL), rows, labels)
    np.testing.assert_array_equal(usable, np.arange(1200) >= 400)
    kept = scored(found, model, rows, labels, plan, 0, usable)
    assert kept.noise_std == 0
    expected = np.mean(model.predict(X[400:]) == Y[400:])
    assert kept.value == pytest.approx(expected, abs=1e-6)
    none = scored(found, model, X, Y, PLAN, 0, np.zeros(1200, bool))
    assert abs(none.value) < 1.1 and none.noise_std > 0.2

    def silent(model, X, y):
        return np.nan if X[0, 0] > 0 else 1.0

    right = scored(found, model, X, Y, replace(plan, scoring=silent)).value
    assert right == pytest.approx(np.mean(X[:, 0] <= 0), abs=1e-6)
    # Nobody is usable, and there is no noise: the worst score, and no warning.
    assert scored(found, model, X, Y, plan, 0, np.zeros(1200, bool)).value == 0
    # Documents are sorted by their length when they are packed.
    words = np.array([[0, 3, 2], [0, 0, 0], [5, 9, 4], [0, 0, 0], [1, 0, 1]])
    usable = model_selection._usable(DPLatentDirichletAllocation(2), words, None)
    np.testing.assert_array_equal(usable, words.any(axis=1))


@pytest.mark.parametrize("score", [0.0, 0.3, 1.0, np.nan, -5.0, 7.0, np.inf])
def test_a_record_adds_at_most_one_to_the_sums_of_scores(score):
    added = np.asarray(BoundedScore().statistic({"x": jnp.float32(score)}))
    assert np.linalg.norm(added) <= BoundedScore().statistic_bound() == 1
    assert added.sum() == (0 if np.isnan(score) else 1)


def test_the_noise_of_scores_of_persons_is_over_their_number(monkeypatch):
    plans, report = [], DPRandomizedSearchCV._report
    monkeypatch.setattr(
        DPRandomizedSearchCV, "_report", lambda self, plan: plans.append(plan) or report(self, plan)
    )
    model = DPBetaBernoulli(max_rows_per_person=3)
    found = DPRandomizedSearchCV(model, {}, n_iter=1).fit(X[:300] > 0, groups=np.arange(300) // 3)
    noise, score = plans[0].score_steps[0].noise_multiplier, found.best_score_
    # Not of fewer than noise may make of none; with all of them noise is that of a difference.
    most = noise * np.hypot(score, 1 - score) / min(4 * noise, 20)
    assert noise * 0.5**0.5 / 20 * 0.999 <= found.score_noise_std_ <= most * 1.001
    assert "one run, with epsilon" in str(found.privacy_spent_)


def test_nothing_of_losers_and_of_the_number_of_runs_is_kept_or_said(monkeypatch, capsys, recwarn):
    loud, kept = (
        DPRandomizedSearchCV(clone(MODEL).set_params(verbose=1), GRID, epsilon=4.0, random_state=0),
        [],
    )
    rows = X.copy()
    rows[::50] = np.nan
    for runs in (1, 4):
        monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest, runs=runs: runs)
        found = clone(loud).fit(rows, Y)
        kept.append(set(vars(found)) - set(found.get_params(deep=False)))
        assert found.best_estimator_.privacy_spent_ is found.privacy_spent_
        assert np.isfinite(found.best_score_)
    best = {"best_estimator_", "best_params_", "best_score_"}
    assert kept == [best | {"score_noise_std_", "privacy_spent_"}] * 2
    assert capsys.readouterr().out == "" and not recwarn.list


def test_rows_of_a_list_that_are_no_rows_raise_nothing():
    rows = X.tolist()
    rows[0] = [1.0]
    schema = Schema(
        {f"x{j}": {} for j in range(X.shape[1])}, outcome={"name": "y", "labels": [0, 1]}
    )
    found = search(n_iter=1)
    found.set_params(estimator=clone(found.estimator).set_params(classes=schema))
    assert found.fit(rows, Y).best_params_


def test_searches_of_one_object_add_up_and_its_result_is_not_fitted_again():
    found = search(random_state=None).fit(X, Y)
    first = found.privacy_spent_
    second = found.fit(X, Y).privacy_spent_
    assert second.total_epsilon == first.epsilon + second.epsilon and second.total_delta == 2e-5
    assert second.guarantee_holds and second.numerics == "secure"
    with pytest.raises(ValueError, match="cannot be fitted again"):
        found.best_estimator_.fit(X, Y)


def test_a_score_that_is_no_number_loses(monkeypatch):
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 8)

    def scoring(model, X, y):
        return np.nan if model.prior_scale > 1 else 0.5

    assert search(scoring=scoring).fit(X, Y).best_params_ == {"prior_scale": 1e-3}
    original = model_selection._quietly

    def state(value):  # of a release that is not a number
        return lambda *how, **more: (type("State", (), {"value": np.array([value, 1.0])}), None)

    found = search().fit(X, Y)
    monkeypatch.setattr("skdpbayes.inference.run", state(np.nan))
    assert original(scored, found, found.best_estimator_, X, Y, PLAN).value == -np.inf


def test_a_row_on_which_a_callable_raises_changes_no_other_score():
    def scoring(model, X, y):
        if (X[:, 0] == 7).any():
            raise ZeroDivisionError
        return 1 / (1 + X[:, 0])

    rows = np.arange(12.0).reshape(12, 1)
    want = 1 / (1 + rows[:, 0])
    want[7] = np.nan
    np.testing.assert_allclose(_scoring.scores(scoring, None, rows, None), want, rtol=1e-6)


@pytest.mark.parametrize(
    "scoring",
    [
        lambda model, X, y: np.full(len(X), (np.asarray(X) > 5).any(), float),
        lambda model, X, y: np.asarray(X) - np.mean(X) > 0,
        lambda model, X, y: np.full(1200, np.max(X)),  # of no row
        lambda model, X, y: float(len(y) > 1),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, list, pd.DataFrame])
def test_a_callable_is_shown_one_row_at_a_time(scoring, kind):
    """One row decides its own score, whatever a callable makes of all the rows that it gets."""
    rows = np.linspace(-1, 1, 200)[:, None]
    changed = rows.copy()
    changed[17] = 9
    before, after = (np.clip(np.nan_to_num(_scoring.scores(scoring, None, kind(own), np.zeros(200))), 0, 1)
                     for own in (rows, changed))  # fmt: skip
    assert abs(before.mean() - after.mean()) <= 1 / 200 and (before != after).sum() <= 1


def test_one_row_does_not_decide_the_score_of_a_search(monkeypatch):
    """A search in which a row of 9 made every score a 1: without noise, so that only rows differ."""
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 1)
    kept = []
    for value in (0.0, 9.0):
        rows = X.copy()
        rows[:, 0] = 0.0
        rows[5] = value
        found = search(
            scoring=lambda model, X, y: np.full(len(X), (X > 5).any(), float),
            epsilon=np.inf,
            n_iter=1,
        )
        kept.append(found.fit(rows, Y).best_score_)
    assert abs(kept[0] - kept[1]) <= 1.01 / 240


def test_one_row_moves_the_score_by_at_most_one(monkeypatch):
    """Whatever it holds, its label included; the sum is released with noise for that."""
    found = search().fit(X, Y)
    monkeypatch.setattr(found.estimator, "numerics", "fast")
    sums, plan = [], replace(PLAN, score_steps=(GaussianSteps(1e-3, 1.0, 1),))
    for x, label in ((X[0], Y[0]), (np.nan, 0), (1e300, 1), (-np.inf, 9)):
        rows, labels = X.copy(), Y.copy()
        rows[0], labels[0] = x, label
        usable = model_selection._usable(clone(MODEL), rows, labels)
        of_rows = scored(found, found.best_estimator_, rows, labels, plan, 0, usable)
        sums.append(1200 * of_rows.value)
    assert np.isfinite(sums).all() and np.ptp(sums) <= 1.01


# Scores of what is not a classifier


def as_fitted(model, **attributes):
    """An estimator with attributes that a fit would have set."""
    vars(model).update(attributes)
    return model


def volume_of(model, rows):
    return model._log_volume(model._reader().declared(Shape(*rows.shape)))


def test_log_density_is_a_comparison_with_the_uniform_one():
    """p / (p + u): a half where a model says no more than its range; one bad row is no number and changes no other."""
    draws = np.full((9, 2), 0.5)
    half = as_fitted(DPBetaBernoulli(), posterior_=0, posterior_samples_=draws, n_features_in_=2)
    rows = np.array([[0.0, 1.0], [1.0, 1.0], [np.nan, 0.0]])
    found = _scoring.scores("log_density", half, rows, None, volume_of(half, rows))
    np.testing.assert_allclose(found[:2], 0.5, atol=1e-6)
    sure = as_fitted(
        DPBetaBernoulli(), posterior_=0, posterior_samples_=np.full((9, 2), 0.9), n_features_in_=2
    )
    found = _scoring.scores("log_density", sure, rows[:2], None, np.log(2))
    np.testing.assert_allclose(found, [0.3 / 0.8, 0.9 / 1.4], rtol=1e-6)


def test_a_response_that_is_no_number_changes_no_other_score(monkeypatch):
    """Nor the way in which others are worked out: rounding would differ."""
    draws = {"coef": np.zeros((9, 2)), "intercept": np.zeros(9), "noise_std": np.ones(9)}
    model = as_fitted(
        DPBayesianLinearRegression(bounds=((-3, 3), (-4, 4))),
        posterior_samples_=draws,
        n_features_in_=2,
    )
    monkeypatch.setattr(model, "_features", lambda X: X, raising=False)
    monkeypatch.setattr(
        model, "_means_and_noise", lambda rows, draws: (rows[:, :1], np.ones(1)), raising=False
    )
    monkeypatch.setattr(DPBayesianLinearRegression, "__sklearn_is_fitted__", lambda self: True)
    monkeypatch.setattr(_scoring, "_score_of_one", lambda *rest: pytest.fail("one by one"))
    rows, y = X[:5], [0.0, "many", None, [1, 2], 1e400]
    found = _scoring.scores("log_density", model, rows, y, volume_of(model, rows))
    density = 8 * np.exp(-0.5 * rows[0, 0] ** 2) / np.sqrt(2 * np.pi)
    assert (
        found[0] == pytest.approx(density / (1 + density))
        and np.isnan(found[1:4]).all()
        and found[4] == 0
    )


def test_topics_are_judged_by_words_that_they_have_not_seen():
    topics = np.array([[0.48, 0.48, 0.02, 0.02], [0.02, 0.02, 0.48, 0.48]])

    def fitted(topics):
        return as_fitted(
            DPLatentDirichletAllocation(2), posterior_=0, n_features_in_=4, topics_=topics,
            components_=1000 * topics, exp_dirichlet_component_=topics, doc_topic_prior_=0.1, topic_word_prior_=0.1,
        )  # fmt: skip

    documents = np.array(
        [[9, 9, 0, 0], [0, 0, 8, 8], [4, 4, 4, 4], [0, 0, 0, 0], [np.nan, 1, 1, 1]]
    )
    volume = volume_of(fitted(topics), documents)
    found = _scoring.scores("log_density", fitted(topics), documents, None, volume)
    assert found[:2] == pytest.approx([0.48 / 0.73] * 2, abs=0.01) and found[2] == pytest.approx(
        0.5, abs=0.01
    )
    assert np.isnan(found[3:]).all()
    wrong = _scoring.scores("log_density", fitted(np.full((2, 4), 0.25)), documents, None, volume)
    np.testing.assert_allclose(wrong[:3], 0.5, atol=1e-6)
    alone = [
        _scoring.scores("log_density", fitted(topics), documents[[i]], None, volume)[0]
        for i in range(5)
    ]
    np.testing.assert_array_equal(alone, found)


@pytest.mark.parametrize(
    ("estimator", "grid", "data", "better"),
    [
        (DPBetaBernoulli(), {"prior_b": [1, 3e3]}, (RNG.random((1500, 2)) < 0.9,), {"prior_b": 1}),
        (DPGammaExponential(upper=4), {"prior_rate": [1.0, 3e4]}, (RNG.exponential(size=(1500, 1)),),
         {"prior_rate": 1.0}),
        (DPDirichletCategorical(categories=["a", "b"]), {"concentration": [1.0, 3e4]},
         (np.where(RNG.random((1500, 1)) < 0.95, "a", "b"),), {"concentration": 1.0}),
        (DPBayesianLinearRegression(bounds=((-3, 3), (-4, 4)), solver="vips"), {"prior_precision": [1.0, 1e5]},
         (X, X[:, 0] + 0.1 * RNG.normal(size=1200)), {"prior_precision": 1.0}),
    ],
    ids=["bernoulli", "exponential", "categorical", "linear"],
)  # fmt: skip
def test_densities_and_regressions_are_searched_without_a_callable(
    estimator, grid, data, better, monkeypatch
):
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 6)
    found = DPRandomizedSearchCV(estimator, grid, epsilon=20.0, n_iter=6, random_state=3).fit(*data)
    assert found.best_params_ == better and 0.4 < found.best_score_ < 1
    assert np.isfinite(found.score(*data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "grid", "rows"),
    [
        (DPLatentDirichletAllocation(2), {"topic_word_prior": [0.1, 1e6]},
         RNG.multinomial(60, np.array([0.4, 0.4, 0.1, 0.1]), 1500)),
        (DPGaussianMixture(bounds=(-6, 6)), {"n_components": [1, 2]},
         RNG.normal(size=(1500, 1)) + 4 * RNG.choice([-1, 1], (1500, 1))),
    ],
    ids=["topics", "mixture"],
)  # fmt: skip
def test_topics_and_mixtures_are_searched_without_a_callable(estimator, grid, rows, monkeypatch):
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 4)
    found = DPRandomizedSearchCV(estimator, grid, epsilon=20.0, n_iter=4, random_state=1).fit(rows)
    assert found.best_score_ > 0.5
    assert found.best_params_ in ({"topic_word_prior": 0.1}, {"n_components": 2})


def test_every_estimator_has_a_score_but_those_that_only_prepare():
    import skdpbayes

    every = {name: getattr(skdpbayes, name) for name in skdpbayes.__all__ if name.startswith("DP")}
    without = {name for name, own in every.items() if not own._scorings}
    assert without == set()
    with pytest.raises(ValueError, match="no score for DPStandardScaler: give scoring a callable"):
        DPRandomizedSearchCV(DPStandardScaler((-1, 1)), {"with_mean": [True]}).fit(X)


def test_a_pipeline_takes_a_search_as_its_last_step():
    pipeline = make_pipeline(BoundedScaler((-5, 5)), search(random_state=None))
    assert check_pipeline(pipeline).epsilon == 4
    report = check_pipeline(pipeline.fit(X, Y))
    assert report.passed and report.epsilon == pipeline[-1].privacy_spent_.epsilon


# What it is used like, and what it keeps to itself


def test_a_fitted_search_is_used_like_its_best_model():
    table = pd.DataFrame(X, columns=["height", "weight"])
    original = search().fit(table, Y)
    for found in (original, pickle.loads(pickle.dumps(original))):
        best = found.best_estimator_
        assert list(found.feature_names_in_) == ["height", "weight"] and found.n_features_in_ == 2
        assert list(found.classes_) == [0, 1] and found.posterior_ is best.posterior_
        for method in (
            "predict",
            "predict_proba",
            "predict_log_proba",
            "decision_function",
            "predict_interval",
        ):
            np.testing.assert_array_equal(
                getattr(found, method)(table), getattr(best, method)(table)
            )
        np.testing.assert_array_equal(
            found.sample_posterior(3, 0)["coef"], best.sample_posterior(3, 0)["coef"]
        )
        np.testing.assert_array_equal(
            found.predict_interval(table, level=0.5), best.predict_interval(table, level=0.5)
        )
        assert found.score(table, Y) == best.score(table, Y)
    for name in (
        "_chains",
        "fit_transform",
        "set_callbacks",
        "prior_scale",
        "transform",
        "no_such_thing",
    ):
        assert not hasattr(found, name)
    again = clone(found)
    assert (
        hasattr(again, "predict_interval")
        and not hasattr(again, "coef_")
        and not hasattr(again, "transform")
    )
    with pytest.raises(NotFittedError):
        again.predict_interval(table, level=0.5)
    with pytest.raises(NotFittedError):  # not what the user's own model would say
        DPRandomizedSearchCV(best, GRID).predict(table)


class Recorder:
    """A callback that keeps what it is told, and whom it is shown."""

    def __init__(self):
        self.told = []

    def setup(self, estimator, context):
        self.told.append(estimator)

    def on_fit_task_begin(self, estimator, context):
        self.told.append(estimator)

    def on_fit_task_end(self, estimator, context):
        self.told.append(estimator)

    def teardown(self, estimator, context):
        self.told.append(estimator)


class Nested(DPBetaBernoulli):
    """An estimator with another as a parameter, which is fitted with it."""

    def __init__(
        self,
        inner=None,
        prior_b=1.0,
        epsilon=1.0,
        delta=1e-5,
        ledger=None,
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            prior_b=prior_b,
            epsilon=epsilon,
            delta=delta,
            ledger=ledger,
            random_state=random_state,
            verbose=verbose,
        )
        self.inner = inner

    def fit(self, X, y=None):
        self.inner.fit(X)
        return super().fit(X)


def test_callbacks_are_told_nothing_of_runs_and_shown_no_losers(monkeypatch, capsys):
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 3)
    recorder, inside = Recorder(), Recorder()
    loud = clone(MODEL).set_params(verbose=1).set_callbacks(recorder, ProgressBar())
    found = DPRandomizedSearchCV(loud, GRID, epsilon=4.0).fit(X, Y)
    assert recorder.told == [] and capsys.readouterr() == ("", "")
    assert not hasattr(found.best_estimator_, "_skl_callbacks") and hasattr(loud, "_skl_callbacks")
    nested = Nested(DPBetaBernoulli(verbose=1).set_callbacks(inside)).set_callbacks(recorder)
    DPRandomizedSearchCV(nested, {"prior_b": [1.0]}, n_iter=2).fit(X > 0)
    assert recorder.told == inside.told == [] and capsys.readouterr() == ("", "")
    loud.fit(X, Y)
    assert recorder.told and capsys.readouterr().out


def test_a_fitted_search_is_the_same_however_many_runs_and_whatever_parts_there_were(monkeypatch):
    """Byte for byte, if the best run gave the same: no state of a generator, no split, no count is kept anywhere."""
    fitted = {
        name: value
        for name, value in vars(clone(MODEL).fit(X, Y)).items()
        if name not in MODEL.get_params()
    }
    seen = []

    def fit(model, X_fit, y_fit):
        seen.append(X_fit.tobytes())
        vars(model).update(pickle.loads(pickle.dumps(fitted)))

    monkeypatch.setattr(model_selection, "_fit_quietly", fit)
    monkeypatch.setattr(
        DPRandomizedSearchCV, "_private_score", lambda *rest: model_selection._Score(0.5, 0.1)
    )
    states = []
    for runs in (1, 2, 7, 7):
        monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest, runs=runs: runs)
        found = DPRandomizedSearchCV(MODEL, {"prior_scale": [1.0]}, epsilon=4.0, n_iter=6)
        states.append(pickle.dumps(found.fit(X, Y)))
    assert len(set(seen)) == 4 and len(seen) == 17, "the parts differed"
    assert len(set(states)) == 1


# Budgets


def test_a_search_charges_a_ledger_as_one_selection():
    ledger, other = (PrivacyLedger(epsilon=9.0, delta=1e-4) for _ in range(2))
    found = search(random_state=None, ledger=other)
    with ledger:
        found.fit(X, Y)
        search(random_state=None).fit(X, Y)
    for own in (ledger, other):
        (entry,) = own.entries
        assert (
            entry["label"] == "DPRandomizedSearchCV(DPBayesianLogisticRegression)"
            and entry["voided_by"] == []
        )
        charged = Selection.from_dict(entry["selection"])
        assert (charged.mean, charged.eta) == (6, 0) and own.guarantee_holds
        assert charged.epsilon(1e-5, "zero_out") == pytest.approx(
            found.privacy_spent_.epsilon, rel=1e-5
        )
        assert entry["cost"] == charged.divergence(own.order, "zero_out")
    assert found.best_estimator_.ledger is None
    inside = DPRandomizedSearchCV(
        clone(MODEL).set_params(ledger=ledger), GRID, epsilon=4.0, n_iter=6
    )
    inside.fit(X, Y)
    assert len(ledger.entries) == 2


def test_a_search_is_refused_before_it_runs(monkeypatch):
    first = PrivacyLedger(epsilon=4.0, delta=1e-5)
    found = search(random_state=None, ledger=first).fit(X, Y)  # all of it, by its own bound
    assert first.spent == 1 and 0.9 * 4 < first.spent_epsilon <= 4
    monkeypatch.setattr(model_selection, "_fit_quietly", lambda *rest: pytest.fail("it runs"))
    best = found.best_estimator_
    with pytest.raises(BudgetError, match="Nothing is left"):
        found.fit(X, Y)
    assert found.best_estimator_ is best and len(first.entries) == 1
    with pytest.raises(BudgetError, match="cannot take a private search"):
        search(ledger=PrivacyLedger(50.0, 1e-5, composition="gaussian")).fit(X, Y)
    with pytest.raises(BudgetError):
        search(ledger=PrivacyLedger(3.5, 1e-5)).fit(X, Y)
    with pytest.raises(ValueError, match="ledger must be a PrivacyLedger"):
        search(ledger=1.0).fit(X, Y)


def test_a_search_with_a_seed_has_no_guarantee():
    ledger = PrivacyLedger(9.0, 1e-4)
    seeded = search(ledger=ledger).fit(X, Y)
    spent = seeded.privacy_spent_
    assert spent.seeded and not spent.guarantee_holds and "random_state is set" in str(spent)
    assert not ledger.guarantee_holds and not check_pipeline(seeded).passed
    seeded.set_params(random_state=None, ledger=None).fit(X, Y)
    assert seeded.privacy_spent_.voided_by == (f"an earlier search: {SEEDED}",)
    seeded.set_params(estimator=clone(MODEL).set_params(adjacency="replace_one")).fit(X, Y)
    assert any("under adjacency='zero_out' only" in why for why in seeded.privacy_spent_.voided_by)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"n_iter": 0.5}, "n_iter"),
        ({"eta": -0.5}, "eta"),
        ({"n_iter": 1001}, "n_iter"),
        ({"test_size": 1.0}, "test_size"),
        ({"test_size": 0.0}, "test_size"),
        ({"scoring": "r2"}, "scoring"),
        ({"random_state": np.random.default_rng()}, "random_state"),
        ({"param_grid": {"prior_scale": np.arange(1, 300)}}, "1 to 200 candidates"),
        ({"param_grid": {"epsilon": [1.0]}}, "may not differ in"),
        ({"param_grid": {"prior_scale": [-1.0]}}, "prior_scale"),
        ({"param_grid": {"prior_scale": [-1.0]}, "epsilon": np.inf}, "prior_scale"),
        (
            {"estimator": GridSearchCV(MODEL, {})},
            "this package, got an object of class GridSearchCV",
        ),
        ({"estimator": DPBayesianLogisticRegression()}, "classes=None is taken from the rows"),
        (
            {"estimator": DPBayesianLinearRegression(), "scoring": len},
            "bounds=None is taken from the rows",
        ),
        ({"estimator": DPGammaExponential(adjacency="add_remove")}, "add_remove"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_run(
    parameters, message, monkeypatch
):
    monkeypatch.setattr("skdpbayes.inference._run", lambda *rest: pytest.fail("the rows were read"))
    given = {"estimator": MODEL, "param_grid": GRID} | parameters
    with pytest.raises(ValueError, match=message):
        DPRandomizedSearchCV(**given).fit(X, Y)


def test_an_interrupted_search_is_charged_and_leaves_no_model(monkeypatch):
    found = search().fit(X, Y)

    def interrupt(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_selection, "_fit_quietly", interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.fit(X, Y)
    assert not hasattr(found, "best_estimator_") and found.privacy_spent_.epsilon <= 4


def test_what_a_search_of_scikit_learn_spent():
    table = RNG.exponential(size=(300, 1))
    grid = GridSearchCV(
        make_pipeline(BoundedScaler((0, 9)), DPGammaExponential(0.5)),
        {"dpgammaexponential__prior_rate": [1.0, 2.0]},
        cv=3,
    )
    assert search_spent(grid.fit(table)).endswith("the 7 fits alone spent (3.5, 7e-05)")


@pytest.mark.filterwarnings("ignore:The guarantee is void")  # by an epsilon that hides no row
def test_labels_of_text_are_scored_as_they_are_fitted():
    schema = Schema({"a": {"bounds": [0, 1]}}, outcome={"name": "y", "labels": [0, 1]})
    rows, text = (
        np.repeat([[0.0], [1.0]], 100, axis=0),
        np.repeat(np.array(["0", "1"], object), 100),
    )
    model = DPBayesianLogisticRegression(
        epsilon=50.0, classes=schema, solver="vips", n_steps=1
    ).fit(rows, text)
    np.testing.assert_array_equal(_scoring.scores("accuracy", model, rows, text), 1)
    assert np.isnan(_scoring.scores("accuracy", model, rows[:1], np.array(["2"], object)))


def test_a_run_is_charged_for_its_score_and_for_its_fit_with_its_count():
    ledger, rows = PrivacyLedger(2.0, 1e-5), np.random.default_rng(0).random((300, 1)) < 0.3
    model = DPBetaBernoulli(solver="vips")
    search = DPRandomizedSearchCV(model, {"prior_b": [1, 9]}, n_iter=2, ledger=ledger).fit(rows)
    score, fit = ledger.entries[0]["selection"]["runs"]
    count = clone(search.best_estimator_).plan(*rows.shape).spec.count
    assert len(score) == 1 and fit[1:] == [count.to_dict()]


def test_a_candidate_without_a_guarantee_voids_that_of_the_search():
    search = DPRandomizedSearchCV(
        DPGaussianMixture(bounds=(0, 1)), {"bounds": [(0, 1), None]}, n_iter=2
    )
    assert any(
        "bounds=None" in why for why in search._planned(search._check(), X[:50], None).voided_by
    )


def test_three_candidates_are_calibrated_without_a_fit(monkeypatch):
    """A search charges what plans cost; nothing is packed or run before it."""
    from skdpbayes.estimators._base import PrivateEstimator

    class Charged(Exception):
        pass

    def charged(self, plan):
        raise Charged(plan)

    def none(*how, **options):
        pytest.fail("a fit was begun")

    monkeypatch.setattr(DPRandomizedSearchCV, "_charge", charged)
    for name in ("_fit", "_charged_run", "_run", "_adopt"):
        monkeypatch.setattr(PrivateEstimator, name, none)
    monkeypatch.setattr("skdpbayes.inference._run", none)
    monkeypatch.setattr("skdpbayes.intake.packing.pack_records", none)
    model = DPBayesianLogisticRegression(classes=[0, 1], solver="vips")
    with pytest.raises(Charged) as error:
        DPRandomizedSearchCV(model, {"n_steps": [1, 4, 11]}, n_iter=2).fit(X, Y)
    (plan,) = error.value.args
    assert plan.epsilon <= 1.0 and len(plan.selection.runs) == 4  # those and the score


@pytest.fixture
def stopped(monkeypatch):
    """Plan of a search that ends before it is charged."""

    def plan_of(search, *rows, **groups):
        with pytest.raises(InterruptedError) as stop:
            search.fit(*rows, **groups)
        return stop.value.args[0]

    def stop(self, plan):
        raise InterruptedError(plan)

    monkeypatch.setattr(DPRandomizedSearchCV, "_charge", stop)
    return plan_of


def test_fits_are_accounted_for_with_the_rows_that_they_get(stopped):
    """Of fewer rows a batch of the same size samples each more often."""
    rows, labels = np.resize(X, (6000, 2)), np.resize(Y, 6000)
    model = clone(MODEL).set_params(solver="dpvi")
    plan = stopped(DPRandomizedSearchCV(model, {"prior_scale": [1.0]}, n_iter=2), rows, labels)
    _, fit = plan.selection.runs
    assert fit[0].sampling_rate == model.plan(4800, 2).sampling_rate < 1


def test_a_report_does_not_tell_how_many_rows_persons_have(stopped):
    """Not even where a public array is as long as the table of one of two neighbours."""

    def model(X, table):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(X)):
            numpyro.sample("x", dist.Normal(mean + table.sum(), 1.0).expand([2]).to_event(1), obs=X)

    estimator = DPNumPyroModel(
        model, public={"table": np.zeros(150)}, n_steps=5, sampling_rate=0.3, max_rows_per_person=3
    )
    search = DPRandomizedSearchCV(
        estimator, {"n_steps": [5]}, epsilon=np.inf, scoring=lambda fitted, X, y=None: 0.5
    )
    persons = np.arange(150) % 120
    one, other = (stopped(search, X[:n], groups=persons[:n]) for n in (150, 149))
    assert one.voided_by == other.voided_by
    assert not any("seems to hold" in why for why in one.voided_by)


def test_a_model_that_holds_the_rows_of_a_search_voids_its_guarantee(stopped):
    """A run is fitted to a part of them: neither their number nor their memory is the part's."""
    rows = X[:300]

    def model(X):
        mean = numpyro.sample("mean", dist.Normal(jnp.asarray(rows).mean(), 1.0))
        with numpyro.plate("data", len(X)):
            numpyro.sample("x", dist.Normal(mean, 1.0).expand([2]).to_event(1), obs=X)

    estimator = DPNumPyroModel(model, n_steps=5, sampling_rate=0.3)
    for public in (None, {"table": rows}):

        def known(X, table):
            model(X)

        estimator.set_params(public=public, model=model if public is None else known)
        search = DPRandomizedSearchCV(
            estimator, {"clipping_norm": [1.0]}, scoring=lambda fitted, X, y=None: 0.5, n_iter=2
        )
        plan = stopped(search, rows)
        assert any("seems to hold records" in why for why in plan.voided_by)
