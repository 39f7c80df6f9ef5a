"""A person as the unit of privacy: what their rows do together, and what no person can do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whitebox
from cases import BY_PERSON, Hostile
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPLatentDirichletAllocation,
    inference,
)
from skdpbayes.audit import audit
from skdpbayes.cells import objects
from skdpbayes.intake.persons import codes_of_persons, kept_rows, means_by_person
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.contributions import Quadratic, RankOne, Scattered
from skdpbayes.mechanism.persons import blocks_of_persons, of_person
from skdpbayes.mechanism.records import Person
from skdpbayes.mechanism.spec import Block

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
    for nobody in (np.full(3, np.nan), objects([None, [1], Hostile()])):
        with pytest.raises(ValueError, match="no person"):
            codes_of_persons(nobody, 3)


def test_means_by_person_leave_out_rows_beyond_the_most_and_those_without_a_value():
    values = np.array([0.0, 1.0, 1.0, np.nan, np.nan, 0.5], np.float32)
    person = np.array([3, 3, 3, 7, 5, 7])
    np.testing.assert_array_equal(means_by_person(values, person, 2), [0.5, np.nan, 0.5])


# ------------------------------------------------------------------- what they do together


def test_rows_are_added_each_clipped_as_a_lone_row_would_be():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1], [np.inf, 0], [7, 7]], np.float32)
    present = np.array([True, True, True, True, False])
    expected = {"sum": [0.9, 1.2], "score": [0.9, 1.2], "mean": [0.45, 0.6]}
    for together, total in expected.items():
        blocks = {"x": Block(1.0, together=together)}
        whole = of_person(lambda x: {"x": x}, blocks)(Person(rows, present))["x"]
        np.testing.assert_allclose(whole, total, rtol=1e-6)


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
    whole = of_person(lambda x: {"c": part(x)}, {"c": Block(1e3)})(Person(rows, present))["c"]

    def full(contribution):
        parts, tree = mechanism.parts_of(jax.tree.map(lambda leaf: leaf[None], contribution))
        return jax.tree.unflatten(tree, [own.total() for own in parts])

    expected = jax.tree.map(jnp.add, full(part(rows[0])), full(part(rows[1])))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), whole, expected)


def test_norms_grow_as_the_rows_of_a_person_do():
    blocks = {kind: Block(2.0, together=kind) for kind in ("sum", "score", "mean")}
    spec = DPBetaBernoulli(solver="dpvi", max_rows_per_person=9).plan(50, 2).spec
    longer = blocks_of_persons(blocks, spec.traced())
    assert [float(longer[kind].clipping_norm) for kind in blocks] == [18, 6, 2]


def test_five_rows_cost_the_root_of_five_in_noise():
    def noise(**how):
        plan = DPBayesianLogisticRegression(1.0, classes=[0, 1], **how).plan(2000, 3)
        return np.array(plan.noise_multipliers) * plan.report.clipping_norm

    assert np.allclose(noise(max_rows_per_person=5) / noise(), 5**0.5)


def persons_of_logistic(rng, n=300, most=4):
    owner = np.repeat(np.arange(n), rng.integers(1, most + 1, n))
    X = rng.normal(size=(len(owner), 3))
    truth = rng.normal(size=3)
    return X, (X @ truth + rng.logistic(size=len(owner)) > 0).astype(int), owner, truth


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


@pytest.mark.parametrize(
    "solver", ["na-dpvi", *(pytest.param(s, marks=pytest.mark.slow) for s in ("dpvi", "sgld"))]
)
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


# ------------------------------------------------------------------------ what no person can


def rows_clipped_instead_of_persons(patch):
    """The mutant that this unit invites: each row of a person is clipped to the person's norm.

    Statistics of `vips` do not show it: the norm of a person is there the sum of those of the rows.
    """
    original = mechanism._chunk_sums

    def chunk_sums(query, blocks, units, exact, batch, included):
        if isinstance(batch, Person):
            most = batch.present.shape[1]
            included = (jnp.repeat(included, most) & batch.present.ravel()).ravel()
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.rows)
        return original(query, blocks, units, exact, batch, included)

    patch.setattr(mechanism, "_chunk_sums", chunk_sums)
    patch.setattr(inference, "of_person", lambda query, blocks: query)


QUICKLY = ("logistic", "beta, dpvi", "scaler", "belief network")


def by_person(case):
    """A case, slow unless it is one of a few: the same programs as for rows, and the same checks."""
    return pytest.param(case, id=case.id, marks=[] if case.id in QUICKLY else [pytest.mark.slow])


def runs(case):
    """Whether a round of all rows can be asked of so few."""
    few_steps = case.model == "GaussianMixture" and case.solver in ("dpvi", "na-dpvi")
    return not few_steps and not (case.model == "WhitenedLogistic" and case.solver == "sgld")


@pytest.mark.parametrize("case", [by_person(case) for case in BY_PERSON if runs(case)])
def test_one_person_moves_a_release_by_at_most_the_clipping_norm(case):
    whitebox.check_one_row_of(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [by_person(case) for case in BY_PERSON if runs(case)])
def test_releases_of_persons_have_the_noise_that_is_accounted_for(case):
    whitebox.check_noise_of(case)


@pytest.mark.parametrize(
    "case",
    [by_person(case) for case in BY_PERSON if runs(case) and case.samples],
)
def test_clipping_rows_instead_of_persons_is_noticed(case, monkeypatch, no_compiled_programs):
    rows_clipped_instead_of_persons(monkeypatch)
    with pytest.raises(AssertionError, match="moved the release"):
        whitebox.check_one_row_of(case)


def test_an_audit_of_persons_passes_and_sees_the_mutant(monkeypatch, no_compiled_programs):
    X, owner = np.tile([[1.0, 1.0]], (30, 1)), np.repeat(np.arange(10), 3)
    model = DPBetaBernoulli(
        4.0, solver="dpvi", guide="mean_field", n_steps=10, max_rows_per_person=3
    )
    report = audit(model, X, groups=owner, n_trials=0)
    assert report.passed, str(report)
    rows_clipped_instead_of_persons(monkeypatch)
    whitebox.inference._steps.clear_cache()
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
    with pytest.raises(ValueError, match="'na-dpvi'"):
        DPBetaBernoulli(solver="vips", max_rows_per_person=2).fit(X, groups=np.arange(6))


def test_reports_say_person_and_how_many():
    X = np.ones((60, 2))
    model = DPBetaBernoulli(solver="sgld", n_steps=20, sampling_rate=0.5, max_rows_per_person=2)
    model.fit(X, groups=np.arange(60) // 3)
    spent = model.privacy_spent_
    assert spent.unit == "person" and spent.public["n_persons"] == 20
    assert not any("more than one record" in what for what in spent.not_covered)
    assert abs(model.usable_records_.estimate - 20) < 6 * model.usable_records_.std


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
        model, {"prior_a": [1.0, 2.0]}, epsilon=8.0, n_iter=2
    )
    search.fit(X, groups=owner)
    assert search.privacy_spent_.unit == "person"
    for (names, groups), others in zip(fitted, scored, strict=True):
        assert set(names) == set(groups) and not set(names) & set(others)
        assert len(set(names)) == 40 and len(set(others)) == 10
    assert all(len(means_by_person(*how)) == 10 and how[2] == 3 for how in packed)
    with pytest.raises(ValueError, match="groups"):
        search.fit(X)


def test_topics_say_what_to_do_with_several_documents_of_a_person():
    with pytest.raises(TypeError, match="one row"):
        DPLatentDirichletAllocation(max_rows_per_person=2)
    with pytest.raises(TypeError, match="one row"):
        DPLatentDirichletAllocation().fit(np.ones((4, 3)), groups=[1, 1, 2, 2])
