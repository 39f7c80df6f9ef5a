"""Ten thousand tables with arbitrary cells: no exception, no warning, and no contribution above its bound."""

import datetime
import decimal
import os
import warnings

import jax
import numpy as np
import pytest
from cases import Hostile, every_fit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skdpbayes import DPBayesianLinearRegression, DPBayesianLogisticRegression
from skdpbayes.audit.checks import _longest
from skdpbayes.audit.fit import Fit
from skdpbayes.inference import sizes_of_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]
N, FUZZ = 12, int(os.environ.get("SKDPBAYES_FUZZ", 1000))
STRANGE = [
    Hostile(),
    decimal.Decimal("1e400"),
    datetime.datetime(2020, 1, 1),
    10**400,
    np.float16(7),
]
CELLS = st.one_of(
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.none() | st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.integers(0, 4).map(lambda i: STRANGE[i]),  # by their places: they object to being looked at
)


FEW_STEPS = (DPBayesianLogisticRegression, DPBayesianLinearRegression)


def estimator(case):
    few = {"n_steps": 3} if case.samples and case.cls in FEW_STEPS else {}
    draws = {"n_posterior_samples": 5} if case.has("n_posterior_samples") else {}
    return case.make(delta=1e-3, random_state=None, **few, **draws)


def table(case, cells, bits, labels, as_list, dtype):
    X, y = case.rows(N)
    if dtype is not None:  # numbers of any bits
        X.view(np.uint64)[3] = bits[: X.shape[1]]
        with np.errstate(all="ignore"):
            return X.astype(dtype), y
    X, y = X.astype(object), y.astype(object)
    for j in range(X.shape[1]):
        X[3, j] = cells[j]
    y[3] = labels
    one_column = X.shape[1] == 1  # of others nothing says how many columns a list has
    return (X.tolist() if one_column else X, y.tolist()) if as_list else (X, y)


@pytest.mark.parametrize("case", every_fit())
@settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cells=st.tuples(CELLS, CELLS),
    bits=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    labels=CELLS,
    as_list=st.booleans(),
    dtype=st.sampled_from([None, None, "f8", "f4", "f2"]),
)
def test_no_cell_raises_or_counts_for_more_than_its_bound(
    case, cells, bits, labels, as_list, dtype
):
    X, y = table(case, cells, bits, labels, as_list, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message="delta=|random_state|The fit has not arrived"
        )  # of parameters, N and releases, which are public
        fit = Fit(estimator(case), X, y)
        records = fit.records  # as this fit would have them, before the next
        fit.estimator.fit(X, y)
    with jax.enable_x64(True):
        mechanism, records = jax.device_put(fit.spec.traced()), jax.device_put(records)
        width = int(
            sizes_of_steps(fit.model, fit.solver, mechanism, records, fit.spec.n_steps).max()
        )
        releases, noise = np.zeros((fit.spec.n_steps, width), np.float32), np.zeros(width, np.int64)
        indices, bounds = np.arange(N, dtype=np.int32), np.array(records.bounds())
        keys = fit.keys(0).solver[0]
        longest = np.asarray(
            _longest(
                keys, releases, noise, records, indices, bounds, fit.model, fit.solver, mechanism
            )
        )
    assert longest.max() <= 1 + 1e-5 and not np.isnan(longest).any()
