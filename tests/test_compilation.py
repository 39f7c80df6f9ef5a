"""New hyper-parameters and folds of nearly equal size run the program that is already compiled."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import sampling_solvers, slow_but
from sklearn.model_selection import cross_val_score

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    inference,
)
from skdpbayes.compilation import CompilerThread, without_collection

rng = np.random.default_rng(0)
X = rng.normal(size=(500, 3))
y = (rng.random(500) < 0.5).astype(int)


def estimator(**parameters):
    return DPBayesianLogisticRegression(
        **(
            {"classes": [0, 1], "n_steps": 20, "n_posterior_samples": 20, "random_state": 0}
            | parameters
        )
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", slow_but([*sampling_solvers(), "sgld, plain"], "na-dpvi"))
def test_new_values_compile_nothing(solver, compilations, on_the_host):
    """On an accelerator the slots of a program follow from the size of its batches."""
    own = {"solver": solver}
    if solver == "sgld":  # whose chains have to mix
        own |= {"epsilon": 5.0, "n_steps": 401}
    elif solver == "sgld, plain":
        own = {"solver": "sgld", "learning_rate": 1e-6}
    compilations.clear()
    estimator(**own).fit(X, y)
    assert compilations, "compilations are not counted"
    estimator(**own, random_state=None).fit(X, y)
    compilations.clear()
    changes = [
        {"epsilon": own.get("epsilon", 1.0) / 2},
        {"delta": 1e-6},
        {"n_steps": own.get("n_steps", 20) + 13},
        {"sampling_rate": 0.21},
        {"sampling_rate": 1.0},
        {"prior_scale": 3.0},
        {"data_norm": 7.0},
        {"adjacency": "replace_one"},
    ]
    if solver == "dpvi":
        changes.append({"learning_rate": 0.1})
    if solver == "sgld, plain":
        changes += [{"learning_rate": 1e-5}, {"step_schedule": "decreasing"}]
    for change in changes:
        estimator(**(own | change)).fit(X, y)
        assert not compilations, f"{change} compiled {len(compilations)} programs"
    estimator(**own).fit(X[:450], y[:450])
    assert not compilations, "another number of records of the same padded size compiled"


def threads():
    return [own for own in threading.enumerate() if "ThreadPoolExecutor" in own.name]


@pytest.mark.parametrize("name", slow_but(["logistic", "hierarchical", "mixture"], "logistic"))
def test_programs_are_compiled_once_and_ahead(name, compilations, compiled_in_a_thread):
    """Before their calls, which find them; and so is the program of a posterior."""
    table, rows = np.tile(X, 4)[:, :11], (y,)  # as no other test has
    kinds, model = 3, estimator(solver="na-dpvi", n_steps=13)  # moments, scores and curvatures
    if name == "hierarchical":
        model = DPHierarchicalLogisticRegression(3, classes=[0, 1], n_steps=13, random_state=0)
        table[:, -1] = np.arange(len(table)) % 3
    elif name == "mixture":
        model = DPGaussianMixture(n_components=2, solver="na-dpvi", bounds=(-4, 4), random_state=0)
        # Columns, moments, a sketch, the choice of a start, and scores.
        table, rows, kinds = table[:, :2], (), 5
    model.fit(table, *rows)
    wanted = {"jit(_release)": kinds, "jit(_learned)": kinds, "jit(found)": 1}
    names = [name for name, _ in compilations]
    assert {name: names.count(name) for name in wanted} == wanted
    assert ("jit(_release)", False) in compilations
    compilations.clear()
    model.fit(table, *rows)
    assert not {name for name, _ in compilations} & set(wanted) and not threads()


def test_who_waits_compiles_what_is_not_begun(compiled_in_a_thread):
    """Or the first program would never end."""
    begun, last_is_compiled, compiled = threading.Event(), threading.Event(), []

    class Program:
        def __init__(self, name):
            self.name = name

        def compile(self):
            in_main = threading.current_thread() is threading.main_thread()
            compiled.append((self.name, in_main))
            if self.name == "first":
                begun.set()
                last_is_compiled.wait(10)
            elif self.name == "last":
                last_is_compiled.set()
                raise ValueError("of its call")

    with CompilerThread() as compiler:
        compiler.add(Program("first"), "first")
        assert begun.wait(10)
        for name in ("second", "last"):
            compiler.add(Program(name))
        compiler.wait_for("first")
    assert compiled[:2] == [("first", False), ("last", True)]
    assert sorted(name for name, _ in compiled) == ["first", "last", "second"] and not threads()


def test_who_waits_goes_on_only_once_the_program_is_there(compiled_in_a_thread):
    begun, go, ended = threading.Event(), threading.Event(), []

    class Program:
        def compile(self):
            begun.set()
            go.wait(10)
            ended.append(self)

    with CompilerThread() as compiler:
        compiler.add(Program(), "slow")
        assert begun.wait(10)
        threading.Timer(0.2, go.set).start()
        compiler.wait_for("slow")
        assert ended


def test_an_interrupt_of_who_waits_leaves_no_thread(compiled_in_a_thread):
    begun, go, compiled = threading.Event(), threading.Event(), []

    class Program:
        def compile(self):
            compiled.append(self)
            if threading.current_thread() is threading.main_thread():
                threading.Timer(0.2, go.set).start()
                raise KeyboardInterrupt
            begun.set()
            go.wait(10)

    with pytest.raises(KeyboardInterrupt), CompilerThread() as compiler:
        for _ in range(3):
            compiler.add(Program())
        assert begun.wait(10)
    assert len(compiled) == 2 and not threads()


def fit_of_times(n_columns):
    """A fit whose programs compile soon."""
    rows = np.random.default_rng(0).exponential(0.25, size=(61, n_columns))
    return DPGammaExponential(random_state=0).fit(rows)


@pytest.mark.parametrize(("error", "n_columns"), [(KeyboardInterrupt, 11), (RuntimeError, 12)])
def test_an_error_leaves_no_thread_that_compiles(
    error, n_columns, compilations, compiled_in_a_thread, monkeypatch
):
    def fail(journal, step, state):
        raise error("in a round")

    monkeypatch.setattr(inference._Journal, "write", fail)
    with pytest.raises(error, match="in a round"):
        fit_of_times(n_columns)
    assert ("jit(_release)", False) in compilations
    assert not threads()


def test_a_thread_that_cannot_start_costs_no_fit(compilations, compiled_in_a_thread, monkeypatch):
    def fail(pool, function):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)
    fit_of_times(13)
    assert ("jit(_release)", True) in compilations


def test_which_rounds_are_run_one_by_one(monkeypatch):
    """By public numbers: how many they are, and how many numbers they release."""
    monkeypatch.setattr(inference, "_kinds", lambda *how: [0])
    sizes = [(64, 2**30), (65, 2**22), (512, 2**13), (512, 2**13 + 1), (513, 1)]
    kinds = [inference._kinds_if_few(None, None, None, *size) for size in sizes]
    assert [own is not None for own in kinds] == [True, False, True, False, False]


def test_folds_share_one_program(compilations):
    folds = np.array_split(np.arange(500), 5)
    splits = [(np.setdiff1d(np.arange(500), fold), fold) for fold in folds]
    splits[0] = (splits[0][0][:-3], splits[0][1])
    estimator(n_steps=21).fit(X[splits[0][0]], y[splits[0][0]])
    compilations.clear()
    cross_val_score(estimator(n_steps=21), X, y, cv=splits)
    assert not compilations


@pytest.mark.parametrize(
    "model",
    [
        DPBayesianLogisticRegression(classes=[0, 1]),
        DPBayesianLinearRegression(bounds=((-1, 1), (-4, 4))),
        DPGaussianMixture(n_components=3, bounds=(-5, 5), solver="na-dpvi"),
    ],
)
def test_a_plan_compiles_nothing(model, compilations):
    compilations.clear()
    model.plan(n_rows=3000, n_features=19)  # as no other test has
    assert not compilations, f"{len(compilations)} programs"


def test_collection_goes_on_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
        raise RuntimeError("inside")
    assert gc.isenabled()
