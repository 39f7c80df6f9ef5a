"""A private search costs what it says, chooses well, and exposes nothing of its losers."""

import numpy as np
import pytest
from scipy import special
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPGammaExponential,
    Schema,
    model_selection,
)
from skdpbayes.model_selection import DPRandomizedSearchCV, search_spent
from skdpbayes.preprocessing import BoundedScaler, check_pipeline
from skdpbayes.privacy import GaussianSteps, PrivacyLedger, calibrate_noise, compose, selection_epsilon
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


def search(**parameters):
    given = {"epsilon": 4.0, "n_iter": 6, "random_state": 0}
    return DPRandomizedSearchCV(MODEL, GRID, **(given | parameters))


@pytest.mark.parametrize("scoring", ["log_loss", "accuracy", lambda model, X, y: model.predict(X) == y])
def test_it_finds_the_better_candidate_within_its_budget(scoring):
    found = search(scoring=scoring, n_iter=12).fit(X, Y)
    assert found.best_params_ == {"prior_scale": 3.0} and found.score(X, Y) > 0.85
    assert found.predict(X).shape == Y.shape and found.predict_proba(X).shape == (1200, 2)
    assert found.privacy_spent_.epsilon <= 4 and found.privacy_spent_.guarantee_holds and found.privacy_spent_.seeded
    assert 0.5 < found.best_score_ < 1.1
    assert found.best_estimator_.privacy_spent_ is found.privacy_spent_


def test_the_total_is_the_bound_of_one_run():
    """Of full batches, whose curves are all those of one Gaussian release."""
    spent, delta = search(epsilon=2.0).fit(X, Y).privacy_spent_, 1e-5
    curve = compose(calibrate_noise(spent.run_epsilon, delta / 6, 1.0, 1).steps)
    assert spent.epsilon == pytest.approx(selection_epsilon(curve, delta, 6, 0.0), rel=0.02)
    assert 0.9 * 2 < spent.epsilon <= 2 and spent.run_epsilon < 2


def test_the_bound_is_of_the_worst_candidate_at_every_delta(monkeypatch):
    """Sampled steps and full ones have other profiles; also if one of them is never drawn."""
    few, many = compose(GaussianSteps(2.0, 1.0, 1)), compose(GaussianSteps(0.7, 0.01, 400))
    assert (few.epsilon(1e-1) > many.epsilon(1e-1)) != (few.epsilon(1e-9) > many.epsilon(1e-9))
    worst, grid = model_selection._Worst([few, many]), np.linspace(0, 3, 7)
    for delta in (1e-1, 1e-9):
        assert worst.epsilon(delta) == max(few.epsilon(delta), many.epsilon(delta))
    np.testing.assert_array_equal(worst.delta(grid), np.maximum(few.delta(grid), many.delta(grid)))

    curves, original = [], model_selection._Worst
    monkeypatch.setattr(model_selection, "_Worst", lambda own: curves.append(own) or original(own))
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 1)
    candidates = [{}, {"solver": ["dpvi"], "n_steps": [200], "sampling_rate": [0.01]}]
    found = DPRandomizedSearchCV(MODEL, candidates, epsilon=1.0).fit(X, Y)
    assert found.privacy_spent_.epsilon <= 1 and len(curves[-1]) == 3


def test_no_noise_is_no_guarantee():
    free = DPRandomizedSearchCV(MODEL, GRID, epsilon=np.inf, n_iter=1, random_state=0).fit(X, Y)
    assert "no noise was added" in free.privacy_spent_.voided_by and not check_pipeline(free).passed


@pytest.mark.parametrize(("mean", "eta"), [(10, 0.0), (10, 1.0), (3, 0.5), (1000, 0.0), (1, 1.0)])
def test_the_number_of_runs_has_its_law(mean, eta):
    rng = np.random.default_rng(0)
    drawn = np.array([model_selection._number_of_runs(rng, mean, eta) for _ in range(20_000)])
    assert drawn.min() == 1 and drawn.mean() == pytest.approx(mean, rel=0.06)
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
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda rng, *law: asked.append(law) or 3)
    monkeypatch.setattr(DPRandomizedSearchCV, "_private_score", lambda *how: scored.append(how) or score(*how))
    found = search(eta=1.0, random_state=None).fit(X, Y)
    assert asked == [(6, 1.0)] and len(fits) == len(scored) == 3
    own = calibrate_noise(found.privacy_spent_.run_epsilon, 1e-5 / 6, 1.0, 1).noise_multiplier
    rows = {row.tobytes() for row in X}
    for (model, X_fit, _), (_, scoring, X_test, _, steps, seed) in zip(fits, scored, strict=True):
        assert scoring is model and seed is None and model.random_state is None
        assert (model.epsilon, model.delta) == (found.privacy_spent_.run_epsilon, 1e-5 / 6)
        one, other = ({row.tobytes() for row in part} for part in (X_fit, X_test))
        assert not one & other and one | other == rows and len(other) == 240
        assert len(steps) == 1 and steps[0].noise_multiplier >= own * (1 - 1e-9)


def test_scores_have_the_noise_that_is_accounted_for():
    found = search().fit(X, Y)
    steps = (GaussianSteps(30.0, 1.0, 1),)
    scores = [found._private_score(found.best_estimator_, X, Y, steps, seed) for seed in range(150)]
    assert 1200 * np.std(scores) == pytest.approx(30, rel=0.25)


def test_nothing_of_losers_and_of_the_number_of_runs_is_kept_or_said(monkeypatch, capsys, recwarn):
    loud, kept = DPRandomizedSearchCV(clone(MODEL).set_params(verbose=1), GRID, epsilon=4.0, random_state=0), []
    rows = X.copy()
    rows[::50] = np.nan
    for runs in (1, 4):
        monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest, runs=runs: runs)
        found = clone(loud).fit(rows, Y)
        kept.append(set(vars(found)) - set(found.get_params(deep=False)))
        assert found.best_estimator_.privacy_spent_ is found.privacy_spent_
        assert np.isfinite(found.best_score_)
    assert kept == [{"best_estimator_", "best_params_", "best_score_", "privacy_spent_"}] * 2
    assert capsys.readouterr().out == "" and not recwarn.list


def test_rows_of_a_list_that_are_no_rows_raise_nothing():
    rows = X.tolist()
    rows[0] = [1.0]
    schema = Schema({f"x{j}": {} for j in range(X.shape[1])}, outcome={"name": "y", "labels": [0, 1]})
    found = search(n_iter=1)
    found.set_params(estimator=clone(found.estimator).set_params(classes=schema))
    assert found.fit(rows, Y).best_params_


def test_searches_of_one_object_add_up_and_its_result_is_not_fitted_again():
    found = search(random_state=None).fit(X, Y)
    first = found.privacy_spent_
    second = found.fit(X, Y).privacy_spent_
    assert second.total_epsilon == first.epsilon + second.epsilon and second.total_delta == 2e-5
    assert second.guarantee_holds and second.numerics == "secure"
    again = search().fit(X, Y).fit(X, Y).privacy_spent_
    assert any("seed" in why for why in again.voided_by)
    with pytest.raises(ValueError, match="cannot be fitted again"):
        found.best_estimator_.fit(X, Y)


def test_a_score_that_is_no_number_loses(monkeypatch):
    monkeypatch.setattr(model_selection, "_number_of_runs", lambda *rest: 8)

    def scoring(model, X, y):
        return np.full(len(X), np.nan if model.prior_scale > 1 else 0.5)

    assert search(scoring=scoring).fit(X, Y).best_params_ == {"prior_scale": 1e-3}
    original = model_selection._quietly

    def state(value):  # of a release that is not a number
        return lambda *how, **more: (type("State", (), {"value": np.array([value])}), None)

    found = search().fit(X, Y)
    monkeypatch.setattr("skdpbayes.inference.run", state(np.nan))
    assert original(found._private_score, found.best_estimator_, X, Y, (GaussianSteps(1.0, 1.0, 1),), 0) == -np.inf


def test_a_row_on_which_a_callable_raises_changes_no_other_score():
    class Model:
        pass

    def scoring(model, X, y):
        if (X[:, 0] == 7).any():
            raise ZeroDivisionError
        return 1 / (1 + X[:, 0])

    rows = np.arange(12.0).reshape(12, 1)
    found = model_selection._scores(scoring, Model(), rows, None)
    want = 1 / (1 + rows[:, 0])
    want[7] = np.nan
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_one_row_moves_the_score_by_at_most_one(monkeypatch):
    """Whatever it holds, its label included; the sum is released with noise for that."""
    found = search().fit(X, Y)
    monkeypatch.setattr(found.estimator, "numerics", "fast")
    sums = []
    for x, label in ((X[0], Y[0]), (np.nan, 0), (1e300, 1), (-np.inf, 9)):
        rows, labels = X.copy(), Y.copy()
        rows[0], labels[0] = x, label
        steps = (GaussianSteps(1e-3, 1.0, 1),)
        sums.append(1200 * found._private_score(found.best_estimator_, rows, labels, steps, 0))
    assert np.isfinite(sums).all() and np.ptp(sums) <= 1.01


def test_a_density_needs_a_callable_and_a_pipeline_takes_a_search_as_its_last_step():
    density = DPGammaExponential(random_state=0)
    with pytest.raises(ValueError, match="needs a classifier"):
        DPRandomizedSearchCV(density, {"prior_shape": [1.0, 2.0]}).fit(np.ones((50, 1)))

    def scoring(model, X, y):
        return 1 / (1 + np.exp(-model.score_samples(X)))

    options = {"epsilon": 4.0, "scoring": scoring, "random_state": 0}
    found = DPRandomizedSearchCV(density, {"upper": [2.0, 4.0]}, **options).fit(RNG.exponential(size=(500, 1)))
    assert found.best_params_["upper"] in (2.0, 4.0) and np.isfinite(found.score_samples([[1.0]])).all()
    pipeline = make_pipeline(BoundedScaler((-5, 5)), search())
    assert check_pipeline(pipeline).epsilon == 4
    report = check_pipeline(pipeline.fit(X, Y))
    assert report.passed and report.epsilon == pipeline[-1].privacy_spent_.epsilon


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
        ({"estimator": GridSearchCV(MODEL, {})}, "private estimator of this package"),
        ({"estimator": DPBayesianLogisticRegression()}, "classes=None is taken from the rows"),
        ({"estimator": DPBayesianLinearRegression(), "scoring": len}, "bounds=None is taken from the rows"),
        ({"estimator": DPGammaExponential(adjacency="add_remove")}, "add_remove"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_run(parameters, message, monkeypatch):
    monkeypatch.setattr("skdpbayes.inference._run", lambda *rest: pytest.fail("the rows were read"))
    given = {"estimator": MODEL, "param_grid": GRID} | parameters
    with pytest.raises(ValueError, match=message):
        DPRandomizedSearchCV(**given).fit(X, Y)


def test_a_ledger_refuses_a_search():
    with PrivacyLedger(epsilon=9.0, delta=1e-3), pytest.raises(ValueError, match="cannot be charged with a selection"):
        search().fit(X, Y)


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
