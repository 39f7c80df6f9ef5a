"""The five white-box checks of an audit. Each says whether it passed, and a detail."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from skdpbayes import inference
from skdpbayes.audit.fit import Fit, along, contribution, multipliers, units
from skdpbayes.privacy.report import PrivacySpent

_SURE = 1e-9  # a test that a right mechanism fails with this probability fails it
_AWKWARD = (
    np.inf,
    -np.inf,
    1e300,
    1e30,
    1e-42,
    -1e-300,
)  # cells of rows that are tried beside those given


class Check(NamedTuple):
    """What one of the checks of an audit found."""

    name: str
    passed: bool
    detail: str


def run_checks(estimator, X, y, null, seed):
    """All five, of fits on (X, y), on the same table with awkward rows, and on the null one."""
    awkward_X, awkward_y = X.copy(), y if y is None else y.copy()
    for i, cell in zip(range(1, len(X)), _AWKWARD, strict=False):
        awkward_X[-i] = cell
        if awkward_y is not None and awkward_y.dtype.kind == "f" and i % 2:
            awkward_y[-i] = cell
    given, awkward = Fit(estimator, X, y), Fit(estimator, awkward_X, awkward_y)
    state, releases = given.run(seed)
    return (
        Check("norm", *_norms((given, awkward), releases[0], seed)),
        Check("inclusion", *_inclusion(given, seed)),
        Check("noise", *_noise(null, seed)),
        Check("count", *_count(given, seed)),
        Check("replay", *_replayed(given, null, state, releases, seed)),
    )


@jax.jit
def _longest(key, releases, noise, records, indices, bounds, model, solver, mechanism):
    """Length of the longest contribution of any record in each step, if these released what is given."""

    def observe(query, blocks, step, release):
        del release
        one = partial(
            contribution, query, blocks, mechanism, step, records, bounds=bounds, noise=noise
        )
        return jnp.max(jax.lax.map(lambda i: jnp.linalg.norm(one(index=i)), indices))[
            None
        ]  # NaN, if any is

    return along(key, releases, records, model, solver, mechanism, observe)[:, 0]


def _norms(fits, releases, seed):
    """Whether no record adds more to a release than its clipping norm."""
    longest = []
    for fit in fits:
        with jax.enable_x64(True):
            indices, bounds = (
                np.arange(int(fit.records.n_records), dtype=np.int32),
                np.array(fit.records.bounds()),
            )
            noise = np.zeros(
                releases.shape[-1], np.float32 if fit.spec.levels is None else np.int64
            )
            lengths = _longest(
                fit.keys(seed).solver[0], releases, noise, jax.device_put(fit.records), indices, bounds, fit.model,
                fit.solver, jax.device_put(fit.spec.traced()),
            )  # fmt: skip
            longest.append(float(jnp.max(lengths)))
    detail = "longest contribution {:.4f} of the clipping norm ({:.4f} with awkward rows)".format(
        *longest
    )
    return bool(longest[0] > 0 and max(longest) <= 1 + 1e-5 and not np.isnan(longest).any()), detail


def _inclusion(fit, seed, rounds=2000):
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
    for later, sooner in (
        (centred[1:], centred[:-1]),
        (centred[:, 1:], centred[:, :-1]),
    ):  # rounds, neighbours
        if later.size:
            tests.append(2 * stats.norm.sf(abs((later * sooner).sum()) / math.sqrt(later.size)))
    return bool(
        min(tests) > _SURE
    ), f"rate {share:.4f}, should be {rate:.4f}; least p-value {min(tests):.2g}"


@jax.jit
def _precisions(key, releases, records, model, solver, mechanism):
    """Inverse standard deviations, times the noise multiplier, of all values released; zero where nothing is."""

    def observe(query, blocks, step, release):
        del query, step
        return 1 / units(blocks, release)

    return along(key, releases, records, model, solver, mechanism, observe)


def _noise(fit, seed, most=200_000, runs=20):
    """Whether a table of null records releases noise alone, of the right size."""
    values: list[np.ndarray] = []
    sigmas, released = multipliers(fit), np.zeros(0, bool)
    while len(values) < runs * fit.spec.n_chains and sum(own.size for own in values) < most:
        at = seed + len(values)
        keys, (_, releases) = fit.keys(at), fit.run(at)
        for chain, own in enumerate(releases):
            with jax.enable_x64(True):
                how = (
                    jax.device_put(fit.records),
                    fit.model,
                    fit.solver,
                    jax.device_put(fit.spec.traced()),
                )
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
    for name, product in (
        ("rounds", drawn[:, 1:] * drawn[:, :-1]),
        ("values", drawn[..., 1:] * drawn[..., :-1]),
    ):
        if product.size:
            size = abs(product.sum()) / math.sqrt(max(int(np.count_nonzero(product)), 1))
            tests[f"independence of {name}"] = float(2 * stats.norm.sf(size))
    worst = min(tests, key=tests.__getitem__)
    size = math.sqrt(squares.sum() / present.sum())
    detail = f"size {size:.4f} of what is accounted for; least p-value {tests[worst]:.2g} ({worst})"
    return tests[worst] > _SURE, detail


def _count(fit, seed, runs=1000):
    """Whether the number of usable records is released with the noise that is accounted for, new in each run."""
    counts = [fit.usable(seed + i) for i in range(runs)]
    if None in counts:
        return True, "not released"
    errors = (
        np.array([c.estimate for c in counts]) - np.count_nonzero(fit.records.usable)
    ) / fit.spec.count.noise_multiplier
    total = np.square(errors).sum()
    tests = [
        2 * min(stats.chi2.cdf(total, runs), stats.chi2.sf(total, runs)),
        stats.kstest(errors, "norm").pvalue,
        2 * stats.norm.sf(abs((errors[1:] * errors[:-1]).sum()) / math.sqrt(runs)),
    ]
    size = math.sqrt(total / runs)
    return bool(
        min(tests) > _SURE
    ), f"noise {size:.4f} of what is accounted for; least p-value {min(tests):.2g}"


def _replayed(fit, null, state, releases, seed):
    """Whether releases and public values decide every fitted attribute."""
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
    detail = (
        f"differ: {', '.join(differing)}"
        if differing
        else f"{len(one)} attributes follow from the releases"
    )
    return not differing, detail


def _same(one, other):
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
