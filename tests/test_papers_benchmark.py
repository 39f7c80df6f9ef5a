"""The papers' tables and figures: the list, the page and the commands agree; the parts are right."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from benchmarks import _log
from benchmarks.papers import __main__ as command
from benchmarks.papers import dp_advi, dp_sgld, registry, vips
from benchmarks.papers._entry import Missing, Order, images
from benchmarks.problems import Problem

ROOT = Path(__file__).resolve().parents[1]


def problem(n=4000, seed=0):
    """Rows of two features, with labels of a logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    y = (rng.uniform(size=n) < expit(X @ [1.0, -1.0])).astype(np.int64)
    return Problem("two", X[: n // 2], y[: n // 2], X[n // 2 :], y[n // 2 :], 1.5)


def test_every_entry_has_a_row_of_the_page_and_every_command_of_the_page_is_an_entry():
    names = [entry.name for entry in registry.ENTRIES]
    assert len(names) == len(set(names)) >= 27
    page = (ROOT / "docs" / "papers.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*)", page, re.MULTILINE)
    assert [name for name, _ in rows] == names
    for name, cells in rows:
        assert cells.count(" | ") >= 3, name
        what = registry.BY_NAME[name].what
        assert cells.startswith(what), (name, what)
        if "FILE.npz" not in registry.BY_NAME[name].shows:  # those need data that a user names
            assert re.search(r"\d", cells.split(" | ", 2)[2]), f"{name}: no figures"
    used = re.findall(r"--only ([\w-]+)", page)
    assert set(used) <= set(names)
    assert used


def test_the_makefile_runs_the_list_and_the_pages_link_it():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^bench-papers: env ## .*\n\t\$\(PY\) -m benchmarks\.papers ", makefile, re.M)
    assert re.search(r"^\.PHONY:.* bench-papers ", makefile, re.M)
    for page in ("index.md", "benchmarks.md", "differences.md"):
        assert "papers.md" in (ROOT / "docs" / page).read_text("utf-8"), page


def test_a_run_prints_a_table_draws_and_logs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_log, "ROOT", tmp_path)
    out = tmp_path / "pictures"
    assert command.main(["--only", "vips-fig4", "--out", str(out)]) == 0
    assert (out / "vips-fig4.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    printed = capsys.readouterr().out
    assert "0.25000" in printed and "Ran: " in printed
    (line,) = (tmp_path / "results" / "papers.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["entry"] == "vips-fig4"
    assert record["tables"][0]["rows"][0][1] == "0.25000"


def made_up(path, channels=3, n=60):
    """A file as a user would name it."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", n), ("test", 20)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 32, 32, channels), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(size) % 10
    np.savez(path, **arrays)


def test_images_are_of_the_file_that_the_user_names(tmp_path, capsys):
    path = tmp_path / "made_up.npz"
    made_up(path)
    found = images(Order(data={"svhn": path}), "svhn")
    assert found.shape == (32, 32, 3)
    assert found.x_train.shape == (60, 3072)
    with np.load(path) as arrays:
        np.testing.assert_array_equal(found.x_test[7], arrays["x_test"][7].ravel())
    with pytest.raises(Missing, match="--data svhn=FILE"):
        images(Order(), "svhn")
    np.savez(path, x_train=np.zeros((2, 4)))
    with pytest.raises(Missing, match="y_train, x_test"):
        images(Order(data={"svhn": path}), "svhn")
    assert command.main(["--only", "dp-sgld-table1-svhn", "--out", str(tmp_path)]) == 1
    assert "SKIPPED. svhn is not here. Name a file" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data"), [("dp-sgld-table1-svhn", "svhn"), ("d3p-table2-cifar-10", "cifar-10")]
)
def test_entries_run_on_a_file_that_the_user_names(name, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_log, "ROOT", tmp_path)
    path = tmp_path / "made_up.npz"
    made_up(path, n=150)
    words = ["--only", name, "--data", f"{data}={path}", "--out", str(tmp_path)]
    assert command.main(words) == 0
    assert (tmp_path / f"{name}.png").exists()
    assert "paper" in capsys.readouterr().out


def test_words_of_data_are_names_and_files():
    assert command.data_of(["svhn=a/b.npz"]) == {"svhn": Path("a/b.npz")}
    with pytest.raises(ValueError, match="NAME=FILE"):
        command.data_of(["svhn"])


# --- DP-ADVI --------------------------------------------------------------------------------------


def test_noise_of_the_poster_spends_what_its_formula_says_and_more_than_is_needed():
    for epsilon in (0.1, 1.0):
        noise = dp_advi.advanced_noise(epsilon, 1e-3, 0.02, 1000)
        assert dp_advi.advanced_epsilon(noise / 2, 1e-3, 0.02, 1000) == pytest.approx(epsilon)
        assert noise > 3 * dp_advi.exact_noise(epsilon, 1e-3, 0.02, 1000)


def test_the_posters_algorithm_finds_the_coefficients_without_noise_and_loses_them_with_it():
    data = problem()
    fit = dp_advi.advi(data, 5.0, 0.1, 0.0, np.random.default_rng(0), steps=400)
    np.testing.assert_allclose(fit, [1, -1, 0], atol=0.25)
    # A small threshold keeps directions and shrinks the sum; much noise drowns it.
    noisy = dp_advi.advi(data, 5.0, 0.1, 300.0, np.random.default_rng(0), steps=400)
    assert np.linalg.norm(noisy - [1, -1, 0]) > 1


# --- DP-SGLD --------------------------------------------------------------------------------------


def test_one_posterior_sample_is_of_the_posterior():
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(30, 1)) / 2, rng.integers(0, 2, 30)
    posterior = dp_sgld.Posterior(Z, y, 0.7, radius=1.0)
    grid = np.linspace(-1, 1, 401)
    density = np.exp([posterior.log_density(np.array([w])) for w in grid])
    mean = (grid * density).sum() / density.sum()
    sd = math.sqrt(((grid - mean) ** 2 * density).sum() / density.sum())
    draws = np.array([posterior.sample(rng, 15)[0][0] for _ in range(300)])
    assert np.abs(draws).max() <= 1
    assert draws.mean() == pytest.approx(mean, abs=5 * sd / 300**0.5)
    assert draws.std() == pytest.approx(sd, rel=0.15)


def test_the_power_of_one_sample_bounds_what_a_record_changes():
    """Densities with and without a record differ by a factor of at most exp(epsilon)."""
    radius, epsilon = 3.0, 0.5
    power = dp_sgld.safe_power(epsilon, radius)
    grid = np.linspace(-radius, radius, 801)[:, None]
    Z, y = np.array([[1.0], [-1.0], [-1.0]]), np.array([0, 1, 1])
    logs = []
    for kept in (slice(0, 3), slice(1, 3)):
        p = dp_sgld.Posterior(Z[kept], y[kept], power, radius)
        values = np.array([p.log_density(w) for w in grid])
        logs.append(values - np.logaddexp.reduce(values))
    largest = np.abs(logs[0] - logs[1]).max()
    assert 0.6 * epsilon < largest <= epsilon


def test_algorithm_1_finds_the_coefficients():
    rng = np.random.default_rng(0)
    data = problem()
    fit = dp_sgld.langevin(
        data.X_train, data.y_train, dp_sgld.decreasing(2.0, 300), 1.0, 0.2, rng, np.zeros(2)
    )
    np.testing.assert_allclose(fit, [1, -1], atol=0.35)


# --- VIPS -----------------------------------------------------------------------------------------


def test_expected_counts_add_up_to_the_words():
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (5, 12)).astype(float)
    found = vips.statistics(counts, np.log(rng.dirichlet(np.ones(12), 3)))
    np.testing.assert_allclose(found.sum(axis=0), counts.sum(axis=0), rtol=1e-9)


def test_published_noise_of_a_batch_is_too_small_by_its_share_of_the_records():
    right = vips.two_releases("Table 1", 1000, 10, 20, 1.0)
    assert vips.two_releases("as published", 1000, 10, 20, 1.0) == pytest.approx(right / 100)
    exact = vips.multiplier("exact", 1000, 10, 20, 1.0)
    assert exact < vips.multiplier("advanced", 1000, 10, 20, 1.0)


def test_algorithm_5_finds_the_coefficients_without_noise():
    data = problem()
    Z = data.X_train / 6
    for batch, rounds, tolerance in ((None, 30, 0.25), (200, 60, 0.4)):
        rng = np.random.default_rng(0)
        *_, mean = vips.regression(Z, data.y_train, batch, rounds, (0.0, 0.0), rng)
        np.testing.assert_allclose(mean / 6, [1, -1], atol=tolerance)


def test_pure_objective_perturbation_learns_where_epsilon_is_large():
    data = problem()
    assert vips.chaudhuri(data, 1000.0, 0) == pytest.approx(
        vips.scikit_learn(data, 1000.0, 0), abs=0.01
    )
    assert vips.chaudhuri(data, 0.001, 0) < vips.chaudhuri(data, 1000.0, 0)
