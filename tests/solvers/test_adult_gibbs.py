"""The full census table without noise, beside an exact sampler: about six minutes of one core."""

import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.datasets import ADULT_DATA_NORM, adult_preprocessor, load_adult
from skdpbayes.reference import logistic_gibbs

pytestmark = [pytest.mark.slow, pytest.mark.adult]


def test_posterior_of_adult_agrees_with_gibbs():
    """Means within .1 posterior standard deviations, these within 10%, for every well-sampled coordinate."""
    table = load_adult()
    X = adult_preprocessor().fit_transform(table.X_train)
    y = (np.asarray(table.y_train) == ">50K").astype(int)
    fit = DPBayesianLogisticRegression(
        epsilon=np.inf, classes=[0, 1], data_norm=ADULT_DATA_NORM, prior_scale=1.0, guide="full_rank",
        sampling_rate=0.1, n_steps=60_000, learning_rate=0.05, random_state=0,
    ).fit(X, y)  # fmt: skip
    chains = logistic_gibbs(X, y, n_draws=N_DRAWS, n_chains=1, random_state=0)
    ess, (draws,) = effective_sample_size(chains), chains
    compared = ess >= 4000
    print(
        f"compared {compared.sum()} of {len(ess)} coordinates; effective sample sizes {np.sort(ess).astype(int)}"
    )
    assert compared.mean() > 0.5
    sd = draws.std(axis=0)
    np.testing.assert_allclose(
        ((fit.posterior_.mean - draws.mean(axis=0)) / sd)[compared], 0, atol=0.1
    )
    np.testing.assert_allclose((fit.posterior_.std / sd)[compared], 1, atol=0.1)


N_DRAWS = 8_000
