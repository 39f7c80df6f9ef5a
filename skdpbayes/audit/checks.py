"""White-box checks of an audit. Each says whether it passed, and a detail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from skdpbayes import inference
from skdpbayes.audit.fit import Fit, along, contribution, multipliers, units
from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.mechanism.private_sum import Query, Release
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Model
from skdpbayes.privacy.report import PrivacySpent
from skdpbayes.solvers.base import Solver

Verdict: TypeAlias = tuple[bool, str]
"""Whether a check passed, and a detail."""

_SURE = 1e-9
"""Significance level of each test: the probability that a correct mechanism fails it."""

_AWKWARD = (np.inf, -np.inf, 1e300, 1e30, 1e-42, -1e-300)
"""Cells that are tried besides those given."""


class Check(NamedTuple):
    """Result of one check of an audit."""

    name: str
    passed: bool
    detail: str


def run_checks(
    estimator: PrivateEstimator,
    X: np.ndarray,
    y: np.ndarray | None,
    groups: ArrayLike | None,
    null: Fit,
    seed: int,
) -> tuple[Check, ...]:
    """Check fits on (X, y), on the same table with awkward rows, and on the null one."""
    awkward_X, awkward_y = X.copy(), y if y is None else y.copy()
    for i, cell in zip(range(1, len(X)), _AWKWARD, strict=False):
        awkward_X[-i] = cell
        if awkward_y is not None and awkward_y.dtype.kind == "f" and i % 2:
            awkward_y[-i] = cell
    given = Fit(estimator, X, y, groups)
    awkward = Fit(estimator, awkward_X, awkward_y, groups)
    state, releases = given.run(seed)
    return (
        Check("norm", *_norms((given, awkward), releases[0], seed)),
        Check("inclusion", *_inclusion(given, seed)),
        Check("noise", *_noise(null, seed)),
        Check("count", *_count(given, seed)),
        Check("replay", *_replayed(given, null, state, releases, seed)),
    )


@jax.jit
def _longest(
    key: jax.Array,
    releases: np.ndarray,
    noise: np.ndarray,
    records: Records,
    indices: np.ndarray,
    bounds: np.ndarray,
    model: Model,
    solver: Solver,
    mechanism: Mechanism,
) -> jax.Array:
    """Length of the longest contribution in each step, given the releases."""

    def observe(
        query: Query, blocks: Mapping[str, Block], step: jax.Array, release: Release
    ) -> jax.Array:
        del release
        one = partial(
            contribution, query, blocks, mechanism, step, records, bounds=bounds, noise=noise
        )
        longest = jnp.max(jax.lax.map(lambda i: jnp.linalg.norm(one(index=i)), indices))
        return longest[None]  # NaN if any length is

    return along(key, releases, records, model, solver, mechanism, observe)[:, 0]


def _norms(fits: Iterable[Fit], releases: np.ndarray, seed: int) -> Verdict:
    """Whether no contribution is longer than the clipping norm."""
    longest = []
    for fit in fits:
        with jax.enable_x64(True):
            indices = np.arange(int(fit.records.n_records), dtype=np.int32)
            bounds = np.array(fit.records.bounds())
            dtype = np.float32 if fit.spec.levels is None else np.int64
            noise = np.zeros(releases.shape[-1], dtype)
            lengths = _longest(
                fit.keys(seed).solver[0], releases, noise, jax.device_put(fit.records), indices,
                bounds, fit.model, fit.solver, jax.device_put(fit.spec.traced()),
            )  # fmt: skip
            longest.append(float(jnp.max(lengths)))
    detail = "longest contribution {:.4f} of the clipping norm ({:.4f} with awkward rows)".format(
        *longest
    )
    return bool(longest[0] > 0 and max(longest) <= 1 + 1e-5 and not np.isnan(longest).any()), detail


def _inclusion(fit: Fit, seed: int, rounds: int = 2000) -> Verdict:
    """Whether batches are independent Bernoulli draws of all records."""
    rate, n = fit.plan.report.steps[0].sampling_rate, int(fit.records.n_records)
    spec = replace(fit.spec, steps=(replace(fit.spec.steps[0], steps=rounds),))
    keys, slots = fit.keys(seed), fit.records.n_slots
    mask = np.zeros((rounds, n))
    bounds = fit.records.bounds()
    for part in inference.draws_of_chain(
        keys.sampling[0], keys.noise[0], spec, np.ones(rounds), bounds, slots
    ):
        for t in range(part.first, part.stop):
            starts = part.starts[t - part.first]
            mask[t, part.indices[starts[0] : starts[-1]]] = 1
    share = mask.mean()
    if rate == 1:
        return bool(share == 1), f"{share:.4f} of all rows, should be all"
    tests = [stats.binomtest(int(mask.sum()), mask.size, rate).pvalue]
    by_row = stats.binom.cdf(mask.sum(axis=0), rounds, rate)
    tests.append(2 * n * min(by_row.min(), (1 - by_row).min()))
    spread = (rounds - 1) * mask.sum(axis=1).var(ddof=1) / (n * rate * (1 - rate))
    tests.append(2 * min(stats.chi2.cdf(spread, rounds - 1), stats.chi2.sf(spread, rounds - 1)))
    centred = (mask - rate) / math.sqrt(rate * (1 - rate))
    rows, columns = (centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])
    for later, sooner in (rows, columns):  # consecutive rounds, neighbouring records
        if later.size:
            tests.append(2 * stats.norm.sf(abs((later * sooner).sum()) / math.sqrt(later.size)))
    detail = f"rate {share:.4f}, should be {rate:.4f}; least p-value {min(tests):.2g}"
    return bool(min(tests) > _SURE), detail


@jax.jit
def _precisions(
    key: jax.Array,
    releases: np.ndarray,
    records: Records,
    model: Model,
    solver: Solver,
    mechanism: Mechanism,
) -> jax.Array:
    """Noise multiplier over standard deviation of each released value; zero for padding."""

    def observe(
        query: Query, blocks: Mapping[str, Block], step: jax.Array, release: Release
    ) -> jax.Array:
        del query, step
        return 1 / units(blocks, release)

    return along(key, releases, records, model, solver, mechanism, observe)


def _noise(fit: Fit, seed: int, most: int = 200_000, runs: int = 20) -> Verdict:
    """Whether a table of null records releases pure noise of the right size."""
    values: list[np.ndarray] = []
    sigmas, released = multipliers(fit), np.zeros(0, bool)
    while len(values) < runs * fit.spec.n_chains and sum(own.size for own in values) < most:
        at = seed + len(values)
        keys, (_, releases) = fit.keys(at), fit.run(at)
        for chain, own in enumerate(releases):
            with jax.enable_x64(True):
                records, spec = jax.device_put(fit.records), jax.device_put(fit.spec.traced())
                how = (records, fit.model, fit.solver, spec)
                precisions = np.asarray(_precisions(keys.solver[chain], own, *how))
            values.append(own / sigmas[:, None] * precisions)
            released = precisions > 0  # the same values in every run
    drawn = np.stack(values)  # (runs, steps, width), zero where nothing is released
    present, squares, tests = np.broadcast_to(released, drawn.shape), np.square(drawn), {}
    for name, axes in (("all", (0, 1, 2)), ("value", (0, 1)), ("round", (0, 2))):
        total, count = np.atleast_1d(squares.sum(axis=axes)), np.atleast_1d(present.sum(axis=axes))
        total, count = total[count > 0], count[count > 0]
        tail = np.minimum(stats.chi2.cdf(total, count), stats.chi2.sf(total, count))
        tests[f"size by {name}"] = float(2 * tail.min() * len(total))
    tests["normality"] = float(stats.kstest(drawn[present], "norm").pvalue)
    products = {
        "rounds": drawn[:, 1:] * drawn[:, :-1],
        "values": drawn[..., 1:] * drawn[..., :-1],
    }
    for name, product in products.items():
        if product.size:
            size = abs(product.sum()) / math.sqrt(max(int(np.count_nonzero(product)), 1))
            tests[f"independence of {name}"] = float(2 * stats.norm.sf(size))
    worst = min(tests, key=tests.__getitem__)
    size = math.sqrt(squares.sum() / present.sum())
    detail = f"size {size:.4f} of what is accounted for; least p-value {tests[worst]:.2g} ({worst})"
    return tests[worst] > _SURE, detail


def _count(fit: Fit, seed: int, runs: int = 1000) -> Verdict:
    """Whether the number of usable records has fresh noise of the size accounted for."""
    if fit.spec.count is None:
        return True, "not released"
    counts = [fit.usable(seed + i) for i in range(runs)]
    estimates = np.array([np.nan if own is None else own.estimate for own in counts])
    usable = fit.records.usable
    errors = estimates - (0 if usable is None else int(np.count_nonzero(usable)))
    errors = errors / fit.spec.count.noise_multiplier
    total = np.square(errors).sum()
    tests = [
        2 * min(stats.chi2.cdf(total, runs), stats.chi2.sf(total, runs)),
        stats.kstest(errors, "norm").pvalue,
        2 * stats.norm.sf(abs((errors[1:] * errors[:-1]).sum()) / math.sqrt(runs)),
    ]
    size = math.sqrt(total / runs)
    detail = f"noise {size:.4f} of what is accounted for; least p-value {min(tests):.2g}"
    return bool(min(tests) > _SURE), detail


def _replayed(fit: Fit, null: Fit, state: Any, releases: np.ndarray, seed: int) -> Verdict:
    """Whether releases and public values determine every fitted attribute."""
    example = jax.tree.map(
        lambda x: np.zeros(x.shape[1:], x.dtype), jax.device_put(null.records).one()
    )
    given = releases if null.spec.n_chains > 1 else releases[0]
    again = inference.replay(
        given, null.keys(seed).solver, null.model, null.solver, null.spec, example
    )
    usable = fit.usable(seed)
    one, other = fit.finished(seed, state, usable), null.finished(seed, again, usable)
    differing = sorted(name for name in {*one, *other} if not _same(one.get(name), other.get(name)))
    if differing:
        return False, f"differ: {', '.join(differing)}"
    return True, f"{len(one)} attributes follow from the releases"


def _same(one: Any, other: Any) -> bool:
    """Whether two objects hold the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, PrivacySpent):  # the date is that of the audit's own fits
        return one == other
    if isinstance(one, np.ndarray):
        if one.dtype != object:
            return (
                one.dtype == other.dtype
                and one.shape == other.shape
                and one.tobytes() == other.tobytes()
            )
        return one.shape == other.shape and all(map(_same, one.ravel(), other.ravel()))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if hasattr(one, "__dict__") and not isinstance(one, FunctionType):
        return _same(vars(one), vars(other))
    return bool(one == other)
