"""A new solver and a new model are one registration each: every list of them follows."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whitebox
from cases import Case, Entry

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli
from skdpbayes.estimators._base import solvers_of
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.intake.reading import PlainRows
from skdpbayes.plans.gradients import plan_point
from skdpbayes.plans.registry import SOLVERS, HasLikelihood, SolverEntry, register
from skdpbayes.plans.settings import Bounds, Task
from skdpbayes.privacy import PrivacyLedger
from skdpbayes.pytrees import pytree
from tools.support_matrix import table

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER / folder) for folder in ("estimators", "mechanism")]
test_grid, test_kill_matrix = map(importlib.import_module, ("test_grid", "test_kill_matrix"))

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def plan_map(settings, model, bounds, n, openings=()):
    """Most probable parameters, with scores clipped at their bound."""
    return plan_point(settings, model, bounds._replace(clip=bounds.score), n, openings)


@pytest.fixture
def map_solver():
    entry = SolverEntry("map", "The most probable parameters.", ((HasLikelihood, plan_map),))
    register(entry)
    yield entry.name
    del SOLVERS[entry.name]


def entries_of(cls):
    return [entry for entry in cases.ENTRIES if entry.cls is cls]


def test_a_new_solver_is_offered_for_every_model_that_it_takes(map_solver):
    offered = {cls: solvers_of(cls) for cls in cases.public_estimators()}
    assert map_solver in offered[DPBetaBernoulli]
    assert map_solver in offered[DPBayesianLogisticRegression]
    takes = {cls.__name__ for cls, names in offered.items() if map_solver in names}
    assert {
        "DPLatentDirichletAllocation",
        "DPSigmoidBeliefNet",
        "DPStandardScaler",
    } & takes == set()
    with pytest.raises(ValueError, match="There is a solver 'map' already"):
        register(SOLVERS[map_solver])
    with pytest.raises(ValueError, match=r"solver must be one of .*'map', got 'nuts'"):
        DPBetaBernoulli(solver="nuts").fit(np.zeros((10, 1)))


def test_a_new_solver_is_in_grid_contract_kill_matrix_and_pages(map_solver, monkeypatch):
    (entry,) = entries_of(DPBetaBernoulli)
    assert map_solver in entry.solvers  # which the grid, and all others, read
    case = Case(entry, map_solver)
    test_grid.test_a_pair_fits_and_spends_what_it_says(case)
    for check in whitebox.CASE_CHECKS:
        check(case)
    assert "`map`" in table([case]).splitlines()[0]
    assert "`zero_out`, `replace_one`, `add_remove`" in table([case]).splitlines()[2]
    with monkeypatch.context() as patch:
        jax.clear_caches()
        test_kill_matrix.noise_times_070(patch)
        with pytest.raises(AssertionError):
            whitebox.check_noise_of(case)
    jax.clear_caches()


@pytree
@dataclass(frozen=True)
class NormalMean:
    """``x ~ N(mean, I)``, ``mean ~ N(0, I)``."""

    template: jax.Array

    def init(self):
        return jnp.zeros_like(self.template)

    def log_prior(self, params):
        return -jnp.sum(params**2) / 2

    def prior_precision(self):
        return jnp.ones_like(self.template)

    def log_likelihood(self, params, record):
        return -jnp.sum((record["x"] - params) ** 2) / 2


class DPNormalMean(PosteriorEstimator):
    def __init__(
        self,
        epsilon=1.0,
        delta=1e-5,
        *,
        solver="dpvi",
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        clipping_norm=None,
        sampling_rate=None,
        n_steps=None,
        learning_rate=None,
        guide="mean_field",
        step_schedule="constant",
        n_chains=1,
        n_posterior_samples=100,
        random_state=None,
        verbose=0,
    ):
        for name, value in vars().copy().items():
            if name != "self":
                setattr(self, name, value)

    _fitted = (*PosteriorEstimator._fitted, "posterior_samples_")

    @classmethod
    def _model_types(cls):
        return (NormalMean,)

    def _reader(self):
        return PlainRows()

    def _task(self, facts):
        template = np.zeros(facts.n_features, np.float32)
        return Task(NormalMean(template), Bounds(score=5.0, curvature=2.0))

    def _finish(self, plan, outcome):
        self.posterior_samples_ = self._draws(plan, outcome)

    def fit(self, X, y=None):
        self._fit(X, y)
        return self


@pytest.mark.slow
def test_a_new_model_is_in_grid_contract_kill_matrix_and_pages(monkeypatch):
    entry = Entry("normal mean", DPNormalMean, "NormalMean", {"guide": "auto"})
    assert entry.solvers == ("dpvi", "na-dpvi", "sgld")  # those that take a likelihood
    monkeypatch.setattr(cases, "ENTRIES", [*cases.ENTRIES, entry])
    case = Case(entry, "sgld")
    test_grid.test_a_pair_plans_the_model_of_its_entry(case)
    test_grid.test_a_pair_fits_and_spends_what_it_says(case)
    with pytest.raises(ValueError, match=r"'dpvi', 'na-dpvi', 'sgld', got 'vips'"):
        DPNormalMean(solver="vips").fit(*case.data())
    for check in whitebox.CASE_CHECKS:
        check(case)
    assert table([case]).splitlines()[-1].startswith("| `DPNormalMean` | no | no | `zero_out`")
    with monkeypatch.context() as patch:
        jax.clear_caches()
        test_kill_matrix.contributions_times_1000(patch)
        with pytest.raises(AssertionError):
            whitebox.check_one_row_of(case)
    jax.clear_caches()


def test_a_model_without_what_a_solver_needs_is_refused_before_anything_is_charged():
    class DPFlatMean(DPNormalMean):
        @classmethod
        def _model_types(cls):
            return (Flat,)

    class Flat:
        """A likelihood and a prior, and nothing else."""

        init, log_prior, log_likelihood = (
            NormalMean.init,
            NormalMean.log_prior,
            NormalMean.log_likelihood,
        )

    assert solvers_of(DPFlatMean) == ("sgld",)
    model = DPFlatMean(solver="dpvi")
    with PrivacyLedger(1.0, 1e-5) as ledger, pytest.raises(ValueError, match="'sgld', got 'dpvi'"):
        model.fit(np.zeros((300, 2)))
    assert not ledger.entries and not hasattr(model, "privacy_spent_")
