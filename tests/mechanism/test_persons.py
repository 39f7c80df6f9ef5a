"""A person as the unit of privacy: what their rows do together, and what no person can do."""

import dataclasses
import datetime
import decimal
import itertools
import uuid
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import whitebox
from cases import BY_PERSON, CASES, Hostile
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, special, stats

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
    inference,
)
from skdpbayes.audit import audit
from skdpbayes.cells import objects
from skdpbayes.facts import Facts, Shape
from skdpbayes.intake.documents import Documents
from skdpbayes.intake.packing import pack_records
from skdpbayes.intake.persons import by_person, codes_of_persons, kept_rows, means_by_person
from skdpbayes.intake.reading import Rows
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.contributions import Quadratic, RankOne, Scattered
from skdpbayes.mechanism.persons import blocks_of_persons, of_person
from skdpbayes.mechanism.records import Person
from skdpbayes.mechanism.spec import Block, Together
from skdpbayes.models.families import BetaBernoulli, DirichletCategorical, GammaExponential
from skdpbayes.posteriors.conjugate import CountsPosterior
from skdpbayes.privacy import GaussianSteps, PrivacyLedger, statement, statement_page
from skdpbayes.solvers.sums_of_persons import kept_of_sums
from skdpbayes.solvers.vips import Counted

# ---------------------------------------------------------------------- which rows count


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 4))
def test_kept_rows_depend_on_the_number_of_a_persons_own_rows_alone(names, most):
    person = np.unique(np.array(names, int), return_inverse=True)[1]
    n = int(person.max()) + 1 if len(person) else 0
    order, starts = kept_rows(person, n, most)
    for i in range(n):
        own = np.flatnonzero(person == i)
        alone, _ = kept_rows(np.zeros(len(own), int), 1, most)
        kept = order[starts[i] : starts[i + 1]]
        np.testing.assert_array_equal(kept, own[alone])  # wherever the others' rows are
        assert len(kept) == min(len(own), most) and np.all(np.diff(kept) > 0)


def test_of_many_rows_those_kept_are_evenly_spaced():
    assert kept_rows(np.zeros(10, int), 1, 5)[0].tolist() == [0, 2, 4, 6, 8]


class HostileZone(datetime.tzinfo):
    """A time zone whose code must not run."""

    def utcoffset(self, when):
        raise KeyboardInterrupt


def test_names_of_any_kind_are_told_apart_and_missing_ones_are_nobodys():
    names = objects(["a", 1, "a", None, np.nan, 2.5, Hostile(), b"x", [1], 1, True])
    codes = codes_of_persons(names, len(names))
    assert codes[0] == codes[2] and codes[1] == codes[9]
    assert np.all(codes[[3, 4, 6, 8]] == -1)
    assert len(set(codes[[0, 1, 5, 7]])) == 4
    floats = codes_of_persons(np.array([1.0, np.nan, 2.0, np.nan, 1.0]), 5)
    assert floats.tolist() == [0, -1, 1, -1, 0]
    dates = np.array(["2020-01-01", "NaT", "2021-01-01"], "datetime64[D]")
    assert codes_of_persons(dates, 3).tolist() == [0, -1, 1]
    order, starts = kept_rows(floats, 2, 5)
    assert order.tolist() == [0, 4, 2] and starts.tolist() == [0, 2, 3]
    # NumPy compares a duration with a number, and raises: on 1 and one month, whose hashes agree.
    kinds = [decimal.Decimal(1), np.timedelta64(1, "M"), np.timedelta64(1, "D"), b"1", "1", 1.0]
    assert codes_of_persons(objects(kinds), 6).tolist() == [0, 1, 2, 3, 4, 0]
    # One name in Python's class, NumPy's or another unit is one person, who would count twice else.
    same = ["a", np.str_("a"), b"a", np.bytes_(b"a"), *np.array([7, 7.0], object), np.float32(7)]
    assert codes_of_persons(objects(same), 7).tolist() == [0, 0, 1, 1, 2, 2, 2]
    days = [datetime.date(1970, 1, 8), np.datetime64(7, "D"), np.datetime64(1, "W")]
    days += [np.datetime64(604_800_000, "ms"), np.timedelta64(7, "D"), np.timedelta64(1, "W")]
    days += [np.timedelta64(12, "M"), np.timedelta64(1, "Y"), np.datetime64("1971", "Y")]
    assert codes_of_persons(objects(days), 9).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    for missing in (None, np.nan):  # NumPy says of the second that it equals "a"
        texts = np.array(["a", "b", "a"], np.dtypes.StringDType(na_object=missing))
        texts[1] = missing
        assert codes_of_persons(texts, 3).tolist() == [0, -1, 0]
    one, other = (uuid.UUID(int=i) for i in (1, 2))
    assert codes_of_persons([one, other, uuid.UUID(int=1), None], 4).tolist() == [0, 1, 0, -1]
    pairs = [("ward", 1), ("ward", 2), ("ward", np.int64(1)), ("ward", None), ("ward", Hostile())]
    assert codes_of_persons(objects(pairs), 5).tolist() == [0, 1, 0, -1, -1]
    fields = np.array(pairs[:2] + pairs[:1] + pairs[3:4], [("a", object), ("b", object)])
    assert codes_of_persons(fields, 4).tolist() == [0, 1, 0, -1]
    noon, east = datetime.datetime(2020, 1, 1, 12), datetime.timezone(datetime.timedelta(hours=2))
    moments = [noon, noon.replace(tzinfo=datetime.UTC), noon.replace(hour=14, tzinfo=east)]
    moments += [np.datetime64(noon), noon.replace(tzinfo=HostileZone())]
    assert codes_of_persons(objects(moments), 5).tolist() == [0, 1, 1, 0, -1]
    with pytest.raises(ValueError, match=r"of dtype period.* as groups.astype\(str\)"):
        codes_of_persons(pd.Series(pd.period_range("2020", "2022", freq="Y")), 3)
    with pytest.raises(ValueError, match=r"groups has shape \(3, 2\): .* one column"):
        codes_of_persons(np.ones((3, 2)), 3)
    for nobody in (np.full(3, np.nan), objects([None, [1], Hostile()])):
        with pytest.raises(ValueError, match="no person"):
            codes_of_persons(nobody, 3)


@pytest.mark.parametrize("dtype", [int, float, object])
def test_a_masked_name_is_nobodys(dtype):
    """What lies under the mask would join rows of many, or give a person a second name."""
    names = np.ma.array([1, 2, 1, 2], mask=[0, 1, 0, 0], dtype=dtype)
    assert codes_of_persons(names, 4).tolist() == [0, -1, 0, 1]
    assert codes_of_persons(names[:3], 3).max() == 0  # a name seen under a mask alone is no person
    assert codes_of_persons(names[:, None], 4).tolist() == [0, -1, 0, 1]


def test_only_rows_that_count_make_a_person_usable():
    x = np.array([[np.nan], [1.0], [np.nan], [1.0]], np.float32)  # of four, rows 0 and 2 count
    rows = Rows(Facts(Shape(4, 1)), lambda: pack_records(x=x))
    assert not by_person(rows, np.zeros(4, int), 2).pack().usable[0]
    assert by_person(rows, np.zeros(4, int), 4).pack().usable[0]


def test_means_by_person_leave_out_rows_beyond_the_most_and_those_without_a_value():
    values = np.array([0.0, 1.0, 1.0, np.nan, np.nan, 0.5], np.float32)
    person = np.array([3, 3, 3, 7, 5, 7])
    np.testing.assert_array_equal(means_by_person(values, person, 2), [0.5, np.nan, 0.5])


# ------------------------------------------------------------------- what they do together


def of_rows(most):
    """Mechanism for persons of up to so many rows."""
    return mechanism.MechanismSpec((GaussianSteps(1.0, 1.0, 1),), most_rows=most).traced()


def test_rows_are_added_each_clipped_as_a_lone_row_would_be():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1], [np.inf, 0], [7, 7]], np.float32)
    present = np.array([True, True, True, True, False])
    expected = {"sum": [0.9, 1.2], "score": [0.9, 1.2], "mean": [0.45, 0.6]}
    for together, total in expected.items():
        blocks = {"x": Block(1.0, together=together)}
        query = of_person(lambda x: {"x": x}, blocks, blocks_of_persons(blocks, of_rows(5)))
        whole = query(Person(rows, present))["x"]
        np.testing.assert_allclose(whole, total, rtol=1e-6)


def test_a_person_with_too_long_statistics_counts_for_less_in_all_blocks():
    """Ratios of the blocks stay, and each block keeps to its norm; what is whole stays whole."""
    rows = jnp.array([[0.6, 0.8, 1.0], [0.6, 0.8, 1.0], [0.6, 0.8, 1.0], [np.nan, 0, 1.0]])
    blocks = {
        "x": Block(1.0, 0.5, "statistic"),
        "n": Block(1.0, 0.3, "weight"),
        "all": Block(1.0, 0.2),
    }

    def query(record):
        return {"x": record[:2], "n": record[2:], "all": record[2:]}

    for present, x, n in (
        ([True, True, True, True], [0.6 * 2, 0.8 * 2], 4 * 2 / 3),  # three rows of norm 1
        ([True, False, False, True], [0.6, 0.8], 2),
    ):
        person = Person(rows, jnp.array(present))
        whole = of_person(query, blocks, blocks_of_persons(blocks, of_rows(4)))(person)
        np.testing.assert_allclose(whole["x"], x, rtol=1e-6)
        np.testing.assert_allclose(whole["n"], [n], rtol=1e-6)
        np.testing.assert_allclose(whole["all"], [sum(present)], rtol=1e-6)


@pytest.mark.parametrize(
    "part",
    [
        lambda x: RankOne(x[:1], x),
        lambda x: Quadratic(x[:1, None], x),
        lambda x: Scattered(jnp.array([1, 3]), x[:2, None], 5),
        lambda x: {"a": x, "b": 2 * x[:1]},
    ],
    ids=["rank one", "quadratic", "scattered", "tree"],
)
def test_products_and_trees_are_added_as_arrays(part):
    rows = jnp.array([[0.5, 2.0, 1.0], [1.0, -1.0, 3.0], [9.0, 9.0, 9.0]])
    present = jnp.array([True, True, False])
    blocks = {"c": Block(1e3)}
    whole = of_person(lambda x: {"c": part(x)}, blocks, blocks)(Person(rows, present))["c"]

    def full(contribution):
        parts, tree = mechanism.parts_of(jax.tree.map(lambda leaf: leaf[None], contribution))
        return jax.tree.unflatten(tree, [own.total() for own in parts])

    expected = jax.tree.map(jnp.add, full(part(rows[0])), full(part(rows[1])))
    found = full(whole)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, expected)


def test_scattered_rows_are_joined_without_an_array_of_all():
    """Two documents of a person share word 3; the sum lists each word once, in order."""
    parts = Scattered(jnp.array([[1, 3, 5], [0, 3, 6]]), jnp.ones((2, 3, 2)), 6)
    joined = parts.joined()
    assert joined.values.shape == (6, 2)
    assert joined.rows.tolist() == [0, 1, 3, 5, 6, 6]
    assert joined.values[:4, 0].tolist() == [1, 1, 2, 1]
    one = jax.tree.map(lambda x: x[None], joined)
    np.testing.assert_array_equal(one.total(), parts.total())
    assert np.isfinite(one.prepared(1.0, 1.0, exact=True)[1]).all()  # rows are as they must be


def test_persons_of_ragged_rows_are_grouped_by_their_own_longest_row():
    """Documents are packed by length; each person finds their own again."""
    rng = np.random.default_rng(0)
    person = rng.permutation(np.repeat(np.arange(40), 3))
    lengths = rng.choice([0, 1, 20, 40, 100], len(person))
    X = np.zeros((len(person), 130))
    for i, length in enumerate(lengths):
        X[i, rng.permutation(130)[:length]] = 1 + rng.integers(0, 5, length)
    records = by_person(Documents().read(DPLatentDirichletAllocation(), X), person, 2).pack()
    seen = []
    for group in records.groups():
        for i in range(int(group.start), int(group.stop)):
            taken = records.take(jnp.array([i]), group.width)
            assert taken.rows["columns"].shape == (1, 2, group.width)
            dense = np.zeros((2, 131))
            places = np.arange(2)[:, None], np.asarray(taken.rows["columns"][0])
            dense[places] = taken.rows["values"][0]
            seen.append(np.where(taken.present[0][:, None], dense[:, :130], np.nan))
            longest = (dense[:, :130] > 0).sum(axis=1)[np.asarray(taken.present[0])].max()
            assert longest <= group.width and (group.width == 32 or longest > group.width / 2)
            assert records.usable[i] == (longest > 0)
    kept, starts = kept_rows(person, 40, 2)
    owned = sorted(X[kept[a:b]].tobytes() for a, b in itertools.pairwise(starts))
    assert sorted(rows.tobytes() for rows in seen) == owned


def test_sparse_rows_of_persons_are_the_dense_ones():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(60, 40)) * (rng.random((60, 40)) < 0.3)).astype(np.float32)
    person, facts = rng.integers(0, 25, 60), Facts(Shape(60, 40))
    person = np.unique(person, return_inverse=True)[1]
    packed = [
        by_person(Rows(facts, lambda x=x: pack_records(x=x)), person, 2).pack()
        for x in (X, sparse.csr_array(X))
    ]
    taken = [jax.device_put(records).take(jnp.arange(20)) for records in packed]
    jax.tree.map(np.testing.assert_array_equal, *taken)
    kept, starts = kept_rows(person, int(person.max()) + 1, 2)
    assert set(np.diff(starts)[:20]) == {1, 2}  # after a lone row comes another person's
    for i in range(20):
        own = X[kept[starts[i] : starts[i + 1]]]
        np.testing.assert_array_equal(taken[0].rows["x"][i][taken[0].present[i]], own)


def test_norms_grow_as_the_rows_of_a_person_do():
    blocks = {kind: Block(2.0, together=kind) for kind in get_args(Together)}
    spec = DPBetaBernoulli(solver="dpvi", max_rows_per_person=9).plan(50, 2).spec
    longer = blocks_of_persons(blocks, spec.traced())
    assert [float(longer[kind].clipping_norm) for kind in blocks] == [18, 6, 6, 18, 2]


@pytest.mark.parametrize("solver", ["vips", "dpvi", "na-dpvi", "sgld"])
def test_the_report_states_the_norm_of_a_person(solver):
    """Rounds of statistics and of scores alike, whatever the solver's name."""
    how = dict(epsilon=8.0, solver=solver, max_rows_per_person=9)
    for model, n_columns in ((DPBetaBernoulli(**how), 2), (DPSigmoidBeliefNet(2, **how), 4)):
        plan = model.plan(5000, n_columns)
        traced = plan.spec.traced()
        with jax.enable_x64(True):
            state = plan.solver.init(plan.model, jax.random.key(0))
            rounds = plan.solver.rounds(plan.model, traced)
            blocks = {name: own for r in rounds for name, own in r.blocks(state).items()}
        main = blocks_of_persons(blocks, traced)
        (own,) = (main[name] for name in ("sum", "score", "visible") if name in main)
        stated = plan.report.clipping_norm  # none, where it follows from releases
        assert stated in (None, pytest.approx(float(own.clipping_norm), rel=1e-5))


def noise_of(case, **changes):
    """Standard deviation of the noise of the last round's main block, from a plan alone."""
    plan = case.as_users_have_it(**changes).plan(20_000, 2)
    norm = plan.report.clipping_norm
    if norm is None:  # it follows from releases
        norm = float(plan.spec.traced().norm_of_record(plan.solver.clipping_norm, "score"))
    return plan.noise_multipliers[-1] * norm


QUICK_PLANS = ("logistic", "linear", "linear, vips", "beta, dpvi", "logistic, vips", "gamma")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=[] if case.id in QUICK_PLANS else [pytest.mark.slow])
        for case in CASES
        if "density" not in case.id  # which `plan` takes by its arguments
    ],
)
def test_five_rows_cost_the_root_of_five_in_noise(case):
    """Group privacy costs five times the noise."""
    # Statistics of logistic regression are released as scores, if they are of persons.
    by_row = {"solver": "na-dpvi"} if case.id == "logistic, vips" else {}
    assert noise_of(case, max_rows_per_person=5) <= 2.3 * noise_of(case, **by_row)


def test_families_release_the_number_of_rows():
    how = dict(solver="vips", max_rows_per_person=9)
    assert DPBetaBernoulli(**how).plan(5000, 2).solver.n_records == 45_000
    few = DPBetaBernoulli(**how).plan(50, 2).solver  # a centre would be noise
    assert few.unit is not None and few.n_records == 450


def test_a_mixture_reports_the_norm_of_its_main_block():
    plan = DPGaussianMixture(
        n_components=2, bounds=(-3, 3), max_rows_per_person=9, solver="vips"
    ).plan(5000, 2)
    own = max(plan.model.blocks().values(), key=lambda block: block.share)
    assert own.together == "statistic"
    assert plan.report.clipping_norm == pytest.approx(3 * float(own.clipping_norm))


def persons_of_logistic(rng, n=300, most=4):
    owner = np.repeat(np.arange(n), rng.integers(1, most + 1, n))
    X = rng.normal(size=(len(owner), 3))
    truth = rng.normal(size=3)
    return X, (X @ truth + rng.logistic(size=len(owner)) > 0).astype(int), owner, truth


@pytest.mark.slow
def test_without_noise_the_likelihood_counts_rows():
    X, y, owner, _ = persons_of_logistic(np.random.default_rng(0))
    how = dict(epsilon=np.inf, classes=[0, 1], solver="na-dpvi")
    shuffled = np.random.default_rng(1).permutation(len(X))  # a person's rows may stand anywhere
    ours = DPBayesianLogisticRegression(max_rows_per_person=4, **how).fit(
        X[shuffled], y[shuffled], groups=owner[shuffled]
    )
    rows = DPBayesianLogisticRegression(**how).fit(X, y)
    np.testing.assert_allclose(ours.posterior_.mean, rows.posterior_.mean, atol=0.01)
    np.testing.assert_allclose(ours.posterior_.std, rows.posterior_.std, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi", "sgld"])
def test_intervals_hold_the_truth(solver):
    """Persons have one to four rows."""
    z, fits = [], 15 if solver == "na-dpvi" else 8
    for seed in range(fits):
        X, y, owner, truth = persons_of_logistic(np.random.default_rng(seed), n=1500)
        model = DPBayesianLogisticRegression(
            2.0, classes=[0, 1], solver=solver, max_rows_per_person=4
        ).fit(X, y, groups=owner)
        z.append((model.coef_[0] - truth) / model.posterior_.std[:3])
    size = np.size(z)
    assert stats.chi2.ppf(1e-4, size) < np.sum(np.square(z)) < stats.chi2.ppf(1 - 1e-4, size)


@pytest.mark.parametrize("sizes", [[1.0], [1.0, 1.0, 1.0], [3.0, 0.5, 0.1]])
@pytest.mark.parametrize("norm", [0.5, 1.5, 4.0])
def test_of_clipped_normal_sums_the_slope_is_known(sizes, norm):
    """Moving the mean of a sum by little moves that of the clipped one by this share of it."""
    variances = np.array(sizes) / np.sum(sizes)
    sums = np.random.default_rng(0).normal(size=(200_000, len(sizes))) * np.sqrt(variances)

    def mean_moved(entry, by):
        moved = sums + by * np.eye(len(sizes))[entry]
        length = np.linalg.norm(moved, axis=1)
        return np.mean(moved[:, entry] * np.minimum(1, norm / length))

    slopes = [(mean_moved(i, 0.05) - mean_moved(i, -0.05)) / 0.1 for i in range(len(sizes))]
    slope = variances @ slopes  # of moves along the covariance
    kept = float(kept_of_sums(jnp.diag(jnp.asarray(variances)), jnp.asarray(norm)))
    assert kept == pytest.approx(slope, rel=0.03)


def test_scores_of_persons_are_over_what_their_clipped_sums_keep():
    """The released sum, and its noise: else intervals would be too narrow where sums are clipped."""
    plan = DPBayesianLogisticRegression(
        1.0, classes=[0, 1], solver="na-dpvi", max_rows_per_person=5, fit_intercept=False
    ).plan(2000, 3)
    solver, schedule = plan.solver.solver, plan.spec.traced()
    assert solver.n_persons == 2000
    with jax.enable_x64(True):
        model = plan.model.marginal(plan.model.init())
        state = solver.init(model, jax.random.key(0))
        variances = (
            4 * jnp.array([3.0, 1.0, 1.0, 1.0]) * 2000
        )  # of the summed scores, after their sum
        known = state.known._replace(
            kept_matrix=4 * jnp.diag(variances[1:]), variances=variances, n=jnp.int32(1)
        )
        state = state._replace(known=known, curvature=known.kept_matrix.astype(float))

        def learnt(solver):
            of_scores = solver.rounds(model, schedule)[0]
            point = of_scores.point(state, jax.random.key(0))
            sums, scales = {"score": jnp.array([5.0, 2.0, -1.0])}, {"score": jnp.float32(3.0)}
            return of_scores.update(state, point, jnp.int32(1), sums, scales).blocks

        ours, plain = (learnt(dataclasses.replace(solver, n_persons=n)) for n in (2000, None))
        norm = float(solver.clipping_norm) * 5**0.5
        kept = float(kept_of_sums(4 * jnp.eye(3), jnp.asarray(norm)))
        assert 0.3 < kept < 0.95
        np.testing.assert_allclose(ours.score.sum(0), plain.score.sum(0) / kept, rtol=1e-3)
        np.testing.assert_allclose(ours.noise.sum(0), plain.noise.sum(0) / kept**2, rtol=1e-3)


def test_logistic_regression_counts_the_rows_of_persons_to_simulate_them():
    how = dict(epsilon=1.0, classes=[0, 1], solver="na-dpvi")
    of_persons = DPBayesianLogisticRegression(max_rows_per_person=5, **how).plan(2000, 3).model
    assert of_persons.counted and float(of_persons.n_records) == 10_000
    assert not DPBayesianLogisticRegression(**how).plan(2000, 3).model.counted


# ------------------------------------------------------------------------ the number of rows


@pytest.mark.parametrize(
    ("model", "total"),
    [
        (BetaBernoulli(1, 1.0, 1.0), lambda n, rows: np.array([0.3 * n - rows / 2])),
        (
            DirichletCategorical(np.ones(3)),
            lambda n, rows: n * np.array([0.2, 0.3, 0.5]) - rows / 3,
        ),
        pytest.param(
            GammaExponential(1, 1.0, 1.0, 3.0),
            lambda n, rows: np.array([1.1 * n - 1.5 * rows]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["beta", "dirichlet", "gamma"],
)
def test_a_posterior_whose_number_of_rows_is_noisy_is_the_mixture_over_it(model, total):
    """Against a finer and wider grid; and with hardly any noise, against the number as known."""
    own, scale, n = Counted.of(model), 4.0, 200
    released = np.append(total(n, n), n * float(own.unit))
    mixture = own.noisy_posterior(released, scale, 600)
    numbers = np.arange(150, 251, 5)
    parts = [model.noisy_posterior(released[:-1], scale, int(k)) for k in numbers]
    log = np.array([part.log_evidence for part in parts])
    weights = special.softmax(log - ((numbers - n) * float(own.unit) / scale) ** 2 / 2)
    mean = sum(w * part.mean for w, part in zip(weights, parts, strict=True))
    square = sum(w * (part.std**2 + part.mean**2) for w, part in zip(weights, parts, strict=True))
    std = np.sqrt(square - mean**2)
    np.testing.assert_allclose(mixture.mean, mean, atol=0.05 * std.max())
    np.testing.assert_allclose(mixture.std, std, rtol=0.05)
    known = model.noisy_posterior(released[:-1], 1e-3, n)
    sure = own.noisy_posterior(released, 1e-3, 600)
    np.testing.assert_allclose(sure.mean, known.mean, atol=0.05 * known.std.max())


def test_evidence_of_counts_is_that_of_a_sum_over_all_counts():
    """Three categories, by convolutions; two, by the known count of the first."""
    noisy, scale, concentration = np.array([3.0, 1.0, -2.0]), 1.5, np.array([0.5, 1.0, 2.0])
    for k in (2, 3):
        found, expected = [], []
        for n in (4, 6, 9):
            own = CountsPosterior(noisy[:k], scale, n, concentration[:k])
            found.append(own.log_evidence)
            counts = [c for c in itertools.product(range(n + 1), repeat=k) if sum(c) == n]
            means = noisy[:k] + (n - noisy[:k].sum()) / k
            logs = [
                stats.dirichlet_multinomial.logpmf(c, concentration[:k], n)
                - np.sum((c - means) ** 2) / (2 * scale**2)
                for c in counts
            ]
            expected.append(special.logsumexp(logs))
        np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6)


@pytest.mark.slow
def test_without_noise_topics_of_authors_are_those_of_their_documents():
    """Each document has a mixture of its own; lengths differ, also within an author's."""
    rng = np.random.default_rng(0)
    owner = rng.permutation(np.repeat(np.arange(150), rng.integers(1, 4, 150)))
    topics = np.repeat(np.eye(2), 40, axis=1) / 40
    length = rng.choice([5, 100], len(owner))
    X = rng.poisson(length[:, None] * (rng.dirichlet([0.2, 0.2], len(owner)) @ topics))
    how = dict(epsilon=np.inf, n_steps=6, random_state=0)
    ours = DPLatentDirichletAllocation(2, max_rows_per_person=3, **how).fit(X, groups=owner)
    rows = DPLatentDirichletAllocation(2, **how).fit(X)
    np.testing.assert_allclose(ours.components_, rows.components_, rtol=1e-3)
    assert ours.privacy_spent_.unit == "person"


@pytest.mark.slow
def test_of_a_group_that_is_one_person_little_but_the_prior_is_learnt():
    """Persons of the other hierarchical test have rows in several groups (`BY_PERSON`)."""
    rng, n = np.random.default_rng(0), 40
    owner = np.repeat(np.arange(n), 3)
    X = np.column_stack([rng.normal(size=3 * n), owner])
    y = (X[:, 0] * np.where(owner % 2, 3, -3) > 0).astype(int)  # persons are nothing alike
    model = DPHierarchicalLogisticRegression(n, classes=[0, 1], max_rows_per_person=3)
    model.fit(X, y, groups=owner)
    about_prior = (
        model.posterior_samples_["weights"] - model.posterior_samples_["effects"][:, :, 0][:, None]
    )
    # In one fit of four, noise of the curvature makes some groups' posteriors half as wide.
    assert np.median(about_prior.std(axis=0)) > 0.9
    assert np.all(np.abs(about_prior.mean(axis=0)) < 0.7)


# ------------------------------------------------------------------------ what no person can


def rows_clipped_instead_of_persons(patch):
    """The mutant that this unit invites: each row of a person is clipped to the person's norm."""
    original = mechanism._chunk_sums

    def chunk_sums(query, blocks, units, exact, batch, included):
        if isinstance(batch, Person):
            most = batch.present.shape[1]
            included = (jnp.repeat(included, most) & batch.present.ravel()).ravel()
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.rows)
        return original(query, blocks, units, exact, batch, included)

    patch.setattr(mechanism, "_chunk_sums", chunk_sums)
    patch.setattr(mechanism, "_slots", lambda query, records, group: (1, 64))
    patch.setattr(inference, "of_person", lambda query, *_: query)


QUICKLY = ("logistic", "scaler")


def listed(case):
    """A case, slow unless it is one of a few: the same programs as for rows, and the same checks."""
    return pytest.param(case, id=case.id, marks=[] if case.id in QUICKLY else [pytest.mark.slow])


PERSON = np.repeat(np.arange(90), 3)


def sums(rows, person=PERSON, most=3, rate=1.0):
    """Sum over a sample of persons, before noise, of their rows."""
    facts = Facts(Shape(len(rows), rows.shape[1]))
    records = by_person(Rows(facts, lambda: pack_records(x=rows)), person, most).pack()
    spec = mechanism.MechanismSpec((GaussianSteps(1.0, rate, 1),), most_rows=most)
    blocks = {"x": Block(jnp.float32(4.0))}
    traced = spec.traced()
    longer = blocks_of_persons(blocks, traced)
    query = of_person(lambda record: {"x": record["x"]}, blocks, longer)
    grid = float(longer["x"].clipping_norm) / float(traced.units(0, 1.0))
    return whitebox.integer_sums(query, longer, spec, records) * grid


def test_persons_are_sampled_with_all_of_their_rows():
    found = sums(np.eye(4, dtype=np.float32)[PERSON % 4], rate=0.5)
    np.testing.assert_allclose(found % 3, 0, atol=1e-3)
    assert 20 < found.sum() / 3 < 70


def test_the_number_of_a_persons_null_rows_does_not_show():
    """Neither do rows without a name. Padded sizes differ."""
    rows = np.random.default_rng(0).normal(size=(270, 4)).astype(np.float32)
    rows[PERSON == 7] = np.nan
    expected = sums(rows)
    for more, name, value in ((1, 7, np.nan), (300, 7, np.nan), (300, -1, 1)):
        longer = np.concatenate([rows, np.full((more, 4), value, np.float32)])
        again = sums(longer, np.concatenate([PERSON, np.full(more, name)]))
        np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("most", [3, *(pytest.param(m, marks=pytest.mark.slow) for m in (5, 7))])
def test_a_persons_contribution_is_the_same_in_every_slot(most):
    """To the last bit; the last chunk is not full."""
    person = np.repeat(np.arange(270 // most), most)
    rows = np.random.default_rng(0).normal(size=(len(person), 4)).astype(np.float32)
    moved = np.concatenate([rows[-2 * most :], rows[: -2 * most]])
    np.testing.assert_array_equal(sums(moved, person, most), sums(rows, person, most))


@pytest.mark.parametrize("case", [listed(case) for case in BY_PERSON])
def test_one_person_moves_a_release_by_at_most_the_clipping_norm(case):
    whitebox.check_one_row_of(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [listed(case) for case in BY_PERSON])
def test_releases_of_persons_have_the_noise_that_is_accounted_for(case):
    whitebox.check_noise_of(case)


SHOWN_QUICKLY = ("logistic", "linear, vips")
# Their first release does not show it.
SEEN_LATER = [
    *(case.id for case in BY_PERSON if case.model in ("GaussianMixture", "SigmoidBeliefNet")),
    *("logistic, sgld", "linear", "gamma, na-dpvi"),
]


def ways_of(case):
    """How the rows of a person add up, in each kind of round of a plan."""
    plan = case.plan(1000)
    with jax.enable_x64(True):
        state = plan.solver.init(plan.model, jax.random.key(0))
        rounds = plan.solver.rounds(plan.model, plan.spec.traced())
        return [{block.together for block in own.blocks(state).values()} for own in rounds]


def too_long(case):
    """Whether an audit of a case, traced anew, finds a person longer than the norm.

    A person's rows are equal.
    """
    whitebox.forget_programs()
    X, y = case.data(3 * case.least)
    X = np.repeat(X[::3], 3, axis=0)
    y = None if y is None else np.repeat(y[::3], 3)
    report = audit(case.make(), X, y, groups=case.groups(X), n_trials=0)
    return not next(own.passed for own in report.checks if own.name == "norm")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=[] if case.id in SHOWN_QUICKLY else [pytest.mark.slow])
        for case in BY_PERSON
    ],
)
def test_clipping_rows_instead_of_persons_is_noticed(case, monkeypatch, no_compiled_programs):
    assert any(own - {"sum"} for own in ways_of(case))
    if case.id in SEEN_LATER:
        assert not too_long(case)
        rows_clipped_instead_of_persons(monkeypatch)
        assert too_long(case)
        return
    rows_clipped_instead_of_persons(monkeypatch)
    if (
        case.entry.name == "gamma" and case.solver != "vips"
    ):  # rows are shorter than the norm, unless it is small
        how = whitebox.all_rows(case) | {"clipping_norm": 1e-3}
        monkeypatch.setattr(whitebox, "all_rows", lambda _: how)
    with pytest.raises(AssertionError, match="moved the release"):
        whitebox.check_one_row_of(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_PERSON, ids=lambda case: case.id)
def test_no_person_is_longer_than_the_norm_in_any_round(case, compiled_as_users_do):
    """Given the releases so far, for each person, with cells of any kind; and noise and replay."""
    X, y = case.data(3 * case.least)
    report = audit(case.make(), X, y, groups=case.groups(X), n_trials=0)
    assert report.passed, str(report)


@pytest.mark.slow
def test_an_audit_of_persons_passes_and_sees_the_mutant(monkeypatch, no_compiled_programs):
    X, owner = np.tile([[1.0, 1.0]], (30, 1)), np.repeat(np.arange(10), 3)
    model = DPBetaBernoulli(
        4.0, solver="dpvi", guide="mean_field", n_steps=10, max_rows_per_person=3
    )
    report = audit(model, X, groups=owner, n_trials=0)
    assert report.passed, str(report)
    rows_clipped_instead_of_persons(monkeypatch)
    whitebox.forget_programs()
    from skdpbayes.audit import checks

    checks._longest.clear_cache()
    failed = {
        own.name for own in audit(model, X, groups=owner, n_trials=0).checks if not own.passed
    }
    assert "norm" in failed


# -------------------------------------------------------------------------------- at the door


def test_groups_and_their_number_of_rows_go_together():
    X = np.ones((6, 2))
    with pytest.raises(ValueError, match="max_rows_per_person"):
        DPBetaBernoulli(solver="dpvi").fit(X, groups=np.arange(6))
    with pytest.raises(ValueError, match="groups"):
        DPBetaBernoulli(solver="dpvi", max_rows_per_person=2).fit(X)
    with pytest.raises(ValueError, match="6 rows"):
        DPBetaBernoulli(solver="dpvi", max_rows_per_person=2).fit(X, groups=[1, 2])
    with pytest.raises(ValueError, match="max_rows_per_person"):
        DPBetaBernoulli(max_rows_per_person=0).plan(6, 2)


def test_reports_say_person_and_how_many():
    X = np.ones((60, 2))
    model = DPBetaBernoulli(solver="sgld", n_steps=20, sampling_rate=0.5, max_rows_per_person=2)
    model.fit(X, groups=np.arange(60) // 3)
    spent = model.privacy_spent_
    assert spent.unit == "person" and spent.public["n_persons"] == 20
    assert spent.public["max_rows_per_person"] == 2
    page = statement_page(statement(spent))
    assert "whether the rows of a person were used" in page and "all rows of a person" in page
    assert not any("more than one record" in what for what in spent.not_covered)
    assert abs(model.usable_records_.estimate - 20) < 6 * model.usable_records_.std


@pytest.mark.parametrize("solver", ["vips", "dpvi", "na-dpvi", "sgld"])
@pytest.mark.parametrize("kind", [DPLatentDirichletAllocation, DPSigmoidBeliefNet])
def test_reports_name_the_norm_of_a_person(kind, solver):
    """Products do not average out, whatever solver sums them."""
    public = {"n_rows": 200_000, "n_features": 20}
    own = kind(n_components=2, solver=solver, epsilon=2.0, max_rows_per_person=4).plan(**public)
    blocks = blocks_of_persons(own.model.blocks(), own.spec.traced()).values()
    assert own.report.clipping_norm == max(float(block.clipping_norm) for block in blocks)


def test_a_search_splits_and_scores_persons(monkeypatch):
    from skdpbayes import model_selection

    rng = np.random.default_rng(0)
    owner = rng.permutation(np.repeat(np.arange(50), 4))
    X = (rng.random((200, 2)) < 0.3).astype(float)
    X[:, 1] = owner  # so that the parts show whose rows they hold
    fitted, scored = [], []

    quietly = model_selection._fit_quietly

    def fit(model, X, y, groups):
        fitted.append((X[:, 1], groups))
        quietly(model, X, y, groups=groups)

    def scores(scoring, model, X, *rest):
        scored.append(X[:, 1])
        return np.where(X[:, 1] == X[0, 1], 0.0, 1.0).astype(np.float32)

    packed = []
    monkeypatch.setattr(model_selection, "_fit_quietly", fit)
    monkeypatch.setattr(model_selection, "scores", scores)
    monkeypatch.setattr(
        model_selection, "means_by_person", lambda *how: packed.append(how) or means_by_person(*how)
    )
    model = DPBetaBernoulli(solver="sgld", n_steps=5, sampling_rate=0.5, max_rows_per_person=3)
    search = model_selection.DPRandomizedSearchCV(
        model,
        {"prior_a": [1.0, 2.0]},
        epsilon=8.0,
        n_iter=2,
        ledger=PrivacyLedger(9.0, 1e-4, unit="person"),  # refuses other charges
    )
    search.fit(X, groups=owner)
    assert search.privacy_spent_.unit == "person"
    for (names, groups), others in zip(fitted, scored, strict=True):
        assert set(names) == set(groups) and not set(names) & set(others)
        assert len(set(names)) == 40 and len(set(others)) == 10
    assert all(len(means_by_person(*how)) == 10 and how[2] == 3 for how in packed)
    with pytest.raises(ValueError, match="groups"):
        search.fit(X)
    spent = search.ledger.spent_epsilon
    search.set_params(param_grid={"max_rows_per_person": [3, None]})
    with pytest.raises(ValueError, match="max_rows_per_person"):
        search.fit(X, groups=owner)
    assert search.ledger.spent_epsilon == spent  # refused before it cost anything
