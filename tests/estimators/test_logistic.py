"""Private logistic regression as its users see it."""

import json
import math
import os
import pickle
import re
import subprocess
import sys
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from cases import sampling_solvers, slow_but
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.estimators._base import SEEDED
from skdpbayes.intake.classified import LONGEST_ROW
from skdpbayes.preprocessing import check_data
from skdpbayes.privacy import PrivacyLeakWarning, compose
from skdpbayes.privacy.report import rounded
from skdpbayes.schema import Schema

pytestmark = [
    pytest.mark.usefixtures("compiled_quickly"),
    # Chains as short as these have not mixed, and say so.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

rng = np.random.default_rng(0)
N, D = 400, 3
X = rng.normal(size=(N, D))
y = (X @ [2.0, -1.0, 0.0] + 0.5 + rng.logistic(size=N) > 0).astype(int)
LETTERS = np.where(y, "yes", "no")


def estimator(**parameters):
    """An estimator of the one size that these tests compile."""
    if parameters.get("solver") == "sgld" and "learning_rate" not in parameters:
        parameters = {"n_steps": 401, "epsilon": 2.0} | parameters  # a chain that has to mix
    return DPBayesianLogisticRegression(
        **(
            {"classes": [0, 1], "n_steps": 100, "n_posterior_samples": 200, "random_state": 0}
            | parameters
        )
    )


@pytest.fixture(scope="module")
def model(compiled_quickly):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return estimator(epsilon=np.inf).fit(X, y)


# Labels


def test_public_classes_give_no_warning_and_a_guarantee():
    fit = estimator(random_state=None).fit(X, y)
    assert fit.privacy_spent_.guarantee_holds
    assert fit.privacy_spent_.public["classes"] == ["0", "1"]


def test_inferred_classes_warn_and_void_the_guarantee():
    with pytest.warns(PrivacyLeakWarning, match="classes=None takes the set of labels from y"):
        fit = estimator(classes=None).fit(X, y)
    why = "the set of classes was taken from y (classes=None)"
    assert fit.privacy_spent_.voided_by == (why, SEEDED)
    assert "GUARANTEE VOID" in repr(fit.privacy_spent_)


def test_labels_outside_the_classes_are_ignored():
    strange = y.astype(float)
    strange[:7] = [2, -1, 99, np.nan, np.inf, 0.5, -np.inf]
    null = X.copy()
    null[:7] = np.nan
    one, other = estimator().fit(X, strange), estimator().fit(null, y)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert not np.array_equal(one.coef_, estimator().fit(X, y).coef_)


@pytest.mark.parametrize("dtype", [str, object, "string", "category"])
def test_labels_may_be_strings(dtype, model):
    labels = (
        pd.Series(LETTERS, dtype=dtype)
        if dtype in ("string", "category")
        else LETTERS.astype(dtype)
    )
    fit = estimator(classes=["yes", "no"], epsilon=np.inf).fit(X, labels)
    assert list(fit.classes_) == ["no", "yes"]
    np.testing.assert_array_equal(fit.coef_, model.coef_)
    assert (fit.predict(X) == np.where(model.predict(X), "yes", "no")).all()


def test_text_in_a_series_does_not_match_numbers():
    """By its dtype, which is public."""
    y = pd.Series(["0", "1"] * 20, dtype="string")
    with pytest.raises(ValueError, match="no label can be in classes"):
        DPBayesianLogisticRegression(classes=[0, 1]).fit(np.ones((40, 2)), y)


def test_labels_that_are_objects_raise_nothing():
    labels = LETTERS.astype(object)
    labels[:5] = [None, ["yes"], {"yes"}, np.nan, 3]
    null = X.copy()
    null[:5] = np.nan
    fit = estimator(classes=["no", "yes"]).fit(X, labels)
    np.testing.assert_array_equal(
        fit.coef_, estimator(classes=["no", "yes"]).fit(null, LETTERS).coef_
    )


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "Float64"])
def test_missing_labels_raise_nothing(dtype):
    labels = pd.Series(y, dtype="Int64").astype(dtype)
    labels[:4] = pd.NA
    null = X.copy()
    null[:4] = np.nan
    np.testing.assert_array_equal(estimator().fit(X, labels).coef_, estimator().fit(null, y).coef_)


# Rows

BAD_ROWS = {
    "NaN": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "1e300": 1e300,
    "1e-320": 1e-320,
    "1e38": 1e38,
}


@pytest.mark.parametrize("solver", slow_but(sampling_solvers(), "dpvi", "na-dpvi"))
def test_bad_records_raise_nothing_and_spoil_nothing(solver):
    bad = X.copy()
    for i, value in enumerate(BAD_ROWS.values()):
        bad[i] = value
        bad[i + 10, 1] = value
    fit = estimator(solver=solver, sampling_rate=0.3).fit(bad, y)
    assert np.isfinite(fit.coef_).all() and np.isfinite(fit.predict_proba(X)).all()


def test_cells_that_are_no_numbers_raise_nothing():
    frame = pd.DataFrame(X, columns=list("abc")).astype(object)
    frame.iloc[0, 0], frame.iloc[1, 1], frame.iloc[2, 2] = "forty", None, [1, 2]
    null = X.copy()
    null[:3] = np.nan
    np.testing.assert_array_equal(estimator().fit(frame, y).coef_, estimator().fit(null, y).coef_)


def test_null_rows_are_predicted_with_a_warning(model):
    bad = X[:4].copy()
    bad[1, 2], bad[3, 0] = np.nan, np.inf
    with pytest.warns(UserWarning, match="2 of these rows hold NaN or infinity"):
        got = model.predict_proba(bad)
    np.testing.assert_array_equal(got[[1, 3]], model.predict_proba(np.zeros((2, D))))
    np.testing.assert_array_equal(got[[0, 2]], model.predict_proba(X[[0, 2]]))


@pytest.mark.parametrize("solver", slow_but(["dpvi", "na-dpvi", "vips"], "na-dpvi", "vips"))
def test_without_noise_rows_of_any_length_give_the_exact_posterior(solver):
    """The mode of the posterior of the rows as they are, and its curvature, whatever `data_norm` is."""
    many = np.random.default_rng(1)
    table = many.normal(size=(4000, D))
    labels = (table @ [1.0, -0.5, 0.0] + 0.5 + many.logistic(size=4000) > 0).astype(int)
    rows = np.column_stack([table, np.ones(4000)])
    mode = np.zeros(D + 1)
    for _ in range(20):
        p = expit(rows @ mode)
        precision = (rows * (p * (1 - p))[:, None]).T @ rows + np.eye(D + 1)
        mode += np.linalg.solve(precision, rows.T @ (labels - p) - mode)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    own = {"solver": solver, "epsilon": np.inf, "n_steps": 16 if solver == "vips" else 300}
    for norm in (0.5, 50.0):
        found = estimator(data_norm=norm, **own).fit(table, labels).posterior_
        np.testing.assert_allclose((found.mean - mode) / sd, 0, atol=0.15)
        np.testing.assert_allclose(found.std / sd, 1, atol=0.06)


def test_rows_are_predicted_as_they_are_up_to_the_cut(model):
    fit = estimator(data_norm=0.5, epsilon=np.inf).fit(X, y)
    draws = fit.posterior_samples_
    logits = X @ draws["coef"][:, 0].T + draws["intercept"][:, 0]
    np.testing.assert_allclose(fit.predict_proba(X)[:, 1], expit(logits).mean(axis=1))
    np.testing.assert_allclose(
        fit.predict_proba([[1e300, 0, 0]]), fit.predict_proba([[LONGEST_ROW * 0.5, 0, 0]])
    )


def test_a_plan_says_where_public_facts_leave_little_to_learn():
    people = Schema({"age": {"bounds": (18, 90)}, "visits": {"bounds": (0, 20)}})
    schema = Schema(people.columns, outcome={"name": "ill", "labels": ["no", "yes"]})
    (hint,) = DPBayesianLogisticRegression(classes=schema).plan(20_000).hints
    assert "has the norm 54.9" in hint and "data_norm is 1.41" in hint
    known = DPBayesianLogisticRegression(classes=schema, data_norm=60.0)
    assert known.plan(20_000).hints == ()
    scaled = Schema({"a": {"bounds": [-1, 1]}, "b": {"bounds": [0, 1]}}, schema.outcome)
    (hint,) = DPBayesianLogisticRegression(classes=scaled, data_norm=3).plan(20_000).hints
    assert "longer than 1.41, and noise is in units of data_norm, which is 3" in hint
    assert DPBayesianLogisticRegression(classes=scaled, data_norm=2.7).plan(20_000).hints == ()
    some = Schema({"a": {"bounds": [-1, 1]}, "b": {}}, schema.outcome)
    assert DPBayesianLogisticRegression(classes=some, data_norm=3).plan(20_000).hints == ()
    plain = DPBayesianLogisticRegression(epsilon=0.1, classes=[0, 1])
    (hint,) = plain.plan(100, 10).hints
    assert "100 rows tell little of 11 columns at epsilon=0.1" in hint
    assert plain.plan(100_000, 10).hints == ()
    assert clone(plain).set_params(epsilon=np.inf).plan(100, 10).hints == ()
    private = {"adjacency": "add_remove", "sampling_rate": 0.1}
    assert clone(plain).set_params(**private).plan(None, 10).hints == ()


def test_pandas_in_and_names_are_checked(model):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    fit = estimator(epsilon=np.inf).fit(frame, pd.Series(y))
    assert list(fit.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(fit.predict_proba(frame), model.predict_proba(X))
    with pytest.raises(ValueError, match="feature names should match"):
        fit.predict(frame[["b", "a", "c"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fit.predict(X)


@pytest.mark.slow
def test_sparse_output_of_a_column_transformer():
    frame = pd.DataFrame({"level": rng.choice(["p", "q", "r"], N), "z": X[:, 0]})
    encode = OneHotEncoder(categories=[["p", "q", "r"]], handle_unknown="ignore")
    for passed in ("passthrough", "drop"):
        prepare = ColumnTransformer(
            [("levels", encode, ["level"])], remainder=passed, sparse_threshold=1.0
        )
        assert sparse.issparse(prepare.fit_transform(frame))
        dense = prepare.set_params(sparse_threshold=1.0).fit_transform(frame).toarray()
        pipe = make_pipeline(prepare, estimator(data_norm=3.0)).fit(frame, y)
        want = estimator(data_norm=3.0).fit(dense, y)
        np.testing.assert_allclose(pipe[-1].coef_, want.coef_, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(pipe.predict_proba(frame), want.predict_proba(dense), rtol=1e-4)
        assert pipe.score(frame, y) > 0


# Predictions


def test_it_learns(model):
    assert model.score(X, y) > 0.75
    np.testing.assert_allclose(model.coef_[0], [2.0, -1.0, 0.0], atol=0.6)
    assert model.coef_.shape == (1, D) and model.intercept_.shape == (1,)


def test_probabilities_average_the_draws(model):
    draws = model.posterior_samples_
    assert draws["coef"].shape == (200, 1, D) and draws["intercept"].shape == (200, 1)
    want = (1 / (1 + np.exp(-(X[:9] @ draws["coef"][:, 0].T + draws["intercept"][:, 0])))).mean(
        axis=1
    )
    np.testing.assert_allclose(model.predict_proba(X[:9])[:, 1], want)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)).sum(axis=1), 1)


def test_decisions_agree_with_predictions(model):
    scores = model.decision_function(X)
    assert scores.shape == (N,)
    np.testing.assert_array_equal(scores > 0, model.predict(X) == 1)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X).argmax(axis=1))


def test_intervals_hold_the_draws(model):
    lower, upper = model.predict_interval(X, 0.5)
    assert lower.shape == upper.shape == (N, 2)
    proba = model.predict_proba(X)
    assert (lower <= upper).all() and (lower[:, 1] < proba[:, 1]).mean() > 0.95
    wide = model.predict_interval(X, 0.99)
    assert (wide[0] <= lower).all() and (wide[1] >= upper).all()
    np.testing.assert_allclose(lower[:, 0], 1 - upper[:, 1])
    for level in (0, 1.5, "all", None):
        with pytest.raises(ValueError, match="level must be a number in"):
            model.predict_interval(X, level)


def test_predictive_density_is_that_of_the_labels(model):
    density = model.log_predictive_density(X, y)
    np.testing.assert_array_equal(density, model.predict_log_proba(X)[np.arange(N), y])
    with pytest.raises(ValueError, match="labels that are not in classes_"):
        model.log_predictive_density(X[:2], [0, 2])
    labels = [*y[:50].tolist(), None, "", 7]
    rows = X[[*range(50), 0, 0, 0]]
    with pytest.warns(UserWarning, match="3 of 53 labels are not in classes_, such as None"):
        assert model.score(rows, np.array(labels, object)) * 53 == pytest.approx(
            model.score(X[:50], y[:50]) * 50
        )
    weights = np.arange(50.0)
    assert model.score(X[:50], y[:50], weights) == pytest.approx(
        weights @ (model.predict(X[:50]) == y[:50]) / weights.sum()
    )
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score(X[:2], [0])
    schema = Schema({f"x{j}": {} for j in range(X.shape[1])}, {"name": "y", "labels": [0, 1]})
    read = clone(model).set_params(classes=schema)
    vars(read).update({own: value for own, value in vars(model).items() if own != "classes"})
    assert read.score(X[:50], y[:50].astype(str)) == model.score(X[:50], y[:50])


def test_posterior_draws(model):
    draws = model.sample_posterior(20_000, random_state=1)
    assert draws["coef"].shape == (20_000, 1, D) and draws["intercept"].shape == (20_000, 1)
    sd = model.posterior_.std
    np.testing.assert_allclose(draws["coef"].mean(axis=0)[0], model.coef_[0], atol=0.05 * sd.max())
    np.testing.assert_allclose(draws["coef"].std(axis=0)[0], sd[:D], rtol=0.05)
    again = model.sample_posterior(20_000, random_state=1)
    np.testing.assert_array_equal(draws["coef"], again["coef"])
    assert not np.array_equal(draws["coef"], model.sample_posterior(20_000)["coef"])


def test_predictive_draws(model):
    labels = model.sample_posterior_predictive(X[:50], 4000, random_state=2)
    assert labels.shape == (4000, 50) and set(np.unique(labels)) <= {0, 1}
    np.testing.assert_allclose(labels.mean(axis=0), model.predict_proba(X[:50])[:, 1], atol=0.05)


@pytest.mark.parametrize("solver", slow_but(["dpvi", "na-dpvi", "sgld"], "dpvi"))
def test_three_classes(solver):
    z = np.digitize(X[:, 0], [-0.5, 0.5])
    fit = estimator(classes=[0, 1, 2], solver=solver, epsilon=20.0, n_steps=401).fit(X, z)
    assert fit.coef_.shape == (3, D) and fit.intercept_.shape == (3,)
    np.testing.assert_allclose(fit.predict_proba(X).sum(axis=1), 1)
    assert fit.score(X, z) > 0.5
    assert fit.decision_function(X).shape == (N, 3)
    np.testing.assert_array_equal(fit.decision_function(X).argmax(axis=1), fit.predict(X))
    assert fit.sample_posterior_predictive(X[:4], 7).shape == (7, 4)


@pytest.mark.slow
def test_no_intercept():
    fit = estimator(fit_intercept=False).fit(X, y)
    assert not fit.intercept_.any() and not fit.posterior_samples_["intercept"].any()
    assert fit.posterior_.mean.shape == (D,)


# scikit-learn's machinery


def test_clones_and_grid_search():
    search = GridSearchCV(
        estimator(), {"prior_scale": [0.1, 1.0], "epsilon": [0.5, 5.0]}, cv=2, error_score="raise"
    )
    search.fit(X, y)
    assert search.best_estimator_.privacy_spent_.epsilon <= 5.0
    copy = clone(search.best_estimator_)
    assert copy.get_params() == search.best_estimator_.get_params()
    assert not hasattr(copy, "privacy_spent_")


def test_fit_changes_no_parameter():
    fit = estimator(classes=(0, 1))
    before = dict(fit.get_params())
    fit.fit(X, y)
    assert fit.get_params() == before and fit.get_params()["classes"] is before["classes"]


def test_a_pickle_predicts_equally_and_without_jax(model, tmp_path):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    np.save(tmp_path / "X.npy", X)
    code = (
        "import pickle, sys, numpy as np; m = pickle.load(open('model.pkl', 'rb')); X = np.load('X.npy'); "
        "np.save('p.npy', m.predict_proba(X)); m.predict(X); m.predict_interval(X); m.sample_posterior(3); "
        "m.privacy_spent_.to_json(); repr(m); sys.exit('jax' in sys.modules or 'numpyro' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=False).returncode
        == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), model.predict_proba(X))


# Privacy, as reported


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace_one"])
@pytest.mark.parametrize("solver", slow_but(sampling_solvers(), "dpvi", "na-dpvi"))
def test_no_more_is_spent_than_was_asked_for(solver, adjacency):
    rates = {"sampling_rate": 0.3}
    if solver == "sgld":
        rates["learning_rate"] = 1e-6
    budgets = ((0.5, 1e-5), (3.0, 1e-6))  # of so small noise the second accountant is slow
    for epsilon, delta in budgets[:1] if solver == "sgld" else budgets:
        fit = estimator(solver=solver, adjacency=adjacency, epsilon=epsilon, delta=delta, **rates)
        if solver == "sgld" and adjacency != "add_remove":
            fit.set_params(n_chains=2)
        spent = fit.fit(X, y).privacy_spent_
        assert spent.epsilon <= epsilon and (spent.delta, spent.adjacency) == (delta, adjacency)
        assert compose(spent.releases, adjacency).epsilon(delta) == pytest.approx(spent.epsilon)
        assert spent.n_steps == 100 * fit.n_chains and spent.sampling_rate == 0.3
        if solver != "sgld":
            assert spent.epsilon > 0.99 * epsilon
        assert ("n_samples" in spent.public) == (adjacency != "add_remove")


def test_add_remove_refuses_what_would_read_the_number_of_records():
    with pytest.raises(ValueError, match="sampling_rate=None takes the number of records"):
        estimator(adjacency="add_remove").fit(X, y)
    with pytest.raises(ValueError, match="learning_rate=None takes the number of records"):
        estimator(adjacency="add_remove", solver="sgld", sampling_rate=0.1).fit(X, y)
    fits = [
        estimator(adjacency="add_remove", sampling_rate=0.3).fit(X[:n], y[:n]).privacy_spent_
        for n in (400, 399)
    ]
    assert fits[0].to_json() == fits[1].to_json()


@pytest.mark.parametrize("solver", slow_but(sampling_solvers(), "dpvi", "na-dpvi"))
def test_the_report_does_not_depend_on_the_records(solver):
    other, labels = X.copy(), y.copy()
    other[3], labels[3] = np.nan, 17
    other[4] = 1e6
    reports = [
        estimator(solver=solver).fit(*data).privacy_spent_ for data in ((X, y), (other, labels))
    ]
    assert pickle.dumps(reports[0]) == pickle.dumps(reports[1])
    assert reports[0].to_json() == reports[1].to_json()


def test_refits_accumulate():
    fit = estimator(epsilon=1.0)
    first = fit.fit(X, y).privacy_spent_
    second = fit.fit(X, y).privacy_spent_
    third = fit.set_params(epsilon=0.5).fit(X, y).privacy_spent_
    assert first.cumulative == () and first.cumulative_epsilon == first.epsilon
    assert second.cumulative == first.releases
    assert third.cumulative == first.releases + second.releases
    assert first.epsilon < second.cumulative_epsilon < third.cumulative_epsilon < 2.5


def test_the_budget_is_charged_before_noise_is_drawn(monkeypatch):
    from skdpbayes import inference

    fit = estimator()
    with monkeypatch.context() as patch:
        patch.setattr(inference, "run", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit.fit(X, y)
    spent = fit.fit(X, y).privacy_spent_
    assert spent.cumulative == spent.releases, "a fit that was interrupted cost nothing"


def test_seeds_are_deterministic_and_recorded():
    a, b, c = (estimator(random_state=seed).fit(X, y) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.coef_, b.coef_)
    np.testing.assert_array_equal(a.posterior_samples_["coef"], b.posterior_samples_["coef"])
    assert not np.array_equal(a.coef_, c.coef_)
    assert a.privacy_spent_.seeded and ", seeded" in repr(a.privacy_spent_)
    fresh = [estimator(random_state=None).fit(X, y) for _ in range(2)]
    assert not fresh[0].privacy_spent_.seeded
    assert not np.array_equal(fresh[0].coef_, fresh[1].coef_)
    for state in (np.random.RandomState(1), np.random.default_rng(1)):
        assert estimator(random_state=state).fit(X, y).privacy_spent_.seeded


def test_seeds_warn_once(monkeypatch):
    from skdpbayes.estimators import _base

    monkeypatch.setattr(_base, "_warned", [])
    with pytest.warns(PrivacyLeakWarning, match="whoever guesses the seed"):
        estimator().fit(X, y)
    estimator().fit(X, y)


def test_what_is_shown_holds_no_secret(capsys):
    from skdpbayes.mechanism.keys import fit_keys

    keys = fit_keys(0)
    secrets = [
        *keys.sampling,
        *keys.noise,
        keys.counting,
        np.asarray(jax.random.key_data(keys.solver)).tobytes(),
    ]
    fit = estimator(random_state=0, verbose=1).fit(X, y)
    printed = capsys.readouterr().out
    assert "epsilon" in printed
    shown = (
        printed
        + repr(fit)
        + fit._repr_html_()
        + repr(fit.privacy_spent_)
        + fit.privacy_spent_._repr_html_()
    )
    shown += fit.privacy_spent_.to_json() + json.dumps(fit.diagnostics_)
    for value in X.ravel():
        assert f"{value:.9g}"[:10] not in shown
    for secret in secrets:
        assert secret.hex() not in shown and str(secret)[2:12] not in shown
        assert not any(str(word) in shown for word in np.frombuffer(secret, np.uint32))


@pytest.mark.parametrize("solver", sampling_solvers())
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)  # so short a chain; follows from releases
def test_what_is_printed_does_not_depend_on_values(capsys, solver, monkeypatch):
    """However many rows are null, the same is printed; of warnings only one follows from a release."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)  # seconds are printed
    printed = set()
    for bad in (0, 1, len(X) // 2 + 1, len(X)):
        Z = X.copy()
        Z[:bad] = np.nan
        estimator(verbose=1, solver=solver).fit(Z, y)
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1


@pytest.mark.parametrize("delta", [1e-5, 0.3])
def test_what_is_said_does_not_tell_a_number_of_rows_that_is_private(capsys, monkeypatch, delta):
    """Printed text and warnings, byte for byte, for tables of any length; and no number of theirs is in them."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    said = set()
    for n in (len(X), len(X) - 1, 97):
        model = estimator(
            verbose=2,
            adjacency="add_remove",
            sampling_rate=0.5,
            delta=delta,
            epsilon=0.1,
            random_state=None,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X[:n], y[:n])
        said.add((capsys.readouterr().out, tuple(str(warning.message) for warning in caught)))
    ((printed, warned),) = said
    assert "epsilon" in printed and not warned
    assert not {str(len(X)), str(len(X) - 1), "97"} & set(re.findall(r"\d+", printed))


PARAMETERS_OF_ONE_SOLVER = [
    ({"n_chains": 2}, "n_chains=2 needs solver='sgld'"),
    ({"step_schedule": "decreasing"}, "step_schedule='decreasing' needs solver='sgld'"),
    ({"guide": "mean_field", "solver": "sgld"}, "guide='mean_field' needs solver='dpvi'"),
    ({"n_steps": 1}, "n_steps=1 is too few"),
    ({"learning_rate": 0.1, "solver": "na-dpvi"}, "'na-dpvi' has no such parameter"),
]


@pytest.mark.parametrize(("parameters", "message"), PARAMETERS_OF_ONE_SOLVER)
def test_parameters_of_another_solver_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        estimator(**parameters).fit(X, y)


def test_a_matrix_that_noise_would_hide_is_refused():
    with pytest.raises(
        ValueError, match=r"matrix of all pairs of parameters, here 1002, .* Use solver='dpvi'"
    ):
        estimator(solver="na-dpvi").fit(np.zeros((5, 1001)), [0, 1, 0, 1, 0])


def test_a_delta_that_allows_to_publish_a_row_is_warned_of():
    with pytest.warns(UserWarning, match="delta=0.1 is not below one over the number of rows"):
        estimator(delta=0.1).fit(X, y)


def test_infinite_epsilon_says_so(model):
    assert model.privacy_spent_.epsilon == math.inf
    assert model.privacy_spent_.noise_multiplier == 0


# Errors

NUMBERS = "must be (a number|an integer) in "
BAD = [
    *[({"epsilon": v}, f"epsilon {NUMBERS}") for v in (0, -1, math.nan, "1", None, True)],
    *[({"delta": v}, f"delta {NUMBERS}") for v in (0, -1e-5, 1, 2, math.nan, "x", None)],
    *[
        ({"solver": v}, "solver must be one of 'auto', 'dpvi', 'na-dpvi', 'sgld'")
        for v in ("nuts", None, 3)
    ],
    *[({"adjacency": v}, "adjacency must be one of 'zero_out'") for v in ("add", None)],
    *[
        ({"classes": v}, "classes must be a list of two or more different labels")
        for v in ([0], [1, 1], "ill", {0, 1}, 3, [[0, 1]], [0, None])
    ],
    *[({"data_norm": v}, f"data_norm {NUMBERS}") for v in (0, -1, math.inf, math.nan, "x")],
    *[({"prior_scale": v}, f"prior_scale {NUMBERS}") for v in (0, -1, math.inf, None)],
    *[({"clipping_norm": v}, f"clipping_norm {NUMBERS}") for v in (0, -1, math.inf, math.nan)],
    *[({"sampling_rate": v}, f"sampling_rate {NUMBERS}") for v in (0, -0.1, 1.1, math.nan)],
    *[({"n_steps": v}, f"n_steps {NUMBERS}") for v in (0, -1, 1.5, "x", True, 2**31)],
    *[({"learning_rate": v}, f"learning_rate {NUMBERS}") for v in (0, -1, math.nan, "x")],
    *[({"guide": v}, "guide must be one of 'auto'") for v in ("diagonal", None)],
    *[({"step_schedule": v}, "step_schedule must be one of 'constant'") for v in ("linear", None)],
    *[({"n_chains": v, "solver": "sgld"}, f"n_chains {NUMBERS}") for v in (0, 1.5, None, 2000)],
    ({"n_chains": 2}, "n_chains=2 needs solver='sgld'"),
    *[({"n_posterior_samples": v}, f"n_posterior_samples {NUMBERS}") for v in (0, -1, 2.5, None)],
    *[({"random_state": v}, "random_state must be") for v in ("x", 1.5, -1)],
]


@pytest.mark.parametrize(
    ("parameters", "message"), BAD, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        estimator(**parameters).fit(X, y)


def test_public_shapes_are_checked():
    for wrong, message in (
        (y[:-1], "inconsistent numbers of samples"),
        (None, "requires y"),
        (X, "1d array"),
    ):
        with pytest.raises(ValueError, match=message):
            estimator().fit(X, wrong)
    with pytest.raises(
        ValueError, match="X has 2 features, but DPBayesianLogisticRegression is expecting 3"
    ):
        estimator().fit(X, y).predict(X[:, :2])


def test_a_fit_without_noise_says_that_it_promises_nothing():
    spent = estimator(epsilon=np.inf).fit(X, y).privacy_spent_
    assert not spent.guarantee_holds and "no noise was added" in repr(spent)


def test_repr_tells_what_earlier_fits_cost():
    fit = estimator(random_state=None).fit(X, y)
    assert "earlier" not in repr(fit.privacy_spent_)
    spent = fit.fit(X, y).privacy_spent_
    assert f"epsilon={rounded(spent.cumulative_epsilon)} with earlier fits" in repr(spent)
    assert spent.cumulative_epsilon > spent.epsilon


def test_the_number_of_moments_is_public_or_released_and_of_records():
    def number(**changes):
        model = DPBayesianLogisticRegression(classes=[0, 1], **changes).plan(2000, 3).model
        return float(model.n_records), model.counted

    assert number() == number(solver="sgld") == (2000, False)
    assert number(max_rows_per_person=4) == (8000, True)
    # Moments of persons are means, and here their rows are not counted.
    assert number(max_rows_per_person=4, solver="sgld") == (np.inf, False)
    assert number(adjacency="add_remove", sampling_rate=1.0) == (np.inf, True)


def test_a_norm_far_too_large_costs_little():
    """Rows are then as long as a release says; with those of the norm all would be noise."""
    missed, widths = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(4000, 3))
        labels = (rows @ [1.0, -0.5, 0.0] > rng.logistic(size=4000)).astype(int)
        found = DPBayesianLogisticRegression(1.0, classes=[0, 1], data_norm=30, random_state=seed)
        draws = found.fit(rows, labels).posterior_samples_["coef"][:, 0]
        missed.append((draws.mean(axis=0) - [1, -0.5, 0]) / draws.std(axis=0))
        widths.append(draws.std(axis=0))
    assert np.mean(widths) < 0.1 and np.abs(missed).max() < 4
    assert np.sqrt(np.mean(np.square(missed))) < 1.5


def test_rows_far_longer_than_their_norm_are_warned_of():
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(18, 90, 4000), rng.normal(27, 4, 4000)]
    y = (rng.random(4000) < 0.4).astype(int)
    model = DPBayesianLogisticRegression(epsilon=2.0, classes=[0, 1], random_state=0)
    with pytest.warns(UserWarning, match="Rows weigh .% of what they could"):
        model.fit(X, y)
    assert model.diagnostics_["mean_weight"] < 0.1
    model.fit((X - [54, 27]) / [36, 4], y)  # filters make a warning an error
    # Noise that hides the weights of few positives does not make rows long.
    few, rare = rng.uniform(-1, 1, (3000, 3)), (rng.random(3000) < 0.01).astype(int)
    for seed in range(4):
        DPBayesianLogisticRegression(0.5, classes=[0, 1], random_state=seed).fit(few, rare)
    assert model.diagnostics_["mean_weight"] > 0.5
    report = check_data(X, y, estimator=model)
    assert any("4000 of 4000 rows are longer than data_norm=1.41" in own for own in report.findings)
