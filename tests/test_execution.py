"""Where a fit runs changes nothing that it releases: on disk, over devices and processes, or resumed."""

import itertools
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs

import skdpbayes
from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPRegressor,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPVariationalAutoencoder,
    Schema,
    inference,
)
from skdpbayes.estimators import _base
from skdpbayes.intake.packing import pack_records
from skdpbayes.intake.reading import records_of
from skdpbayes.mechanism import checkpoint, draws, stored
from skdpbayes.privacy import PrivacyLedger, report

sys.path.insert(0, str(Path(__file__).parent / "mechanism"))
import arrow_files
import divided
from cases import slow_but

pytestmark = pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning")
PROGRAM = Path(divided.__file__)
CASES = dict(divided.CASES)


# ------------------------------------------------------------------------------ on disk


def on_disk(folder, **arrays):
    """Arrays as files that are mapped."""
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays]


@pytest.fixture
def few_at_a_time(monkeypatch):
    monkeypatch.setattr(stored, "_MOST_BYTES", 2**12)  # 128 rows of three columns
    monkeypatch.setattr(stored, "_AT_A_TIME", 50)


def watched(monkeypatch, name, seen):
    original = getattr(inference, name)
    monkeypatch.setattr(inference, name, lambda *how: seen.append(name) or original(*how))


@pytest.mark.usefixtures("compiled_as_users_do", "few_at_a_time")
@pytest.mark.parametrize(
    ("solver", "settings", "how"),
    [
        pytest.param(
            "dpvi", {"sampling_rate": 0.02, "n_steps": 40}, "batches", marks=pytest.mark.slow
        ),
        ("dpvi", {"sampling_rate": 0.2, "n_steps": 6}, "_by_pieces"),
        pytest.param("na-dpvi", {"n_steps": 6}, "_by_pieces", marks=pytest.mark.slow),
    ],
)
def test_rows_on_disk_release_what_rows_in_memory_do(solver, settings, how, tmp_path, monkeypatch):
    X, y = divided.table()
    seen = []
    watched(monkeypatch, how, seen)
    in_memory = divided.digest(divided.fitted(solver, settings, X, y))
    assert not seen
    for given in (on_disk(tmp_path, X=X, y=y), arrow_files.of_rows(tmp_path / "t.arrow", X, y)):
        assert divided.digest(divided.fitted(solver, settings, *given)) == in_memory
    assert seen == [how, how]


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_as_users_do", "few_at_a_time")
def test_blocks_on_disk_are_sampled_as_those_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "_HITS", 16)  # several blocks and windows of one step
    X, y = divided.table()
    settings = {"sampling_rate": 0.2, "n_steps": 6}
    in_memory = divided.digest(divided.fitted("dpvi", settings, X, y))
    assert (
        divided.digest(divided.fitted("dpvi", settings, *on_disk(tmp_path, X=X, y=y))) == in_memory
    )


def test_a_short_window_runs_the_program_of_the_others(monkeypatch):
    monkeypatch.setattr(draws, "_HITS", 1024)  # windows of ten steps
    rows = np.zeros((1000, 3), np.float32)
    records = stored.StoredRecords(1000, lambda places: pack_records(x=rows[places]))
    sampler = draws.Sampler(bytes(32), 0.1, records.n_slots)
    windows = [draws.Window(low, high, np.zeros((64, 2))) for low, high in ((0, 10), (10, 13))]
    shapes = [jax.tree.map(np.shape, own) for own in stored.batches(records, sampler, windows)]
    assert sampler.window == 10 and shapes[0] == shapes[1]


def poisson_model(x, y=None):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


BOUNDED = (([-3.0] * 3, [3.0] * 3), (-4, 4))
READ = {
    "logistic": (DPBayesianLogisticRegression(classes=[0, 1]), "code"),
    "short rows": (
        DPBayesianLogisticRegression(classes=[0, 1], data_norm=0.5, solver="vips"),
        "code",
    ),
    "schema": (
        DPBayesianLogisticRegression(
            classes=Schema(
                {"a": {}, "b": {"missing": 0.5}, "c": {"bounds": [-9, 9]}},
                {"name": "y", "labels": [0, 1]},
            )
        ),
        "code",
    ),
    "linear": (DPBayesianLinearRegression(bounds=BOUNDED), "number"),
    "network": (DPBayesianMLPRegressor(bounds=BOUNDED), "number"),
    "mixture": (DPGaussianMixture(n_components=2, bounds=(-3, 3)), None),
    "auto-encoder": (DPVariationalAutoencoder(n_components=2), None),
    "numpyro": (DPNumPyroModel(poisson_model), "number"),
}


@pytest.mark.parametrize("format", ["npy", "arrow"])
@pytest.mark.parametrize("name", READ)
def test_parts_of_a_stored_table_are_parts_of_the_packed_one(name, format, tmp_path):
    """Whatever a row holds: each is packed by itself."""
    estimator, target = READ[name]
    rng = np.random.default_rng(0)
    X = rng.normal(scale=2.0, size=(300, 3))
    X[7, 1], X[11], X[12, 0] = np.nan, np.inf, 1e300
    if name == "auto-encoder":
        X = np.clip(np.abs(X), 0, 1)
    y = {"code": rng.integers(0, 3, 300), "number": rng.normal(size=300), None: None}[target]
    if format == "arrow":
        given = arrow_files.of_rows(tmp_path / "t.arrow", X, y)
        X = pd.DataFrame(X, columns=list("abc"))
    else:
        given = [*on_disk(tmp_path, X=X), None] if y is None else on_disk(tmp_path, X=X, y=y)
    whole = estimator._reader().read(clone(estimator), X, y)
    part = estimator._reader().read(clone(estimator), *given)
    assert whole.part is None and part.n_rows == 300
    assert whole.facts.shape == part.facts.shape
    packed = whole.pack()
    records = records_of(part)
    np.testing.assert_array_equal(np.concatenate(list(records.usable)), packed.usable)
    assert 0 < packed.usable.sum() <= 300
    for places in (slice(0, 300), slice(5, 40), np.array([0, 7, 7, 11, 12, 250])):
        read = records.read(places, 320)
        fields = jax.tree.leaves(packed.fields), jax.tree.leaves(read.fields)
        for field, own in zip(*fields, strict=True):
            expected = field[:300][places]
            np.testing.assert_array_equal(own[: len(expected)], expected)
            assert not np.asarray(own[len(expected) :]).any()


def test_pages_of_a_file_are_given_back(tmp_path):
    (X,) = on_disk(tmp_path, X=np.ones((400_000, 20), np.float32))  # 32 MB

    def mapped():
        lines = Path("/proc/self/smaps").read_text().split(str(tmp_path))[1].splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    if not Path("/proc/self/smaps").exists():
        pytest.skip("no /proc")
    from skdpbayes.intake import stored as tables

    np.asarray(X).sum()
    assert mapped() > 30_000
    tables.source_of(X).take(np.arange(0, 400_000, 7))
    assert mapped() < 1000


def test_changes_of_a_map_that_are_not_in_the_file_stay(tmp_path):
    from skdpbayes.intake import stored as tables

    np.save(tmp_path / "X.npy", np.zeros((10, 2)))
    X = np.load(tmp_path / "X.npy", mmap_mode="c")
    X[3] = 1.0
    rows = tables.source_of(X)
    assert rows.take(slice(0, 10)).sum() == 2 == rows.take(np.arange(10)).sum()


# ----------------------------------------------------------------- devices and processes


def run_program(*args):
    flags = os.environ.get("XLA_FLAGS", "").split()  # code as users have it
    kept = [own for own in flags if "fusion_emitters" not in own and "optimization" not in own]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XLA_FLAGS": " ".join(kept), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def free_port():
    with socket.socket() as own:
        own.bind(("localhost", 0))
        return own.getsockname()[1]


@pytest.mark.parametrize("cases", slow_but(["first", "all"], "first"))
def test_eight_devices_and_two_processes_release_what_one_device_does(cases):
    port = free_port()
    running = [run_program(8, cases), *(run_program(port, i, 2, cases) for i in range(2))]
    known = dict(divided.CASES if cases == "all" else divided.CASES[:1])
    found = []
    for program in running:
        out, error = program.communicate(timeout=300)
        assert program.returncode == 0, error
        lines = [line.split() for line in out.splitlines()]
        found.append([line for line in lines if line and line[0] in {"charged", *known}])
    n = len(known)  # other lines are Gloo's
    alone, divided_in_eight = found[0][:n], found[0][n : 2 * n]
    assert alone == divided_in_eight == found[1][:n] == found[2]
    assert [line[::2] for line in alone] == [[case, "900"] for case in known]
    # Two processes are one fit: it is charged once, in the first.
    assert found[0][2 * n :] == [["charged", str(2 * n)]] and found[1][n:] == [["charged", str(n)]]


@pytest.mark.slow
def test_a_lost_process_ends_the_others():
    port = free_port()
    running = [run_program(port, i, 2, "die") for i in range(2)]
    _, error = running[0].communicate(timeout=300)
    assert running[0].returncode != 0 and "another task died" in error
    running[1].communicate(timeout=300)
    assert running[1].returncode == 9


@pytest.mark.slow
def test_processes_that_disagree_release_nothing():
    """With the same noise on sums in other units, both would be given away."""
    port = free_port()
    running = [run_program(port, i, 2, "disagree") for i in range(2)]
    for program in running:
        out, error = program.communicate(timeout=300)
        assert program.returncode != 0 and "Processes do not fit the same" in error
        assert "charged" not in out


@pytest.mark.slow
def test_idealised_sums_over_devices_are_those_of_one(tmp_path):
    """But for the last bits."""
    code = (
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'\n"
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, skdpbayes, divided\n"
        "X, y = divided.table()\n"
        "found = []\n"
        "for devices in (None, 8):\n"
        "    with skdpbayes.execution(devices=devices):\n"
        "        own = dict(divided.CASES[0][1], numerics='fast')\n"
        "        found.append(divided.fitted('dpvi', own, X, y).coef_)\n"
        "np.testing.assert_allclose(*found, rtol=1e-4)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(PROGRAM.parent)], check=True)


def test_what_needs_one_process_is_refused_in_several(tmp_path, monkeypatch):
    from skdpbayes.mechanism.shards import Devices
    from skdpbayes.model_selection import DPRandomizedSearchCV

    X, y = divided.table()
    model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1])
    monkeypatch.setattr(Devices, "n_processes", 2)
    monkeypatch.setattr(Devices, "numbers", lambda self, own: [own, own])
    monkeypatch.setattr(Devices, "agree", lambda self, what: None)
    with pytest.raises(ValueError, match="A fit with a checkpoint runs in one process"):
        with skdpbayes.execution(devices="all", checkpoint=tmp_path / "fit"):
            model.fit(X, y)
    with pytest.raises(ValueError, match="A search runs in one process"):
        with skdpbayes.execution(devices="all"):
            DPRandomizedSearchCV(model, {"prior_scale": [1.0, 2.0]}, epsilon=1.0).fit(X, y)


def test_rows_of_persons_are_read_at_once(tmp_path):
    """A part of the rows would make a row the unit of privacy."""
    X, y = on_disk(tmp_path, X=divided.table()[0], y=divided.table()[1])
    model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1], max_rows_per_person=3)
    _, rows = model._prepared(X, y, np.arange(len(y)) // 3)
    assert rows.part is None and rows.pack().most_rows == 3


def test_results_of_arithmetic_are_no_files(tmp_path):
    from skdpbayes.intake.stored import source_of

    (X,) = on_disk(tmp_path, X=np.ones((10, 2)))
    assert source_of(X) and source_of(X[2:])
    assert source_of(X * 2) is None and source_of(X[[1, 2]]) is None


def test_a_function_is_not_bound_to_a_checkpoint(tmp_path):
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-3)
    X, y = divided.table()
    with skdpbayes.execution(checkpoint=tmp_path / "fit"):
        with pytest.raises(ValueError, match="function of yours cannot have a checkpoint"):
            DPNumPyroModel(poisson_model, epsilon=1.0, ledger=ledger).fit(X, y)
    assert not ledger.entries


def test_what_cannot_be_divided_is_refused():
    X, y = make_blobs(60, 3, centers=2, random_state=0)
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-3)
    persons = DPBayesianLogisticRegression(
        epsilon=1.0, classes=[0, 1], max_rows_per_person=2, ledger=ledger
    )
    topics = DPLatentDirichletAllocation(n_components=2, epsilon=1.0, ledger=ledger)
    with skdpbayes.execution(devices=1):
        with pytest.raises(ValueError, match="Documents, sparse rows and persons"):
            topics.fit(np.abs(X))
        with pytest.raises(ValueError, match="Documents, sparse rows and persons"):
            persons.fit(X, y, groups=np.arange(60) // 2)
    assert not ledger.entries
    with pytest.raises(ValueError, match="devices=99, and JAX has"):
        with skdpbayes.execution(devices=99):
            DPGaussianMixture(n_components=2, bounds=(-3, 3)).fit(X)
    for wrong in ({"devices": 0}, {"devices": "some"}, {"every": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            with skdpbayes.execution(**wrong):
                pass


# ---------------------------------------------------------------------------- checkpoints


class Interrupted(Exception):
    pass


def interrupted(monkeypatch, after, fit):
    """A fit that ends in the middle, once so many steps are written."""
    seen, original = [], checkpoint.Checkpoint.write

    def write(self, *how):
        original(self, *how)
        seen.append(how)
        if len(seen) == after:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "write", write)
        with pytest.raises(Interrupted):
            fit()


@pytest.fixture
def step_by_step(monkeypatch):
    monkeypatch.setattr(
        inference._Pace, "steps", property(lambda self: 1, lambda self, n: None), raising=False
    )


@pytest.mark.usefixtures("compiled_quickly", "step_by_step")
@pytest.mark.parametrize("where", ["memory", "disk", "arrow"])
def test_a_fit_that_was_interrupted_releases_what_it_would_have(
    where, tmp_path, monkeypatch, request
):
    X, y = divided.table()
    if where != "memory":
        request.getfixturevalue("few_at_a_time")
        X, y = (
            on_disk(tmp_path, X=X, y=y)
            if where == "disk"
            else arrow_files.of_rows(tmp_path / "t.arrow", X, y)
        )
    expected = divided.digest(divided.fitted("dpvi", CASES["dpvi"], X, y))
    file, ledger = tmp_path / "fit.ckpt", PrivacyLedger(epsilon=50.0, delta=1e-3)

    moments = (f"2030-01-01T00:00:{i:02}+00:00" for i in itertools.count())
    monkeypatch.setattr(report, "now", lambda: next(moments))  # each fit is later

    def fit(seed=1):
        with skdpbayes.execution(checkpoint=file, every=0.0):
            how = CASES["dpvi"] | {"ledger": ledger}
            return divided.fitted("dpvi", how, X, y)

    for after in (1, 2, 7, divided.ROUNDS, divided.ROUNDS + 1):
        charged = len(ledger.entries)
        interrupted(monkeypatch, after, fit)
        assert file.stat().st_mode & 0o777 == 0o600 and not file.with_name("fit.ckpt.new").exists()
        if after == 2:  # twice
            interrupted(monkeypatch, 3, fit)
        assert divided.digest(fit()) == expected
        assert len(ledger.entries) == charged + 1
        assert not file.exists()


@pytest.mark.usefixtures("compiled_quickly", "step_by_step")
def test_chains_go_on_where_they_were(tmp_path, monkeypatch):
    X, y = divided.table()
    file = tmp_path / "fit.ckpt"

    def fit():
        with skdpbayes.execution(checkpoint=file, every=0.0):
            return DPBayesianLogisticRegression(
                epsilon=1.0, classes=[0, 1], solver="sgld", learning_rate=1e-6, n_chains=2,
                n_steps=4, sampling_rate=0.3, random_state=3, n_posterior_samples=20,
            ).fit(X, y)  # fmt: skip

    kept = pickle.dumps(fit().posterior_samples_)
    for after in (2, 5, 6, 8, 10):
        interrupted(monkeypatch, after, fit)
        assert pickle.dumps(fit().posterior_samples_) == kept


@pytest.mark.usefixtures("compiled_quickly", "step_by_step")
def test_a_checkpoint_is_of_one_fit(tmp_path, monkeypatch):
    """Noise is never added to other sums: what differs would be given away."""
    X, y = divided.table()
    file, ledger = tmp_path / "fit.ckpt", PrivacyLedger(epsilon=50.0, delta=1e-3)

    def fit(X=X, y=y, solver="dpvi", **changes):
        with skdpbayes.execution(checkpoint=file, every=0.0):
            own = CASES["dpvi"] | {"ledger": ledger} | changes
            return divided.fitted(solver, own, X, y)

    interrupted(monkeypatch, 3, fit)
    kept = file.read_bytes()
    other, label = X.copy(), y.copy()
    other[17, 2] += 1e-3
    label[3] = 1 - label[3]
    ran, noise = [], draws.noise_of_steps
    monkeypatch.setattr(draws, "noise_of_steps", lambda *how: ran.append(how) or noise(*how))
    for change in (
        {"X": other}, {"y": label}, {"X": X[:-1], "y": y[:-1]}, {"prior_scale": 3.0},
        {"sampling_rate": 0.21}, {"n_steps": 13}, {"solver": "na-dpvi"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="of another fit"):
            fit(**change)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "__version__", "0.0.0")
        with pytest.raises(ValueError, match="of another fit"):
            fit()
    assert not ran and len(ledger.entries) == 1 and file.read_bytes() == kept
    for mode in (0o640, 0o604, 0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(ValueError, match="others may read"):
            fit()
    file.chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(ValueError, match="others may read"):
            fit()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        fit()
    file.unlink()
    (tmp_path / "elsewhere").rename(file)
    file.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is no checkpoint"):
        fit()
    assert len(ledger.entries) == 1


def test_a_digest_says_nothing_without_the_keys():
    tree = {"x": np.arange(6.0)}
    one, other = (checkpoint.digest_of(bytes([k]) * 32, tree, "", [tree]) for k in (1, 2))
    assert one != other and one == checkpoint.digest_of(bytes([1]) * 32, tree, "", [tree])


def test_a_digest_sees_all_that_a_fit_depends_on(tmp_path, monkeypatch):
    key, x = bytes(32), np.arange(6.0)
    same = [checkpoint.digest_of(key, {"a": x}, "report", [{"x": x}]) for _ in range(2)]
    others = [
        checkpoint.digest_of(key, {"a": x + 1e-9}, "report", [{"x": x}]),
        checkpoint.digest_of(key, {"b": x}, "report", [{"x": x}]),
        checkpoint.digest_of(key, {"a": x}, "seeded", [{"x": x}]),
        checkpoint.digest_of(key, {"a": x}, "report", [{"x": x.view(np.int64)}]),
        checkpoint.digest_of(key, {"a": x}, "report", [{"x": x.reshape(2, 3)}]),
        checkpoint.digest_of(key, {"a": x}, "report", [{"y": x}]),
        checkpoint.digest_of(key, {"a": x}, "report", [{"x": x}, {"x": x}]),
    ]
    known = checkpoint.version
    for name in ("jax", "jaxlib", "numpy"):
        with monkeypatch.context() as patch:
            patch.setattr(
                checkpoint, "version", lambda own, n=name: "0" if own == n else known(own)
            )
            others.append(checkpoint.digest_of(key, {"a": x}, "report", [{"x": x}]))
    assert len(set(same)) == 1 and len({*same, *others}) == 1 + len(others)
    X, _ = divided.table()
    zeros = np.concatenate([X, np.zeros((1, 3), np.float32)])  # as a padded row
    reader = DPGaussianMixture(n_components=2, bounds=(-3, 3), adjacency="add_remove")
    digests = set()
    for i, rows in enumerate((X, zeros, np.concatenate([X[1:], X[:1]]))):
        read = reader._reader().read(reader, rows)
        stored_rows = reader._reader().read(reader, *on_disk(tmp_path, **{f"r{i}": rows}))
        for records in (read.pack(), stored.StoredRecords(len(rows), stored_rows.part)):
            digests.add(checkpoint.digest_of(key, {}, "", records.parts))
    assert len(digests) == 6


def test_a_seed_stays_a_seed(tmp_path, monkeypatch, compiled_quickly, step_by_step):
    X, y = divided.table()

    def fit(seed):
        with skdpbayes.execution(checkpoint=tmp_path / "fit", every=0.0):
            return divided.fitted("dpvi", CASES["dpvi"], X, y, seed=seed)

    interrupted(monkeypatch, 3, lambda: fit(7))
    with pytest.raises(ValueError, match="of another fit"):
        fit(None)


def test_a_fit_that_goes_on_under_another_ledger_is_charged(
    tmp_path, monkeypatch, compiled_quickly, step_by_step
):
    X, y = divided.table()

    def fit(ledger):
        with skdpbayes.execution(checkpoint=tmp_path / "fit", every=0.0):
            return divided.fitted("dpvi", CASES["dpvi"] | {"ledger": ledger}, X, y)

    interrupted(monkeypatch, 3, lambda: fit(None))
    with pytest.raises(skdpbayes.privacy.BudgetError):
        fit(PrivacyLedger(epsilon=0.01, delta=1e-3))
    other = PrivacyLedger(epsilon=5.0, delta=1e-3)
    interrupted(monkeypatch, 3, lambda: fit(other))
    fit(other)
    assert len(other.entries) == 1


def test_without_a_checkpoint_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    DPGaussianMixture(n_components=2, bounds=(-3, 3)).plan(100, 2)
    assert _base.checkpoint_in_force() is None
    assert not list(tmp_path.iterdir())
