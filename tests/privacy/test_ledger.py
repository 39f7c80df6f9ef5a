"""A budget across fits: what it takes, what it refuses, and what becomes of it in copies, threads and processes."""

import asyncio
import contextvars
import copy
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import numpy as np
import open_ledgers
import pytest
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli, DPLatentDirichletAllocation
from skdpbayes.privacy import (
    BudgetError,
    GaussianSteps,
    PrivacyLedger,
    PrivacySpent,
    Selection,
    calibrate_noise,
    compose,
)
from skdpbayes.privacy.accounting._rdp import rdp_epsilon, step_rdp
from skdpbayes.privacy.ledger import ledger_in_force
from skdpbayes.privacy.ledger import open_ledgers as opened_ledgers
from skdpbayes.privacy.ledger.entries import File
from skdpbayes.privacy.report import rounded

X = (np.random.default_rng(0).random((200, 1)) < 0.3).astype(float)
REPORT = PrivacySpent(0.1, 1e-5, "zero_out", (GaussianSteps(100.0, 1.0, 1),), 1.0)
ALL, SOME = GaussianSteps(20.0, 1.0, 10), GaussianSteps(2.0, 0.01, 300)


def estimator(epsilon=0.2, **parameters):
    return DPBetaBernoulli(epsilon, **parameters)


def charged():
    """Charge what is in force, as a fit does before it runs; no noise is drawn."""
    DPBetaBernoulli()._charge(REPORT)


def spent(*ledgers):
    return [len(ledger.entries) for ledger in ledgers]


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
        count
        * steps.steps
        * step_rdp(steps.noise_multiplier, steps.sampling_rate, adjacency == "replace_one", (8.0,))
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
    with pytest.raises(BudgetError, match=r"unit='document'.*PrivacyLedger\(unit='person'\)"):
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
    model = estimator(ledger=ledger).fit(X)
    (entry,) = ledger.entries
    assert [GaussianSteps(**step) for step in entry["steps"]] == list(model.privacy_spent_.releases)
    assert entry["label"] == "DPBetaBernoulli"
    before = pickle.dumps(model.posterior_), model.privacy_spent_
    monkeypatch.setattr(type(model._reader()), "pack", None)  # would fail
    with pytest.raises(BudgetError, match=r"is left\. Nothing was run\. A fit on all rows"):
        model.set_params(epsilon=0.49).fit(X)
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
        model.fit(X)
    assert len(ledger.entries) == 1 and not hasattr(model, "posterior_")


def test_a_block_charges_the_innermost_ledger():
    outer, inner, own = (PrivacyLedger(1.0, 1e-5) for _ in range(3))
    with outer:
        with inner, inner:
            charged()
            DPBetaBernoulli(ledger=own)._charge(REPORT)
        charged()
        with pytest.raises(ZeroDivisionError), inner:
            _ = 1 / 0
        charged()
    charged()
    assert spent(outer, inner, own) == [2, 1, 1]


def test_threads_with_a_ledger_each_charge_their_own():
    """The second thread opens its ledger while the first is inside its own."""
    ledgers, opened = [PrivacyLedger(1.0, 1e-5) for _ in range(2)], threading.Barrier(2, timeout=20)

    def work(ledger, count):
        with ledger:
            opened.wait()
            for _ in range(count):
                charged()
            opened.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ledgers, (1, 2)))
    assert spent(*ledgers) == [1, 2]


def test_tasks_with_a_ledger_each_charge_their_own():
    ledgers = [PrivacyLedger(1.0, 1e-5) for _ in range(2)]

    async def work(ledger, count):
        with ledger:
            for _ in range(count):
                await asyncio.sleep(0)  # the other task opens its own, or closes it
                charged()

    async def both():
        await asyncio.gather(work(ledgers[0], 2), work(ledgers[1], 5))

    asyncio.run(both())
    assert spent(*ledgers) == [2, 5]


def test_a_thread_without_a_ledger_is_refused_while_one_is_open():
    ledger, other = PrivacyLedger(1.0, 1e-5), PrivacyLedger(1.0, 1e-5)

    def with_another():
        with other:
            charged()

    with ThreadPoolExecutor(1) as pool:
        with ledger:
            with pytest.raises(BudgetError, match="open in another thread"):
                pool.submit(charged).result()
            with pytest.raises(BudgetError, match="open in another thread"):
                Parallel(2, backend="threading")(delayed(charged)() for _ in range(2))
            assert spent(ledger) == [0]
            pool.submit(DPBetaBernoulli(ledger=ledger)._charge, REPORT).result()
            pool.submit(contextvars.copy_context().run, charged).result()
            pool.submit(with_another).result()
        pool.submit(charged).result()
    assert spent(ledger, other) == [2, 1]


@pytest.mark.parametrize(
    ("here", "process", "inherited", "above", "want"),
    [
        ("ab", "ab", "", "", "b"),  # row 1
        ("a", "a", "", "b", "a"),
        ("a", "a", "ab", "ab", "a"),  # opened again after a fork
        ("", "a", "", "", "threads"),  # row 2
        ("a", "b", "a", "", "threads"),
        ("", "", "a", "", "threads"),  # row 3
        ("", "", "a", "b", "threads"),
        ("a", "", "a", "", "a"),  # row 4
        ("ab", "", "ab", "ab", "b"),  # row 5
        ("a", "", "a", "b", "processes"),  # row 6
        ("a", "", "ab", "a", "processes"),
        ("", "", "", "a", "processes"),
        ("", "", "", "", None),  # row 7
    ],
)
def test_the_table_of_what_is_in_force(here, process, inherited, above, want, monkeypatch):
    ledgers = {
        name: opened_ledgers.Opened(
            PrivacyLedger(1.0, 1e-5), {"path": None, "parameters": {}, "key": i}
        )
        for i, name in enumerate("ab")
    }
    monkeypatch.setattr(opened_ledgers, "_process", [ledgers[name] for name in process])
    monkeypatch.setattr(opened_ledgers, "_inherited", [ledgers[name] for name in inherited])
    shown = {1: [], 2: [ledgers[name].description for name in above], 3: ["beyond"] * bool(above)}
    monkeypatch.setattr(opened_ledgers, "_ancestors", lambda: iter(shown))
    monkeypatch.setattr(opened_ledgers, "_shown_by", shown.get)
    token = opened_ledgers._HERE.set(tuple(ledgers[name] for name in here))
    try:
        found = opened_ledgers.innermost()
    finally:
        opened_ledgers._HERE.reset(token)
    if isinstance(found, opened_ledgers.Elsewhere):
        names = above if found.processes else process or inherited
        assert found.descriptions == [ledgers[name].description for name in names]
        found = "processes" if found.processes else "threads"
    assert found == ledgers.get(want, want)


def test_a_block_that_ends_in_another_context_is_closed_for_the_process():
    ledger = PrivacyLedger(1.0, 1e-5)
    contextvars.copy_context().run(ledger.__enter__)
    with pytest.raises(BudgetError, match="another thread"):
        charged()
    ledger.__exit__()
    charged()
    assert spent(ledger) == [0]


def test_copies_are_the_ledger_itself():
    ledger = PrivacyLedger(1.0, 1e-5)
    model = estimator(ledger=ledger)
    assert clone(model).ledger is copy.deepcopy(model).ledger is copy.copy(ledger) is ledger
    clone(model).fit(X)
    assert len(ledger.entries) == 1


def test_a_search_spends_for_every_fit_and_stops_at_the_budget():
    ledger = PrivacyLedger(0.6, 1e-5)
    search = GridSearchCV(
        estimator(0.2, ledger=ledger), {"prior_b": [1.0, 2.0]}, cv=2, error_score="raise"
    )
    search.fit(X)
    assert len(ledger.entries) == 5
    with pytest.raises(BudgetError):
        search.fit(X)


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


def test_processes_share_a_file(tmp_path):
    path = tmp_path / "budget.db"
    ledger, steps = PrivacyLedger(1.0, 1e-5, path=path), calibrate_noise(0.3, 1e-5, 1.0, 5).steps
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [
        context.Process(target=open_ledgers.charge_often, args=(ledger, steps, out))
        for _ in range(2)
    ]
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


def test_two_charges_at_once_take_turns(tmp_path, monkeypatch):
    """The second comes between what the first reads and what it writes: it has to wait, and to see it."""
    path, steps = tmp_path / "budget.db", calibrate_noise(0.7, 1e-5, 1.0, 5).steps
    first, second = (PrivacyLedger(1.0, 1e-5, path=path) for _ in range(2))
    add, seen = File.add, []

    def slow_add(store, entry):
        if entry["label"] == "first":
            seen.append(pool.submit(second.charge, steps, label="second"))
            with pytest.raises(TimeoutError):
                seen[0].result(timeout=0.3)
        add(store, entry)

    monkeypatch.setattr(File, "add", slow_add)
    with ThreadPoolExecutor(1) as pool:
        first.charge(steps, label="first")
        with pytest.raises(BudgetError, match="second would spend more"):
            seen[0].result(timeout=30)
    assert [entry["label"] for entry in first.entries] == ["first"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Outcomes of `open_ledgers.py`, in a process that can fork."""
    script, folder = Path(__file__).with_name("open_ledgers.py"), tmp_path_factory.mktemp("ledgers")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["JAX"]
    return found


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fits_in_worker_processes_do_not_escape(workers, method):
    """Made in the worker, so that nothing was pickled; of pools that are older than the block, too."""
    forked = method == "fork"
    closed = (
        "charged" if forked else "not charged"
    )  # a fork inside a block stays there until another is open
    below = Path("/proc/self/stat").exists()
    want = [
        ("old pool, no ledger", "not charged", [0, 0, 0]),
        ("old pool, file", "charged", [1, 0, 0]),
        ("old pool, memory", "refused", [1, 0, 0]),
        ("old pool, two files", "refused", [1, 0, 0]),
        ("old pool, the same twice", "charged", [2, 0, 0]),
        ("below a worker, file", "charged" if below else "not charged", [2 + below, 0, 0]),
        ("old pool, all closed", "not charged", [2 + below, 0, 0]),
        ("new pool, file", "charged", [3 + below, 0, 0]),
        ("new pool, other file", "charged", [3 + below, 1, 0]),
        ("new pool, all closed", closed, [3 + below + forked, 1, 0]),
        ("new pool, memory", "refused", [3 + below + forked, 1, 0]),
    ]
    assert [(name, *outcome) for name, outcome in workers[method].items()] == want


def test_what_a_killed_process_had_open_does_not_count(workers):
    assert workers["killed"] == [True, []]


@pytest.mark.filterwarnings("ignore:A worker stopped")
def test_fits_made_in_workers_of_joblib_are_charged_or_refused(tmp_path):
    ledger = PrivacyLedger(1.0, 1e-5, path=tmp_path / "budget.db")
    try:
        with ledger:
            assert Parallel(2)(delayed(open_ledgers.fit)() for _ in range(2)) == ["charged"] * 2
        assert spent(ledger) == [2]
        with PrivacyLedger(1.0, 1e-5):
            assert (
                Parallel(2)(delayed(open_ledgers.fit)() for _ in range(2)) == ["refused"] * 2
            )  # by the same workers
    finally:
        get_reusable_executor().shutdown(kill_workers=True)


@pytest.mark.parametrize("kind", ["link", "open to others", "file"])
def test_a_folder_that_is_not_ours_is_not_used(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(opened_ledgers._FOLDER, "")
    folder = opened_ledgers._folder()
    with PrivacyLedger(1.0, 1e-5):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(opened_ledgers._shown_by(os.getpid())) == 1
    assert list(folder.iterdir()) == [] and opened_ledgers._shown_by(os.getpid()) == []
    folder.rmdir()
    if kind == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    elif kind == "file":
        folder.touch(0o700)
    else:
        folder.mkdir(0o777)
        folder.chmod(0o777)
    with pytest.raises(PermissionError, match="a folder of yours"), PrivacyLedger(1.0, 1e-5):
        pass
    charged()  # none is open
    assert opened_ledgers._shown_by(os.getpid()) == []


def test_a_process_with_another_folder_for_temporary_files_does_not_escape(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("open_ledgers.py")), "fit"]

    def outcome():
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert outcome() == "not charged"
    with PrivacyLedger(1.0, 1e-5):
        assert outcome() == "refused"


def test_a_copy_in_another_process_of_what_is_in_memory_refuses():
    there = pickle.loads(pickle.dumps(PrivacyLedger(1.0, 1e-5)))
    with pytest.raises(BudgetError, match="Open the ledger with a path"):
        there.charge(ALL)


def test_an_estimator_that_leaves_a_block_for_another_process_takes_the_ledger_along(tmp_path):
    with PrivacyLedger(1.0, 1e-5, path=tmp_path / "budget.db") as ledger:
        there = pickle.dumps(estimator())
    with PrivacyLedger(1.0, 1e-5):
        elsewhere = pickle.dumps(estimator())
    pickle.loads(there).fit(X)
    assert len(ledger.entries) == 1
    with pytest.raises(BudgetError, match="another process keeps in memory"):
        pickle.loads(elsewhere).fit(X)
    assert pickle.loads(pickle.dumps(estimator())).ledger is None


def test_text_and_back():
    ledger = PrivacyLedger(1.0, 1e-5)
    ledger.charge(ALL, label="a <fit>", voided_by=["no <noise>"])
    again = PrivacyLedger.from_json(ledger.to_json())
    assert again.entries == ledger.entries and again.to_json() == ledger.to_json()
    assert (
        "a &lt;fit&gt;" in ledger._repr_html_()
        and rounded(ledger.spent_epsilon) in ledger._repr_html_()
    )
    plan = PrivacyLedger(5.0, 1e-5, composition="plan", plan=[[ALL], [SOME]])
    plan.charge(ALL)
    assert PrivacyLedger.from_json(plan.to_json()).spent == 0.5
    assert repr(plan).endswith("left 1 of 2 planned fits)") and "composition='plan'" in repr(plan)


def test_repr_says_what_is_spent_and_left():
    ledger = PrivacyLedger(1.0, 1e-5)
    assert repr(ledger).startswith(
        "PrivacyLedger(epsilon=1, delta=1e-05, zero_out per row; spent epsilon=0, left 0.99"
    )
    ledger.charge(calibrate_noise(0.5, 1e-5, 1.0, 1).steps)
    assert ledger.spent_epsilon == pytest.approx(0.5, rel=1e-3)  # of one fit what it asked for
    spent_epsilon, left = (
        rounded(ledger.spent_epsilon),
        rounded(ledger.affordable_epsilon(), up=False),
    )
    assert repr(ledger).endswith(f"; spent epsilon={spent_epsilon}, left {left})")
    assert "memory of another process" in repr(pickle.loads(pickle.dumps(ledger)))


def test_entries_say_who_what_and_when():
    ledger, before = PrivacyLedger(1.0, 1e-5), datetime.now(UTC) - timedelta(seconds=1)
    DPBetaBernoulli(ledger=ledger)._charge(REPORT)
    (entry,) = ledger.entries
    assert (entry["label"], entry["version"]) == ("DPBetaBernoulli", version("skdpbayes"))
    assert [GaussianSteps(**step) for step in entry["steps"]] == list(REPORT.steps)
    when = datetime.fromisoformat(entry["when"])
    assert before <= when <= datetime.now(UTC) and entry["when"].endswith("+00:00")
    assert entry["voided_by"] == [] and ledger.guarantee_holds and "VOID" not in repr(ledger)


def test_a_fit_whose_guarantee_is_void_voids_that_of_the_budget():
    ledger, report = PrivacyLedger(1.0, 1e-5), copy.copy(REPORT)
    object.__setattr__(report, "voided_by", ("the seed is known",))
    DPBetaBernoulli(ledger=ledger)._charge(report)
    DPBetaBernoulli(ledger=ledger)._charge(REPORT)
    assert not ledger.guarantee_holds and ledger.voided_by == (
        "DPBetaBernoulli: the seed is known",
    )
    for text in (repr(ledger), ledger._repr_html_()):
        assert "void: dpbetabernoulli: the seed is known" in text.lower()
    assert PrivacyLedger.from_json(ledger.to_json()).voided_by == ledger.voided_by


def test_entries_of_earlier_versions_are_read(tmp_path):
    old, path = {"label": "old", "cost": 1e-3, "steps": [ALL.to_dict()]}, tmp_path / "budget.db"
    text = json.dumps({"ledger": PrivacyLedger(1.0, 1e-5)._parameters(), "entries": [old]})
    ledger = PrivacyLedger(1.0, 1e-5, path=path)
    with ledger._store.exclusive():
        ledger._store.add(old)
    for found in (PrivacyLedger.from_json(text), PrivacyLedger(1.0, 1e-5, path=path)):
        (entry,) = found.entries
        assert (entry["label"], entry["version"], entry["when"], entry["voided_by"]) == (
            "old",
            None,
            None,
            [],
        )
        assert found.guarantee_holds and "spent" in repr(found)


@pytest.mark.parametrize(
    "name", ["epsilon", "delta", "adjacency", "unit", "composition", "plan", "order", "path"]
)
def test_a_budget_is_read_only(name):
    ledger = PrivacyLedger(1.0, 1e-5)
    before = ledger.to_json()
    with pytest.raises(AttributeError, match="read-only"):
        setattr(ledger, name, 100)
    with pytest.raises(AttributeError, match="read-only"):
        delattr(ledger, name)
    assert ledger.to_json() == before and not hasattr(ledger, "_") and "100" not in repr(ledger)


# The first fit


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_the_first_fit_may_take_all_of_epsilon_and_then_nothing_is_left(rate, adjacency):
    noise = calibrate_noise(1.0, 1e-5, rate, 50, adjacency=adjacency)
    ledger = PrivacyLedger(1.0, 1e-5, adjacency=adjacency)
    ledger.charge(noise.steps, adjacency=adjacency)
    assert ledger.entries[0]["cost"] > ledger._filter.limit, "the filter alone would have taken it"
    assert ledger.spent == ledger.shares[0][1] == 1 and ledger.affordable_epsilon() == 0
    assert 0.99 < ledger.spent_epsilon <= 1 and ledger.spent_epsilon == compose(
        noise.steps, adjacency
    ).epsilon(1e-5)
    with pytest.raises(BudgetError, match=r"0% is left\. Nothing was run\. Nothing is left"):
        ledger.charge(GaussianSteps(1e9, 1.0, 1), adjacency=adjacency)  # next to nothing
    again = PrivacyLedger.from_json(ledger.to_json())
    assert again.entries == ledger.entries and again.spent_epsilon == ledger.spent_epsilon


def test_only_the_first_may_exceed_the_filter():
    all_of_it, ledger = calibrate_noise(1.0, 1e-5, 1.0, 1).steps, PrivacyLedger(1.0, 1e-5)
    ledger.charge(GaussianSteps(1e4, 1.0, 1))
    with pytest.raises(BudgetError):
        ledger.charge(all_of_it)
    with pytest.raises(BudgetError):
        PrivacyLedger(0.999, 1e-5).charge(all_of_it)  # more than epsilon, exactly
    with pytest.raises(BudgetError):
        PrivacyLedger(1.0, 0.9e-5).charge(all_of_it)  # at its delta


def test_a_first_fit_within_the_filter_leaves_the_rest_of_it():
    ledger = PrivacyLedger(1.0, 1e-5)
    first = calibrate_noise(0.8, 1e-5, 1.0, 1)
    ledger.charge(first.steps)
    assert ledger.entries[0]["cost"] < ledger._filter.limit
    count = filled(ledger, calibrate_noise(0.05, 1e-5, 1.0, 1).steps)
    steps = [
        step
        for entry in ledger.entries
        for step in map(lambda s: GaussianSteps(**s), entry["steps"])
    ]
    assert count > 1 and compose(steps).epsilon(1e-5) <= 1 and ledger.spent_epsilon <= 1


def test_of_many_first_fits_at_once_one_is_taken(tmp_path):
    steps = calibrate_noise(1.0, 1e-5, 1.0, 1).steps
    for ledger in (PrivacyLedger(1.0, 1e-5), PrivacyLedger(1.0, 1e-5, path=tmp_path / "budget.db")):
        with ThreadPoolExecutor(8) as pool:
            results = [pool.submit(ledger.charge, steps) for _ in range(16)]
        assert [type(result.exception()) for result in results].count(BudgetError) == 15 and spent(
            ledger
        ) == [1]


def test_default_fits_of_epsilon_one_are_taken_by_a_budget_of_one(monkeypatch):
    monkeypatch.setattr(DPBayesianLogisticRegression, "_run", _stopped)
    monkeypatch.setattr(DPBetaBernoulli, "_run", _stopped)
    models = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1]), DPBetaBernoulli(epsilon=1.0)
    for model in models:
        with PrivacyLedger(1.0, 1e-5) as ledger:
            for times in (1, 2):
                with pytest.raises(KeyboardInterrupt if times == 1 else BudgetError):
                    clone(model).fit(X, X[:, 0])
        assert spent(ledger) == [1] and ledger.spent_epsilon <= 1
    assert PrivacyLedger(1.0, 1e-5).affordable_epsilon() > 0.999


def _stopped(*arguments):
    raise KeyboardInterrupt


# Private searches


def test_a_selection_is_charged_its_divergence_and_alone_its_profile():
    runs = [calibrate_noise(0.2, 1e-6, 1.0, 3).steps, [SOME]]
    one = Selection(runs, 10, 0.0)
    ledger = PrivacyLedger(9.0, 1e-5)
    ledger.charge(one, label="search")
    assert (
        ledger.entries[0]["cost"] == one.divergence(ledger.order, "zero_out")
        and ledger.entries[0]["steps"] == []
    )
    again = PrivacyLedger.from_json(ledger.to_json())
    assert again.entries == ledger.entries and again.spent_epsilon == ledger.spent_epsilon
    exact = one.epsilon(1e-5, "zero_out")
    first = PrivacyLedger(1.0001 * exact, 1e-5)
    first.charge(one)
    assert first.spent == 1 and first.spent_epsilon == pytest.approx(exact)
    with pytest.raises(BudgetError):
        PrivacyLedger(0.999 * exact, 1e-5).charge(one)
    with pytest.raises(BudgetError):
        ledger.charge(Selection([GaussianSteps(0.0, 1.0, 1)], 10, 0.0))
    for how in ({"composition": "gaussian"}, {"composition": "plan", "plan": [[ALL]]}):
        with pytest.raises(BudgetError, match="cannot take a private search"):
            PrivacyLedger(50.0, 1e-5, **how).charge(one)


def test_the_order_is_the_best_for_releases_of_all_records():
    ledger = PrivacyLedger(1.0, 1e-5)
    orders = np.geomspace(12, 60, 40)
    best = max(
        PrivacyLedger(1.0, 1e-5, order=order).affordable_epsilon(n_fits=2) for order in orders
    )
    assert ledger.affordable_epsilon(n_fits=2) == pytest.approx(best, rel=1e-3)
    assert math.isfinite(ledger.order)


@pytest.mark.parametrize("composition", ["renyi", "gaussian"])
def test_what_is_left_can_be_shared_in_equal_parts(composition):
    ledger = PrivacyLedger(1.0, 1e-5, composition=composition)
    each = ledger.affordable_epsilon(n_fits=3)
    assert ledger.affordable_epsilon() / 3 < each < ledger.affordable_epsilon()
    for _ in range(3):
        noise = calibrate_noise(each, 1e-5, 1.0, 1)
        ledger.charge(noise.steps)
    assert 0.99 < ledger.spent <= 1
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="n_fits must be"):
            ledger.affordable_epsilon(n_fits=wrong)


def test_a_copy_whose_file_is_not_there_refuses_and_makes_none(tmp_path, monkeypatch):
    path = tmp_path / "budget.db"
    ledger, steps = PrivacyLedger(1.0, 1e-5, path=path), calibrate_noise(0.3, 1e-5, 1.0, 5).steps
    text = pickle.dumps(ledger)
    assert pickle.loads(text).path == str(path)
    path.unlink()
    copies = [pickle.loads(text)]
    own = {"path": str(path), "parameters": ledger._parameters(), "key": 1}
    monkeypatch.setattr(opened_ledgers, "innermost", lambda: opened_ledgers.Elsewhere(True, [own]))
    copies += [ledger_in_force(), pickle.loads(pickle.dumps(copies[0]))]
    for again in copies:
        with pytest.raises(BudgetError, match="not here"):
            again.charge(steps)
        assert "kept in a file that is not here" in repr(again)
    assert not path.exists()
