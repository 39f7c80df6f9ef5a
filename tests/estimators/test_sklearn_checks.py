"""scikit-learn's own checks of estimators, of which one must fail: it fits to lists, whose width is not public."""

import contextlib
import re

import numpyro
import numpyro.distributions as dist
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPSigmoidBeliefNet,
    DPVariationalAutoencoder,
)
from skdpbayes.mechanism import records

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::skdpbayes.privacy.PrivacyLeakWarning"
    ),  # the checks give no classes, and seeds
    pytest.mark.filterwarnings(
        "ignore:.* of these documents hold NaN"
    ),  # some of the checks' have negative counts
]


def regression(x, y=None):
    """A NumPyro model."""
    if x.ndim != 2:
        raise ValueError("Expected 2D array, got 1D array instead. Reshape your data.")
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


QUICK = {"guide": "mean_field", "n_steps": 5, "clipping_norm": 1.0, "n_posterior_samples": 10}
ESTIMATORS = [
    DPBayesianLogisticRegression(epsilon=1.0, n_steps=100, n_posterior_samples=100),
    DPBayesianLinearRegression(epsilon=100.0, n_posterior_samples=100),
    DPGammaExponential(n_posterior_samples=100),
    DPBetaBernoulli(n_posterior_samples=100),
    DPGaussianMixture(n_posterior_samples=100),
    DPLatentDirichletAllocation(2, n_posterior_samples=10),
    DPSigmoidBeliefNet(2, n_posterior_samples=10),
    DPHierarchicalLogisticRegression(3, group_column=0, **QUICK),
    DPNumPyroModel(regression, **QUICK),
    DPBayesianMLPClassifier((10,), epsilon=100.0, n_steps=300, n_posterior_samples=10),
    DPBayesianMLPRegressor((10,), epsilon=100.0, n_steps=300, n_posterior_samples=10),
    DPVariationalAutoencoder(2, (5,), n_steps=5),
]
# Each of these has a number of columns of its own, for which programs are compiled anew.
OWN_SHAPE = (
    "check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes",
    "check_dtype_object", "check_fit2d_1sample", "check_fit2d_1feature",
)  # fmt: skip
# Of all but the first five these are run always, and the others where time does not matter.
ALWAYS = (
    "check_transformer_general", "check_estimators_pickle", "check_fit_idempotent", "check_estimators_nan_inf",
    "check_dict_unchanged", "check_no_attributes_set_in_init", "check_estimators_unfitted",
)  # fmt: skip
LARGE = (
    DPGaussianMixture, DPBayesianLinearRegression, DPLatentDirichletAllocation, DPSigmoidBeliefNet,
    DPHierarchicalLogisticRegression, DPNumPyroModel,
    DPBayesianMLPClassifier, DPBayesianMLPRegressor, DPVariationalAutoencoder,
)  # fmt: skip
REFUSED = "check_transformer_data_not_an_array"
CHECKS = parametrize_with_checks(ESTIMATORS)


def name_of(case):
    """scikit-learn's name of a case, without addresses: processes that share the tests must agree on them."""
    return re.sub(r"<function(\w+?)at0x\w+>", r"\1", CHECKS.kwargs["ids"](case) or "")


def is_slow(estimator, check):
    name = check.func.__name__
    return name in OWN_SHAPE or (isinstance(estimator, LARGE[1:]) and name not in ALWAYS)


@pytest.mark.parametrize(
    CHECKS.args[0],
    [
        pytest.param(*case, marks=[pytest.mark.slow] if is_slow(*case) else [])
        for case in CHECKS.args[1]
    ],
    ids=name_of,
)
def test_scikit_learn_check(estimator, check, compiled_quickly, monkeypatch):
    if isinstance(estimator, LARGE):  # few shapes
        monkeypatch.setattr(records, "padded_size", lambda n: 256 if n <= 256 else 1024)
    refused = pytest.raises(ValueError, match="nothing public says how many columns")
    with refused if check.func.__name__ == REFUSED else contextlib.nullcontext():
        check(estimator)
