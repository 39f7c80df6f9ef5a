"""White-box checks of the mechanism inside a running solver. Each raises AssertionError when its guarantee fails.

They look at transcripts (every release of a run) with the data chosen so that a transcript shows one thing: null
records show the noise, ``X = 100 I`` without noise shows the batches, and a record swapped for a null one under the
same keys shows what that record contributes.
"""

import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes._rows import bounded_rows
from skdpbayes.estimators import _logistic
from skdpbayes.inference import replay, run
from skdpbayes.privacy import GaussianSteps
from skdpbayes.privacy.mechanism import MechanismSpec
from skdpbayes.privacy.random import fit_keys
from skdpbayes.records import pack_records

NULL = -1  # label of a null record


def plan(solver, n, d, *, noise, rate, n_steps, clip=1.0, seed=0):
    """Model, solver, spec and keys of a run with a given noise multiplier instead of a calibrated one."""
    estimator = DPBayesianLogisticRegression(
        epsilon=np.inf, classes=[0, 1], fit_intercept=False, solver=solver, clipping_norm=clip, sampling_rate=rate,
        n_steps=n_steps, guide="mean_field", n_posterior_samples=10, learning_rate=1e-9,
    )  # fmt: skip
    model, solver, spec = estimator._plan(n, d, 2, 1e3)
    spec = MechanismSpec((GaussianSteps(noise, rate, n_steps),), "zero_out", clip)
    return model, solver, spec, fit_keys(seed)


def transcript(solver, X, y, **how):
    """All releases of a run, (n_steps, d)."""
    model, solver, spec, keys = plan(solver, *X.shape, **how)
    records = pack_records(x=X.astype(np.float32), y=y.astype(np.int32))
    return np.asarray(run(keys, model, solver, spec, records, record=True)[1], np.float64)


def check_noise(solver):
    """Noise of every coordinate and round is N(0, (sigma C)^2), independent."""
    n, d, n_steps, noise, clip = 50, 40, 600, 1.7, 0.5
    out = transcript(
        solver, np.ones((n, d)), np.full(n, NULL), noise=noise, rate=0.1, n_steps=n_steps, clip=clip
    ) / (noise * clip)
    squares = np.square(out)
    for name, sums, size in (
        ("all", squares.sum(), out.size),
        ("coordinate", squares.sum(axis=0), n_steps),
        ("round", squares.sum(axis=1), d),
    ):
        tail = np.minimum(stats.chi2.cdf(sums, size), stats.chi2.sf(sums, size))
        assert np.min(tail) > 1e-7, f"variance of the noise, by {name}"
    assert stats.kstest(out.ravel(), "norm").pvalue > 1e-7, "noise is not normal"
    gram = out @ out.T / np.sqrt(d)
    np.fill_diagonal(gram, 0)
    assert np.abs(gram).max() < 7, "noise is reused between rounds"
    cross = out.T @ out / np.sqrt(n_steps)
    np.fill_diagonal(cross, 0)
    assert np.abs(cross).max() < 7, "noise is reused between coordinates"


def batches(solver, n, rate, n_steps):
    """Inclusion masks, (n_steps, n): record i moves coordinate i alone, and the noise is known from null records."""
    how = dict(noise=1e3, rate=rate, n_steps=n_steps, clip=0.02)  # such that the parameters hardly move
    noise = transcript(solver, np.eye(n), np.full(n, NULL), **how)
    return np.abs(transcript(solver, np.eye(n), np.arange(n) % 2, **how) - noise) > 0.01


def check_sampling(solver):
    """Each record enters each batch independently with probability q."""
    n, rate, n_steps = 400, 0.07, 400
    mask = batches(solver, n, rate, n_steps)
    assert 1e-7 < stats.binomtest(int(mask.sum()), mask.size, rate).pvalue, "sampling rate"
    by_record = stats.binom.cdf(mask.sum(axis=0), n_steps, rate)
    assert 1e-8 < by_record.min() and by_record.max() < 1 - 1e-8, "a record's sampling rate"
    sizes = mask.sum(axis=1)
    statistic = (n_steps - 1) * sizes.var(ddof=1) / (n * rate * (1 - rate))
    assert 1e-7 < min(stats.chi2.cdf(statistic, n_steps - 1), stats.chi2.sf(statistic, n_steps - 1)), "batch sizes"
    centred = (mask - rate) / np.sqrt(rate * (1 - rate))
    for name, matrix, size in (("rounds", centred @ centred.T, n), ("records", centred.T @ centred, n_steps)):
        np.fill_diagonal(matrix, 0)
        assert np.abs(matrix).max() / np.sqrt(size) < 9, f"batches depend on each other between {name}"
    again = mask[:, 1:][mask[:, :-1]]  # does including a record change the odds of the next one?
    assert stats.binomtest(int(again.sum()), again.size, rate).pvalue > 1e-7, "inclusion of neighbours"


AWKWARD = {
    "NaN": np.nan,
    "infinity": np.inf,
    "1e300": 1e300,
    "huge": 1e30,
    "denormal": 1e-42,
    "tiny": 1e-25,
    "ordinary": 1.0,
}


def check_contribution(solver):
    """With keys, batch and past releases equal, nulling one record moves a release by at most the clipping norm."""
    n, d, rate, clip = 60, 7, 0.9, 0.5
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(n, d)), rng.integers(0, 2, n)
    for name, value in AWKWARD.items():
        for label in (0, 1, 7):
            X[5], y[5] = value, label
            # One round: there are no past releases to be equal, and later rounds are the same function of the state.
            how = dict(noise=10.0, rate=rate, n_steps=1, clip=clip)
            with np.errstate(over="ignore"):
                first = transcript(solver, X, y, **how)
                assert np.isfinite(first).all(), f"{name}: not finite"
                X0, y0 = X.copy(), y.copy()
                X0[5], y0[5] = 0, NULL
                second = transcript(solver, X0, y0, **how)
            moved = np.linalg.norm(first - second)
            assert moved <= clip * (1 + 1e-4), f"{name}: moved the sum by {moved} with clipping norm {clip}"


def check_number_of_records(solver):
    """The release does not depend on the number of records: null records more change nothing at all."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(90, 4)), rng.integers(0, 2, 90)
    how = dict(noise=1.0, rate=0.35, n_steps=3)
    more = transcript(solver, np.vstack([X, np.zeros((6, 4))]), np.r_[y, np.full(6, NULL)], **how)
    assert np.array_equal(transcript(solver, X, y, **how), more), "the number of records shows"


def check_keys(solver):
    """Keys for sampling, noise and the solver differ, within a fit and between fits."""
    del solver
    seen = set()
    for state in (None, None, 0, 1, 2**32 + 5, 5):
        keys = fit_keys(state, n_chains=2)
        for key in keys:
            for row in np.asarray(jax.random.key_data(key)):
                assert tuple(row) not in seen, "a key is used twice"
                seen.add(tuple(row))


def fitted(solver, n=311, **parameters):
    """A fitted estimator with its data and transcript, through the estimator's own code."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 3))
    y = rng.integers(0, 2, n)
    estimator = DPBayesianLogisticRegression(
        epsilon=1.0, classes=[0, 1], solver=solver, sampling_rate=0.3, n_steps=40, n_posterior_samples=50,
        random_state=11, **parameters,
    )  # fmt: skip
    return estimator.fit(X, y), X, y


def public_attributes(estimator):
    """Fitted attributes as bytes."""
    names = sorted(k for k in vars(estimator) if k.endswith("_") and not k.startswith("_"))
    return {name: pickle.dumps(getattr(estimator, name)) for name in names}


def check_replay(solver):
    """Every fitted attribute follows, bit for bit, from the releases and the solver key, without data."""
    for parameters in ({}, {"guide": "mean_field"}) if solver == "dpvi" else ({"n_chains": 2},):
        estimator, X, y = fitted(solver, **parameters)
        model, plan_solver, spec = estimator._plan(len(X), X.shape[1], 2, estimator.data_norm_)
        keys = fit_keys(11, spec.n_chains)
        rows, _ = bounded_rows(X, estimator.data_norm_, intercept=True, dtype=np.float32)
        records = pack_records(x=rows, y=_logistic._codes(y, estimator.classes_))
        _, releases = run(keys, model, plan_solver, spec, records, record=True)

        blank = DPBayesianLogisticRegression(**estimator.get_params())
        blank.n_features_in_, blank.classes_ = 3, np.array([0, 1])
        blank.data_norm_, blank.n_iter_, blank.privacy_spent_ = np.sqrt(3), 40, estimator.privacy_spent_
        example = {"x": jnp.zeros(4, jnp.float32), "y": jnp.int32(0)}
        state = replay(releases, keys.solver, model, plan_solver, spec, example)
        blank._set_posterior(model, plan_solver, jax.device_get(state), estimator._draws_rng(keys))
        want, got = public_attributes(estimator), public_attributes(blank)
        assert want.keys() == got.keys(), f"not a function of the releases: {set(want) ^ set(got)}"
        for name in want:
            if name not in ("data_norm_",):
                assert want[name] == got[name], f"{name} is not a function of the releases"
    

def check_memory(solver):
    """The fitted object holds no record, no key and nothing as long as the data."""
    estimator, X, _ = fitted(solver)
    n, text = len(X), pickle.dumps(estimator)
    keys = fit_keys(11, 1)
    for secret in (keys.sampling, keys.noise):
        assert np.asarray(jax.random.key_data(secret)).tobytes() not in text, "a key is stored"
    for row in X:
        for dtype in (np.float64, np.float32):
            assert row.astype(dtype).tobytes() not in text, "a record is stored"

    class Lengths(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, np.ndarray):
                assert n not in item.shape, f"an array of shape {item.shape} is stored"
            elif isinstance(item, (list, tuple, dict)):
                assert len(item) != n, "a container as long as the data is stored"

    Lengths(io.BytesIO()).dump(estimator)


CHECKS = [
    check_noise, check_sampling, check_contribution, check_number_of_records, check_keys, check_replay, check_memory,
]  # fmt: skip
