"""What one record can do, from the table to the release, through the estimator's own code."""

import numpy as np
import pytest
from cases import sampling_solvers, slow_but
from scipy import stats
from whitebox import NULL, noise_units, plan, recorded, released

from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.estimators._base import draws_rng
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.plans import report
from skdpbayes.privacy import AccountingError

N, D = 60, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(scale=0.1, size=(N, D)), np.arange(N) % 2  # rows far shorter than the bound


def estimator(**parameters):
    common = {
        "classes": [0, 1],
        "data_norm": 10.0,
        "random_state": 0,
        "n_steps": 3,
        "sampling_rate": 1.0,
    }
    return DPBayesianLogisticRegression(**({"epsilon": 1.0} | common | parameters))


def first_release(X, y, kind, norm):
    """First release of a fit in units of the clipping norm: a curvature round for kind 1, else a gradient round."""
    model = estimator(guide="full_rank" if kind else "mean_field", data_norm=norm)
    with recorded() as kept:
        model.fit(X, y)
    made = model.plan(N, D)
    unit = noise_units(made.model, made.solver, made.spec)[kind]
    return np.asarray(kept[-1], np.float64)[0, : unit.size] / unit


AWKWARD = [
    1e300,
    np.nan,
    np.inf,
    "text",
    None,
    np.datetime64("2020-01-01"),
    np.timedelta64(3, "s"),
    2**70,
    [1],
    b"7",
    1j,
]


@pytest.mark.parametrize("norm", [10.0, 0.1])
@pytest.mark.parametrize("kind", [0, 1])
def test_one_row_moves_a_release_by_at_most_the_clipping_norm(kind, norm):
    """Whatever is in it, whatever it weighs, and whatever kinds of cell are in the others."""
    table = X.astype(object)
    for i in range(0, N, 3):
        table[i, 0] = np.datetime64("1970-01-02") + np.timedelta64(i, "D")
    reference = first_release(table, Y, kind, norm)
    assert np.isfinite(reference).all()
    for cell in AWKWARD:
        changed, labels = table.copy(), Y.astype(object)
        changed[17, 1] = cell
        for label in (Y[17], cell):
            labels[17] = label
            moved = np.linalg.norm(first_release(changed, labels, kind, norm) - reference)
            assert moved <= 2 + 1e-4, (
                f"{cell!r}: moved the release by {moved} times the clipping norm"
            )


def test_curvature_rounds_sample_as_well():
    n, rate, n_steps = 24, 0.25, 400
    planned = plan(
        "dpvi", n, n, noise=100.0, rate=rate, n_steps=n_steps, clip=0.2, guide="full_rank", kind=1
    )
    difference = released(planned, np.eye(n), np.arange(n) % 2) - released(
        planned, np.eye(n), np.full(n, NULL)
    )
    diagonals = np.diagonal(np.abs(difference)[:, : n * n].reshape(n_steps, n, n), axis1=1, axis2=2)
    mask = diagonals > 0.005
    assert stats.binomtest(int(mask.sum()), mask.size, rate).pvalue > 1e-7


def test_posterior_draws_follow_from_the_solver_key_alone():
    keys = fit_keys(11)
    others = keys._replace(noise=fit_keys(1).noise, sampling=fit_keys(2).sampling)
    drawn = [draws_rng(own.solver).random() for own in (keys, others, fit_keys(12))]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_kinds_of_rounds_may_be_asked_a_few_steps_at_a_time(monkeypatch):
    """Curvature rounds have far more values than the others, and as much noise drawn for them."""
    planned = plan("dpvi", 40, 6, noise=1.7, rate=0.5, n_steps=40, guide="full_rank")
    data = np.ones((40, 6)), np.arange(40) % 2
    usual = released(planned, *data)
    monkeypatch.setattr(inference, "_AT_A_TIME", 7)
    inference._sizes.clear_cache()
    few = released(planned, *data)
    inference._sizes.clear_cache()
    assert np.isfinite(few).all()
    np.testing.assert_array_equal(few, usual)


def test_no_two_coordinates_of_a_release_share_their_noise():
    n, d = 40, 64
    planned = plan(
        "dpvi", n, d, noise=1.7, rate=0.1, n_steps=4, clip=0.5, guide="full_rank", kind=1
    )
    unit = noise_units(*planned)[0]
    for row in released(planned, np.ones((n, d)), np.full(n, NULL)) / unit:
        assert len(np.unique(row.astype(np.float32))) > 0.99 * row.size


@pytest.mark.parametrize("solver", slow_but(sampling_solvers(), "dpvi"))
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)  # chains of twenty steps
def test_plans_do_not_look_at_rows(monkeypatch, solver):
    """The same solver and mechanism for short rows and long ones, valid rows and null ones."""
    seen = []
    original = inference.run

    def run(keys, model, solver, spec, records, **options):
        seen.append(repr((model, solver, spec)))
        return original(keys, model, solver, spec, records, **options)

    monkeypatch.setattr(inference, "run", run)
    more = {"epsilon": 12.0} if solver == "sgld" else {}
    for Z in (X, 1e3 * X, np.full_like(X, np.nan)):
        estimator(solver=solver, n_steps=401 if solver == "sgld" else 20, **more).fit(Z, Y)
    assert len(set(seen)) == 1


def test_reasons_that_void_the_guarantee_stay_with_the_object():
    model = estimator(classes=None, random_state=None)
    with pytest.warns(UserWarning, match="classes=None"):
        model.fit(X, Y)
    assert not model.set_params(classes=[0, 1]).fit(X, Y).privacy_spent_.guarantee_holds
    model = estimator(random_state=None).fit(X, Y)
    assert model.privacy_spent_.guarantee_holds
    assert not model.set_params(adjacency="replace_one").fit(X, Y).privacy_spent_.guarantee_holds


@pytest.mark.parametrize("solver", sampling_solvers())
def test_accountants_that_disagree_stop_the_fit_before_it_reads(monkeypatch, solver):

    class Disagreement:
        disagrees = True

    monkeypatch.setattr(report, "crosscheck", lambda *rest: Disagreement())
    monkeypatch.setattr(inference, "run", lambda *rest: pytest.fail("the records were read"))
    report._account.cache_clear()
    model = estimator(solver=solver, learning_rate=1e-7 if solver == "sgld" else None)
    with pytest.raises(AccountingError):
        model.fit(X, Y)
    report._account.cache_clear()
