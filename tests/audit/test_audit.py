"""The audit passes what is right, and sees what is wrong."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import test_kill_matrix as mutants
from cases import every_fit, solvers_of
from numpyro.infer.autoguide import AutoNormal
from scipy import stats
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
)
from skdpbayes.audit import attack as _audit_attack
from skdpbayes.audit import audit
from skdpbayes.audit import checks as _audit_checks
from skdpbayes.audit import runs as _audit_runs
from skdpbayes.displays import AuditDisplay
from skdpbayes.privacy import PrivacyLedger, calibrate_noise
from skdpbayes.privacy.accounting import step_size

NORM, N = (
    0.1,
    40,
)  # rows so short that logits, and with them the lengths of contributions, hardly move
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
X[0] = 1  # the direction in which the statistics of `vips` are longest
X *= NORM / np.linalg.norm(X, axis=1, keepdims=True)
Y = np.arange(N) % 2


def logistic(solver, epsilon=8.0, close=False):
    """A fit in which one row's contribution is about as long as the clipping norm in every round.

    Chains of `sgld` move so far in a step that it becomes shorter; less so (`close`) if steps are
    many.
    """
    clip = 0.049 if solver == "sgld" else 0.04
    own = {"clipping_norm": clip, "sampling_rate": 0.3, "n_steps": 20}
    if solver == "dpvi":
        own["guide"] = "mean_field"
    if solver == "sgld":  # steps as large as epsilon allows, and a prior in which they make sense
        own |= {"sampling_rate": 0.1, "n_steps": 200 if close else 60}
        noise = calibrate_noise(
            0.99 * epsilon, 1e-5, own["sampling_rate"], own["n_steps"]
        ).noise_multiplier
        step = 0.9999 * step_size(noise, own["sampling_rate"], clip)
        own |= {"learning_rate": step, "prior_scale": 0.8 * step**0.5}
    own = {} if solver == "vips" else own
    return DPBayesianLogisticRegression(
        epsilon, classes=[0, 1], data_norm=NORM, fit_intercept=False, solver=solver, **own
    )


SOLVERS = solvers_of(DPBayesianLogisticRegression)


@pytest.fixture
def no_compiled_audits(no_compiled_programs):
    """As `no_compiled_programs`, for the audit's own."""
    programs = (_audit_runs._some_steps, _audit_checks._longest, _audit_checks._precisions)
    for program in programs:
        program.clear_cache()
    yield
    for program in programs:
        program.clear_cache()


def poisson(x, y=None):
    """A NumPyro model."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


OWN = {"epsilon": 4.0, "sampling_rate": 0.3, "n_steps": 20}
PROGRAMS = {
    "NumPyro": DPNumPyroModel(poisson, "mean_field", **OWN),
    "own guide": DPNumPyroModel(poisson, AutoNormal(poisson), **OWN),
    "hierarchical": DPHierarchicalLogisticRegression(2, classes=[0, 1], solver="na-dpvi", **OWN),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_users_pass(name, compiled_as_users_do):
    rows = X if name != "hierarchical" else np.column_stack([X, Y])
    report = audit(PROGRAMS[name], rows, Y, n_trials=100)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("model", "solver"),
    [pytest.param("logistic", s, marks=pytest.mark.slow) for s in SOLVERS]
    + [("exponential", "vips")],
)
def test_every_solver_passes(model, solver, compiled_quickly):
    if model == "logistic":
        report = audit(logistic(solver), X, Y, n_trials=300)
    else:
        rates = np.random.default_rng(0).exponential(0.5, (20, 1))
        report = audit(DPGammaExponential(8.0, solver=solver), rates, n_trials=300)
    assert report.passed, str(report)
    assert [check.name for check in report.checks] == [
        "conditions",
        "norm",
        "inclusion",
        "noise",
        "count",
        "replay",
    ]
    assert report.adjacency == "zero_out" and 0.2 * report.epsilon < report.epsilon_lower_bound


@pytest.mark.slow
@pytest.mark.parametrize("case", every_fit())
def test_every_estimator_passes(case, compiled_as_users_do):
    report = audit(case.make(), *case.data(40), n_trials=40)
    assert report.passed, str(report)


def test_dates_of_its_own_fits_do_not_fail_an_audit(monkeypatch, compiled_quickly):
    days = iter(range(1, 100))
    monkeypatch.setattr(
        "skdpbayes.privacy.report.now", lambda: f"2026-01-01T00:00:{next(days):02}+00:00"
    )
    rates = np.random.default_rng(0).exponential(0.5, (20, 1))
    assert audit(DPGammaExponential(8.0, solver="vips"), rates, n_trials=0).passed


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_lower_bound_comes_close_to_the_claim(solver, compiled_quickly):
    report = audit(logistic(solver, close=True), X, Y, n_trials=5000)
    print(report)
    assert report.passed
    assert 0.7 < report.epsilon_lower_bound / report.epsilon <= 1


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_at_epsilon_one(solver, compiled_quickly):
    """Where so few trials say little; the checks do not depend on epsilon."""
    report = audit(logistic(solver, epsilon=1.0), X, Y, n_trials=5000)
    print(report)
    assert report.passed


WRONG = {
    "noise": mutants.noise_times_070,
    "noise of one value": mutants.coordinate_without_noise,
    "norm": mutants.sensitivity_times_2,
    "inclusion": lambda patch: mutants.no_subsampling(patch, N),
}


def excessive(solver, check, n_trials, patch):
    WRONG[check](patch)
    report = audit(logistic(solver), X, Y, n_trials=n_trials)
    print(report)
    assert not report.passed and "FAILED" in str(report)
    assert check.split()[0] in {found.name for found in report.checks if not found.passed}
    return report.epsilon_lower_bound / report.epsilon


@pytest.mark.parametrize(
    "check", ["noise", *(pytest.param(name, marks=pytest.mark.slow) for name in list(WRONG)[1:])]
)
def test_mutants_fail_the_check_that_is_meant_for_them(check, monkeypatch, no_compiled_audits):
    assert excessive("dpvi", check, 600, monkeypatch) > (
        0.8 if check.startswith("noise") else 1
    )  # few fits


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("check", WRONG)
def test_mutants_give_away_more_than_is_claimed(check, solver, monkeypatch, no_compiled_audits):
    if (check, solver) == ("inclusion", "vips"):
        pytest.skip("vips takes all records")
    assert excessive(solver, check, 5000, monkeypatch) > (
        1 if check in ("noise", "norm", "inclusion") else 0
    )


def test_an_attribute_that_does_not_follow_from_releases_is_named(monkeypatch, compiled_quickly):
    mutants.changed_fit(monkeypatch, lambda self, X, y: setattr(self, "loss_", float(np.nansum(X))))
    replay = audit(logistic("dpvi"), X, Y, n_trials=0).checks[-1]
    assert not replay.passed and "loss_" in replay.detail


def test_other_models_pass(compiled_quickly):
    for estimator, table in (
        (DPGammaExponential(2.0), np.full((20, 1), 10.0)),
        (DPGammaExponential(2.0, numerics="fast", adjacency="replace_one"), np.full((20, 1), 10.0)),
    ):
        report = audit(estimator, table, n_trials=0)
        assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["vips", "dpvi", "na-dpvi"])
def test_a_mixture_passes(solver, compiled_as_users_do):
    model = DPGaussianMixture(epsilon=2.0, n_components=2, bounds=(-3, 3), solver=solver)
    report = audit(model, 30 * X, n_trials=0)
    assert report.passed, str(report)


@pytest.mark.slow
def test_a_topic_model_passes(compiled_quickly):
    counts = np.random.default_rng(1).poisson(2.0, (20, 6)).astype(float)
    report = audit(DPLatentDirichletAllocation(epsilon=2.0, n_components=2), counts, n_trials=100)
    assert report.passed, str(report)


def test_an_audit_leaves_estimators_and_budgets_alone():
    with PrivacyLedger(epsilon=1.0, delta=1e-5) as ledger:
        model = DPGammaExponential(4.0)
        report = audit(model, np.full((20, 1), 10.0), n_trials=40)
        assert not ledger.entries and not hasattr(model, "posterior_")
    assert report == audit(model, np.full((20, 1), 10.0), n_trials=40)
    assert report.passed and repr(report).startswith("AuditReport(")


def test_what_voids_the_guarantee_fails_and_no_trials_are_said_to_show_nothing():
    voided = DPBayesianLogisticRegression(data_norm=NORM, guide="mean_field", n_steps=10)
    report = audit(voided, X, Y, n_trials=0)
    assert not report.passed and "classes=None" in report.checks[0].detail
    assert "epsilon    ?    at least 0" in str(report) and "too few to show anything" in str(report)
    with pytest.raises(ValueError, match="one private estimator"):
        audit(make_pipeline(DPGammaExponential()), X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"record": 20}, "record must be a row of X"),
        ({"n_trials": 7}, "n_trials must be 0 or at least 40"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_what_cannot_be_audited_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        audit(DPGammaExponential(1.0), np.ones((20, 1)), **parameters)
    with pytest.raises(ValueError, match="nothing to audit"):
        audit(DPGammaExponential(np.inf), np.ones((20, 1)))


def test_the_bound_of_a_gaussian_mechanism_is_below_its_epsilon_nineteen_times_in_twenty():
    """And not far below it, with the very law of the statistic."""
    claim = DPGammaExponential(4.0).fit(np.full((20, 1), 10.0)).privacy_spent_
    mu = 1 / claim.steps[0].noise_multiplier
    rng, found = np.random.default_rng(0), []
    for _ in range(40):
        sides = tuple(rng.normal(there * mu, 1, 2000) for there in (0, 1))
        found.append(_audit_attack.epsilon_lower_bound(claim, sides, 0.95)[2] / claim.epsilon)
    assert np.mean(np.array(found) > 1) < 0.11 and np.median(found) > 0.78


def test_limits_are_those_of_clopper_and_pearson():
    """Both hold together with the confidence asked for: each with half of what is left."""
    sides = np.r_[np.zeros(90), np.ones(10)], np.r_[np.zeros(30), np.ones(70)]
    high, low = _audit_attack._limits(sides, 0.5, 0.95)
    assert stats.binom.cdf(10, 100, high) == pytest.approx(0.025)
    assert stats.binom.sf(69, 100, low) == pytest.approx(0.025)


def test_the_threshold_is_not_judged_by_the_trials_that_chose_it():
    """Else an attack on nothing would show something, more often than one time in twenty."""
    claim = DPGammaExponential(0.02).fit(np.full((20, 1), 10.0)).privacy_spent_
    rng, found = np.random.default_rng(1), []
    for _ in range(120):
        found.append(_audit_attack.epsilon_lower_bound(claim, rng.normal(size=(2, 60)), 0.5)[2])
    assert np.mean(np.array(found) > 0) < 0.35


def test_the_display_draws_the_attack_and_the_claim():
    pytest.importorskip("matplotlib").use("Agg")
    table = np.full((20, 1), 10.0)
    display = AuditDisplay.from_estimator(DPGammaExponential(4.0), table, n_trials=200)
    attack, claim = (line.get_ydata() for line in display.lines_)
    assert attack.max() == 1 and (np.diff(claim) >= 0).all() and np.mean(attack > claim + 0.1) < 0.1
    assert display.ax_.figure is display.figure_
    with pytest.raises(ValueError, match="no trials"):
        AuditDisplay(audit(DPGammaExponential(4.0), table, n_trials=0)).plot()
