"""White-box checks of the mechanism inside a running solver. Each raises AssertionError when its guarantee fails.

They look at transcripts (every release of a run) with the data chosen so that a transcript shows
one thing: null records show the noise, ``X = I`` beside null records shows the batches, and a
record swapped for a null one under the same keys shows what that record contributes.
"""

import contextlib
import dataclasses
import io
import pickle
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ONE_ROUND, solvers_of
from jax.flatten_util import ravel_pytree
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.audit import checks
from skdpbayes.audit.checks import _precisions
from skdpbayes.audit.fit import Fit, multipliers, units
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.intake import rows as _rows
from skdpbayes.intake.classified import LONGEST_ROW
from skdpbayes.intake.labels import codes
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism import draws
from skdpbayes.mechanism import keys as random
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.on_device import DeviceNoise
from skdpbayes.privacy import GaussianSteps
from skdpbayes.pytrees import pytree

NULL = -1  # label of a null record
SOLVERS = solvers_of(DPBayesianLogisticRegression)  # of the estimator that the checks look into


@pytree
@dataclasses.dataclass(frozen=True)
class OneKind:
    """A solver that takes rounds of one kind only."""

    solver: Any
    kind: int = dataclasses.field(metadata={"static": True})

    def init(self, *arguments):
        return self.solver.init(*arguments)

    def rounds(self, *arguments):
        return (self.solver.rounds(*arguments)[self.kind],)


@pytree
@dataclasses.dataclass(frozen=True)
class Plain:
    """A model without closed forms and without a bound on its scores."""

    model: Any

    @property
    def n_columns(self):
        return self.model.n_columns

    def init(self):
        return self.model.init()

    def log_prior(self, params):
        return self.model.log_prior(params)

    def log_likelihood(self, params, record):
        return self.model.log_likelihood(params, record)

    def prior_precision(self):
        return self.model.prior_precision()


def plan(
    solver,
    n,
    d,
    *,
    noise,
    rate,
    n_steps,
    clip=1.0,
    guide="mean_field",
    adaptive=False,
    kind=None,
    chains=1,
):
    """Model, solver and spec of a run with a given noise multiplier instead of a calibrated one.

    An adaptive clipping norm is held at `clip`; the tallies that would move it are released all the
    same.
    """
    own = (
        {}
        if solver == "vips"
        else dict(clipping_norm=clip, sampling_rate=rate, n_steps=max(n_steps, 2))
    )
    estimator = DPBayesianLogisticRegression(
        epsilon=np.inf, classes=[0, 1], data_norm=1e3, fit_intercept=False, solver=solver,
        guide=guide if solver == "dpvi" else "auto", n_posterior_samples=10,
        learning_rate=1e-9 if solver in ("dpvi", "sgld") else None, **own,
    )  # fmt: skip
    made = estimator.plan(n, d)
    model, solver = made.model, made.solver
    if adaptive:
        solver = dataclasses.replace(
            solver, clip_fraction=np.float32(0.5), least_clip=np.float32(1.0)
        )
    if hasattr(solver, "products_norm"):
        norms = ("clipping_norm", "products_norm", "curvature_norm")
        solver = dataclasses.replace(solver, **dict.fromkeys(norms, np.float32(clip)))
    elif hasattr(solver, "curvature_norm"):
        solver = dataclasses.replace(solver, curvature_norm=np.float32(clip / 4))
    if kind is not None:
        solver = OneKind(solver, kind)
    spec = mechanism.MechanismSpec((GaussianSteps(noise, rate, n_steps),), chains)
    return model, solver, spec


@jax.enable_x64(True)
def noise_units(model, solver, spec):
    """Of each kind of round, ``C_b / sqrt(share_b)`` of every coordinate: noise over noise multiplier."""
    traced, key = spec.traced(), jax.random.key(0)
    state = solver.init(model, key)
    example = {"x": jnp.zeros((1, model.n_columns), jnp.float32), "y": jnp.zeros(1, jnp.int32)}
    out = []
    for round_ in solver.rounds(model, traced):
        blocks = round_.blocks(state)
        assert sum(block.share for block in blocks.values()) <= 1 + 1e-9
        sums = mechanism.zero_sums(round_.query(state, round_.point(state, key)), blocks, example)
        out.append(np.asarray(units(blocks, sums), np.float64))
    return out


def released(planned, X, y, keys=None):
    """All releases of a run, ([chains,] n_steps, size)."""
    model, solver, spec = planned
    keys = random.fit_keys(0, spec.n_chains) if keys is None else keys
    with np.errstate(over="ignore"):
        records = pack_records(x=X.astype(np.float32), y=y.astype(np.int32))
    return np.asarray(
        inference.run(keys, model, solver, spec, records, keep_releases=True)[1], np.float64
    )


def check_noise(solver):
    """Noise of every coordinate and round is N(0, (sigma C)^2 / share), independent."""
    n, d, n_steps, noise = (50, 16, 200, 1.7) if solver == "vips" else (50, 64, 1500, 1.7)
    how = dict(guide="full_rank", adaptive=True) if solver == "dpvi" else {}
    planned = plan(solver, n, d, noise=noise, rate=0.1, n_steps=n_steps, clip=0.5, **how)
    releases = released(planned, np.ones((n, d)), np.full(n, NULL))
    kinds = (
        np.zeros(n_steps) if solver == "sgld" else np.asarray(planned[1].which(jnp.arange(n_steps)))
    )
    for kind, unit in enumerate(noise_units(*planned)):
        out = releases[kinds == kind, : unit.size] / (noise * unit)
        squares = np.square(out)
        for name, sums, size in (
            ("all", squares.sum(), out.size),
            ("coordinate", squares.sum(axis=0), out.shape[0]),
            ("round", squares.sum(axis=1), out.shape[1]),
        ):
            tail = np.minimum(stats.chi2.cdf(sums, size), stats.chi2.sf(sums, size))
            assert np.min(tail) > 1e-8, f"variance of the noise, by {name}"
        assert stats.kstest(out.ravel(), "norm").pvalue > 1e-7, "noise is not normal"
        out = out[:, -1000:]  # the last coordinates, a tally among them
        for name, matrix in (("rounds", out), ("coordinates", out.T))[: 1 if len(out) == 1 else 2]:
            gram = (
                matrix @ matrix.T / np.linalg.norm(matrix, axis=1) ** 2 * np.sqrt(matrix.shape[1])
            )
            np.fill_diagonal(gram, 0)
            assert np.abs(gram).max() < 7.5, f"noise is reused between {name}"


def batches(planned, n, keys=None):
    """Inclusion masks, (n_steps, n): record i moves coordinate i alone, and the noise is known from null records."""
    noise = released(planned, np.eye(n), np.full(n, NULL), keys)
    return np.abs(released(planned, np.eye(n), np.arange(n) % 2, keys) - noise) > 0.005


def check_sampling(solver):
    """Each record enters each batch independently with probability q, and always when q is one."""
    n, rate, n_steps = 200, 0.25, 400
    how = dict(noise=1e4, n_steps=n_steps, clip=0.02)  # such that the parameters hardly move
    if solver == "na-dpvi":
        how["kind"] = 0  # its gradients; curvatures of so many columns are too large
    mask = batches(plan(solver, n, n, rate=rate, **how), n)
    assert 1e-7 < stats.binomtest(int(mask.sum()), mask.size, rate).pvalue, "sampling rate"
    by_record = stats.binom.cdf(mask.sum(axis=0), n_steps, rate)
    assert 1e-8 < by_record.min() and by_record.max() < 1 - 1e-8, "a record's sampling rate"
    sizes = mask.sum(axis=1)
    statistic = (n_steps - 1) * sizes.var(ddof=1) / (n * rate * (1 - rate))
    assert 1e-7 < min(
        stats.chi2.cdf(statistic, n_steps - 1), stats.chi2.sf(statistic, n_steps - 1)
    ), "batch sizes"
    centred = (mask - rate) / np.sqrt(rate * (1 - rate))
    for name, matrix, size in (
        ("rounds", centred @ centred.T, n),
        ("records", centred.T @ centred, n_steps),
    ):
        np.fill_diagonal(matrix, 0)
        assert np.abs(matrix).max() / np.sqrt(size) < 9, (
            f"batches depend on each other between {name}"
        )
    again = mask[:, 1:][mask[:, :-1]]  # does including a record change the odds of the next one?
    assert stats.binomtest(int(again.sum()), again.size, rate).pvalue > 1e-7, (
        "inclusion of neighbours"
    )
    assert batches(plan(solver, n, n, rate=1.0, **how), n).all(), "a full batch lacks records"


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
    """With keys, batch and state equal, nulling one record moves a release by at most 1 in units of its noise.

    That is the clipping norm, of all blocks together. A record with an unknown label moves nothing.
    """
    n, d = 60, 7
    # One round: there are no past releases to be equal, and later rounds are the same function of
    # the state.
    how = dict(noise=10.0, rate=1.0, n_steps=1, clip=0.5)
    kinds = {
        "dpvi": [dict(adaptive=True), dict(guide="full_rank", kind=1)],
        "na-dpvi": [dict(kind=0), dict(kind=1)],
        "sgld": [{}],
        "vips": [dict(kind=0), dict(kind=1)],
    }[solver]
    kinds = [
        (kind, plain)
        for kind in kinds
        for plain in (False, True)
        if not (plain and solver == "vips")
    ]
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(n, d)), rng.integers(0, 2, n)
    X[5], y[5] = 0, NULL
    for kind, plain in kinds:
        planned = plan(solver, n, d, **how, **kind)
        if plain:  # nothing but the mechanism keeps a contribution small
            planned = (Plain(planned[0]), *planned[1:])
        (unit,) = noise_units(*planned)
        without = released(planned, X, y)
        for name, value in AWKWARD.items():
            for label in (0, 1, 7):
                X1, y1 = X.copy(), y.copy()
                X1[5], y1[5] = value, label
                with_it = released(planned, X1, y1)
                assert np.isfinite(with_it).all(), f"{name}: not finite"
                moved = np.linalg.norm((with_it - without)[0] / unit)
                assert moved <= 1 + 1e-4, (
                    f"{name}: moved the release by {moved} times the clipping norm"
                )
                if label == 7:
                    assert moved == 0, f"{name}: a record with an unknown label contributes"
        X1, y1 = X.copy(), y.copy()
        X1[5], y1[5] = 3.0, 0
        moved = np.linalg.norm((released(planned, X1, y1) - without)[0] / unit)
        # A weight is made for the worst label: with the other one a score is shorter than the
        # clipping norm.
        assert moved > (0.9 if plain else 0.1), "no record was looked at"


def check_number_of_records(solver):
    """The release does not depend on the number of records: null records more change nothing at all."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(90, 4)), rng.integers(0, 2, 90)
    planned = plan(solver, 90, 4, noise=1.0, rate=0.35, n_steps=3)
    more = released(planned, np.vstack([X, np.zeros((6, 4))]), np.r_[y, np.full(6, NULL)])
    assert np.array_equal(released(planned, X, y), more), "the number of records shows"


def check_keys(solver):
    """Keys for sampling, noise and the solver differ, everywhere; each decides its own thing and nothing else."""
    seen = set()
    for state in (None, None, 0, 1, 2**32 + 5, 5):
        keys = random.fit_keys(state, n_chains=2)
        of_solver = (np.asarray(jax.random.key_data(key)).tobytes() for key in keys.solver)
        for key in (*keys.sampling, *keys.noise, *of_solver):
            assert key not in seen, "a key is used twice"
            assert not any(key in other for other in seen), "a key is part of another one"
            seen.add(key)

    n = 40
    kind = 0 if solver in ("na-dpvi", "vips") else None  # batches are read from one kind of round
    planned = plan(solver, n, n, noise=1e4, rate=0.5, n_steps=30, clip=0.02, kind=kind)
    keys, other = random.fit_keys(0), random.fit_keys(1)
    null = np.full(n, NULL)
    noise, mask = released(planned, np.eye(n), null, keys), batches(planned, n, keys)
    for name in ("sampling", "solver"):
        changed = keys._replace(**{name: getattr(other, name)})
        assert np.array_equal(released(planned, np.eye(n), null, changed), noise), (
            f"noise from the {name} key"
        )
    changed = keys._replace(noise=other.noise)
    assert (released(planned, np.eye(n), null, changed) != noise).mean() > 0.99, (
        "noise not from its key"
    )
    for name in ("noise", "solver"):
        changed = keys._replace(**{name: getattr(other, name)})
        assert np.array_equal(batches(planned, n, changed), mask), f"batches from the {name} key"


def check_chains(solver):
    """Each chain releases what it would release alone, with its own keys."""
    if solver == "dpvi":
        return
    n = 24
    how = dict(noise=1e4, rate=0.5, n_steps=20, clip=0.02)
    keys = random.fit_keys(3, 2)
    both = released(plan(solver, n, n, chains=2, **how), np.eye(n), np.arange(n) % 2, keys)
    for chain in range(2):
        own = keys.chain(chain)
        alone = released(plan(solver, n, n, **how), np.eye(n), np.arange(n) % 2, own)
        np.testing.assert_allclose(
            both[chain], alone, atol=5e-3, err_msg="chains share keys or batches"
        )


def drawn(query, blocks, spec, records, seed=0):
    """Batch and noise of one step, for `private_sum` by itself."""
    records = jax.device_put(records)
    zeros = jax.eval_shape(lambda: mechanism.zero_sums(query, blocks, records.one()))
    size = sum(leaf.size for leaf in jax.tree.leaves(zeros))
    keys, bounds = random.fit_keys(seed), records.bounds()
    spec = dataclasses.replace(spec, steps=(dataclasses.replace(spec.steps[0], steps=1),))
    steps = draws.draws_of_chain(
        keys.sampling[0], keys.noise[0], spec, np.array([size]), bounds, records.n_slots
    )
    return jax.tree.map(jnp.asarray, next(steps)).at(0)


def in_one(sums):
    """`Sums` as one tree, of integers that must not be too large."""
    if sums.high is None:
        return sums.low
    return jax.tree.map(lambda high, low: (high << 32) + low, *sums)


def integer_sums(query, blocks, spec, records, seed=0):
    """The sums of a release before noise is added, as integers in one list."""
    kept, original = [], mechanism.noisy_release
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(
            mechanism, "noisy_release", lambda *how: kept.append(in_one(how[-1])) or original(*how)
        )
        records = jax.device_put(records)
        draw = drawn(query, blocks, spec, records, seed)
        mechanism.private_sum(query, blocks, jax.device_put(spec.traced()), draw, 0, records)
        return np.asarray(ravel_pytree(kept[0])[0])


@contextlib.contextmanager
def recorded():
    """Have fits keep their releases: a list that they are appended to."""
    original, kept = inference.run, []

    def run(*arguments, **options):
        state, releases = original(*arguments, **(options | {"keep_releases": True}))
        kept.append(releases)
        return state, releases

    inference.run = run
    try:
        yield kept
    finally:
        inference.run = original


@contextlib.contextmanager
def one_program(most, padded=None):
    """Have fits keep a list of (model, solver, spec, releases), whose number, up to `most`, compiles nothing.

    With `padded` as the size of all tables, their sizes compile nothing either. The warning about
    seeds has been said.
    """
    kept = []

    def run(keys, model, solver, spec, packed, **_):
        room = max(most, spec.n_steps)
        state, releases = inference._run(keys, model, solver, spec, packed, room)
        kept.append((model, solver, spec, np.asarray(releases)[: spec.n_steps]))
        return state, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "run", run)
        patch.setattr("skdpbayes.estimators._base._warned", ["seed"])
        if padded:
            patch.setattr("skdpbayes.intake.packing.padded_size", lambda n: padded)
        yield kept


def planned(estimator, X):
    """What the compiled loop is given besides the rows, as arrays; nothing is run."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "run", lambda *given, **how: seen.extend(given) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            estimator.fit(X)
    keys, model, solver, spec, _ = seen
    secrets = [np.frombuffer(key, np.uint8) for key in (*keys.sampling, *keys.noise)]
    return jax.tree.leaves(
        (secrets, jax.random.key_data(keys.solver), model, solver, spec.traced())
    )


def assert_given_the_same(one, other):
    """Of two lists of `planned`."""
    assert len(one) == len(other) > 10
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def replay_mixture(estimator, releases, n_features, n):
    """Set what `estimator`, not fitted yet, would have after a fit with these releases and ``random_state=0``."""
    made = estimator.plan(n, n_features)
    keys, record = random.fit_keys(0), {"x": np.zeros(n_features, np.float32)}
    state = inference.replay(releases, keys.solver, made.model, made.solver, made.spec, record)
    estimator.n_features_in_ = n_features
    estimator._adopt(made, Outcome(jax.device_get(state), draws_rng(keys.solver), None))


def assert_replayed(model, again, *, without=("usable_records_",)):
    """All that `model` was fitted to is in `again`, bit for bit, but for what is named: public, or a release itself."""
    assert set(vars(model)) == set(vars(again)), "an attribute of another origin"
    for name in set(vars(again)) - set(again.get_params()) - set(without):
        assert pickle.dumps(getattr(again, name)) == pickle.dumps(getattr(model, name)), name


def fitted(solver, n=311, **parameters):
    """A fitted estimator with its data and releases, through the estimator's own code."""
    rng = np.random.default_rng(3)
    X = rng.normal([0.5, 0, -2], 1, (n, 3))  # a fit that standardised would show
    y = rng.integers(0, 2, n)
    if solver == "sgld" and "learning_rate" not in parameters:  # a chain that has to mix
        parameters = {"epsilon": 2.0, "n_steps": 401} | parameters
    if solver != "vips":
        parameters = {"sampling_rate": 0.3, "n_steps": 40} | parameters
    common = {"epsilon": 1.0, "classes": [0, 1], "n_posterior_samples": 50, "random_state": 11}
    estimator = DPBayesianLogisticRegression(solver=solver, **(common | parameters))
    with recorded() as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # chains as short as this
        estimator.fit(X, y)
    return estimator, X, y, kept[-1]


def fitted_attributes(estimator):
    """Fitted attributes as bytes, those without a public name too."""
    names = sorted(vars(estimator).keys() - estimator.get_params())
    return {name: pickle.dumps(getattr(estimator, name)) for name in names}


def forget_programs():
    """Programs are traced anew."""
    for name in (
        "_steps",
        "_released",
        "_recalled",
        "_learned",
        "_piece",
        "_piece_of_few",
        "_noisy",
        "_noisy_step",
        "_releases",
        "_kinds",
    ):
        getattr(inference, name).clear_cache()
    checks._longest.clear_cache()


def check_replay(solver, **parameters):
    """Every fitted attribute follows, bit for bit, from the releases and the solver key, without data.

    And the releases are those of the mechanism on the rows, each bounded by itself: nothing was
    fitted before.
    """
    estimator, X, y, releases = fitted(solver, **parameters)
    blank = clone(estimator)
    made = blank.plan(*X.shape)
    model, plan_solver, spec = made.model, made.solver, made.spec
    keys = random.fit_keys(11, spec.n_chains)
    rows, _ = _rows.bounded_rows(X, LONGEST_ROW * np.sqrt(3), intercept=True, dtype=np.float32)
    records = pack_records(x=rows, y=codes(y, np.array([0, 1])), on_grid=True)
    again = inference.run(keys, model, plan_solver, spec, records, keep_releases=True)[1]
    assert np.array_equal(releases, again), "the fit released something else"

    example = {"x": jnp.zeros(4, jnp.float32), "y": jnp.int32(0)}
    state = inference.replay(releases, keys.solver, model, plan_solver, spec, example)
    usable = mechanism.noisy_count(keys.counting, records.usable, spec)  # a release
    blank.n_features_in_ = X.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        blank._adopt(made, Outcome(jax.device_get(state), draws_rng(keys.solver), usable))
    want, got = fitted_attributes(estimator), fitted_attributes(blank)
    assert want.keys() == got.keys(), f"not a function of the releases: {set(want) ^ set(got)}"
    for name in want.keys() - {"data_norm_"}:  # the type of a public number
        assert want[name] == got[name], f"{name} is not a function of the releases"
    assert estimator.data_norm_ == blank.data_norm_


def check_memory(solver):
    """The fitted object holds no record, no key and nothing as long as the data."""
    estimator, X, *_ = fitted(solver)
    n, text = len(X), pickle.dumps(estimator)
    keys = random.fit_keys(11, estimator.n_chains)
    for secret in (*keys.sampling, *keys.noise, keys.counting):
        assert secret not in text, "a key is stored"
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


def check_lattice(solver):
    """Before it becomes a floating-point number a release is an integer: that of the records plus that of the noise."""
    n, d, noise = 200, 7, 1.3
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(n, d)), rng.integers(0, 2, n)
    planned = plan(solver, n, d, noise=noise, rate=1.0, n_steps=1, clip=0.5)
    kept, types = [], set()
    add, release = mechanism.add_noise, mechanism.noisy_release

    def add_noise(noise, sums):
        types.update(leaf.dtype for leaf in (*jax.tree.leaves(sums), noise))
        return add(noise, sums)

    def noisy_release(blocks, own, noise, step, sums):
        flat = ravel_pytree(in_one(sums))[0]
        given = flat, noise.values(flat.size) if isinstance(noise, DeviceNoise) else noise
        halves = (
            jax.lax.bitcast_convert_type(x, jnp.uint32) for x in given
        )  # callbacks get no 64 bits
        jax.debug.callback(
            lambda *words: kept.append([np.array(x).view(np.int64)[..., 0] for x in words]), *halves
        )
        return release(blocks, own, noise, step, sums)

    forget_programs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "add_noise", add_noise)
        patch.setattr(mechanism, "noisy_release", noisy_release)
        released(planned, X, y)
        released(planned, X[::-1], y[::-1])
        jax.effects_barrier()
    forget_programs()
    assert types == {np.dtype(np.int64)}, "sums or noise are not of integers"
    for _, added in kept:
        assert len(np.unique(added % 2**10)) > 0.5 * min(added.size, 2**10), (
            "the noise has a coarser grid"
        )
    assert np.array_equal(kept[0][0], kept[1][0]), "the sum depends on the order of the records"


CHECKS = [
    check_noise,
    check_sampling,
    check_contribution,
    check_number_of_records,
    check_keys,
    check_chains,
    check_replay,
    check_memory,
    check_lattice,
]


def applies(check, solver):
    """Whether a check has something to look at: solvers that take all rows draw no batches."""
    return solver not in ONE_ROUND or check not in (check_sampling, check_lattice)


# Of every estimator, by what its fit would run


def fit_of(case, X, y, **changes):
    """The fit of a case under a seed, stopped where the private loop would begin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that delta is not below 1/N
        return Fit(case.make(**changes), X, y, case.groups(X))


def all_rows(case):
    """Changes under which each round takes all rows."""
    if not case.samples:
        return {}
    starting = ("GaussianMixture", "SigmoidBeliefNet")  # which have releases for their start
    steps = 8 if case.model in starting else 4
    return {"sampling_rate": 1.0, "n_steps": max(steps, case.fewest_steps)}


def precisions(fit, releases, seed=0):
    """Inverse standard deviations of the values of a transcript, times the noise multiplier; zero where nothing is."""
    with jax.enable_x64(True):
        how = fit.model, fit.solver, jax.device_put(fit.spec.traced())
        keys, records = fit.keys(seed).solver, jax.device_put(fit.records)
        return np.stack(
            [
                np.asarray(_precisions(key, own, records, *how))
                for key, own in zip(keys, releases, strict=False)
            ]
        )


def check_noise_of(case):
    """Null records release noise alone, normal and of the size that is accounted for, round by round."""
    fit, values, seed = fit_of(case, *case.null(case.least * case.rows_each)), [], 0
    rounds, places = [], []
    while sum(map(len, values)) < 1000:
        releases = fit.run(seed)[1]
        found = precisions(fit, releases, seed)
        assert (found > 0).any(), "nothing is released"
        noise = releases * found / multipliers(fit)[:, None]
        values.append(noise[found > 0])
        squares, there = noise**2, found > 0
        rounds.append([np.sum(squares, axis=(0, 2)), np.sum(there, axis=(0, 2))])
        places.append([np.sum(squares, axis=(0, 1)), np.sum(there, axis=(0, 1))])
        seed += 1
    drawn = np.concatenate(values)
    of_rounds, of_places = np.sum(rounds, axis=0), np.sum(places, axis=0)
    # Of each round, of each place in a release, and of all.
    for size, number in [*of_rounds.T, *of_places.T, of_rounds.sum(axis=1)]:
        tail = min(stats.chi2.cdf(size, number), stats.chi2.sf(size, number)) if number else 1
        assert tail > 1e-9, "variance of the noise"
    assert stats.kstest(drawn, "norm").pvalue > 1e-7, "noise is not normal"


def check_one_row_of(case):
    """Nulling one row moves the first release by the clipping norm at most, in units of its noise."""
    X, y = case.data(max(60, case.least) * case.rows_each)
    own = slice(5 * case.rows_each, 6 * case.rows_each)  # the rows of one record
    X[own] = np.nan
    null = fit_of(case, X, y, **all_rows(case))
    without = null.run(0)[1]
    unit = precisions(null, without)[0, 0]
    looked_at = []
    for name, value in AWKWARD.items():
        for label in (0, 1, 7) if name == "ordinary" else (0, 7):
            X[own] = value
            if name == "ordinary":
                X[own, np.array(case.entry.smooth) == 0] = 1  # a code that is known
            if y is not None:
                y[own] = label
            with_it = fit_of(case, X, y, **all_rows(case)).run(0)[1]
            assert np.isfinite(with_it).all(), f"{name}: not finite"
            moved = np.linalg.norm((with_it - without)[0, 0] * unit)
            assert moved <= 1 + 1e-4, f"{name}: moved the release by {moved} clipping norms"
            if name == "ordinary":
                looked_at.append(moved)
    assert max(looked_at) > 1e-3, "no record was looked at"


def check_number_of_rows_of(case):
    """More null rows change nothing at all in a transcript."""
    X, y = case.data(max(90, case.least * case.rows_each))
    fit = fit_of(case, X, y, **all_rows(case))
    X_more = np.vstack([X, np.full_like(X[:6], np.nan)])  # whole records
    more = fit_of(case, X_more, None if y is None else np.r_[y, y[:6]], **all_rows(case))
    given = fit.keys(0), fit.model, fit.solver, fit.spec
    one, other = (
        inference.run(*given, records, keep_releases=True)[1]
        for records in (fit.records, more.records)
    )
    assert np.array_equal(one, other), "the number of rows shows"


CASE_CHECKS = [check_noise_of, check_one_row_of, check_number_of_rows_of]
