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

pytestmark = [
    pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning"),  # the checks give no classes, and seeds
    pytest.mark.filterwarnings("ignore:.* of these documents hold NaN"),  # some of the checks' have negative counts
]


ESTIMATORS = [
    DPBayesianLogisticRegression(epsilon=1.0, n_steps=100, n_posterior_samples=100),
    DPBayesianLinearRegression(epsilon=100.0, n_posterior_samples=100),
    DPGammaExponential(n_posterior_samples=100),
    DPBetaBernoulli(n_posterior_samples=100),
    DPGaussianMixture(n_posterior_samples=100),
    DPLatentDirichletAllocation(2, n_posterior_samples=10),
    DPSigmoidBeliefNet(2, n_posterior_samples=10),
]
# Each of these has a number of columns of its own, for which programs are compiled anew.
OWN_SHAPE = (
    "check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes",
    "check_dtype_object", "check_fit2d_1sample", "check_fit2d_1feature",
)  # fmt: skip
# Of topics and belief networks these are run always, and the others where time does not matter.
ALWAYS = (
    "check_transformer_general", "check_estimators_pickle", "check_fit_idempotent", "check_estimators_nan_inf",
    "check_dict_unchanged", "check_no_attributes_set_in_init", "check_estimators_unfitted",
)  # fmt: skip
LARGE = DPGaussianMixture, DPLatentDirichletAllocation, DPSigmoidBeliefNet
CHECKS = parametrize_with_checks(ESTIMATORS)


def is_slow(estimator, check):
    name = check.func.__name__
    return name in OWN_SHAPE or (isinstance(estimator, LARGE[1:]) and name not in ALWAYS)


@pytest.mark.parametrize(
    CHECKS.args[0],
    [pytest.param(*case, marks=[pytest.mark.slow] if is_slow(*case) else []) for case in CHECKS.args[1]],
    **CHECKS.kwargs,
)
def test_scikit_learn_check(estimator, check, compiled_quickly, monkeypatch):
    if isinstance(estimator, LARGE):  # few shapes
        monkeypatch.setattr(records, "padded_size", lambda n: 256 if n <= 256 else 1024)
    check(estimator)
