"""The matrix of simulations: its problems, the non-private posterior, scores and tables."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size
from scipy.special import expit

from benchmarks import dp_sgld, honesty, honesty_models, honesty_networks
from skdpbayes.calibration import crps
from skdpbayes.posteriors import DrawsPosterior, GaussianPosterior
from skdpbayes.reference import logistic_gibbs

CELLS = honesty.cells()
SMALL = [problem for problem in honesty.PROBLEMS if problem.n * problem.d <= 10**6]


def test_matrix_spans_what_it_should():
    problems, epsilons = zip(*CELLS.values(), strict=True)
    assert len(CELLS) == sum(len(problem.epsilons) for problem in honesty.PROBLEMS) >= 40
    assert {min(p.n for p in problems), max(p.n for p in problems)} == {300, 1_000_000}
    assert {min(p.d for p in problems), max(p.d for p in problems)} == {3, 200}
    assert min(epsilons) == 0.1 and {0.5, 1.0, 3.0, 8.0} <= set(epsilons)
    assert {p.rows for p in problems} == {
        honesty.normal, honesty.autoregressive, honesty.one_hot, honesty.lognormal, honesty.student,
        honesty.uniform, honesty.unused,
    }  # fmt: skip


@pytest.mark.parametrize("problem", SMALL, ids=lambda p: p.name)
def test_replicate_is_fixed_by_its_seed_and_has_the_rows_declared(problem):
    first, again, other = (honesty.simulate(problem, seed) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.X, other.X)
    contrasts = problem.n_classes - 1
    assert first.X.shape == (problem.n, problem.d)
    assert first.truth.shape == (contrasts * (problem.d + 1),)
    assert set(first.y) == set(range(problem.n_classes))
    longest = np.linalg.norm(first.X, axis=1).max()
    assert (longest <= (problem.data_norm or problem.d**0.5) * (1 + 1e-9)) == problem.shortened
    if problem.prevalence is not None:
        n = problem.n
        assert first.y.mean() == pytest.approx(
            problem.prevalence, abs=5 * (problem.prevalence * (1 / n + 1 / 20_000)) ** 0.5
        )


def test_one_hot_rows_leave_one_category_out():
    X = honesty.one_hot(np.random.default_rng(0), 4_000, 20)
    numbers, dummies = X[:, :4], X[:, 4:].reshape(4_000, 4, 4)
    assert (np.abs(numbers) <= 1).all() and set(np.unique(dummies)) == {0.0, 1.0}
    assert set(dummies.sum(axis=2).ravel()) == {0.0, 1.0}
    shares = dummies.mean(axis=(0, 1))
    assert (np.diff(shares) < 0).all() and 1 - shares.sum() > shares[0]


@pytest.mark.parametrize(
    ("kind", "n", "prior_scale"),
    [
        ("normal", 300, 1.0),
        pytest.param("rare", 3_000, 1.0, marks=pytest.mark.slow),
        ("ar", 500, 2.0),
    ],
)
def test_reference_agrees_with_gibbs_sampling(kind, n, prior_scale):
    rows = honesty.autoregressive if kind == "ar" else honesty.normal
    rare = {"sd": 0.3, "prevalence": 0.02} if kind == "rare" else {}
    data = honesty.simulate(honesty.Problem(kind, rows, n, 3, (1.0,), **rare), 0)
    found = honesty.reference(data.X, data.y, prior_scale)
    chains = logistic_gibbs(
        data.X, data.y, prior_scale=prior_scale, n_draws=2_000, n_burn=200, n_chains=1,
        random_state=0,
    )  # fmt: skip
    ess = effective_sample_size(chains)
    draws = chains[0]
    assert ess.min() > 100
    # Four Monte Carlo errors beside 2% of a standard deviation.
    gap = (found.mean - draws.mean(axis=0)) / draws.std(axis=0)
    assert (np.abs(gap) < 0.02 + 4 / np.sqrt(ess)).all()
    assert (np.abs(np.log(found.std / draws.std(axis=0))) < 0.02 + 4 / np.sqrt(2 * ess)).all()
    correlation = np.corrcoef(draws.T)
    np.testing.assert_allclose(
        found.covariance / np.outer(found.std, found.std), correlation, atol=0.15
    )


def test_contrasts_of_two_classes_are_the_weights_of_one():
    """The prior of a contrast is wider by the root of two."""
    data = honesty.simulate(SMALL[0], 0)
    one = honesty.reference(data.X, data.y, 2**0.5)
    two = honesty.reference_of_classes(data.X, data.y, 2, 1.0)
    np.testing.assert_allclose(two.mean, one.mean, atol=0.4 * one.std.max())
    np.testing.assert_allclose(two.covariance, one.covariance, atol=0.1 * one.std.max() ** 2)
    labels = np.random.default_rng(0).integers(3, size=len(data.X))
    three = honesty.reference_of_classes(data.X, labels, 3, 1.0)
    swapped = honesty.reference_of_classes(data.X, np.array([0, 2, 1])[labels], 3, 1.0)
    p = data.X.shape[1] + 1
    np.testing.assert_allclose(three.mean, np.roll(swapped.mean, p), atol=1e-3)
    np.testing.assert_allclose(three.std, np.roll(swapped.std, p), atol=1e-3)


def test_reference_is_the_prior_without_information():
    found = honesty.reference(np.zeros((2, 1)), np.array([0, 1]), 2.0)
    assert found.mean == pytest.approx([0, 0], abs=1e-6)
    assert found.std[0] == pytest.approx(2.0) and found.std[1] < 2


def test_scores_of_a_normal_posterior_are_those_of_its_draws():
    rng = np.random.default_rng(0)
    mean, covariance, truth = np.array([1.0, -2.0]), np.diag([4.0, 0.25]), np.array([2.0, -3.5])
    exact = honesty.scores(GaussianPosterior(mean, np.linalg.cholesky(covariance)), truth)
    draws = rng.multivariate_normal(mean, covariance, 40_000)
    drawn = honesty.scores(DrawsPosterior(draws[None]), truth)
    np.testing.assert_array_equal(exact.covered, [True, False])
    np.testing.assert_array_equal(drawn.covered, exact.covered)
    for one, two in zip(exact[1:], drawn[1:], strict=True):
        np.testing.assert_allclose(one, two, rtol=0.08)
    np.testing.assert_allclose(exact.crps, crps(draws[None], truth[None])[0], rtol=0.02)


def test_log_loss_is_least_for_the_truth():
    p = np.array([0.1, 0.5, 0.9])
    both = np.column_stack([1 - p, p])
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    assert honesty.log_loss(both, both) == honesty.log_loss(p, p) == pytest.approx(entropy)
    assert honesty.log_loss(np.column_stack([1 - p**2, p**2]), both) > entropy
    assert math.isfinite(honesty.log_loss(np.eye(2), np.full((2, 2), 0.5)))


def fits_of(sd, n=400, p=4):
    """Fits whose posterior has this standard deviation where the errors have 1; plain is right."""
    rng, zero = np.random.default_rng(0), np.zeros(p)
    errors = rng.standard_normal((n, p))
    return [
        honesty.Fit(
            honesty.normal_scores(e, np.full(p, sd), zero),
            honesty.normal_scores(e / 2, np.full(p, 0.5), zero),
            0.01,
            float(k),
        )
        for k, e in enumerate(errors)
    ]


def test_summary_tells_honest_posteriors_from_others():
    right, narrow, wide = (honesty.summary(fits_of(sd)) for sd in (1.0, 0.5, 2.0))
    assert right["covered"] == pytest.approx(0.9, abs=0.025)
    assert right["worst"] <= right["covered"] and right["error"] < 0.02
    assert right["rms_z"] == pytest.approx(1.0, abs=0.05)
    assert right["plain_covered"] == right["covered"] and right["width"] == pytest.approx(2.0)
    assert right["crps"] == pytest.approx(2.0) and right["excess"] == pytest.approx(0.01)
    assert right["seconds"] == 199.5
    assert narrow["rms_z"] == pytest.approx(2 * right["rms_z"])
    assert [honesty.honest(x) for x in (right, narrow, wide)] == [True, False, False]
    rows = [line.split() for line in honesty.table({"a": right, "b": narrow}).splitlines()]
    assert (
        rows[3][-1] == "OUT" and rows[2][-1] != "OUT" and rows[4][:4] == ["1", "of", "2", "cells"]
    )


def test_limit_of_the_worst_coordinate_grants_chance():
    assert honesty.least(400, 4) == honesty.WORST
    rng = np.random.default_rng(0)
    below = rng.binomial(20, honesty.LEVEL, (20_000, 9)).min(axis=1) / 20 < honesty.least(20, 9)
    assert 0.0005 < below.mean() < 0.012


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        ([], {}),
        (["prior_scale=3 n_steps=100"], {"prior_scale": 3, "n_steps": 100}),
        (["solver=na-dpvi", "epsilon=inf"], {"solver": "na-dpvi", "epsilon": math.inf}),
        (["clipping_norm=None"], {"clipping_norm": None}),
    ],
)
def test_parameters_are_read(words, parameters):
    assert honesty.parsed(words) == parameters


@pytest.mark.parametrize("word", ["prior_scale", "=3", "a-b=3"])
def test_parameters_that_do_not_read_are_refused(word):
    with pytest.raises(ValueError, match="must read name=value"):
        honesty.parsed([word])


class Ideal:
    """Stands for the estimator: the non-private posterior, or a refusal at epsilon .5."""

    def __init__(self, epsilon, classes, random_state, prior_scale=1.0, solver=None):
        self.epsilon, self.prior_scale = epsilon, prior_scale

    def fit(self, X, y):
        if self.epsilon == 0.5:
            raise ValueError("too small a budget")
        found = honesty.reference(X, y, self.prior_scale)
        self.posterior_ = GaussianPosterior(found.mean, np.linalg.cholesky(found.covariance))

    def predict_proba(self, X):
        p = 1 / (1 + np.exp(-np.column_stack([X, np.ones(len(X))]) @ self.posterior_.mean))
        return np.column_stack([1 - p, p])


def test_program_prints_and_writes_cells_and_refusals(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("skdpbayes.DPBayesianLogisticRegression", Ideal)
    path = tmp_path / "honesty.json"
    names = ["normal-300x3-0.5", "normal-300x3-2"]
    options = ["--seeds", "5", "--solver", "vips", "--parameters", "prior_scale=0.5"]
    honesty.main(["--cells", *names, *options, "--json", str(path)])
    printed = capsys.readouterr().out
    assert "REFUSED normal-300x3-0.5: too small a budget" in printed
    found = json.loads(path.read_text())
    assert found["cells"][names[0]] == "too small a budget" and "vips" in found["parameters"]
    cell = found["cells"][names[1]]
    assert cell["fits"] == 5 and cell["width"] == cell["crps"] == pytest.approx(1.0)
    assert cell["covered"] == cell["plain_covered"] and abs(cell["excess"]) < 1e-2


def test_cells_are_chosen_by_name_or_beginning():
    names = [*CELLS, *honesty_models.cells()]
    assert honesty.chosen(["normal-300x3-0.5"], names) == ["normal-300x3-0.5"]
    assert honesty.chosen(["bernoulli-0.004", "poisson"], names) == [
        *(
            f"poisson-{kind}{x}"
            for kind in ("", "prior-", "positive-")
            for x in ("dpvi", "na-dpvi")
        ),
        *(f"poisson-{n}-{epsilon:g}-auto" for n, epsilon in honesty_models.PROGRAM_SETTINGS),
        *(f"bernoulli-0.004-500-{x}" for x in honesty_models.SOLVERS),
    ]
    with pytest.raises(ValueError, match="'nothing'"):
        honesty.chosen(["nothing"], names)


def test_cells_of_models_span_what_they_should():
    names = " ".join(honesty_models.cells())
    models = ("poisson", "negative-binomial", "robust", "ordinal", "survival", "gamma", "beta")
    models = (*models, "zeros", "tails")
    for start in (*models, "mixture-2sd-0.5", "mixture-5sd-2", "bernoulli-0.004-500", "hierarchy"):
        assert start in names
    for cell in honesty_models.cells().values():
        estimator = cell.estimator()
        assert (
            estimator.solver in (*honesty_models.SOLVERS, "auto") and estimator.random_state is None
        )
        if cell.truths is not None:
            truths = cell.truths(np.random.default_rng(0), 3)
            assert {len(x) for x in truths.values()} == {3}


def test_columns_of_patients_are_correlated_with_the_intercept():
    X = honesty_models.patients(np.random.default_rng(0), 4_000)
    assert X.shape == (4_000, 7) and (X >= 0).all() and (X <= 1).all()
    assert set(np.unique(X[:, 2:])) == {0.0, 1.0} and set(X[:, 4:].sum(axis=1)) == {0.0, 1.0}
    of_intercept = np.linalg.inv(np.cov(X.T))
    alone = 1 + X.mean(axis=0) @ of_intercept @ X.mean(axis=0)
    assert alone > 10  # variance of an intercept, over that with centred columns


def test_censored_times_end_with_the_study():
    x = np.zeros((4_000, 1))
    truth = {"intercept": np.array(0.0), "weights": np.zeros(1)}
    fields = honesty_models.censored_times(np.random.default_rng(0), truth, {"x": x})
    assert fields["y"].max() == 2.0 and ((fields["y"] == 2.0) == fields["censored"]).all()
    assert fields["censored"].mean() == pytest.approx(math.exp(-2), abs=0.03)


def test_program_prints_cells_of_models(tmp_path, capsys):
    path = tmp_path / "models.json"
    options = ["--seeds", "30", "--json", str(path)]
    honesty.main(["--cells", "bernoulli-0.02-5000-vips", *options])
    assert "probability 0." in capsys.readouterr().out
    cell = json.loads(path.read_text())["cells"]["bernoulli-0.02-5000-vips"]
    assert cell["fits"] == 30 and cell["sites"]["probability"] == cell["covered"] >= 0.75
    honesty.main(["--cells", "bernoulli-0.02-5000-vips", "--seeds", "2", "--parameters", "delta=2"])
    assert "REFUSED bernoulli-0.02-5000-vips: delta" in capsys.readouterr().out


def test_rows_of_network_tasks_have_the_classes_that_their_law_says():
    for name, cell in honesty_networks.cells().items():
        assert name.startswith("network-") and cell.solver in dp_sgld.SOLVERS
    small = honesty_networks.Cell("rare", 200, 1.0, "dpvi")
    X, y, X_test, y_test, logits = honesty_networks.simulate(small, 0)
    assert X.shape == (200, 5) and len(y) == 200 and X_test.shape[0] == len(y_test) == len(logits)
    rare = expit(logits[:, 1] - logits[:, 0])
    assert y_test.mean() == pytest.approx(rare.mean(), abs=4 * (rare.mean() / len(rare)) ** 0.5)
    assert 0.03 < rare.mean() < 0.06


def test_program_prints_calibration_errors_of_networks(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SKDPBAYES_DATA_HOME", raising=False)
    path, name = tmp_path / "networks.json", "network-weak-500-2-dpvi"
    names = [name, "network-pixels-50000-1-dpvi"]
    given = ["--seeds", "1", "--json", str(path), "--parameters", "n_steps=10 delta=1e-5"]
    honesty.main(["--cells", *names, *given])
    assert "NONE network-pixels-50000-1-dpvi: " in capsys.readouterr().out
    found = json.loads(path.read_text())["cells"][name]
    assert found["excess"] > 0 and 0 < found["ece"] < 0.5 and found["fits"] == 1
