"""What bench-peers makes of figures: marks, tables, peers that cannot run; and that asv's benchmarks run."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _peers, comparison, utility
from benchmarks.comparison import Line
from benchmarks.problems import Problem

ROOT = Path(comparison.__file__).parents[1]


def a_run(python=None):
    return comparison.Run(quick=True, seeds=2, python=python or (lambda name: Path(sys.executable)))


@pytest.mark.parametrize(
    ("ours", "theirs", "score", "mark", "ratio"),
    [
        (1.0, 2.0, False, "ahead", 2.0),
        (2.0, 1.0, False, "BEHIND", 0.5),
        (1.04, 1.0, False, "level", 1 / 1.04),
        (0.9, 0.8, True, "ahead", 2.0),
        (0.8, 0.9, True, "BEHIND", 0.5),
        (0.9, 0.91, True, "level", 0.9),
        (None, 1.0, False, "", None),
        (1.0, None, True, "", None),
    ],
)
def test_marks_say_who_is_ahead(ours, theirs, score, mark, ratio):
    line = Line("speed", "x", ours, theirs, "peer", score=score)
    assert line.mark == mark
    assert line.ratio == (None if ratio is None else pytest.approx(ratio))


@pytest.mark.parametrize(
    ("ours", "target", "score", "met"),
    [
        (1.0, 2.0, False, "ahead"), (2.001, 2.0, False, "BEHIND"), (0.0, 0.0, False, "level"),
        (0.9, 0.89, True, "ahead"), (0.88, 0.89, True, "BEHIND"), (0.9, None, True, ""),
    ],
)  # fmt: skip
def test_targets_have_no_slack(ours, target, score, met):
    assert Line("speed", "x", ours, target=target, score=score).met == met


def test_noise_between_seeds_is_level():
    assert comparison.score_line("x", [0.9, 0.7, 0.8], [0.7, 0.8, 0.85], "peer").mark == "level"
    assert (
        comparison.score_line("x", [0.90, 0.80, 0.70], [0.85, 0.75, 0.65], "peer").mark == "ahead"
    )  # on every seed
    assert comparison.score_line("x", [0.9, 0.7, 0.8], [], "not run").mark == ""


def test_table_shows_what_is_behind(tmp_path):
    lines = [
        Line("speed", "fast", 10.0, 200.0, "slow library", target=11.0),
        Line("speed", "slow", 3.0, 1.0, "NumPyro", target=1.3),
        Line("utility", "auc", 0.91, 0.89, "diffprivlib", score=True, level=0.002),
        Line("speed", "alone", 4.0, None, "not run"),
        Line("speed", "secure", 3.0, 2.0, "ours, fast", target=4.0),
    ]
    text = comparison.table(lines)
    rows = [line.split() for line in text.splitlines()]
    assert rows[2] == ["fast", "10", "200", "slow", "library", "20.00", "ahead", "<=11", "ahead"]
    assert rows[3] == ["slow", "3", "1", "NumPyro", "0.33", "BEHIND", "<=1.3", "BEHIND"]
    assert rows[5] == ["alone", "4", "not", "run"]
    assert rows[6] == ["secure", "3", "2", "ours,", "fast", "0.67", "<=4", "ahead"]
    assert (
        "against peers: 2 ahead, 0 level, 1 BEHIND\nagainst targets: 2 ahead, 0 level, 1 BEHIND"
        in text
    )
    logged = json.loads(json.dumps([comparison.loggable(line) for line in lines], allow_nan=False))
    assert [line["mark"] for line in logged] == ["ahead", "BEHIND", "ahead", "", ""]
    pytest.importorskip("matplotlib")
    assert comparison.draw(lines, tmp_path / "results" / "peers.png").stat().st_size > 5000


@pytest.fixture
def left_out(monkeypatch):
    messages: list[str] = []
    monkeypatch.setattr(comparison, "_skipped", messages)
    return messages


def missing(name):
    raise _peers.Unavailable("no such environment")


def two_columns(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(3000, 2))
    y = (X @ [6.0, -3.0] + rng.logistic(size=3000) > 0).astype(int)
    return Problem("two columns", X[:2000], y[:2000], X[2000:], y[2000:], 2**0.5)


def test_missing_peers_are_named_and_the_rest_goes_on(monkeypatch, left_out, capsys):
    records = [
        {"task": "digits-0", "epsilon": e, "accuracy": [0.8, 0.9], "auc": [0.7, 0.8]}
        for e in (0.1, 0.3, 1, 3)
    ]
    monkeypatch.setattr(comparison.utility, "run", lambda task, epsilons, seeds: records)
    monkeypatch.setattr(
        comparison, "problems_of", lambda task, seeds: [two_columns(seed) for seed in range(seeds)]
    )
    logged = []
    monkeypatch.setattr(
        comparison._log, "append", lambda name, record: logged.append((name, record))
    )
    lines = comparison.classification(a_run(missing), ("digits-0",))
    assert len(lines) == 16 and sum(line.theirs is None for line in lines) == 8
    assert (
        lines[0].peer == "not run"
        and lines[0].target == 0.902
        and lines[0].ours == pytest.approx(0.85)
    )
    assert left_out == ["SKIPPED: diffprivlib on digits-0: no such environment"]
    assert left_out[0] in capsys.readouterr().err
    assert [name for name, _ in logged] == ["utility"]


def test_reference_is_skipped_unless_its_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv(comparison.REFERENCE, raising=False)
    with pytest.raises(_peers.Unavailable, match=comparison.REFERENCE):
        comparison.reference_folder()
    monkeypatch.setenv(comparison.REFERENCE, str(tmp_path))
    with pytest.raises(_peers.Unavailable, match="no noise_aware_dpsgd"):
        comparison.reference_folder()
    (tmp_path / "noise_aware_dpsgd.py").touch()
    assert comparison.reference_folder() == tmp_path.resolve()


def test_environment_that_cannot_be_made_is_a_peer_that_is_not_run(monkeypatch):
    with pytest.raises(_peers.Unavailable, match=r"needs Python 3\.11"):
        _peers.environment("d3p", "python-that-is-not-there")
    monkeypatch.setattr(
        _peers.subprocess, "run", lambda *given, **how: subprocess.CompletedProcess(given, 3)
    )
    with pytest.raises(_peers.Unavailable, match="status 3"):
        _peers.environment("d3p", sys.executable)


def test_last_object_of_the_output_counts():
    assert comparison.last_json('Downloading\n{"x": 1}\n{"x": 2}\nbye\n') == {"x": 2}
    with pytest.raises(_peers.Unavailable):
        comparison.last_json("nothing\n")
    with pytest.raises(_peers.Unavailable, match="status 7"):
        comparison.printed(sys.executable, "-c", "raise SystemExit(7)")


def test_worker_takes_turns_and_reports_its_end(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if 'stop' in request: sys.exit(4)\n"
        "    print('noise')\n"
        "    print(json.dumps({'twice': 2 * request['x'], 'data': sys.argv[1][-4:]}), flush=True)\n"
    )
    with _peers.Worker([sys.executable, str(script)], {"x": np.ones(2)}) as worker:
        assert worker.ask(x=3) == {"twice": 6, "data": ".npz"}
        assert worker.ask(x=4)["twice"] == 8
        with pytest.raises(_peers.Unavailable, match=r"peer\.py ended with status 4"):
            worker.ask(stop=True)


def test_noisy_gradient_descent_learns_with_budget_and_not_without():
    problem = two_columns(0)
    rich = comparison.noisy_gradient_descent(problem, 100.0, 0)
    poor = [comparison.noisy_gradient_descent(problem, 1e-3, seed)["auc"] for seed in range(8)]
    assert rich["auc"] > 0.9 and rich["accuracy"] > 0.8
    assert np.mean(poor) < rich["auc"] - 0.1


def test_best_c_is_of_the_mean_over_seeds():
    found = np.zeros((2, 1, 3, 2))
    found[:, 0, :, 0] = [[0.9, 0.5, 0.6], [0.1, 0.6, 0.7]]
    found[:, 0, :, 1] = [[0.2, 0.8, 0.1], [0.2, 0.9, 0.1]]
    np.testing.assert_array_equal(comparison.best(found, 0, 0), [0.6, 0.7])
    np.testing.assert_array_equal(comparison.best(found, 0, 1), [0.8, 0.9])


def test_targets_are_those_of_the_frozen_tables():
    assert comparison.target_of("adult", 0.3) == {"auc": 0.889}
    assert comparison.target_of("breast-cancer", 0.3) == {"accuracy": 0.834, "auc": 0.913}
    assert all(comparison.target_of(task, 1.0) for task in comparison.TASKS)
    assert set(comparison.TASKS) <= set(utility.TASKS)


def test_every_peer_has_a_lock_of_hashes():
    for source in (ROOT / "benchmarks" / "peers").glob("*.in"):
        pins = [
            line.split()[0]
            for line in source.read_text().splitlines()
            if "==" in line and line[0] != "#"
        ]
        lock = source.with_suffix(".lock").read_text()
        assert pins and all(f"\n{pin} " in lock for pin in pins)
        assert lock.count("--hash=sha256:") >= lock.count("==")
        assert source.stem in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_asv_benchmarks_run(monkeypatch):
    module = runpy.run_path(str(ROOT / "asv_bench" / "benchmarks" / "fit.py"))
    monkeypatch.setattr(module["Step"], "many", 600)
    ran = 0
    for kind in [
        value
        for value in module.values()
        if isinstance(value, type) and value.__module__ == "<run_path>"
    ]:
        for name in [
            name for name in vars(kind) if name.startswith(("time_", "track_", "peakmem_"))
        ]:
            for parameter in getattr(kind, "params", ([None],))[0]:
                own = kind()
                own.seen = []
                arguments = (
                    [parameter, *(p[0] for p in getattr(kind, "params", ())[1:])]
                    if parameter
                    else []
                )
                getattr(own, "setup", lambda *a: None)(*arguments)
                found = getattr(own, name)(*arguments)
                assert found is None or np.isfinite(found)
                if name == "track_second_fit":
                    assert found == 0
                ran += 1
    assert ran == 2 * 4 + 3 + 2 * 4 + 2


def answer_of(theirs, divergences=0):
    """An answer of the authors' code: a trace of two coordinates, and draws of their NUTS."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    g = 0.2 * (x - [1.0, -1.0]) + 0.3 * rng.normal(size=(500, 2))
    dx, dg = x - x.mean(axis=0), g - g.mean(axis=0)
    found = {
        "n": [500, 500], "mean_x": x.mean(axis=0), "mean_g": g.mean(axis=0),
        "sxx": (dx**2).sum(axis=0), "sxg": (dx * dg).sum(axis=0), "sgg": (dg**2).sum(axis=0),
        "noise_variance": [0.09, 0.09], "kappa": 0.1, "v_mean": [2.0, 2.0], "v_sd": [1.0, 1.0],
        "prior_mean": [0.0, 0.0], "draws": theirs, "divergences": divergences,
    }  # fmt: skip
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def own_posterior(answer):
    from benchmarks._na_dpvi_collapsed import Regression, TraceSums, exact

    x = {name: np.asarray(value, float) for name, value in answer.items()}
    sums = TraceSums(*(x[name] for name in TraceSums._fields))
    given = (x[k] for k in ("noise_variance", "kappa", "v_mean", "v_sd", "prior_mean"))
    return exact(Regression(sums, *given, subsampling=1.0))


def test_posterior_of_a_trace_is_compared_with_a_chain_that_has_converged():
    posterior = own_posterior(answer_of(np.zeros((1, 4, 2))))
    draws = posterior.sample(np.random.default_rng(1), 3000)[0][None]
    text = comparison.same_posterior(answer_of(draws))
    assert "R-hat 1.00" in text and " 0 divergences" in text and "NOT COMPARED" not in text
    assert "widths over theirs 1.0" in text or "widths over theirs 0.9" in text
    shifted = comparison.same_posterior(answer_of(draws + 3 * posterior.sd))
    assert "means by 3.0" in shifted or "means by 2.9" in shifted


def test_posterior_of_a_trace_is_not_compared_with_a_chain_that_has_not_converged():
    rng = np.random.default_rng(2)
    walk = rng.normal(size=(1, 300, 2)).cumsum(axis=1)  # every draw near the one before
    text = comparison.same_posterior(answer_of(walk, divergences=7))
    assert "7 divergences" in text and "NOT COMPARED" in text and "widths" not in text
    assert float(text.split("R-hat ")[1].split(",")[0]) > 1.1
    stuck = comparison.same_posterior(answer_of(np.zeros((1, 300, 2))))
    assert "NOT COMPARED" in stuck


STAND_INS = {
    "adult_uci_experiments": "",
    "utils": """
class DynamicAttributes:
    def to_dict(self):
        return vars(self)
def generate_data_linear_regression10d(theta, key):
    return theta, theta
""",
    "coverage_experiment": """
def set_default_args_linear_regression10d(own):
    own.trace_burn_in_percentage, own.clipping_threshold, own.sampling_rate = 0.5, 1.0, 0.1
    own.mu_gradient_scale = own.pre_transformed_covariance_gradient_scale = [1.0]
    return own
""",
    "noise_aware_dpsgd": """
from typing import NamedTuple
import jax, jax.numpy as jnp, numpy as np
from numpyro.infer import MCMC
from numpyro.infer.mcmc import MCMCKernel
class State(NamedTuple):
    z: jax.Array
    diverging: jax.Array
    rng_key: jax.Array
class Kernel(MCMCKernel):
    sample_field, default_fields = "z", ("z", "diverging")
    def init(self, rng_key, *given, **named):
        return State(jnp.zeros(2), jnp.bool_(False), rng_key)
    def sample(self, state, *given):
        key, own = jax.random.split(state.rng_key)
        z = jax.random.normal(own, (2,))
        return State(z, z[0] > 1, key)
def perform_dpsgd(own, tracker):
    tracker.phi_trace = tracker.gradient_trace = np.arange(20.0).reshape(10, 2)
    return tracker
def calculate_hessian_and_optimal_phi_priors(own, tracker):
    tracker.hessian_prior_mean = tracker.hessian_prior_std = tracker.phi_prior_mean = np.ones(2)
def perform_mcmc_sampling(own, tracker):
    sampler = MCMC(
        Kernel(), num_warmup=own.mcmc_num_warmup, num_samples=own.mcmc_num_samples,
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(0))
    tracker.optimal_phi_samples = sampler.get_samples()
    return tracker
""",
}


@pytest.mark.slow
def test_runs_of_the_authors_code_return_draws_and_divergences(tmp_path):
    for name, text in STAND_INS.items():
        (tmp_path / f"{name}.py").write_text(text)
    data = {"x": np.zeros((2, 2)), "y": np.zeros(2)}
    command = [sys.executable, str(_peers.PEERS / "na_dpvi_runs.py"), str(tmp_path)]
    with _peers.Worker(command, data) as worker:
        answer = worker.ask(what="posterior", noise=1.0, iterations=10, warmup=50, samples=60)
    draws = np.array(answer["draws"])
    assert draws.shape == (1, 60, 2) and draws.std() > 0.1
    assert answer["divergences"] == (draws[..., 0] > 1).sum() > 0
