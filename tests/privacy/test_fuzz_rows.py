"""The harness of ``make fuzz``, without a fuzzer: its seeds find nothing, and find mutants."""

import decimal

import fuzz_rows
import numpy as np
import pytest

from skdpbayes import _rows


def test_seeds_find_nothing():
    for seed in fuzz_rows.seeds():
        fuzz_rows.run(seed)


def refuses_decimals(cell):
    if isinstance(cell, decimal.Decimal) and cell.is_nan():
        raise ValueError("not a number")
    return NUMBER(cell)


def peak_of_all(peak):
    return np.full_like(peak, max(np.max(peak, initial=0), 1))


NUMBER = _rows._number


@pytest.mark.parametrize(("name", "mutant"), [("_number", refuses_decimals), ("_or_one", peak_of_all)])
def test_seeds_find_mutants(name, mutant, monkeypatch):
    monkeypatch.setattr(_rows, name, mutant)
    with pytest.raises(fuzz_rows.Finding, match="make fuzz FUZZ_INPUT="):
        test_seeds_find_nothing()
