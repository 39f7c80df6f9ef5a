"""The harness of ``make fuzz``, without a fuzzer: its seeds find nothing, and find mutants."""

import decimal

import fuzz_rows
import numpy as np
import pytest
from cases import public_estimators

from skdpbayes import cells
from skdpbayes.intake import labels, rows, tables


def test_seeds_find_nothing():
    for seed in fuzz_rows.seeds():
        fuzz_rows.run(seed)


def test_every_estimator_is_asked():
    """`fuzz_rows.SUBJECTS` has one for each."""
    asked = {name for subject in fuzz_rows.SUBJECTS for name in subject.__code__.co_names}
    assert {cls.__name__ for cls in public_estimators()} <= asked


def refuses_decimals(cell):
    if type(cell) is decimal.Decimal and cell.is_nan():
        raise ValueError("not a number")
    return NUMBER(cell)


def peak_of_all(peak):
    return np.full_like(peak, max(np.max(peak, initial=0), 1))


NUMBER = cells.number


def believes(cell):
    return cell


def asks_for_the_class(cell):
    return cell if isinstance(cell, str | int | float | bytes) else float("nan")


def width_of_the_first(table, width):
    return FROM_LIST(table, len(table[0]) if isinstance(table[0], list) else width)


FROM_LIST = tables.from_list


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (cells, "number", refuses_decimals),
        (rows, "_or_one", peak_of_all),
        (cells, "plain", believes),
        (labels, "plain", believes),
        (cells, "plain", asks_for_the_class),
        (tables, "from_list", width_of_the_first),
    ],
)
def test_seeds_find_mutants(module, name, mutant, monkeypatch):
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises(fuzz_rows.Finding, match="make fuzz FUZZ_INPUT="):
        test_seeds_find_nothing()
