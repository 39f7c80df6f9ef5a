"""Compiled programs that are kept, the two drivers, and what is said before a long fit."""

import os
import warnings

import jax
import numpy as np
import pytest
from jax._src.compilation_cache import decompress_executable
from whitebox import forget_programs

import skdpbayes
from skdpbayes import DPGammaExponential, LongFitWarning, set_compilation_cache
from skdpbayes.mechanism.keys import fit_keys

N = 67


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "cache"
    set_compilation_cache(None)


def test_kept_programs_hold_no_row_and_no_key_and_others_cannot_read_them(
    folder, no_compiled_programs
):
    set_compilation_cache(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    X = np.random.default_rng(0).exponential(0.25, size=(N, 3))
    fitted = DPGammaExponential(random_state=0).fit(X)
    files = [file for file in folder.iterdir() if file.name.endswith("-cache")]
    assert any("jit__release-" in file.name for file in files), "no program was kept"
    assert all(file.name.startswith("jit_") for file in files)
    held = b"".join(decompress_executable(file.read_bytes()) for file in files)
    assert b"_release" in held, "programs cannot be read"
    own = fit_keys(0)
    values = [x for row in X for x in row]
    secrets = [*own.sampling, *own.noise, own.counting, np.asarray(fitted.rate_, np.float64)[:1]]
    secrets += [np.float32(x) for x in values] + [np.float64(x) for x in values]
    for secret in secrets:
        assert bytes(secret) not in held, "a kept program holds a secret"
    size = sum(file.stat().st_size for file in files)
    forget_programs()
    again = DPGammaExponential(random_state=0).fit(X)
    np.testing.assert_array_equal(again.rate_, fitted.rate_)
    assert size == sum(file.stat().st_size for file in folder.glob("*-cache"))  # all were found


def test_a_folder_that_others_can_change_is_refused(folder, tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    folder.mkdir(mode=0o755)
    for mode in (0o755, 0o720, 0o702, 0o704):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match="chmod 700"):
            set_compilation_cache(folder)
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(PermissionError, match="no link"):
        set_compilation_cache(link)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match="in the place of"):
        set_compilation_cache(open_to_all / "cache")
    assert jax.config.jax_compilation_cache_dir == before
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(PermissionError, match="another user"):
        set_compilation_cache(folder)
    monkeypatch.delattr(os, "getuid")
    with pytest.raises(NotImplementedError):
        set_compilation_cache(folder)


def test_a_long_fit_is_announced_before_the_charge_and_from_public_numbers():
    class Ledger:
        def charge(self, *args, **kwargs):
            raise RuntimeError("charged")

    X = np.ones((N, 2))
    long = skdpbayes.DPBayesianLogisticRegression(
        solver="dpvi", n_steps=20_000_000, classes=[0, 1], ledger=Ledger()
    )
    for rows in (X, np.full_like(X, np.nan)):
        with pytest.warns(LongFitWarning, match=r"about \d+ minutes") as said:
            with pytest.raises(RuntimeError, match="charged"):
                long.fit(rows, np.arange(N) % 2)
        assert len(said) == 1
    long.set_params(n_steps=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="charged"):
            long.fit(X, np.arange(N) % 2)
        long.set_params(n_steps=20_000_000, adjacency="add_remove", sampling_rate=0.01)
        with pytest.raises(RuntimeError, match="charged"):  # the number of rows is private
            long.fit(X, np.arange(N) % 2)
