"""Langevin dynamics whose noise is the privacy noise: temperature one, and an honest account."""

import re

import numpy as np
import pytest
import whitebox
from cases import slow_but
from hypothesis import given
from hypothesis import strategies as st
from numpyro.diagnostics import effective_sample_size
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.spec import MAX_SCHEDULE
from skdpbayes.privacy import (
    GaussianSteps,
    calibrate_noise,
    compose,
    step_size_bound,
    wang_step_size_bound,
)
from skdpbayes.privacy.accounting import decreasing_blocks, noise_multiplier, step_size
from skdpbayes.reference import logistic_gibbs

# Chains as short as these have not mixed, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

positive = st.floats(1e-6, 1e6)


@given(positive, st.floats(1e-6, 1), positive)
def test_step_size_and_noise_multiplier_are_one_thing(h, q, clip):
    sigma = noise_multiplier(h, q, clip)
    assert step_size(sigma, q, clip) == pytest.approx(h, rel=1e-12)
    # What enters the step is h / q times noise of standard deviation sigma C: a variance of 2h.
    assert (h / q * sigma * clip) ** 2 == pytest.approx(2 * h, rel=1e-12)


@pytest.mark.slow
def test_the_bound_is_the_step_size_of_the_calibrated_noise():
    q, clip, steps = 0.02, 0.5, 300
    for schedule, blocks in (
        ("constant", [(1.0, steps)]),
        ("decreasing", decreasing_blocks(steps)),
    ):
        how = {"n_steps": steps, "sampling_rate": q, "clipping_norm": clip, "schedule": schedule}
        first = step_size_bound(0.7, 1e-5, **how)
        spent = [
            GaussianSteps(noise_multiplier(first * size, q, clip), q, count)
            for size, count in blocks
        ]
        assert compose(spent).epsilon(1e-5) == pytest.approx(0.7, rel=1e-3)
    assert 50_000 * step_size_bound(0.1, 1e-5, n_steps=10_000, sampling_rate=1.0) == pytest.approx(
        0.0106, rel=0.01
    )
    assert 50_000 * wang_step_size_bound(0.1, 1e-5, n_steps=10_000) == pytest.approx(
        1.5e-6, rel=0.02
    )
    assert step_size_bound(np.inf, 1e-5, n_steps=10, sampling_rate=0.1) == np.inf
    with pytest.raises(ValueError, match="schedule"):
        step_size_bound(1.0, 1e-5, n_steps=10, sampling_rate=0.1, schedule="falling")


@given(st.integers(1, 10**7))
def test_decreasing_blocks(n_steps):
    blocks = decreasing_blocks(n_steps)
    assert len(blocks) <= MAX_SCHEDULE
    assert sum(count for _, count in blocks) == n_steps
    assert all(count >= 1 for _, count in blocks)
    ends = np.cumsum([count for _, count in blocks])
    sizes = np.array([size for size, _ in blocks])
    np.testing.assert_allclose(
        sizes, ends ** (-1 / 3)
    )  # the law at a block's last step: never above it
    assert (np.diff(sizes) < 0).all()


def estimator(**parameters):
    small = {"n_steps": 50, "n_posterior_samples": 30, "random_state": 0}
    return DPBayesianLogisticRegression(solver="sgld", classes=[0, 1], **(small | parameters))


X, Y = np.random.default_rng(0).normal(size=(120, 2)), np.arange(120) % 2


def test_a_step_too_large_is_refused_with_the_largest_allowed(compiled_quickly):
    how = {"sampling_rate": 0.2, "clipping_norm": 0.7}
    with pytest.raises(ValueError, match="learning_rate=5 is too large for epsilon=1") as error:
        estimator(learning_rate=5.0, **how).fit(X, Y)
    largest = float(re.search(r"At most (\S+) is allowed", str(error.value)).group(1))
    count = estimator(learning_rate=1e-9).plan(*X.shape).spec.count
    noise = calibrate_noise(1.0, 1e-5, 0.2, 50, along=[count]).noise_multiplier
    assert largest == pytest.approx(step_size(noise, 0.2, 0.7), rel=1e-4)
    spent = estimator(learning_rate=0.999 * largest, **how).fit(X, Y).privacy_spent_
    assert 0.98 < spent.epsilon <= 1
    smaller = estimator(learning_rate=0.1 * largest, **how).fit(X, Y).privacy_spent_
    assert smaller.epsilon < 0.5
    assert smaller.noise_multiplier == pytest.approx(noise_multiplier(0.1 * largest, 0.2, 0.7))


def test_chains_share_the_budget():
    one, three = (
        estimator(n_chains=c, sampling_rate=0.2, learning_rate=1e-4).fit(X, Y) for c in (1, 3)
    )
    assert three.privacy_spent_.n_steps == 150 and one.privacy_spent_.n_steps == 50
    assert one.privacy_spent_.epsilon < three.privacy_spent_.epsilon <= 1
    steps = three.privacy_spent_.releases
    assert compose(steps).epsilon(1e-5) == pytest.approx(three.privacy_spent_.epsilon)
    assert three.posterior_.draws.shape == (3, 10, 3)
    flat = three.posterior_.draws.reshape(3, -1)
    assert all(not np.isclose(flat[i], flat[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_decreasing_schedule_is_accounted_as_it_runs():
    fit = estimator(
        step_schedule="decreasing", learning_rate=1e-4, sampling_rate=0.2, clipping_norm=0.7
    ).fit(X, Y)
    spent = fit.privacy_spent_
    sigmas = np.array([block.noise_multiplier for block in spent.steps])
    assert (np.diff(sigmas) > 0).all() and spent.n_steps == 50
    assert spent.epsilon <= 1


# The target is the prior when all records are null: N(0, 1) in each of 64 coordinates.

N, D, STEP, RATE, CLIP = 50, 64, 0.05, 0.1, 0.5


def stationary_variance(seeds=4):
    """Variance of the draws, and their number."""
    sigma = noise_multiplier(STEP, RATE, CLIP)
    draws = []
    for seed in range(seeds):
        model, solver, spec = whitebox.plan(
            "sgld", N, D, noise=sigma, rate=RATE, n_steps=3000, clip=CLIP
        )
        records = pack_records(x=np.ones((N, D), np.float32), y=np.full(N, whitebox.NULL, np.int32))
        state, _ = inference.run(fit_keys(seed), model, solver, spec, records)
        draws.append(solver.posterior(model, state).draws.ravel())
    draws = np.concatenate(draws)
    return draws.var(), len(draws)


@pytest.mark.slow
def test_the_temperature_is_one(compiled_quickly):
    # Exactly 1 / (1 - h/2) for a step of size h on a standard normal; the kept draws are 7 units of
    # time apart.
    variance, n = stationary_variance()
    assert n == 4 * 10 * D
    assert abs(variance * (1 - STEP / 2) - 1) < 5 * np.sqrt(2 / n)
    assert not abs(2 * variance * (1 - STEP / 2) - 1) < 5 * np.sqrt(2 / n)


@pytest.mark.slow
def test_another_temperature_is_noticed(monkeypatch, no_compiled_programs):
    """The factor of two of the original paper: noise of variance h instead of 2h, in a run that claims the same."""
    from skdpbayes.mechanism import private_sum as mechanism
    from skdpbayes.models.base import double

    original = mechanism.add_noise

    monkeypatch.setattr(
        mechanism, "add_noise", lambda noise, sums: original(noise / 2**0.5, double(sums))
    )
    variance, n = stationary_variance()
    assert abs(variance * (1 - STEP / 2) - 1) > 5 * np.sqrt(2 / n)
    assert variance * (1 - STEP / 2) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_agreement_with_gibbs():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(800, 3)) * 0.7
    X /= np.maximum(1, np.linalg.norm(X, axis=1) / 2)[:, None]
    y = (rng.random(800) < expit(X @ [1.5, -1, 0] + 0.3)).astype(int)
    draws = logistic_gibbs(X, y, n_draws=9000, n_burn=300, n_chains=1, random_state=0)
    assert effective_sample_size(draws).min() >= 4000
    mean, sd = draws[0].mean(axis=0), draws[0].std(axis=0)
    fit = estimator(epsilon=np.inf, data_norm=2.0, n_steps=80_000, n_posterior_samples=8000).fit(
        X, y
    )
    assert fit.diagnostics_["ess"].min() > 700 and fit.diagnostics_["r_hat"].max() < 1.02
    np.testing.assert_allclose((fit.posterior_.mean - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(fit.posterior_.std / sd, 1, atol=0.1)


# Chains with released curvature: logistic regression without a learning rate.


def table(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X, truth = rng.normal(size=(n, d)), rng.normal(size=d + 1)
    return X, (rng.random(n) < expit(X @ truth[:d] + truth[d])).astype(int), truth


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("adjacency", slow_but(["zero_out", "replace_one"], "zero_out"))
def test_the_budget_is_spent_and_every_release_is_charged(epsilon, adjacency):
    plan = estimator(epsilon=epsilon, adjacency=adjacency, n_steps=None).plan(20_000, 5)
    assert 0.999 * epsilon < plan.epsilon <= epsilon
    steps, traced = plan.spec.steps, plan.spec.traced()
    charged = np.repeat([own.noise_multiplier for own in steps], [own.steps for own in steps])
    assert len(charged) == plan.n_steps == 2001
    run = np.array([traced.noise_multiplier(step) for step in range(len(charged))])
    np.testing.assert_allclose(run, charged, rtol=1e-6)
    assert compose(plan.report.releases, adjacency).epsilon(1e-5) == pytest.approx(plan.epsilon)
    # The whitening comes first, with its share of the squared inverses.
    kinds = np.array([plan.solver.which(step) for step in range(len(charged))])
    spent = charged**-2.0 / np.sum(charged**-2.0)
    assert (kinds[0], spent[0]) == (0, pytest.approx(0.05, rel=1e-3))
    turns = np.flatnonzero(kinds == 2)
    assert list(turns) == [1, 41, 121, 301, 2000]
    np.testing.assert_allclose(spent[turns] / 0.95, [0.01, 0.02, 0.03, 0.04, 0.08], rtol=1e-3)
    assert len(set(charged[kinds == 1])) == 1  # all scores alike


def test_it_is_refused_by_public_numbers_where_noise_hides_the_curvature():
    for epsilon, d in ((0.1, 3), (1.0, 20), (4.0, 40)):
        with pytest.raises(ValueError, match="Use solver='na-dpvi'") as error:
            estimator(epsilon=epsilon, n_steps=None).plan(100, d)
        enough = int(re.search(r"at least (\d+) rows", str(error.value)).group(1))
        assert estimator(epsilon=epsilon, n_steps=None).plan(enough, d).epsilon > 0.99 * epsilon
        with pytest.raises(ValueError, match=f"at least {enough} rows"):
            estimator(epsilon=epsilon, n_steps=None).plan(enough - 1, d)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"n_chains": 2}, "n_chains=2 needs a learning_rate"),
        ({"step_schedule": "decreasing"}, "needs a learning_rate"),
        ({"n_steps": 40}, "n_steps=40 is too few"),
        ({"sampler": "nuts"}, "sampler must be one of"),
        ({"friction": 0.0}, "friction"),
        ({"solver": "dpvi", "sampler": "sghmc"}, "needs solver='sgld'"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(own, message):
    with pytest.raises(ValueError, match=message):
        DPBayesianLogisticRegression(classes=[0, 1], **({"solver": "sgld"} | own)).plan(5000, 3)


@pytest.mark.slow
def test_the_law_includes_the_privacy_noise():
    found = []
    for seed in range(16):
        X, y, truth = table(2000, 3, seed)
        model = estimator(epsilon=0.3, n_steps=None, n_posterior_samples=500, random_state=seed)
        fit = model.fit(X, y)
        rows = np.column_stack([X, np.ones(len(X))])
        slope = expit(rows @ truth) * expit(-rows @ truth)
        alone = np.linalg.inv((rows * slope[:, None]).T @ rows + np.eye(4))
        found.append((fit.posterior_.mean, fit.posterior_.std, truth, np.diag(alone) ** 0.5))
        assert fit.diagnostics_["r_hat"].max() < 1.1
        assert 0.999 * 0.3 < fit.privacy_spent_.epsilon <= 0.3
    mean, std, truth, alone = np.swapaxes(found, 0, 1)
    assert 1.6 < np.mean(std) / np.mean(alone) < 3
    assert 0.6 < np.sqrt(np.mean(((mean - truth) / std) ** 2)) < 1.2
    # Errors are larger than data alone explain: intervals without the noise would be wrong.
    assert np.sqrt(np.mean(((mean - truth) / alone) ** 2)) > 1.5


@pytest.mark.parametrize("sampler", slow_but(["sgld", "sghmc", "sgnht"], "sgld"))
def test_without_noise_every_sampler_draws_from_the_posterior(sampler):
    X, y, _ = table(3000, 2)
    exact = logistic_gibbs(X, y, n_draws=1500, n_burn=100, n_chains=1, random_state=0)[0]
    fit = estimator(epsilon=np.inf, sampler=sampler, n_steps=4000, n_posterior_samples=2000)
    own = fit.fit(X, y).posterior_
    assert fit.diagnostics_["r_hat"].max() < 1.05
    np.testing.assert_allclose((own.mean - exact.mean(axis=0)) / exact.std(axis=0), 0, atol=0.3)
    np.testing.assert_allclose(own.std / exact.std(axis=0), 1, atol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sgld", "sghmc", "sgnht"])
def test_draws_cover_and_mix(sampler):
    covered, widths = [], []
    for seed in range(120):
        X, y, truth = table(3000, 4, seed)
        fit = estimator(epsilon=1.0, sampler=sampler, n_steps=None, n_posterior_samples=1000)
        fit.set_params(random_state=seed).fit(X, y)
        assert fit.diagnostics_["r_hat"].max() < 1.1
        low, high = np.quantile(fit.posterior_.draws[0], [0.05, 0.95], axis=0)
        covered.append((low < truth) & (truth < high))
        widths.append((high - low).mean())
    assert 0.86 < np.mean(covered) < 0.95
    assert np.mean(widths) < 0.4  # the prior's is 3.3
