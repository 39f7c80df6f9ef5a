"""The benchmarks' problems and programs, with scikit-learn's estimator in the place of ours."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks import (
    _log,
    _peers,
    belief_net,
    calibration,
    d3p_hierarchical,
    d3p_mixture,
    development,
    mixture,
    topics,
    utility,
)
from benchmarks.problems import _RECIPES, DEVELOPMENT_PROBLEMS, PEER_TASKS, Problem, clip_rows

SMALL = [name for name, recipe in _RECIPES.items() if recipe.n_train * recipe.d <= 10**6]


@pytest.mark.parametrize("name", [*PEER_TASKS, *SMALL])
def test_problem_is_fixed_by_its_seed(name):
    make = {**PEER_TASKS, **DEVELOPMENT_PROBLEMS}[name]
    first, again, other = make(3), make(3), make(4)
    assert first.name == name
    for part in ("X_train", "y_train", "X_test", "y_test"):
        np.testing.assert_array_equal(getattr(first, part), getattr(again, part))
    assert not np.array_equal(first.X_train, other.X_train)
    assert first.X_train.shape[0] == first.y_train.shape[0]
    assert first.X_test.shape == (len(first.y_test), first.X_train.shape[1])
    assert set(first.y_train) == set(first.y_test) == set(first.classes)


@pytest.mark.parametrize("name", SMALL)
def test_development_problem_has_the_declared_prevalence(name):
    problem = DEVELOPMENT_PROBLEMS[name](0)
    y = np.concatenate([problem.y_train, problem.y_test])
    # Five standard errors, and what the reference sample of 4000 rows adds to them.
    assert y.mean() == pytest.approx(
        _RECIPES[name].prevalence, abs=5 * (0.25 / len(y) + 0.05 / 4_000) ** 0.5
    )


@pytest.mark.parametrize("name", PEER_TASKS)
def test_peer_tasks_keep_their_norm(name):
    problem = PEER_TASKS[name](0)
    longest = max(np.linalg.norm(X, axis=1).max() for X in (problem.X_train, problem.X_test))
    assert longest <= problem.data_norm * (1 + 1e-12)


def test_clip_rows_leaves_short_rows_alone():
    X = np.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]])
    np.testing.assert_allclose(clip_rows(X, 1.0), [[0.6, 0.8], [0.0, 0.0], [0.3, 0.4]])


def test_utility_scores_logs_and_compares(monkeypatch, tmp_path, capsys):
    seen = []

    def make(epsilon, problem, seed):
        seen.append((epsilon, seed))
        return LogisticRegression(max_iter=1000)

    records = utility.run("breast-cancer", (1.0, utility.INF), 2, make)
    assert seen == [(1.0, 0), (utility.INF, 0), (1.0, 1), (utility.INF, 1)]
    peers = utility.rows_of(records[0])[1:]
    assert [row[0].strip() for row in peers] == ["diffprivlib", "noisy gradient descent"]
    ahead = np.mean(records[0]["auc"]) - 0.957
    assert peers[0][-1] == f"{ahead:+.3f}"

    monkeypatch.setattr(_log, "ROOT", tmp_path)
    path = _log.append("utility", {"records": [utility.loggable(record) for record in records]})
    line = json.loads(
        path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )
    assert [record["epsilon"] for record in line["records"]] == ["1", "inf"]
    assert line["records"][0]["accuracy"] == records[0]["accuracy"]


def two_columns(seed):
    """A thousand rows of each split with known probabilities."""
    rng = np.random.default_rng(seed)
    X = clip_rows(rng.normal(size=(2000, 2)), 3.0)
    y = (X @ [2.0, -1.0] + rng.logistic(size=2000) > 0).astype(int)
    return Problem("two columns", X[:1000], y[:1000], X[1000:], y[1000:], 3.0)


def test_calibration_tells_the_calibrated(monkeypatch, tmp_path):
    def both(problem, epsilon, seed):
        logit = problem.X_test @ [2.0, -1.0]
        return {"truth": 1 / (1 + np.exp(-logit)), "too sure": 1 / (1 + np.exp(-3 * logit))}

    monkeypatch.setattr(calibration, "PRIVATE", {"both": both})
    records = calibration.run(two_columns, (0.3,), ["both"], 3)
    truth, too_sure, not_private = records
    for bins in calibration.BINS:
        assert (
            np.mean(truth[bins])
            < 1.5 * np.mean(truth[f"{bins}, perfect"])
            < 0.5 * np.mean(too_sure[bins])
        )
        assert np.mean(not_private[bins]) < 1.5 * np.mean(not_private[f"{bins}, perfect"])
    json.dumps([truth, too_sure], allow_nan=False)
    text = calibration.report(records, with_paper=True)
    assert re.search(r"paper: NA-DPVI \(NUTS\) +0\.026 ±0\.005\n", text)
    pytest.importorskip("matplotlib")
    paths = calibration.draw(records, tmp_path / "results" / "curves")
    assert [p.name for p in paths] == ["curves.png", "curves.pdf"]
    assert all(p.stat().st_size > 5000 for p in paths)


def test_ignoring_the_noise_narrows_the_posterior_and_keeps_its_mean(compiled_quickly):
    problem = two_columns(0)
    fitted = calibration._fitted(calibration._WithNaive, problem, 0.5, 0, solver="dpvi")
    np.testing.assert_allclose(fitted.naive_.mean, fitted.posterior_.mean, rtol=1e-6)
    assert (fitted.naive_.std < 0.9 * fitted.posterior_.std).all()
    aware, naive = (
        model.posterior_samples_["coef"].std(axis=0) for model in (fitted, fitted.naive(0))
    )
    assert naive.shape == aware.shape and (naive < aware).all()


def test_the_published_recipe_predicts(monkeypatch, compiled_quickly):
    from benchmarks import _na_dpvi_recipe as recipe

    monkeypatch.setattr(recipe, "N_STEPS", 300)
    problem = two_columns(0)
    lines = calibration.published(problem, 10.0, 0)
    assert [name.removeprefix("published, ") for name in lines] == [
        "exact",
        "Laplace",
        "last iterate",
        "DPVIm",
    ]
    for proba in lines.values():
        assert ((proba > 0.5) == problem.y_test).mean() > 0.75


def test_held_out_rows_are_training_rows(monkeypatch):
    monkeypatch.setattr(development, "adult", two_columns)
    whole, halves = two_columns(0), development.adult_held_out(0, kept=0.5)
    assert halves.X_train.shape == halves.X_test.shape == (500, 2)
    found = np.concatenate([halves.X_train, halves.X_test])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(whole.X_train[:, 0]))


def test_d3p_is_scored_as_we_are(monkeypatch):
    problem = mixture.five_clusters()
    X, Z = d3p_mixture.figure_data()
    truth = {"weights": problem.weights, "means": problem.means, "scales": np.full(5, 0.5**0.5)}
    np.testing.assert_allclose(d3p_mixture.score(*truth.values(), Z), problem.log_density(Z))

    def run_d3p(python, script, arrays, plan):
        """The truth as the median, and draws that are worse."""
        assert arrays["rows"].shape == (1, 2000, 2) and {entry["line"] for entry in plan} == {
            "d3p as published", "d3p, exact noise", "d3p, tuned"
        }  # fmt: skip
        draws = {name: np.stack([values, values * 2]) for name, values in truth.items()}
        draws["weights"] = np.stack([problem.weights] * 2)
        release = {"median": truth, "draws": draws, "seconds": 1.0}
        return [{**release, "entry": entry["entry"], "fit": 0} for entry in plan]

    monkeypatch.setattr(_peers, "run", run_d3p)
    monkeypatch.setattr(
        d3p_mixture, "private", lambda problem, X, level, i: mixture.not_private(problem, X, i)
    )
    model = type("Model", (), {"score": lambda self, Z: -4.0})()
    monkeypatch.setattr(d3p_mixture, "their_model", lambda X, k, level, delta, i: model)
    records = d3p_mixture.compare(None, [(X, Z)], (1.0,), 1)
    assert [r["score"] for r in records if r["line"] == "ours, of their NumPyro model"] == [[-4.0]]
    assert [record["line"] for record in records[-3:]] == [
        "not private, 20 starts", "not private, one cluster", "the true density"
    ]  # fmt: skip
    for record in records[:3]:
        assert record["score"] == pytest.approx([problem.log_density(Z).mean()])
    (row,) = d3p_mixture.figure_rows(records, (1.0,))
    # What the authors' noise costs is an eighth of the epsilon that they give it, even if one row
    # is exchanged.
    assert [float(cell) for cell in row[-2:]] == pytest.approx([0.0557, 0.1265], abs=2e-4)


def test_hierarchical_d3p_is_scored_as_we_are(monkeypatch):
    problem = d3p_hierarchical.figure_data(0, 500)
    # Those of the authors' script: found by running it.
    np.testing.assert_allclose(problem.x[0, 0, :2], [1.764052, 0.400157], atol=1e-6)
    assert problem.y.sum(axis=1).tolist() == [260, 255]
    own = problem.group[1] == 2
    # Features are one-hot, so that a column of effects is a group's weights.
    weights = [
        LogisticRegression(C=1e6, fit_intercept=False)
        .fit(problem.x[1, own], problem.y[1, own])
        .coef_[0]
    ] * 3

    def run(python, script, arrays, plan):
        """The held-out rows' weights of one group, for all."""
        assert {name: x.shape[0] for name, x in arrays.items()} == dict.fromkeys(
            ["x", "y", "group", "features"], 1
        )
        np.testing.assert_array_equal(arrays["x"][0], problem.x[0])
        release = {"location": np.transpose(weights), "seconds": 1.0, "fit": 0}
        return [{**release, "entry": entry["entry"]} for entry in plan]

    def fit(problem, level, seed, adjacency="zero_out"):
        return LogisticRegression().fit(problem.table[0], problem.y[0])

    monkeypatch.setattr(_peers, "run", run)
    monkeypatch.setattr(d3p_hierarchical, "OURS", {"ours": fit})
    records = d3p_hierarchical.compare(None, [problem], (2.0,), 1)
    assert [(record["line"], record["epsilon"]) for record in records] == [
        *(
            (line, 2.0)
            for line in ("d3p as published", "d3p, exact noise", "ours", "ours, replace_one")
        ),
        *(
            (line, None)
            for line in ("d3p", "ours", "scikit-learn, no groups", "the true probabilities")
        ),
    ]
    auc = {record["line"]: record["auc"][0] for record in records}
    assert auc["d3p"] == problem.auc(problem.x[1] @ weights[0])
    assert auc["ours"] == pytest.approx(auc["scikit-learn, no groups"], abs=0.01)
    assert auc["the true probabilities"] == pytest.approx(0.885, abs=1e-3)
    assert {len(row) for row in d3p_hierarchical.rows_of(records)} == {8}
    (row,) = d3p_hierarchical.charges(500, (2.0,))
    # What the authors' noise costs is what they say if one row is exchanged.
    assert [float(cell) for cell in row[1:]] == pytest.approx(
        [17.088, 2.0005, 0.856, 8.58], abs=0.01
    )


def test_coverage_of_groups_weights_is_of_the_model(monkeypatch):
    class Prior:
        """Ignores the rows."""

        def __init__(self, groups, group_features, **parameters):
            self.table = np.column_stack([group_features, np.ones(groups)])

        def fit(self, X, y):
            rng = np.random.default_rng(len(X))
            effects, spread = rng.standard_normal((2000, 5, 4)), rng.standard_normal((2000, 3, 5))
            self.posterior_samples_ = {"weights": self.table @ effects.mT + spread}
            self.coef_ = np.zeros((3, 5))
            return self

    monkeypatch.setattr(d3p_hierarchical, "DPHierarchicalLogisticRegression", Prior)
    record = d3p_hierarchical.coverage(50, None, np.inf, "dpvi", 100)
    assert np.mean(record["covered"]) == pytest.approx(0.95, abs=0.03)
    assert np.mean(record["width"]) == pytest.approx(1, abs=0.03)
    json.dumps(record, allow_nan=False)
    assert d3p_hierarchical.coverage_row(record)[:4] == ["dpvi", "50", "default", "inf"]


def test_mixtures_are_scored_against_the_truth(monkeypatch):
    monkeypatch.setattr(mixture, "N_TEST", 2000)
    records = mixture.run(
        "five", (1.0,), 2, lambda problem, X, epsilon, seed: mixture.not_private(problem, X, seed)
    )
    assert [record["line"] for record in records] == [
        "the true density",
        "not private, 20 starts",
        "epsilon 1",
    ]
    assert records[0]["gap"] == [0, 0] and len(mixture.row_of(records[1])) == 7
    np.testing.assert_allclose(records[1]["gap"], records[2]["gap"])
    assert all(0 < gap < 0.03 for gap in records[1]["gap"])
    for make in mixture.PROBLEMS.values():
        problem = make()
        X = problem.draw(np.random.default_rng(0), 5000)
        low, high = problem.bounds
        assert ((low < X) & (high > X)).all() and problem.weights.sum() == pytest.approx(1)


class OneUnit:
    """A network that says that all pixels are on with the probability of all pixels together."""

    def __init__(self, images, hidden, epsilon, seed, solver):
        self.p, self.components_ = (
            images.train.mean(),
            np.full((hidden, 784), float(epsilon == np.inf)),
        )

    def score(self, X):
        return np.mean((np.log(self.p) * X + np.log1p(-self.p) * (1 - X)).sum(axis=1))

    def reconstruct(self, X):
        return np.full(X.shape, self.p)


def test_belief_networks_are_scored_on_images_that_fits_do_not_see(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    shades = {
        name: rng.integers(0, 200, (n, 28, 28), np.uint8)
        for name, n in (("x_train", 500), ("x_test", 50))
    }
    np.savez(tmp_path / "mnist.npz", **shades, y_train=np.zeros(500), y_test=np.zeros(50))
    monkeypatch.setenv("SKDPBAYES_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(belief_net._mnist, "HELD_OUT", 100)
    images, held_out = belief_net.mnist(holdout=False), belief_net.mnist(holdout=True)
    np.testing.assert_array_equal(images.test.reshape(50, 28, 28), shades["x_test"] > 127)
    both = np.concatenate([held_out.train, held_out.test])
    assert held_out.test.shape == (100, 784)
    np.testing.assert_array_equal(
        np.sort(both @ np.arange(784)), np.sort(images.train @ np.arange(784))
    )
    nats, pixels = belief_net.independent(images)
    records, models = belief_net.run(images, 3, (1.0, np.inf), 2, OneUnit)
    assert [record["epsilon"] for record in records] == ["1", "inf"] and len(
        belief_net.row_of(records[0])
    ) == 4
    # All pixels are alike here, so that one probability says nearly as much as 784.
    np.testing.assert_allclose(records[0]["nats"], nats, rtol=0.01)
    np.testing.assert_allclose(records[0]["pixels"], pixels, atol=0.01)
    json.dumps(records, allow_nan=False)
    pytest.importorskip("matplotlib")
    assert belief_net.draw(models, tmp_path / "results" / "weights.png").stat().st_size > 5000


def test_the_papers_belief_networks_are_less_private_than_claimed():
    lines = belief_net.paper_table().splitlines()[2:]
    assert len(lines) == 12
    for line in lines:
        claimed, holds = line.split()[-2:]
        assert float(holds.lstrip(">")) > 3 * float(claimed)


def test_exact_posteriors_cover_selected_words_less_where_noise_is_large():
    rng, order = np.random.default_rng(0), np.arange(10)[::-1]
    truth = rng.dirichlet(np.full(500, topics.SPARSE), 10)

    def covered(noise):
        counts = 1e4 * truth[order]
        own = SimpleNamespace(seen=counts / 2, scales=np.full(500, 2.0), noise=5e3 * noise)
        return topics.exact_coverage(own, order, truth)

    # Where all is known the selection says nothing.
    assert covered(1e-5) == pytest.approx(0.9, abs=0.02)
    assert 0.7 < covered(1.5e-3) < 0.85


@pytest.mark.slow
def test_topics_are_scored_by_words_that_are_left_out():
    corpus = topics.simulated(holdout=False, n_train=300, n_test=100)
    assert (
        corpus.train.shape == (300, 500)
        and corpus.test.shape == (100, 500)
        and len(corpus.words) == 500
    )
    lengths = corpus.train.sum(axis=1)
    assert lengths.min() >= 5 and lengths.max() <= 400

    def fit(corpus, epsilon, seed, **parameters):
        del parameters
        model = topics.not_private(corpus, seed, learning_method="online")
        model.topics_ = corpus.topics[::-1]
        model.sample_posterior = lambda n, seed: {"topics": np.repeat(model.topics_[None], n, 0)}
        return model

    records = {record["line"]: record for record in topics.run("simulated", corpus, (1.0,), 1, fit)}
    lines = [
        "uniform",
        "unigram",
        "true topics",
        "scikit-learn, online",
        "scikit-learn, batch of 20",
        "epsilon 1",
    ]
    assert list(records) == lines
    assert records["uniform"]["perplexity"] == [500]
    uniform, unigram, truth, online, batch, ours = (
        np.mean(records[line]["perplexity"]) for line in lines
    )
    assert truth < batch < unigram < uniform and truth < online
    assert ours == online and records["epsilon 1"]["closed"] == pytest.approx(1)
    assert all(len(topics.row_of(record)) == 9 for record in records.values())
    assert records["epsilon 1"]["coverage"] == [1], "topics in another order are matched"
    only = topics.run("simulated", corpus, (1.0,), 1, fit, scikit_learn=False)
    assert [record["line"] for record in only] == [*lines[:3], "epsilon 1"] and len(
        topics.row_of(only[-1])
    ) == 9


def test_histograms_of_gradients_are_of_one_image_and_bounded():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (5, 784)).astype(np.uint8)
    X[4] = 0
    found = belief_net._mnist.gradient_histograms(X)
    assert (
        found.shape == (5, 1296)
        and (np.linalg.norm(found, axis=1) <= 6).all()
        and not found[4].any()
    )
    np.testing.assert_array_equal(found[1:2], belief_net._mnist.gradient_histograms(X[1:2]))
    # A ramp to the right has one direction; turned, the one at right angles.
    ramp = np.tile(np.arange(28) * 5, (28, 1)).astype(np.uint8)
    right, down = belief_net._mnist.gradient_histograms(
        np.stack([ramp.ravel(), ramp.T.ravel()])
    ).reshape(2, -1, 9)
    assert right[:, 1:].sum() == 0 and right[:, 0].min() > 0.4
    assert np.delete(down, 4, axis=1).sum() == 0 and down[:, 4].min() > 0.4
