"""scikit-learn's own checks of estimators, of which one must fail: it fits to lists, whose width is not public."""

import contextlib
import re

import pytest
from cases import ENTRIES
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPGammaExponential,
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


ESTIMATORS = [entry.cls(**entry.checked) for entry in ENTRIES if entry.checked is not None]
# Each of these has a number of columns of its own, for which programs are compiled anew.
OWN_SHAPE = (
    "check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes",
    "check_dtype_object", "check_fit2d_1sample", "check_fit2d_1feature",
)  # fmt: skip
# Of all but `SMALL` these are run always, and the others where time does not matter.
ALWAYS = (
    "check_estimators_nan_inf", "check_no_attributes_set_in_init", "check_estimators_unfitted",
)  # fmt: skip
# These are cheap: every check is run always, and on tables of any size.
SMALL = (DPBayesianLogisticRegression, DPGammaExponential, DPBetaBernoulli)
# Of regressions these take seconds each, to compile.
COMPILES = (
    "check_estimator_sparse_array", "check_estimator_sparse_matrix", "check_estimators_overwrite_params",
    "check_classifier_data_not_an_array", "check_pipeline_consistency",
)  # fmt: skip
REFUSED = "check_transformer_data_not_an_array"
CHECKS = parametrize_with_checks(ESTIMATORS)


def name_of(case):
    """scikit-learn's name of a case, without addresses: processes that share the tests must agree on them."""
    return re.sub(r"<function(\w+?)at0x\w+>", r"\1", CHECKS.kwargs["ids"](case) or "")


def is_slow(estimator, check):
    name = check.func.__name__
    if isinstance(estimator, DPBayesianLogisticRegression) and name in COMPILES:
        return True
    return name in OWN_SHAPE or (not isinstance(estimator, SMALL) and name not in ALWAYS)


@pytest.mark.parametrize(
    CHECKS.args[0],
    [
        pytest.param(*case, marks=[pytest.mark.slow] if is_slow(*case) else [])
        for case in CHECKS.args[1]
    ],
    ids=name_of,
)
def test_scikit_learn_check(estimator, check, compiled_quickly, monkeypatch):
    if not isinstance(estimator, SMALL):  # few shapes
        monkeypatch.setattr(records, "padded_size", lambda n: 256 if n <= 256 else 1024)
    refused = pytest.raises(ValueError, match="nothing public says how many columns")
    with refused if check.func.__name__ == REFUSED else contextlib.nullcontext():
        check(estimator)
