"""scikit-learn's own checks of estimators, none of them expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPGammaExponential,
    DPGaussianMixture,
)

# The checks give no classes, and seeds.
pytestmark = pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning")


ESTIMATORS = [
    DPBayesianLogisticRegression(epsilon=1.0, n_steps=100, n_posterior_samples=100),
    DPBayesianLinearRegression(epsilon=100.0, n_posterior_samples=100),
    DPGammaExponential(n_posterior_samples=100),
    DPBetaBernoulli(n_posterior_samples=100),
    DPGaussianMixture(n_posterior_samples=100),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check, compiled_quickly):
    check(estimator)
