"""Progress of a fit: what callbacks and readers are told, and what an interrupt leaves."""

import re

import numpy as np
import pytest
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli, inference
from skdpbayes.preprocessing import DPStandardScaler

pytestmark = pytest.mark.usefixtures("compiled_quickly")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


def estimator(**parameters):
    return DPBayesianLogisticRegression(
        **(
            {"classes": [0, 1], "n_steps": 37, "n_posterior_samples": 20, "random_state": 0}
            | parameters
        )
    )


class Recorder:
    """A callback that keeps what it is told."""

    def __init__(self):
        self.told = []

    def setup(self, estimator, context):
        self.told.append("setup")

    def on_fit_task_begin(self, estimator, context):
        self.told.append(("begin", context.task_name, sorted(vars(estimator))))

    def on_fit_task_end(self, estimator, context):
        self.told.append(("end", context.task_name, sorted(vars(estimator))))
        return True

    def teardown(self, estimator, context):
        self.told.append("teardown")


@pytest.mark.parametrize(
    ("model", "data"),
    [
        pytest.param(estimator(), (X, Y), marks=pytest.mark.slow),
        (estimator(solver="sgld", n_chains=3, n_steps=5, learning_rate=1e-5), (X, Y)),
        (estimator(n_steps=300), (X, Y)),
        (DPBetaBernoulli(random_state=0), (X[:, :1] > 0,)),  # one step
        (DPStandardScaler((-4, 4), random_state=0), (X,)),
    ],
    ids=["37", "chains", "300", "one", "scaler"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_callbacks_are_told_of_a_hundred_parts_and_no_rows(model, data):
    plain, recorder = type(model)(**model.get_params()).fit(*data), Recorder()
    model.set_callbacks(recorder).fit(*data)
    kinds = [item if isinstance(item, str) else item[:2] for item in recorder.told]
    parts = [("begin", "hundredth"), ("end", "hundredth")] * 100
    assert kinds == ["setup", ("begin", "fit"), *parts, ("end", "fit"), "teardown"]
    during = set().union(*(item[2] for item in recorder.told if not isinstance(item, str)))
    assert during <= {*model.get_params(), "n_features_in_", "privacy_spent_", "_skl_callbacks", "_callback_fit_ctx",
                      "_skl_callbacks_to_teardown"}  # fmt: skip
    assert set(vars(model)) == {*vars(plain), "_skl_callbacks"}
    (name,) = {"coef_", "probability_", "mean_"} & set(dir(plain))
    np.testing.assert_array_equal(
        getattr(model, name), getattr(plain, name)
    )  # and the fit is the same


def test_callbacks_that_ask_for_rows_are_refused():
    class Curious(Recorder):
        def on_fit_task_end(self, estimator, context, *, y=None):
            pass

    class Eager(Recorder):
        def on_fit_task_begin(self, estimator, context, *, X=None):
            pass

    with pytest.raises(TypeError, match=r"Curious asks for y: a private fit hands no rows"):
        estimator().set_callbacks(Recorder(), Curious())
    with pytest.raises(TypeError, match="Eager asks for X"):
        estimator().set_callbacks(Eager())
    with pytest.raises(TypeError, match="fitted_estimator"):
        estimator().set_callbacks(ScoringMonitor(scoring="accuracy"))
    with pytest.raises(TypeError, match="must be instances"):
        estimator().set_callbacks(print)
    model = estimator().set_callbacks(Recorder())
    assert not hasattr(model.set_callbacks(), "_skl_callbacks")


def test_scikit_learns_bar_of_a_pipeline(capsys):
    pipeline = make_pipeline(DPStandardScaler((-4, 4)), estimator()).set_callbacks(ProgressBar())
    pipeline.fit(X, Y)
    shown = capsys.readouterr().out
    assert "DPBayesianLogisticRegression" in shown and "DPStandardScaler" in shown


@pytest.mark.parametrize("first", [1, 5, 1000])
def test_bits_do_not_depend_on_the_parts(first, monkeypatch, in_a_loop):
    plain, pace, told = estimator().fit(X, Y), inference._Pace.__init__, []

    def begin(self, watch, least=1):
        pace(self, told.append)
        self.steps = first

    monkeypatch.setattr(inference._Pace, "__init__", begin)
    model = estimator().fit(X, Y)
    assert told[-1] == 37 and told[0] == min(first, 37) and (np.diff(told) > 0).all()
    np.testing.assert_array_equal(model.coef_, plain.coef_)


def test_parts_follow_the_time_that_steps_take(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(inference.time, "perf_counter", lambda: now[0])
    pace, sizes = inference._Pace(None), []
    for seconds in [0.01, 0.01, 0.2, 1.0, 1.0, 0.01]:
        pace.wait_for(1)
        now[0] += seconds
        sizes.append(pace.steps)
    pace.finish()
    assert [*sizes, pace.steps] == [1, 4, 16, 16, 8, 4, 16]


def test_verbose_says_steps_and_time_and_nothing_of_the_rows(capsys, monkeypatch):
    monkeypatch.setattr("skdpbayes.estimators._progress._EVERY", 0.0)
    said = []
    for rows in (X, np.full_like(X, np.nan)):
        estimator(verbose=1, random_state=None).fit(rows, Y)
        said.append(capsys.readouterr().out)
        last = said[-1].splitlines()[-1]
        assert re.fullmatch(r"\[DPBayesianLogisticRegression\] step 37 of 37: \d+\.\d s", last)
        assert said[-1].splitlines()[1].endswith("step 0 of 37; a first fit compiles for seconds")
        for line in said[-1].splitlines()[2:-1]:
            assert re.fullmatch(r"\[\w+\] step \d+ of 37: \d+\.\d s, about \d+ s left", line)
    assert len(said[0].splitlines()) > 2
    assert said[0].splitlines()[0] == said[1].splitlines()[0]  # the plan


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_what_was_charged_and_no_model(stop):
    class Impatient(Recorder):
        def on_fit_task_end(self, estimator, context):
            if context.task_id == 50:
                raise stop

    model, impatient = estimator().fit(X, Y), Impatient()
    before, spent = model.coef_, model.privacy_spent_
    with pytest.raises(stop):
        model.set_callbacks(impatient).fit(X, Y)
    assert impatient.told[-1] == "teardown"
    assert model.privacy_spent_.cumulative == spent.releases and not hasattr(model, "coef_")
    with pytest.raises(NotFittedError):
        model.predict(X)
    np.testing.assert_array_equal(model.set_callbacks().fit(X, Y).coef_, before)
