"""Other private methods of benchmarks: solutions without noise, sensitivities, noise, verdicts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm as normal
from sklearn.linear_model import LinearRegression, LogisticRegression

from benchmarks import comparison, private_comparison, private_peers
from benchmarks.private_comparison import Lead
from benchmarks.private_peers import PEERS, noise_of, unit_rows
from benchmarks.problems import _gaussian

EPSILON, DELTA = 0.5, 1e-2


def table(seed=0, n=400, d=3):
    """Rows of length 1 at most whose last column is constant, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = (X @ np.linspace(1, -1, d) + 0.3 + rng.logistic(size=n) > 0).astype(int)
    return unit_rows(X, 2.0), y


def factorial():
    """Every row of signs as often as every other: whitened rows have equal lengths."""
    X = np.array(list(itertools.product([-1.0, 1.0], repeat=3)) * 50)
    rng = np.random.default_rng(0)
    y = (X @ [1.0, 0.5, -0.5] + 0.3 + rng.logistic(size=len(X)) > 0).astype(int)
    return unit_rows(X, 2.0), y


SETTINGS = {
    "objective perturbation": {"share": 0.2},
    "output perturbation": {"ridge": 1e-9},
    "DP-Newton": {"rounds": 400, "gradient_share": 0.5, "floor_scale": 1.0, "upper": 0},
    "whitened gradient descent": {"rounds": 400, "step": 4.0, "clip": 1.0},
    "tuned gradient descent": {"rounds": 3000, "step": 16.0, "clip": 1.0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_without_noise_logistic_peers_find_the_maximum_of_the_likelihood(name):
    Z, y = factorial()
    reference = LogisticRegression(C=math.inf, fit_intercept=False, tol=1e-10).fit(Z, y)
    w = PEERS[name].fit(Z, y, math.inf, DELTA, np.random.default_rng(0), **SETTINGS[name])
    np.testing.assert_allclose(w, reference.coef_[0], rtol=2e-4)


def test_quadratic_upper_bound_leads_newton_to_the_same_point():
    Z, y = table()
    own = {**SETTINGS["DP-Newton"], "upper": 1}
    w = private_peers.newton(Z, y, math.inf, DELTA, np.random.default_rng(0), **own)
    np.testing.assert_allclose(w, private_peers.minimum(Z, y, 0.0, np.zeros(4)), rtol=1e-6)


def test_without_noise_adassp_is_least_squares():
    Z, y = table()
    for targets, fit in ((2.0 * y - 1, private_peers.adassp), (y, private_peers.adassp_labels)):
        w = fit(Z, targets, math.inf, DELTA, np.random.default_rng(0))
        expected = LinearRegression(fit_intercept=False).fit(Z, 2.0 * y - 1).coef_
        scale = 2.0 if fit is private_peers.adassp_labels else 1.0
        np.testing.assert_allclose(w, scale * expected, rtol=1e-9)


def test_minimum_is_stationary():
    Z, y = table()
    b = np.array([3.0, -2.0, 1.0, 0.5])
    w = private_peers.minimum(Z, y, 0.7, b)
    gradient = Z.T @ (1 / (1 + np.exp(-Z @ w)) - y) + 0.7 * w + b
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_sensitivities_hold_on_neighbouring_tables(seed):
    """A record that is replaced by one that contributes nothing."""
    Z, y = table(seed, n=12)
    rng = np.random.default_rng(seed)
    Z[0] = rng.standard_normal(4)
    Z[0] /= np.linalg.norm(Z[0])  # as long as may be
    w = 3 * rng.standard_normal(4)

    ridge = 10 ** rng.uniform(-1, 1)
    minima = [private_peers.minimum(Z[k:], y[k:], ridge, np.zeros(4)) for k in (0, 1)]
    assert np.linalg.norm(np.subtract(*minima)) <= (1 + 1e-6) / ridge

    for clip in (0.2, 1.0):
        sums = [private_peers.clipped_scores(Z[k:], y[k:], w, clip) for k in (0, 1)]
        assert np.linalg.norm(np.subtract(*sums)) <= clip + 1e-12

    floor, gradient = 10 ** rng.uniform(-1, 1), rng.standard_normal(4)
    weight = 0.25 * rng.uniform(size=12)
    hessians = [(Z[k:].T * weight[k:]) @ Z[k:] + floor * np.eye(4) for k in (0, 1)]
    directions = [np.linalg.solve(hessian, gradient) for hessian in hessians]
    bound = np.linalg.norm(gradient) * private_peers.direction_sensitivity(floor)
    assert np.linalg.norm(np.subtract(*directions)) <= bound + 1e-12

    moments = [Z[k:].T @ Z[k:] for k in (0, 1)]
    assert np.linalg.norm(np.subtract(*moments)) <= 1 + 1e-12
    assert abs(np.subtract(*(np.linalg.eigvalsh(m)[0] for m in moments))) <= 1 + 1e-12
    targets = 2.0 * y - 1
    assert np.linalg.norm(np.subtract(*(Z[k:].T @ targets[k:] for k in (0, 1)))) <= 1 + 1e-12


def test_bound_of_newton_directions_is_attained():
    floor = 0.3
    change = 1 / floor - 1 / (floor + 0.25)
    assert private_peers.direction_sensitivity(floor) == pytest.approx(change)


def test_rows_have_length_one_at_most_whatever_they_hold():
    Z = unit_rows(np.array([[1e9, 3.0], [3.0, 4.0], [1.0, 1.0]]), 5.0)
    np.testing.assert_allclose(np.linalg.norm(Z, axis=1), [1.0, 1.0, (3 / 26) ** 0.5])


def test_noise_spends_the_budget_and_no_more():
    mu = 1 / noise_of(EPSILON, DELTA)
    spent = normal.cdf(mu / 2 - EPSILON / mu) - math.exp(EPSILON) * normal.cdf(
        -mu / 2 - EPSILON / mu
    )
    assert DELTA * (1 - 1e-4) < spent <= DELTA * (1 + 1e-9)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("share", [0.1, 0.6])
@pytest.mark.parametrize("others", [0, 3])
def test_objective_perturbation_keeps_its_promise(label, share, others):
    """The exact delta in one dimension, where the density of the minimum is known."""
    z = np.append(np.linspace(-1, 0.8, others), 1.0)
    y = np.append(np.arange(others) % 2, label)
    ridge = private_peers.objective_ridge(EPSILON, share)
    sd = noise_of((1 - share) * EPSILON, DELTA)
    w = np.linspace(-400, 400, 400_001) / ridge**0.5 / 4

    def density(n, sd):
        p = 1 / (1 + np.exp(-np.outer(w, z[:n])))
        b = -(p - y[:n]) @ z[:n] - ridge * w
        return normal.pdf(b, scale=sd) * ((p * (1 - p)) @ z[:n] ** 2 + ridge)

    def spent(sd):
        pair = density(others + 1, sd), density(others, sd)
        assert [np.trapezoid(one, w) for one in pair] == pytest.approx([1, 1], abs=1e-6)
        return max(
            np.trapezoid(np.maximum(one - math.exp(EPSILON) * other, 0), w)
            for one, other in (pair, pair[::-1])
        )

    assert spent(sd) <= DELTA < spent(sd / 2)


def test_objective_ridge_bounds_the_ratio_of_determinants():
    ridge = private_peers.objective_ridge(EPSILON, 0.3)
    assert math.log1p(0.25 / ridge) == pytest.approx(0.3 * EPSILON)


def draws(fit, n=3000):
    return np.array([fit(np.random.default_rng(seed)) for seed in range(n)])


def test_noise_of_output_perturbation_has_its_scale():
    Z, y = table(n=5, d=1)
    found = draws(lambda rng: private_peers.output_perturbation(Z, y, EPSILON, DELTA, rng, 2.0))
    np.testing.assert_allclose(found.std(axis=0), noise_of(EPSILON, DELTA) / 2, rtol=0.06)


def test_noise_of_gradient_descent_has_its_scale():
    Z, y = table(n=5, d=1)
    setting = {"rounds": 4, "step": 1e-3, "clip": 0.3}  # no score moves with steps that short
    found = draws(
        lambda rng: private_peers.gradient_descent(Z, y, EPSILON, DELTA, rng, **setting), 1000
    )
    each = 0.3 * noise_of(EPSILON, DELTA) * 2.0  # of a round; its budget is a quarter
    np.testing.assert_allclose(found.std(axis=0), 2.0 * each * 1e-3 / 5, rtol=0.1)


def test_noise_of_whitening_has_its_scale():
    Z = np.zeros((10, 3))
    noise = 2.0
    released = []
    for seed in range(2000):
        drawn = noise * np.random.default_rng(seed).standard_normal((3, 3))
        white = private_peers.whitener(Z, noise, np.random.default_rng(seed))
        floor = noise * math.sqrt(6)
        values, vectors = np.linalg.eigh((drawn + drawn.T) / 2)
        root = (vectors * np.sqrt(10 / np.maximum(values, floor))) @ vectors.T
        np.testing.assert_allclose(white.matrix, root, atol=1e-9)
        released.append((drawn + drawn.T) / 2)
    spread = np.std(released, axis=0)
    np.testing.assert_allclose(np.diag(spread), noise, rtol=0.06)
    np.testing.assert_allclose(spread[0, 1:], noise / math.sqrt(2), rtol=0.06)


def test_newton_spends_the_whole_budget():
    assert sum(private_peers.newton_shares(0.4, 0.1)) == pytest.approx(1)


def test_adassp_noise_has_its_scale():
    """Without rows the products are noise, and the ridge is that of no curvature."""
    Z, targets = np.zeros((10, 2)), np.zeros(10)
    noise = noise_of(EPSILON, DELTA) * math.sqrt(3)
    ridge = noise * math.sqrt(2 * math.log(8 / 0.05))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        w = private_peers.adassp(Z, targets, EPSILON, DELTA, np.random.default_rng(seed))
        least = max(noise * (rng.standard_normal() - math.sqrt(math.log(6 / DELTA))), 0)
        upper = np.triu(noise * rng.standard_normal((2, 2)))
        products = upper + np.triu(upper, 1).T + (ridge - least) * np.eye(2)
        np.testing.assert_allclose(products @ w, noise * rng.standard_normal(2))


def test_tuning_reads_no_row_of_the_task_and_takes_the_best_setting(monkeypatch):
    asked = []

    def fit(Z, y, epsilon, delta, rng, scale):
        asked.append((Z.shape, scale))
        w = private_peers.minimum(Z, y, 1.0, np.zeros(Z.shape[1]))
        return scale * w

    peer = private_peers.Peer(fit, ({"scale": 0.0}, {"scale": 1.0}, {"scale": -1.0}))
    monkeypatch.setitem(PEERS, "scaled", peer)
    private_peers.tuned.cache_clear()
    kind = private_peers.Kind(_gaussian)
    assert private_peers.tuned("scaled", kind, 4000, 3, 2.0, 1.0, 1e-5) == {"scale": 1.0}
    assert len(asked) == 15 and {shape for shape, _ in asked} == {(4000, 4)}
    private_peers.tuned.cache_clear()


def test_leads_are_paired_by_seed():
    ours, theirs = (0.90, 0.80, 0.70), (0.88, 0.79, 0.69)
    lead = Lead("t", 1.0, "p", "auc", ours, theirs)
    assert lead.mean == pytest.approx(0.04 / 3)
    assert lead.error == pytest.approx(np.std([0.02, 0.01, 0.01], ddof=1) / 3**0.5)
    assert lead.ahead == "yes"
    assert Lead("t", 1.0, "p", "log_loss", ours, theirs).ahead == "NO"
    assert Lead("t", 1.0, "p", "auc", theirs, ours).ahead == "NO"
    assert Lead("t", 1.0, "p", "auc", (0.9, 0.7), (0.8, 0.8)).ahead == "level"


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
@pytest.mark.parametrize(
    ("theirs", "mark"), [((0.5, 0.52), "ahead"), ((0.61, 0.79), "level"), ((0.9, 0.92), "BEHIND")]
)
def test_lines_of_the_table_of_peers_agree_with_the_verdicts(metric, theirs, mark):
    ours = (0.7, 0.71)
    if metric == "log_loss" and mark != "level":
        ours, theirs = theirs, ours
    lead = Lead("adult", 0.1, "p", metric, ours, theirs)
    line = comparison.line_of(lead)
    assert line.mark == mark
    assert {"yes": "ahead", "level": "level", "NO": "BEHIND"}[lead.ahead] == mark
    text = private_comparison.tables([lead])
    assert text.splitlines()[2].split()[-1] == lead.ahead
    assert f"1 {lead.ahead}" in text.splitlines()[-1]


def test_every_line_says_its_neighbours():
    assert all(f"{name} " in private_comparison.notes() for name in PEERS)
    assert set(private_comparison.KINDS) <= set(private_comparison.utility.TASKS)


class Scripted:
    """Standard normal draws that are all `value`."""

    def __init__(self, value):
        self.value = value

    def standard_normal(self, size=None):
        return self.value if size is None else np.full(size, self.value)


def test_a_round_of_newton_adds_the_noise_of_its_shares():
    Z, y = table(n=30)
    noise, scale = noise_of(EPSILON, DELTA), 0.7
    w = private_peers.newton(
        Z, y, EPSILON, DELTA, Scripted(1.0), rounds=1, gradient_share=0.4, floor_scale=scale,
        upper=0, trace_share=0.25,
    )  # fmt: skip
    gradient = Z.T @ (0.5 - y) + noise / 0.4**0.5
    trace = np.sum(Z**2) / 4 + 0.25 * noise / 0.15**0.5
    floor = max((2 * scale * trace * noise**2 / 0.45) ** (1 / 3), 1.0)
    direction = np.linalg.solve(Z.T @ Z / 4 + floor * np.eye(4), gradient)
    change = np.linalg.norm(gradient) * (1 / floor - 1 / (floor + 0.25))
    np.testing.assert_allclose(w, -direction + noise / 0.45**0.5 * change)


def test_whitened_descent_spends_a_fifth_on_whitening_and_the_rest_on_rounds(monkeypatch):
    Z, y = table(n=30)
    found = []
    white = private_peers.Whitener(np.eye(4), 0.5)
    monkeypatch.setattr(
        private_peers, "whitener", lambda Z, noise, rng: found.append(1 / noise**2) or white
    )

    def descend(U, y, rng, rounds, step, clip, sd):
        assert clip == 0.15 and np.linalg.norm(U, axis=1).max() <= 0.5 + 1e-12
        found.append(rounds * (clip / sd) ** 2)
        return np.zeros(4)

    monkeypatch.setattr(private_peers, "descend", descend)
    private_peers.whitened_descent(Z, y, EPSILON, DELTA, None, step=1.0, clip=0.3)
    np.testing.assert_allclose(np.array(found) * noise_of(EPSILON, DELTA) ** 2, [0.2, 0.8])


def test_the_table_of_peers_has_the_private_part(monkeypatch, capsys):
    asked = {}

    def measure(**given):
        asked.update(given)
        return [Lead("adult", 0.1, "a peer", "auc", (0.9, 0.8), (0.8, 0.7))]

    monkeypatch.setattr(private_comparison, "measure", measure)
    run = comparison.Run(quick=True, seeds=2, python=None, solver="vips")
    (line,) = comparison.PARTS["private"][0](run)
    assert asked == {"seeds": 2, "solver": "vips"}
    assert line.cells()[:4] == ["adult, epsilon 0.1, auc", "0.8500", "0.7500", "a peer"]
    assert "1 yes, 0 level, 0 NO" in capsys.readouterr().out


def test_tasks_without_data_are_named_and_left_out(monkeypatch, capsys):
    def missing(task, epsilons, seeds, solver):
        raise FileNotFoundError("no table here")

    monkeypatch.setattr(private_comparison, "classification", missing)
    assert private_comparison.measure(("adult",), seeds=1, linear=False) == []
    assert "SKIPPED: adult: no table here" in capsys.readouterr().out


def test_a_task_gives_a_lead_for_each_peer_and_metric_and_is_logged(monkeypatch):
    problems = {"task": private_comparison.utility.Task(small_problem, ())}
    record = {
        "task": "task", "epsilon": 1.0,
        "auc": [0.5, 0.5], "accuracy": [0.5, 0.5], "log_loss": [0.7, 0.7],
    }  # fmt: skip
    logged = []
    monkeypatch.setattr(private_comparison.utility, "TASKS", problems)
    monkeypatch.setattr(private_comparison.utility, "run", lambda *given: [record])
    monkeypatch.setattr(private_comparison._log, "append", lambda *given: logged.append(given))
    monkeypatch.setattr(private_comparison, "tuned", lambda name, *given: PEERS[name].settings[-1])
    monkeypatch.setitem(private_comparison.KINDS, "task", private_peers.Kind(_gaussian))
    leads = private_comparison.classification("task", (1.0,), 2, "vips")
    assert [lead.peer for lead in leads] == [name for name in PEERS for _ in range(3)]
    assert all(len(lead.theirs) == 2 and np.isfinite(lead.theirs).all() for lead in leads)
    best = max((np.mean(x.theirs), x.peer) for x in leads if x.metric == "auc")
    assert best[0] > 0.8
    assert [(name, kept["solver"]) for name, kept in logged] == [("utility", "vips")]


def small_problem(seed):
    return private_peers.simulated(private_peers.Kind(_gaussian), 3000, 3, 2.0, seed)
