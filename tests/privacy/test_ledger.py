"""A budget across fits: what it takes, what it refuses, and what becomes of it in copies, threads and processes."""

import copy
import math
import multiprocessing
import pickle
import threading

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skdpbayes import DPBayesianLogisticRegression, DPLatentDirichletAllocation
from skdpbayes.privacy import BudgetError, GaussianSteps, PrivacyLedger, calibrate_noise, compose
from skdpbayes.privacy.accounting._rdp import rdp_epsilon, step_rdp
from skdpbayes.privacy.report import rounded

X, Y = np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.arange(200) % 2
ALL, SOME = GaussianSteps(20.0, 1.0, 10), GaussianSteps(2.0, 0.01, 300)


def estimator(epsilon=0.2, **parameters):
    how = {"classes": [0, 1], "solver": "vips", "n_steps": 2, "random_state": 0} | parameters
    return DPBayesianLogisticRegression(epsilon, **how)


def filled(ledger, steps=ALL, most=1000):
    """Charge until it refuses; how often it did not."""
    for count in range(most):
        try:
            ledger.charge(steps, adjacency=ledger.adjacency)
        except BudgetError:
            return count
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("steps", [ALL, SOME], ids=["all", "some"])
def test_what_is_taken_stays_within_the_budget_and_nearly_uses_it(steps, adjacency):
    ledger = PrivacyLedger(4.0, 1e-5, adjacency=adjacency, order=8.0)
    count = filled(ledger, steps)
    taken, more = (compose([steps] * n, adjacency).epsilon(1e-5) for n in (count, 2 * count))
    assert taken <= 4.0 < more
    divergence = (
        count * steps.steps * step_rdp(steps.noise_multiplier, steps.sampling_rate, adjacency == "replace_one", (8.0,))
    )
    assert ledger.spent_epsilon == pytest.approx(rdp_epsilon(divergence, 1e-5, np.array([8.0])))
    assert 0.8 < ledger.spent <= 1


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_releases_of_all_records_lose_nothing(adjacency):
    noise = calibrate_noise(1.0, 1e-5, 1.0, 40, adjacency=adjacency).noise_multiplier
    ledger = PrivacyLedger(1.0, 1e-5, adjacency=adjacency, composition="gaussian")
    assert filled(ledger, GaussianSteps(noise * (1 + 1e-9), 1.0, 4)) == 10
    assert ledger.spent_epsilon == pytest.approx(1.0, rel=2e-3) and ledger.spent_epsilon <= 1
    with pytest.raises(BudgetError, match="sampling_rate=1"):
        ledger.charge(SOME, adjacency=adjacency)


@pytest.mark.parametrize("composition", ["renyi", "gaussian"])
def test_what_is_affordable_is_taken_and_more_is_not(composition):
    ledger = PrivacyLedger(1.0, 1e-5, composition=composition)
    for share in (0.5, 1.0):
        epsilon = share * ledger.affordable_epsilon()
        ledger.charge(calibrate_noise(epsilon, 1e-5, 1.0, 7).steps)
    assert ledger.spent > 0.997 and ledger.affordable_epsilon() < 0.06
    with pytest.raises(BudgetError):
        ledger.charge(calibrate_noise(0.1, 1e-5, 1.0, 7).steps)


def test_no_noise_is_refused():
    with pytest.raises(BudgetError):
        PrivacyLedger(1e6, 1e-5).charge(GaussianSteps(0.0, 1.0, 1))


def test_plans_are_kept_to_and_composed_tightly():
    plan = [[ALL, ALL], [SOME]]
    epsilon = compose([ALL, ALL, SOME]).epsilon(1e-5)
    with pytest.raises(ValueError, match="more than the budget"):
        PrivacyLedger(0.99 * epsilon, 1e-5, composition="plan", plan=plan)
    ledger = PrivacyLedger(1.001 * epsilon, 1e-5, composition="plan", plan=plan)
    with pytest.raises(BudgetError, match="next fit of the plan"):
        ledger.charge([SOME])
    ledger.charge([ALL, ALL])
    with pytest.raises(BudgetError, match="next fit of the plan"):
        ledger.charge([ALL, ALL])
    ledger.charge(SOME)
    assert ledger.spent == 1 and ledger.spent_epsilon == pytest.approx(epsilon)
    with pytest.raises(BudgetError, match="The plan is complete"):
        ledger.charge(SOME)


def test_adjacency_and_unit_are_the_ledgers():
    ledger = PrivacyLedger(1.0, 1e-5)
    for wrong in ({"adjacency": "replace_one"}, {"unit": "document"}):
        with pytest.raises(BudgetError, match="cannot take a fit with"):
            ledger.charge(ALL, **wrong)
    with pytest.raises(BudgetError, match="unit='document'"):
        DPLatentDirichletAllocation(2, epsilon=0.1, ledger=ledger).fit(np.ones((20, 5)))
    assert ledger.entries == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"composition": "basic"}, "composition must be one of"),
        ({"composition": "plan"}, "plan is needed"),
        ({"plan": [[ALL]]}, "plan is needed"),
        ({"order": 1.0}, "order must be above 1"),
        ({"order": 8.0, "composition": "gaussian"}, "needs composition='renyi'"),
        ({"order": 1.5}, "nothing can be spent"),
        ({"adjacency": "swap"}, "adjacency"),
    ],
)
def test_parameters_that_make_no_budget_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        PrivacyLedger(1.0, 1e-5, **parameters)


# In fits


def test_fits_are_charged_before_they_run_and_refused_before_they_look(monkeypatch):
    ledger = PrivacyLedger(0.5, 1e-5)
    model = estimator(ledger=ledger).fit(X, Y)
    (entry,) = ledger.entries
    assert [GaussianSteps(**step) for step in entry["steps"]] == list(model.privacy_spent_.steps)
    assert entry["label"] == "DPBayesianLogisticRegression"
    before = pickle.dumps(model.posterior_), model.privacy_spent_
    monkeypatch.setattr(model, "_pack", None)  # would fail
    with pytest.raises(BudgetError, match=r"is left: .* were? left|are left. Nothing was run. A fit on all rows"):
        model.set_params(epsilon=0.49).fit(X, Y)
    assert (pickle.dumps(model.posterior_), model.privacy_spent_) == before
    assert len(ledger.entries) == 1


def test_an_interrupted_fit_stays_charged(monkeypatch):
    ledger = PrivacyLedger(1.0, 1e-5)

    def interrupted(*arguments):
        assert len(ledger.entries) == 1, "charged too late"
        raise KeyboardInterrupt

    model = estimator(ledger=ledger)
    monkeypatch.setattr(model, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert len(ledger.entries) == 1 and not hasattr(model, "posterior_")


def test_a_block_charges_the_innermost_ledger_in_every_thread():
    outer, inner, own = (PrivacyLedger(1.0, 1e-5) for _ in range(3))
    with outer:
        with inner:
            estimator().fit(X, Y)
            estimator(ledger=own).fit(X, Y)
            thread = threading.Thread(target=lambda: estimator().fit(X, Y))
            thread.start()
            thread.join()
        estimator().fit(X, Y)
    estimator().fit(X, Y)
    assert [len(ledger.entries) for ledger in (outer, inner, own)] == [1, 2, 1]


def test_copies_are_the_ledger_itself():
    ledger = PrivacyLedger(1.0, 1e-5)
    model = estimator(ledger=ledger)
    assert clone(model).ledger is copy.deepcopy(model).ledger is copy.copy(ledger) is ledger
    clone(model).fit(X, Y)
    assert len(ledger.entries) == 1


def test_a_search_spends_for_every_fit_and_stops_at_the_budget():
    ledger = PrivacyLedger(0.6, 1e-5)
    search = GridSearchCV(estimator(0.2, ledger=ledger), {"prior_scale": [0.5, 1.0]}, cv=2, error_score="raise")
    search.fit(X, Y)
    assert len(ledger.entries) == 5
    with pytest.raises(BudgetError):
        search.fit(X, Y)


def test_threads_do_not_overspend():
    ledger = PrivacyLedger(1.0, 1e-5)
    steps, taken = calibrate_noise(0.3, 1e-5, 1.0, 5).steps, []

    def charge():
        try:
            ledger.charge(steps)
            taken.append(1)
        except BudgetError:
            pass

    threads = [threading.Thread(target=charge) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(ledger.entries) == filled(PrivacyLedger(1.0, 1e-5), list(steps))


def _charge_often(ledger, steps, out):
    taken = 0
    for _ in range(10):
        try:
            ledger.charge(steps)
            taken += 1
        except BudgetError:
            pass
    out.put(taken)


def test_processes_share_a_file(tmp_path):
    path = tmp_path / "budget.db"
    ledger, steps = PrivacyLedger(1.0, 1e-5, path=path), calibrate_noise(0.3, 1e-5, 1.0, 5).steps
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_charge_often, args=(ledger, steps, out)) for _ in range(2)]
    for process in processes:
        process.start()
    taken = out.get(timeout=100) + out.get(timeout=100)
    for process in processes:
        process.join()
    assert taken == len(ledger.entries) == filled(PrivacyLedger(1.0, 1e-5), list(steps))
    again = PrivacyLedger(1.0, 1e-5, path=path)
    assert again.entries == ledger.entries and again.spent == ledger.spent
    with pytest.raises(ValueError, match="a ledger with other parameters"):
        PrivacyLedger(2.0, 1e-5, path=path)


def test_a_copy_in_another_process_of_what_is_in_memory_refuses():
    there = pickle.loads(pickle.dumps(PrivacyLedger(1.0, 1e-5)))
    with pytest.raises(BudgetError, match="Open the ledger with a path"):
        there.charge(ALL)


def test_an_estimator_that_leaves_a_block_for_another_process_takes_the_ledger_along(tmp_path):
    with PrivacyLedger(1.0, 1e-5, path=tmp_path / "budget.db") as ledger:
        there = pickle.dumps(estimator())
    with PrivacyLedger(1.0, 1e-5):
        elsewhere = pickle.dumps(estimator())
    pickle.loads(there).fit(X, Y)
    assert len(ledger.entries) == 1
    with pytest.raises(BudgetError, match="another process keeps in memory"):
        pickle.loads(elsewhere).fit(X, Y)
    assert pickle.loads(pickle.dumps(estimator())).ledger is None


def test_text_and_back():
    ledger = PrivacyLedger(1.0, 1e-5)
    ledger.charge(ALL, label="a <fit>")
    again = PrivacyLedger.from_json(ledger.to_json())
    assert again.entries == ledger.entries and again.to_json() == ledger.to_json()
    assert "a &lt;fit&gt;" in ledger._repr_html_() and rounded(ledger.spent_epsilon) in ledger._repr_html_()
    assert repr(ledger).startswith("PrivacyLedger(epsilon=1, delta=1e-05")
    plan = PrivacyLedger(5.0, 1e-5, composition="plan", plan=[[ALL], [SOME]])
    plan.charge(ALL)
    assert PrivacyLedger.from_json(plan.to_json()).spent == 0.5


def test_the_order_is_the_best_for_releases_of_all_records():
    ledger = PrivacyLedger(1.0, 1e-5)
    best = max(PrivacyLedger(1.0, 1e-5, order=order).affordable_epsilon() for order in np.geomspace(12, 60, 40))
    assert ledger.affordable_epsilon() == pytest.approx(best, rel=1e-3)
    assert math.isfinite(ledger.order)
