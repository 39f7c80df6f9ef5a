"""Samples for test batteries: they are the releases of fits, and tell wrong noise from right."""

import numpy as np
import pytest
from scipy import stats

from skdpbayes import DPBayesianLogisticRegression, DPGammaExponential, inference
from skdpbayes.audit import FitMechanism
from skdpbayes.mechanism import draws
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.private_sum import noisy_count

N, SURE = 70, 1 - 1e-7
X = np.random.default_rng(0).normal(size=(N, 2))
Y = np.arange(N) % 2
RATES = np.full((N, 1), 10.0)
NULLED = np.where(np.arange(N)[:, None] == 3, np.nan, RATES)
CHAINS = {"n_chains": 2, "learning_rate": 1e-6, "n_steps": 4, "n_posterior_samples": 4}
FITS = {
    "sampled": (DPGammaExponential(solver="dpvi", sampling_rate=0.3, n_steps=3), (RATES,)),
    "chains": (DPBayesianLogisticRegression(classes=[0, 1], solver="sgld", **CHAINS), (X, Y)),
}


@pytest.mark.parametrize("name", ["sampled", pytest.param("chains", marks=pytest.mark.slow)])
def test_samples_are_the_releases_of_runs(name, compiled_quickly):
    estimator, table = FITS[name]
    mechanism = FitMechanism(estimator, table, random_state=5)
    samples, plan = mechanism(table, 7), mechanism.plan
    rng, n_chains = np.random.default_rng(5), plan.spec.n_chains
    keys, counting = fit_keys(rng, 7 * n_chains), fit_keys(rng, 7).noise
    records = mechanism._records(table)
    for i in (0, 6):
        own = slice(i * n_chains, (i + 1) * n_chains)
        of_run = keys._replace(
            sampling=keys.sampling[own], noise=keys.noise[own], solver=keys.solver[own]
        )
        how = (of_run, plan.model, plan.solver, plan.spec, records)
        released = np.ravel(inference.run(*how, keep_releases=True)[1])
        count = noisy_count(counting[i], records.usable, plan.spec).estimate
        released = released[released != 0]  # shorter ones are padded
        np.testing.assert_allclose(samples[i], [*released, count], rtol=1e-5, atol=1e-5)
    assert np.unique(samples[:, 0]).size == 7


def is_caught(mechanism, tables, n=3000):
    """Whether a threshold on the samples tells two tables better apart than the claim allows."""
    learning, judging = ([mechanism(table, n) for table in tables] for _ in range(2))
    mean, std = ([f(own, axis=0) for own in learning] for f in (np.mean, np.std))
    direction = (mean[0] - mean[1]) / std[0] ** 2
    cut = (mean[0] + mean[1]) @ direction / 2
    hits, false = (int((own @ direction > cut).sum()) for own in judging)
    tpr = stats.beta.ppf(1 - SURE, hits, n - hits + 1)
    fpr = stats.beta.ppf(SURE, false + 1, n - false)
    return tpr > mechanism.curve.tpr(fpr)


@pytest.mark.slow
def test_half_of_the_noise_is_caught_and_all_of_it_is_not(compiled_quickly, monkeypatch):
    mechanism = FitMechanism(DPGammaExponential(epsilon=3.0), RATES, random_state=0)
    assert mechanism(RATES, 5).shape == (5, 2)  # a sum, and the number of usable records
    assert not is_caught(mechanism, (RATES, NULLED))
    noise = draws.integer_noise
    monkeypatch.setattr(draws, "integer_noise", lambda *how: noise(*how) // 2)
    assert is_caught(mechanism, (RATES, NULLED))


def test_statistics_are_those_of_fits_and_tables_of_other_shapes_are_refused(compiled_quickly):
    def rate(fitted):
        return fitted.posterior_.mean

    loud = DPGammaExponential(epsilon=float("inf"))
    fitted = loud.fit(RATES)
    samples = FitMechanism(loud, RATES, statistic=rate)(RATES, 3)
    np.testing.assert_allclose(samples, np.tile(rate(fitted).ravel(), (3, 1)), rtol=1e-6)
    with pytest.raises(ValueError, match="another plan"):
        FitMechanism(DPGammaExponential(), RATES)(RATES[1:], 3)
    with pytest.raises(ValueError, match="num_samples"):
        FitMechanism(DPGammaExponential(), RATES)(RATES, 0)
