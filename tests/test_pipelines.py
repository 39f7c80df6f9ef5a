"""A private pipeline refuses what leaks, says what all its steps spend, and is used like its model."""

import pickle
from dataclasses import replace
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.pipelines import PrivatePipeline, check_pipeline, make_private_pipeline
from skdpbayes.preprocessing import (
    BoundedScaler,
    CategoryEncoder,
    DPStandardScaler,
    NormClipper,
)
from skdpbayes.privacy import PrivacySpent, compose, statement, statement_page, verify_statement
from skdpbayes.privacy.json_values import in_words
from skdpbayes.privacy.report import BEFORE_THE_MODEL
from skdpbayes.schema import Schema

MODEL = DPBayesianLogisticRegression(1.0, classes=[0, 1], solver="vips", n_steps=1)
SCALER = DPStandardScaler(bounds=(0, 100), epsilon=0.5)
RNG = np.random.default_rng(0)
X = RNG.normal(50, 10, size=(300, 2))
Y = (X[:, 0] > 50).astype(int)


@pytest.fixture(scope="module")
def fitted():
    return make_private_pipeline(clone(SCALER), clone(MODEL)).fit(X, Y)


def test_its_report_is_of_all_steps(fitted):
    spent, own = fitted.privacy_spent_, [step.privacy_spent_ for step in fitted]
    assert spent.steps == own[0].steps + own[1].steps and spent.delta == pytest.approx(2e-5)
    assert own[1].epsilon < spent.epsilon <= 1.5 and spent.guarantee_holds
    assert spent.epsilon == pytest.approx(compose(spent.releases).epsilon(2e-5), rel=1e-6)
    assert spent.estimator == "DPStandardScaler + DPBayesianLogisticRegression"
    assert PrivacySpent.from_json(spent.to_json()) == spent
    assert spent.public["dpstandardscaler"]["n_samples"] == 300
    assert spent.crosscheck.startswith("dpstandardscaler: quadrature: delta(")
    assert "guarantee holds" in fitted._repr_html_() and "DPStandardScaler" in fitted._repr_html_()
    lone = make_private_pipeline(BoundedScaler((0, 100)), fitted[-1]).privacy_spent_
    assert lone.releases == own[1].releases and lone.epsilon == pytest.approx(
        own[1].epsilon, rel=1e-9
    )
    told = "BoundedScaler (bounds [0, 100], feature_range [0, 1], missing None)"
    assert in_words(lone.public["boundedscaler"]) == told
    assert (
        set(own[1].not_covered) - set(lone.not_covered)
        == {BEFORE_THE_MODEL}
        == {own[1].not_covered[0]}
    )
    trusting = make_private_pipeline(BoundedScaler((0, 100)), fitted[-1], trusted=["boundedscaler"])
    assert BEFORE_THE_MODEL in trusting.privacy_spent_.not_covered


def test_a_schema_is_told_in_words(fitted):
    schema = Schema(
        {"age": {"bounds": [18, 1e6], "unit": "years"}, "ward": {"categories": ["A", "B, or C"]}}
    )
    scaler = BoundedScaler(schema.select(["age"]), missing=np.array([40.5]))
    wards = CategoryEncoder(schema.select(["ward"]))
    spent = PrivatePipeline([("a", scaler), ("b", wards), ("m", fitted[-1])]).privacy_spent_
    age = "age (kind number, bounds [18, 1000000], unit years)"
    assert in_words(spent.public["a"]) == (
        f"BoundedScaler (bounds (columns [{age}]), feature_range [0, 1], missing [40.5])"
    )
    ward = "ward (kind category, categories [A, 'B, or C'])"
    assert (
        in_words(spent.public["b"]) == f"CategoryEncoder (categories (columns [{ward}]), drop None)"
    )
    told = statement(replace(spent, schema=schema.to_dict()))["deployment"]["dp_variant"]
    of_steps = f"(columns [{age}]); (columns [{ward}])"
    assert told["data_domain"].endswith(f"schema: {of_steps}; (columns [{age}, {ward}])")
    assert "m: (n_features 2, classes [0, 1]" in told["unprotected_quantities"]
    page = statement_page(statement(spent))
    assert "<p>a</p>" in page and "<td>18, 1000000</td><td></td><td>years</td>" in page
    assert "<td>ward</td><td>category</td><td>A, &#x27;B, or C&#x27;</td>" in page
    assert "BoundedScaler (bounds in the schema below, feature_range" in page
    assert PrivacySpent.from_json(spent.to_json()).public == spent.public


@pytest.mark.parametrize(
    "step, told",
    [
        (CategoryEncoder([[date(2020, 1, 1), date(2021, 1, 1)]]), [["2020-01-01", "2021-01-01"]]),
        (CategoryEncoder([np.array(["2020-01-01"], "datetime64[ns]")]), None),
        (CategoryEncoder({"columns": ["a", "b"]}), {"columns": ["a", "b"]}),
        (BoundedScaler({"outcome": (0, 10)}), {"outcome": [0, 10]}),
        (BoundedScaler((Decimal("0.5"), Decimal(10))), ["0.5", "10"]),
        (BoundedScaler((np.zeros(2), [1.0, np.inf])), [[0, 0], [1, np.inf]]),
    ],
)
def test_any_parameters_of_a_step_are_told(fitted, step, told):
    spent = PrivatePipeline([("a", step), ("m", fitted[-1])]).privacy_spent_
    own = {key: x for key, x in spent.public["a"].items() if key in ("bounds", "categories")}
    (found,) = own.values()
    assert found == told if told else found[0][0].startswith("2020-01-01")
    page = statement_page(statement(PrivacySpent.from_json(spent.to_json())))
    assert "No schema was declared" in page
    assert verify_statement(statement(spent)).follows


def test_the_schema_of_a_private_step_is_told(fitted):
    schema = Schema({"age": {"bounds": [0, 120], "missing": 40}, "dose": {"bounds": [0, 9]}})
    scaler = DPStandardScaler(schema, epsilon=1.0).fit(np.ones((300, 2)))
    page = statement_page(
        statement(PrivatePipeline([("a", scaler), ("m", fitted[-1])]).privacy_spent_)
    )
    assert "<td>age</td><td>number</td><td>0, 120</td><td>40</td>" in page


def test_two_steps_of_a_class_are_told_apart_and_a_subclass_has_a_report(fitted):
    class Own(PrivatePipeline):
        pass

    twice = Own([("first", fitted[0]), ("second", clone(SCALER).fit(X)), ("model", fitted[-1])])
    assert set(twice.privacy_spent_.public) == {"first", "second", "model"}
    assert twice.privacy_spent_.n_steps == sum(step.privacy_spent_.n_steps for step in twice)


def test_draws_for_arviz_have_the_names_of_the_steps_before(fitted):
    data = fitted.to_arviz(coords={"class": ["ill"]}).posterior
    assert data["coef"].coords["feature"].values.tolist() == ["x0", "x1"]
    with pytest.raises(TypeError, match="takes no 'sample_weight': each record counts once"):
        clone(fitted).fit(X, Y, sample_weight=np.ones(300))


def test_it_is_used_like_its_model(fitted):
    rows = fitted[:-1].transform(X[:5])
    for mine, models in (
        (fitted.predict_interval(X[:5], 0.8), fitted[-1].predict_interval(rows, 0.8)),
        (fitted.predict_proba(X[:5]), fitted[-1].predict_proba(rows)),
        (
            fitted.log_predictive_density(X[:5], Y[:5]),
            fitted[-1].log_predictive_density(rows, Y[:5]),
        ),
        (
            fitted.sample_posterior_predictive(X[:5], 3, 0),
            fitted[-1].sample_posterior_predictive(rows, 3, 0),
        ),
    ):
        np.testing.assert_array_equal(mine, models)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert not hasattr(make_private_pipeline(SCALER), "predict_interval")
    with pytest.raises(AttributeError, match="not fitted"):
        clone(fitted).privacy_spent_  # noqa: B018


WARDS = pd.DataFrame({"ward": ["A", "B", "?"] * 100, "age": X[:, 0]})


@pytest.fixture(scope="module")
def encoded():
    """A fit to rows with unknown wards, which must not warn."""
    encode = CategoryEncoder({"ward": ["A", "B"]}, drop="first")
    prepare = ColumnTransformer(
        [("ward", encode, ["ward"]), ("age", BoundedScaler((0, 100)), ["age"])]
    )
    return make_private_pipeline(prepare, clone(MODEL)).fit(WARDS, Y)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, rows: model.predict(rows),
        lambda model, rows: model.predict_proba(rows),
        lambda model, rows: model.predict_log_proba(rows),
        lambda model, rows: model.decision_function(rows),
        lambda model, rows: model.score(rows, Y[: len(rows)]),
        lambda model, rows: model.predict_interval(rows, 0.8),
        lambda model, rows: model.sample_posterior_predictive(rows, 2),
    ],
)
def test_undeclared_cells_of_rows_to_predict_are_told(encoded, call):
    known, unknown = WARDS.iloc[:2], WARDS.iloc[:6]
    call(encoded, known)  # warnings are errors
    call(encoded, known.assign(age=[0.0, 100.00001]))  # within the bounds, but for rounding
    for ages in ([101.0, 5.0], [5.0, -0.1]):
        with pytest.warns(UserWarning, match="beyond the declared bounds: 1 in 'age'"):
            call(encoded, known.assign(age=ages))
    with pytest.warns(UserWarning) as caught:
        call(encoded, unknown)
    told = [str(own.message) for own in caught]
    assert any("without a declared category: 2 in 'ward'" in own for own in told), told
    assert any("predicted as a row of zeros: as the categories left out" in own for own in told)
    assert any("2 of these rows hold NaN" in own for own in told)
    assert {own.filename for own in caught if "category" in str(own.message)} & {__file__}


def test_undeclared_cells_of_training_rows_are_not_told(encoded):
    """Neither in a fit nor in a step that is used by itself."""
    clone(encoded).fit(WARDS.assign(age=400.0), Y)
    assert np.isnan(encoded[:-1].transform(WARDS)[2]).any()
    with pytest.warns(UserWarning):
        encoded.predict(WARDS)
    clone(encoded).fit(WARDS, Y)  # nor after rows to predict
    plain = CategoryEncoder({"ward": ["A", "B"]}).fit(WARDS[["ward"]])
    assert not plain.transform(WARDS[["ward"]])[2].any()


def test_intervals_pass_through_plain_pipelines_and_searches(fitted):
    plain = make_pipeline(fitted[0], fitted[-1])
    low, high = plain[-1].predict_interval(plain[:-1].transform(X[:5]), 0.8)
    np.testing.assert_array_equal((low, high), fitted.predict_interval(X[:5], 0.8))
    search = DPRandomizedSearchCV(clone(MODEL), {"prior_scale": [1.0]}, epsilon=1.0, n_iter=2)
    search.best_estimator_ = fitted[-1]  # as after a fit
    pipeline = PrivatePipeline([("scale", fitted[0]), ("search", search)])
    np.testing.assert_array_equal((low, high), pipeline.predict_interval(X[:5], 0.8))
    assert list(pipeline.summary().index) == ["x0", "x1", "intercept"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((StandardScaler(), MODEL), "standardscaler .* take BoundedScaler or DPStandardScaler"),
        ((BoundedScaler(), DPBayesianLogisticRegression()), "classes=None"),
        ((BoundedScaler(), clone(MODEL).set_params(random_state=0)), "random_state is set"),
        (
            (BoundedScaler(), clone(MODEL).set_params(random_state=np.random.default_rng(0))),
            "random_state is set",
        ),
        (
            (BoundedScaler(), clone(MODEL).set_params(epsilon=np.inf)),
            "take sklearn.pipeline.Pipeline",
        ),
        ((BoundedScaler(), GridSearchCV(MODEL, {"epsilon": [1.0]})), "gridsearchcv"),
        ((BoundedScaler(), BoundedScaler()), "none of its steps is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_leaks_is_refused_before_anything_is_read(steps, why):
    read = []

    class Rows(pd.DataFrame):
        def __array__(self, *arguments, **options):
            read.append("X")
            return super().__array__(*arguments, **options)

    for fit in ("fit", "fit_transform", "fit_predict"):
        pipeline = make_private_pipeline(*steps)
        if hasattr(pipeline, fit):
            with pytest.raises(ValueError, match=f"The pipeline is not private: .*{why}"):
                getattr(pipeline, fit)(Rows(X), Y)
    assert not read
    assert not hasattr(steps[-1], "privacy_spent_")


def test_a_refit_is_judged_by_its_own_parameters(fitted):
    again = pickle.loads(pickle.dumps(fitted)).set_params(
        dpbayesianlogisticregression__random_state=0
    )
    with pytest.raises(ValueError, match="random_state is set"):
        again.fit(X, Y)
    for step in ("dpstandardscaler", "dpbayesianlogisticregression"):
        wrong = clone(again).set_params(**{f"{step}__epsilon": "1"})
        with pytest.raises(ValueError, match=r"epsilon must be a number in .*, got '1'"):
            wrong.fit(X, Y)
    with pytest.raises(ValueError, match="memory"):
        PrivatePipeline([("model", MODEL)], memory="cache").fit(X, Y)
    trusting = make_private_pipeline(StandardScaler(), clone(MODEL), trusted=["standardscaler"])
    assert trusting.fit(X, Y).privacy_spent_.guarantee_holds


@pytest.mark.parametrize("left", ["passthrough", "drop", "explicit", "union"])
def test_columns_that_pass_through_are_judged_the_same_before_and_after_a_fit(left):
    if left == "union":
        prepare = FeatureUnion([("a", BoundedScaler((0, 100))), ("b", "passthrough")])
    elif left == "explicit":
        prepare = ColumnTransformer(
            [("a", BoundedScaler((0, 100)), [0]), ("b", "passthrough", [1])]
        )
    else:
        prepare = ColumnTransformer([("a", BoundedScaler((0, 100)), [0])], remainder=left)
    before, after = (
        check_pipeline(make_pipeline(step, MODEL)) for step in (prepare, clone(prepare).fit(X))
    )
    assert before.passed and after.passed
    assert [step.name for step in before.steps] == [step.name for step in after.steps]
    own = make_pipeline(FunctionTransformer(func=np.log1p), MODEL)
    assert [step.name for step in check_pipeline(own).leaks] == ["functiontransformer"]


def test_every_report_lists_what_it_cannot_see():
    """Learning steps before the model, and choices by score: a model's own report knows of neither."""
    scaled = make_pipeline(StandardScaler(), clone(MODEL)).fit(X, Y)
    said = " ".join(scaled[-1].privacy_spent_.not_covered)
    assert "steps before the model" in said and "scalers" in said and "check_pipeline" in said
    bits = (X > 50).astype(float)
    search = GridSearchCV(DPBetaBernoulli(), {"prior_b": [1.0]}, cv=2).fit(bits)
    said = " ".join(search.best_estimator_.privacy_spent_.not_covered)
    assert "by scores on the records" in said and "GridSearchCV" in said
    assert said in search.best_estimator_.privacy_spent_._repr_html_().replace("; ", " ")


BERNOULLI = DPBetaBernoulli(1.0)
COINS = (RNG.random((200, 4)) < 0.3).astype(float)
UNITS = DPStandardScaler(bounds=(0, 1), epsilon=0.5)


def test_refits_of_what_a_column_transformer_copies_add_up():
    columns = ColumnTransformer([("scale", UNITS, [0, 1])], remainder="passthrough")
    pipeline = make_private_pipeline(columns, clone(BERNOULLI))
    reports = []
    for _ in range(3):
        pipeline.fit(COINS)
        reports += [
            pipeline[0].named_transformers_["scale"].privacy_spent_,
            pipeline[1].privacy_spent_,
        ]
    own = [block for report in reports for block in report.releases]
    spent = pipeline.privacy_spent_
    assert sorted(map(repr, spent.cumulative + spent.releases)) == sorted(map(repr, own))
    assert spent.epsilon >= compose(own).epsilon(spent.delta) > 1.5
    assert not hasattr(clone(pipeline), "privacy_spent_")
    seeded = make_private_pipeline(columns, clone(BERNOULLI)).fit(COINS)
    report = replace(
        seeded[0].named_transformers_["scale"].privacy_spent_,
        voided_by=("a seed",),
        numerics="fast",
    )
    seeded[0].named_transformers_["scale"].privacy_spent_ = report
    spent = seeded.fit(COINS).privacy_spent_
    assert spent.voided_by == ("an earlier fit: a seed",) and spent.numerics == "fast"


@pytest.mark.parametrize(
    "parameter", [{"delta": 1e-12}, {"adjacency": "zero_out"}, {"epsilon": 0.1}]
)
def test_its_report_is_of_what_was_fitted_whatever_parameters_are_now(parameter):
    steps = (clone(own).set_params(adjacency="replace_one") for own in (UNITS, BERNOULLI))
    pipeline = make_private_pipeline(*steps).fit(COINS)
    before = pipeline.privacy_spent_
    for _, step in pipeline.steps:
        step.set_params(**parameter)
    assert pipeline.privacy_spent_ == before


def test_a_private_step_is_counted_although_it_is_trusted():
    steps = [("scale", clone(UNITS)), ("model", clone(BERNOULLI))]
    pipeline = PrivatePipeline(steps, trusted=["scale"]).fit(COINS)
    assert (
        pipeline.privacy_spent_.delta == pytest.approx(2e-5)
        and pipeline.privacy_spent_.epsilon > 1.05
    )
    steps[0][1].set_params(epsilon=np.inf)
    with pytest.raises(ValueError, match="not private: scale"):
        PrivatePipeline(steps, trusted=["scale"])._refuse_leaks(COINS)


def test_what_zeros_or_lengths_of_rows_would_decide_is_refused():
    def pipeline(**options):
        columns = ColumnTransformer(
            [("clip", NormClipper(2.0), [0, 1])], remainder="passthrough", **options
        )
        return make_private_pipeline(columns, clone(BERNOULLI))

    for rows, why in ((sparse.csr_array(COINS), "sparse_threshold=0"), (COINS.tolist(), "list")):
        with pytest.raises(ValueError, match=why):
            pipeline().fit(rows)
    assert not pipeline(sparse_threshold=0).fit(sparse.csr_array(COINS))[0].sparse_output_


def test_groups_are_given_to_every_private_step():
    def scaler():
        return DPStandardScaler(bounds=(0, 100), epsilon=0.5, max_rows_per_person=3)

    pipeline = make_private_pipeline(BoundedScaler((0, 100)), scaler(), scaler())
    mixed = make_private_pipeline(scaler(), DPBetaBernoulli(solver="dpvi"))
    with pytest.raises(ValueError, match="max_rows_per_person to all or to none"):
        check_pipeline(mixed)
    assert str(check_pipeline(pipeline)).endswith("for each person")
    pipeline.fit(X, groups=np.arange(300) // 3)
    assert [step.privacy_spent_.unit for step in pipeline[1:]] == ["person", "person"]
    assert pipeline.privacy_spent_.unit == "person"
    with pytest.raises(ValueError, match="go together"):
        pipeline.fit(X)
    search = DPRandomizedSearchCV(DPBetaBernoulli(solver="dpvi"), {"prior_a": [1.0, 2.0]})
    ended = make_private_pipeline(BoundedScaler((0, 100)), scaler(), search)
    assert list(ended._by_step({"groups": 1})) == [f"{name}__groups" for name, _ in ended.steps[1:]]


def test_a_warning_of_a_row_points_to_the_line_that_predicts(fitted):
    with pytest.warns(UserWarning, match="predicted as all-zero rows") as told:
        fitted.predict_proba([[np.nan, 50.0]])
    assert [own.filename for own in told] == [__file__]
