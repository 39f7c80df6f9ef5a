"""What holds for the fit of every estimator, whatever its model: what it keeps, what it says, what a cell can do."""

import collections
import io
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from cases import QUICK, Hostile, N, every_fit, named, poisson, slow_but, solvers_of
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPDirichletCategorical,
    DPNumPyroModel,
    inference,
)
from skdpbayes.audit.fit import Fit
from skdpbayes.intake import fields
from skdpbayes.intake.labels import as_labels
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.plans.report import Told, report
from skdpbayes.plans.settings import Settings
from skdpbayes.privacy import GaussianSteps, NoisyCount, PrivacyLeakWarning

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def data(name):
    """Rows, and labels whether they count or not."""
    return named(name).rows()


def fit(name, X, y, **parameters):
    return named(name).make(**parameters).fit(X, y)


@pytest.mark.parametrize("case", every_fit(slow=("NumPyro", "linear", "logistic, vips")))
def test_nothing_of_the_records_is_kept(case):
    X, y = case.rows()
    X += np.random.default_rng(1).uniform(0, 1e-3, X.shape) * case.entry.smooth
    fitted = case.make().fit(X, y)
    text = pickle.dumps(fitted)
    for row in X if any(case.entry.smooth) else ():
        assert row.tobytes() not in text and row.astype(np.float32).tobytes() not in text

    class Lengths(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, np.ndarray):
                assert N not in item.shape, "an array as long as the data is kept"
            elif isinstance(item, list | tuple | dict):
                assert len(item) != N, "a container as long as the data is kept"

    Lengths(io.BytesIO()).dump(fitted)


@pytest.mark.parametrize("case", every_fit(quick=True))
@pytest.mark.parametrize("times", [1, 60])
def test_default_plans_are_confirmed_by_the_second_accountant(case, times):
    """Of all rows and of samples, with the count of usable records in them: a ratio, and not "not applicable"."""
    X, y = case.rows()
    planned = Fit(case.as_users_have_it(), np.tile(X, (times, 1)), np.tile(y, times))
    spent = planned.plan.report
    ratio = re.search(r"delta\(.*\) is ([\d.]+) of the reported 1e-05", str(spent.crosscheck))
    assert ratio and 0.97 < float(ratio[1]) < 1.005, spent.crosscheck


@pytest.mark.parametrize(
    "case", every_fit(slow=("NumPyro", "dirichlet", "beta", "linear", "network, regression, sgnht"))
)
def test_the_number_of_rows_is_told_only_where_it_is_public(case):
    X, y = case.rows()
    assert case.make().fit(X, y).privacy_spent_.public["n_samples"] == N
    hidden = [
        case.make(**case.private_size()).fit(X[: N - k], y[: N - k]).privacy_spent_ for k in (0, 1)
    ]
    assert "n_samples" not in hidden[0].public
    assert repr(hidden[0]) == repr(hidden[1])


@pytest.mark.parametrize("case", every_fit(slow=("NumPyro",)))
def test_an_interrupted_refit_is_charged_and_leaves_nothing_of_the_fit_before(case, monkeypatch):
    X, y = case.rows()
    fitted = case.make().fit(X, y)
    monkeypatch.setattr(type(fitted), "_run", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fitted.fit(X, y)
    left = set(vars(fitted)) - set(fitted.get_params())
    assert left <= {"n_features_in_", "privacy_spent_", "_categories"}  # the last as declared
    assert fitted.privacy_spent_.cumulative == fitted.privacy_spent_.releases


@pytest.mark.parametrize("case", every_fit())
@pytest.mark.parametrize(
    "cell", [Hostile(), "x", [1, 2], None, 1j, 10**400], ids=lambda c: type(c).__name__
)
def test_a_cell_raises_nothing_and_changes_no_other_row(case, cell):
    X, y = case.rows()
    # Of the others nothing says how many columns there are: tests/test_schema.py has lists of
    # these.
    one_column = case.cls is DPDirichletCategorical
    rows, labels = X.tolist() if one_column else X.astype(object), y.tolist()
    learnt = []
    for bad in (np.nan, cell):
        rows[0][0], labels[0] = bad, bad
        learnt.append(case.entry.learnt(case.make(epsilon=np.inf).fit(rows, labels)))
    np.testing.assert_array_equal(*learnt)


@pytest.mark.parametrize("case", every_fit())
@pytest.mark.parametrize(
    "bits", [0x7FF0000000000001, 1, 0x7FEFFFFFFFFFFFFF], ids=["signalling", "denormal", "largest"]
)
def test_a_number_raises_nothing_whatever_numpy_is_told(case, bits):
    X, y = case.rows()
    X.view(np.uint64)[0, 0] = bits
    model = case.make()
    with np.errstate(under="raise", over="raise", invalid="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        model._reader().read(model, X, y).pack()


def test_a_missing_value_changes_no_other_category():
    """Data frames' own dtypes become floats, or objects, where one value is missing."""
    large = 2**53
    for dtype, categories in (("Int64", [large, large + 1]), ("string", ["a", "b"])):
        values = [categories[0]] * 60 + [categories[1]] * 40
        shares = []
        for last in (categories[1], None):
            frame = pd.DataFrame({"a": pd.array([*values[:-1], last], dtype=dtype)})
            model = DPDirichletCategorical(np.inf, categories=categories, random_state=0).fit(frame)
            shares.append(model.probability_)
        np.testing.assert_allclose(shares[0], shares[1], atol=0.02)
        np.testing.assert_allclose(shares[0], [0.6, 0.4], atol=0.03)


def test_a_longdouble_response_is_cast_without_a_word():
    X, y = data("linear")
    y = y.astype(np.longdouble)
    y[0] = np.longdouble("1e400")
    fit("linear", X, y)


def small_fit(**parameters):
    X, y = np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.arange(200) % 2
    how = {"classes": [0, 1], "n_steps": 3} | parameters
    return DPBayesianLogisticRegression(**how).fit(X, y)


def test_what_integers_cost_is_in_the_report():
    spent = small_fit(epsilon=2.0).privacy_spent_
    assert (
        spent.numerics == "secure"
        and spent.random_source.startswith("ChaCha20")
        and spent.guarantee_holds
    )
    assert 0 < spent.epsilon_overhead < 1e-12 and 0 < spent.delta_overhead < 1e-20
    assert spent.epsilon == pytest.approx(spent.epsilon_at(spent.delta), rel=1e-9)
    assert spent.epsilon >= spent.curve.epsilon(spent.delta) + spent.epsilon_overhead


def test_epsilon_beyond_what_tables_of_noise_can_tell_voids_the_guarantee():
    assert small_fit(epsilon=15.0).privacy_spent_.guarantee_holds
    with pytest.warns(PrivacyLeakWarning, match="The guarantee is void: .* epsilon=60"):
        (why,) = small_fit(epsilon=60.0).privacy_spent_.voided_by
    assert "finite tables" in why


def test_fast_numerics_say_so_and_stay_with_the_object():
    model = small_fit(numerics="fast")
    spent = model.privacy_spent_
    assert spent.numerics == "fast" and spent.grid is None and "SFC64" in spent.random_source
    assert "idealised" in spent._repr_html_()
    X, y = np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.arange(200) % 2
    again = model.set_params(numerics="secure", random_state=None).fit(X, y).privacy_spent_
    assert again.numerics == "secure" and "idealised" in again.voided_by[0]


def test_too_many_values_are_refused_before_anything_is_released(monkeypatch):
    monkeypatch.setattr(inference, "MOST_VALUES", 10)
    with pytest.raises(ValueError, match="10 values or more: take fewer steps"):
        small_fit()


@pytest.mark.parametrize(
    ("name", "value"), [("numerics", "exact"), ("numerics", None), ("ledger", 1.0)]
)
def test_choices_that_are_none_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        small_fit(**{name: value})


NETWORKS = ("network", "network, regression, sgnht", "auto-encoder")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "adjacency", ["zero_out", pytest.param("add_remove", marks=[pytest.mark.slow])]
)
def test_all_but_the_releases_is_the_same_for_other_records(name, adjacency, monkeypatch):
    """Model, solver and plan do not depend on what records hold; nor does the fitted object, given the releases."""
    real, seen, states = inference.run, [], []

    def run(keys, model, solver, spec, records, **how):
        leaves, tree = jax.tree.flatten((model, solver))
        seen.append((leaves, (tree, spec)))
        states.append(states[0] if states else real(keys, model, solver, spec, records, **how))
        return states[0]

    monkeypatch.setattr(inference, "run", run)
    monkeypatch.setattr(
        mechanism, "noisy_count", lambda key, usable, spec, total: NoisyCount(3.0, 1.0)
    )  # a release too
    fits = []
    for change in (1.0, 0.3):
        X, y = data(name)
        X[:, 0] *= change
        if change != 1:
            X[0], y[0] = np.nan, 2.0**40
        keep = slice(None if adjacency == "zero_out" else int(change != 1), None)  # a row less
        more = (
            {"learning_rate": 1e-6}
            if adjacency == "add_remove" and named(name).solver == "sgld"
            else {}
        )
        fits.append(fit(name, X[keep], y[keep], adjacency=adjacency, **more))
    jax.tree.map(np.testing.assert_array_equal, seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]
    assert pickle.dumps(vars(fits[0])) == pickle.dumps(vars(fits[1]))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (pd.array([0, 1] * 50, "Int64"), pd.array([None, 1] + [0, 1] * 49, "Int64")),
        (pd.Categorical([0, 1] * 50), pd.Categorical([None, 1] + [0, 1] * 49)),
        (collections.deque([0, 1] * 50), collections.deque(["a", 1] + [0, 1] * 49)),
        (np.array([0, 1] * 50), np.array([2**40, 1] + [0, 1] * 49)),
        (as_labels([0.0, 1.0] * 50), as_labels([Hostile(), 1.0] + [0.0, 1.0] * 49)),
        (np.array([0.0, 1.0] * 50), np.array([1e300, 1.0] + [0.0, 1.0] * 49)),
    ],
    ids=["Int64", "category", "deque", "int64", "object", "float64"],
)
def test_a_record_decides_about_no_dtype(good, bad):
    typed = [
        fields.typed(fields._array("y", pd.Series(x) if hasattr(x, "categories") else x))
        for x in (good, bad)
    ]
    assert typed[0].dtype == typed[1].dtype
    np.testing.assert_array_equal(typed[0][1:], typed[1][1:])


def test_a_fit_of_a_numpyro_model_is_charged_before_records_are_packed(monkeypatch):
    X, y = data("NumPyro")
    monkeypatch.setattr(fields, "pack", lambda own: 1 / 0)
    model = DPNumPyroModel(poisson, random_state=0, **QUICK)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, y)
    assert model.privacy_spent_.epsilon > 0.9


@pytest.mark.parametrize("solver", slow_but(solvers_of(DPNumPyroModel), "dpvi"))
def test_users_code_sees_no_record(solver):
    def watchful(x, y=None):
        assert isinstance(x, jax.core.Tracer) or (np.asarray(x) == 0.5).all()
        poisson(x, y)

    X, y = data("NumPyro")
    DPNumPyroModel(watchful, solver=solver, random_state=0, **QUICK).fit(X, y)


def test_a_guide_that_was_used_is_refused():
    X, y = data("NumPyro")
    records = X.astype(np.float32), y.astype(np.float32)
    used = AutoNormal(poisson)
    SVI(poisson, used, Adam(0.1), Trace_ELBO()).init(jax.random.key(0), *records)
    with pytest.raises(ValueError, match="has been used, and holds"):
        DPNumPyroModel(poisson, used, random_state=0, **QUICK).fit(X, y)


@pytest.mark.slow
def test_what_holds_records_voids_the_guarantee():
    X, y = data("NumPyro")
    records = X.astype(np.float32), y.astype(np.float32)
    new = AutoNormal(poisson)
    fitted = [DPNumPyroModel(poisson, new, **QUICK).fit(X[:n], y[:n]) for n in (N, N - 1)]
    assert new.prototype_trace is None and all(one.privacy_spent_.guarantee_holds for one in fitted)
    assert fitted[0].privacy_spent_.public["guide"] == "AutoNormal, and all that it holds"

    def closes(x, y=None):
        poisson(x + 0 * jnp.sum(records[0]), y)

    def takes(x, y=None, table=None):
        poisson(x + 0 * table[0, 0], y)

    for voided in (
        DPNumPyroModel(closes, **QUICK),
        DPNumPyroModel(takes, public={"table": X}, **QUICK),
        DPNumPyroModel(takes, public={"table": X[:1]}, **QUICK),
    ):
        (why,) = voided.fit(X, y).privacy_spent_.voided_by
        assert "seems to hold records" in why
    few = DPNumPyroModel(takes, public={"table": X[:1].copy()}, **QUICK).fit(X, y)
    assert few.privacy_spent_.guarantee_holds and few.privacy_spent_.public["arguments"] == [
        "table"
    ]


@pytest.mark.slow
def test_the_report_has_the_clipping_norm_that_was_declared():
    X, y = data("NumPyro")
    assert fit("NumPyro", X, y).privacy_spent_.clipping_norm is None
    assert fit("NumPyro", X, y, clipping_norm=2.0).privacy_spent_.clipping_norm == 2.0


@pytest.mark.parametrize(("adjacency", "reasons"), [("zero_out", 1), ("add_remove", 0)])
def test_a_table_as_long_as_the_data_is_noticed_where_that_length_is_public(adjacency, reasons):
    def takes(x, y=None, table=None):
        poisson(x, y)

    own = {"public": {"table": np.ones((N, 2))}, "adjacency": adjacency}
    why = DPNumPyroModel(takes, **own, **QUICK).plan(N, 2).voided_by
    assert sum("seems to hold records" in reason for reason in why) == reasons


class Stop(Exception):
    """Raised where the program would be compiled."""


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bad", [1e6, np.nan], ids=str)
def test_a_record_changes_no_other_record_that_is_packed(name, bad, monkeypatch):
    packed = []

    def run(keys, model, solver, spec, records, **how):
        packed.append(jax.tree.map(np.array, records.fields))
        raise Stop

    monkeypatch.setattr(inference, "run", run)
    for value in (0.5, bad):
        X, y = data(name)
        X[0] = value
        with pytest.raises(Stop):
            fit(name, X, y)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1:], b[1:]), *packed)
    if np.isnan(bad):  # a null record: of a class below zero, or not finite
        one = {key: field[0] for key, field in packed[1].items()}
        assert not np.isfinite(one["x"]).all() or one.get("y", 0) == -1


@pytest.mark.parametrize("name", NETWORKS[:2])
def test_what_is_taken_from_the_rows_voids_the_guarantee(name):
    X, y = data(name)
    what = "classes" if name == "network" else "bounds"
    with pytest.warns(PrivacyLeakWarning, match=f"{what}=None"):
        spent = fit(name, X, y, **{what: None}).privacy_spent_
    assert not spent.guarantee_holds and any(f"({what}=None)" in why for why in spent.voided_by)


@pytest.mark.parametrize("name", ["logistic", "NumPyro", *NETWORKS])
def test_a_private_number_of_rows_is_in_no_plan(name, monkeypatch):
    seen = []

    def run(keys, model, solver, spec, records, **how):
        leaves, tree = jax.tree.flatten((model, solver))
        seen.append((leaves, tree, spec, records.slots))
        raise Stop

    monkeypatch.setattr(inference, "run", run)
    more = {"learning_rate": 1e-6} if named(name).solver == "sgld" else {}
    for drop in (0, 250):
        X, y = data(name)
        with pytest.raises(Stop):
            fit(name, X[drop:], y[drop:], adjacency="add_remove", sampling_rate=0.3, **more)
    jax.tree.map(np.testing.assert_array_equal, seen[0][0], seen[1][0])
    assert seen[0][1:] == seen[1][1:]


def test_epsilon_that_was_not_asked_for_is_claimed_only_within_the_tables():
    settings = Settings(np.inf, 1e-5, "zero_out", "secure")
    told = Told("DPBayesianMLPClassifier", "row", {}, None, False, (), None)
    few, many, none = (
        report(settings, MechanismSpec((GaussianSteps(noise, 1.0, 20),)), 1.0, told)
        for noise in (40.0, 0.32, 0.01)
    )
    assert few.guarantee_holds and few.epsilon_overhead > 0 and few.delta_overhead > 0
    assert any("finite tables" in why for why in many.voided_by)
    assert none.epsilon == np.inf and not none.guarantee_holds
