"""scikit-learn's own checks of estimators, none of them expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPGammaExponential,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
    records,
)

# The checks give no classes, and seeds.
pytestmark = pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning")


ESTIMATORS = [
    DPBayesianLogisticRegression(epsilon=1.0, n_steps=100, n_posterior_samples=100),
    DPBayesianLinearRegression(epsilon=100.0, n_posterior_samples=100),
    DPGammaExponential(n_posterior_samples=100),
    DPBetaBernoulli(n_posterior_samples=100),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check, compiled_quickly):
    check(estimator)


# The programs of these take longer to compile than the others', and each of these checks has a number of columns of
# its own.
OWN_SHAPE = (
    "check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes",
    "check_dtype_object", "check_fit2d_1sample", "check_fit2d_1feature",
)  # fmt: skip
LARGE = parametrize_with_checks(
    [
        DPGaussianMixture(n_posterior_samples=100),
        DPLatentDirichletAllocation(2, n_posterior_samples=10),
        DPSigmoidBeliefNet(2, n_posterior_samples=10),
    ]
)


@pytest.mark.parametrize(
    LARGE.args[0],
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case[1].func.__name__ in OWN_SHAPE else [])
        for case in LARGE.args[1]
    ],
    **LARGE.kwargs,
)
def test_scikit_learn_check_of_a_large_program(estimator, check, compiled_quickly, monkeypatch):
    monkeypatch.setattr(records, "padded_size", lambda n: 256)  # one shape for each number of columns
    check(estimator)
