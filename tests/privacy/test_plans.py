"""Plans: what a fit will spend, from public numbers alone."""

import pickle
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from cases import CASES, QUICK, Case, N

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
    Schema,
)
from skdpbayes.estimators._base import solvers_of
from skdpbayes.intake.reading import Reader
from skdpbayes.preprocessing import DPStandardScaler
from skdpbayes.privacy import (
    PrivacyLeakWarning,
    PrivacyLedger,
    PrivacySpent,
    statement,
    verify_statement,
)

EACH = [case for case in CASES if not case.entry.only]
ENTRY = {case.cls: case.entry for case in EACH}
# Their statistics are released in rounds, of batches; those of others at once, of all rows.
IN_ROUNDS = (DPGaussianMixture, DPLatentDirichletAllocation, DPSigmoidBeliefNet)
each = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.cls.__name__}-{case.solver}",
            # The second accountant takes a second for the schedule of a chain.
            marks=[pytest.mark.slow]
            if case.solver == "sgld" and case.cls is not DPBayesianLogisticRegression
            else [],
        )
        for case in EACH
    ],
)


def made(case, **changes):
    """The estimator without a seed, which would void the guarantee."""
    return case.as_users_have_it(**(case.quick | changes))


@pytest.fixture
def no_rows(monkeypatch):
    """Whoever reads or packs a row fails the test."""
    readers = [Reader]
    for reader in readers:
        readers += reader.__subclasses__()
        for name in {"read", "numeric", "pack"} & vars(reader).keys():
            monkeypatch.setattr(reader, name, lambda *rows, **how: pytest.fail("rows were read"))
    assert len(readers) > 9


def said(report):
    """All that a report says but its date."""
    own = {item.name: getattr(report, item.name) for item in fields(PrivacySpent)}
    assert own.pop("date") and len(own) > 20
    return own


def known(facts):
    """What a plan may depend on, but for the dtypes of a NumPyro model's arguments."""
    labels = None if facts.labels is None else facts.labels.tolist()
    scales = None if facts.scales is None else [own.tolist() for own in facts.scales]
    return facts.n_rows, facts.n_features, facts.shape.names, labels, scales, facts.voided_by


def what_runs(plan):
    return repr((plan.solver, plan.spec, plan.slots))


@each
def test_a_plan_is_that_of_a_fit(case, request):
    X, y = case.data(N)
    read, _ = made(case)._prepared(X, y)
    request.getfixturevalue("no_rows")
    model = made(case)
    before = dict(vars(model))
    plan = model.plan(*X.shape)
    assert vars(model) == before, "a plan changes the estimator"
    assert said(plan.report) == said(read.report)
    assert what_runs(plan) == what_runs(read)
    assert known(plan.facts) == known(read.facts), "rows decide what a plan takes for public"
    assert (plan.epsilon, plan.n_steps) == (read.report.epsilon, read.spec.n_steps)
    assert (
        0 < plan.epsilon <= made(case).epsilon
        and plan.guarantee_holds
        and plan.report.public["n_samples"] == N
    )


@pytest.mark.parametrize("cls", [DPBetaBernoulli, DPGammaExponential, DPStandardScaler])
def test_a_fit_spends_what_its_plan_says(cls, compiled_quickly):
    model = cls(**ENTRY[cls].parameters)
    X = np.random.default_rng(0).integers(0, 2, (N, 2)).astype(float) + (cls is DPGammaExponential)
    plan = type(model)(**model.get_params()).plan(*X.shape)
    model.fit(X)
    assert said(model.privacy_spent_) == said(plan.report) and model.n_iter_ == plan.n_steps


def test_columns_may_be_told_by_name(no_rows):
    by_name = DPStandardScaler({"b": (0, 1), "a": (-1, 1)})
    plan = by_name.plan(N, feature_names=["a", "b"])
    assert plan.facts.own_scales().half.tolist() == [1, 0.5]
    assert plan.facts.n_features == 2 and plan.report.public["bounds"] == [[-1, 0], [1, 1]]


def test_a_plan_by_column_names_is_that_of_a_fit_of_a_data_frame():
    table = pd.DataFrame({"a": np.zeros(N), "b": np.ones(N)})
    schema = Schema({name: {"bounds": (-1, 1)} for name in table})
    for bounds in ({"b": (0, 1), "a": (-1, 1)}, schema):
        model = DPStandardScaler(bounds)
        read, _ = DPStandardScaler(bounds)._prepared(table)
        assert said(model.plan(N, feature_names=list(table)).report) == said(read.report)
    assert said(model.plan(N).report) == said(read.report)  # a schema says how many there are


@each
def test_a_private_number_of_rows_is_not_asked_for(case, no_rows):
    X, _ = case.data(N)
    steps = {"learning_rate": 1e-7} if case.solver == "sgld" and case.has("learning_rate") else {}
    steps |= {"sampling_rate": 0.3} if case.cls in IN_ROUNDS else {}
    model = made(case, adjacency="add_remove", **steps)
    known = {DPBayesianLogisticRegression, DPBayesianLinearRegression}
    if case.solver == "vips" and case.cls in known:
        with pytest.raises(ValueError, match="takes the number of records as known"):
            model.plan(n_features=X.shape[1])
        return
    plan = model.plan(n_features=X.shape[1])
    assert plan.facts.n_rows is None and "n_samples" not in plan.report.public
    for n in (1, N, 10**7):
        other = model.plan(n, X.shape[1])
        assert said(other.report) == said(plan.report) and what_runs(other) == what_runs(plan)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (DPBetaBernoulli(), {"n_features": 2}, "n_rows is needed: only adjacency='add_remove'"),
        (DPBetaBernoulli(), {"n_rows": N}, "n_features is needed"),
        (DPBetaBernoulli(), {"n_rows": 0, "n_features": 2}, "n_rows"),
        (DPBetaBernoulli(), {"n_rows": N, "n_features": 0}, "n_features"),
        (DPBetaBernoulli(-1.0), {"n_rows": N, "n_features": 2}, "epsilon"),
        (
            DPBetaBernoulli(),
            {"n_rows": N, "n_features": 3, "feature_names": ["a", "b"]},
            "numbers of columns differ",
        ),
        (
            DPStandardScaler(([0, 0], [1, 1])),
            {"n_rows": N, "n_features": 3},
            "numbers of columns differ",
        ),
        (
            DPBayesianLogisticRegression(),
            {"n_rows": N, "n_features": 2},
            r"classes=None takes the set of labels from y, and a plan sees no rows: pass classes",
        ),
        (
            DPBayesianMLPClassifier(),
            {"n_rows": N, "n_features": 2},
            r"classes=None takes the set of labels from y, and a plan sees no rows: pass classes",
        ),
        (
            DPHierarchicalLogisticRegression(2),
            {"n_rows": N, "n_features": 2},
            r"classes=None takes the set of labels from y, and a plan sees no rows: pass classes",
        ),
        (
            DPDirichletCategorical(),
            {"n_rows": N, "n_features": 1},
            "categories=None takes the set of categories from X, and a plan sees no rows",
        ),
        (
            DPStandardScaler({"a": (0, 1)}),
            {"n_rows": N},
            "bounds given by column names needs",
        ),
        (
            DPGaussianMixture(bounds={"a": (0, 1)}),
            {"n_rows": N, "feature_names": ["b"]},
            "must name the columns",
        ),
    ],
)  # fmt: skip
def test_what_a_plan_lacks_is_named(model, shape, message, no_rows):
    with pytest.raises(ValueError, match=message):
        model.plan(**shape)


@pytest.mark.parametrize(
    "cls", [DPBayesianLinearRegression, DPBayesianMLPRegressor, DPGaussianMixture]
)
def test_ranges_that_a_fit_will_take_from_the_rows_void_a_plan(cls):
    X, y = Case(ENTRY[cls], solvers_of(cls)[0]).data(N)
    own = dict(ENTRY[cls].parameters) | {"bounds": None}
    plan = cls(**own).plan(*X.shape)
    assert not plan.guarantee_holds and "(bounds=None)" in plan.voided_by[0]
    with pytest.warns(PrivacyLeakWarning, match="bounds=None"):
        read, _ = cls(**own)._prepared(X, y)
    assert said(plan.report) == said(read.report)


def test_a_plan_charges_no_ledger():
    own = PrivacyLedger(0.1, 1e-5)  # less than is planned
    with PrivacyLedger(1.0, 1e-5) as opened:
        for model in (DPBetaBernoulli(), DPBetaBernoulli(ledger=own)):
            plan = model.plan(N, 2)
            assert not opened.entries and not own.entries
        DPBetaBernoulli().fit(np.ones((N, 2)))
    (entry,) = opened.entries
    assert len(entry["steps"]) == len(plan.report.releases)


@each
def test_a_trial_run_has_rows_that_are_made_up(case):
    plan = made(case).plan(*case.data(N)[0].shape)
    records = plan.made_up(7)
    assert int(records.n_records) == 7 and records.usable.all()


def test_expected_seconds_need_a_number_of_rows(compiled_quickly):
    plan = DPBetaBernoulli(solver="sgld", learning_rate=1e-7, adjacency="add_remove", **QUICK)
    plan = plan.plan(n_features=2)
    with pytest.raises(ValueError, match="n_rows is needed"):
        plan.expected_seconds()
    assert 0 < plan.expected_seconds(n_rows=N) < 60


@each
def test_facts_of_rows_are_values_without_rows(case):
    X, y = case.data(N)
    model = case.as_users_have_it()
    facts = model._reader().read(model, X, y).facts
    stored = pickle.dumps(facts)
    assert len(stored) < X.nbytes and X.tobytes() not in stored
    assert facts.n_features == X.shape[1]


def test_an_earlier_fit_under_another_adjacency_voids_a_plan(compiled_quickly):
    """Its releases are private with respect to other neighbours: they cannot be added up."""
    fitted = DPStandardScaler((0, 1)).fit(np.ones((N, 2)))
    assert fitted.plan(N, 2).guarantee_holds
    plan = fitted.set_params(adjacency="replace_one").plan(N, 2)
    assert "under adjacency='zero_out' only" in " ".join(plan.voided_by)


def test_an_earlier_fit_of_rows_voids_one_of_persons_and_the_reverse(compiled_quickly):
    """A person's rows were not protected together; a row could move its person by two norms."""
    X, groups = np.ones((N, 2)), np.arange(N) // 2
    fitted = DPStandardScaler((0, 1)).fit(X)
    assert fitted.privacy_spent_.guarantee_holds
    fitted.set_params(max_rows_per_person=2).fit(X, groups=groups)
    assert fitted.privacy_spent_.voided_by == ("an earlier fit was private per row only",)
    assert not verify_statement(statement(fitted.privacy_spent_)).follows
    persons = DPStandardScaler((0, 1), max_rows_per_person=2).fit(X, groups=groups)
    assert persons.plan(N, 2).guarantee_holds
    back = persons.set_params(max_rows_per_person=None).plan(N, 2)
    assert back.voided_by == ("an earlier fit was private per person only",)
