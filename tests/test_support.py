"""The page of what is supported says what plans say."""

from pathlib import Path

import cases
import pytest

from skdpbayes import DPBayesianLogisticRegression
from tools.support_matrix import is_planned, table

PAGE = Path(__file__).parents[1] / "docs" / "support.md"


@pytest.mark.slow
def test_the_page_has_the_table():
    assert table(cases.CASES) in PAGE.read_text(), "python -m tools.support_matrix prints it"


def test_a_refusal_for_another_reason_is_no_cell():
    (case,) = cases.cases(cls=DPBayesianLogisticRegression, solver="vips")
    assert is_planned(case, "replace_one", "fast")
    assert not is_planned(case, "add_remove", "secure")
    with pytest.raises(AssertionError):
        is_planned(case, "zero_out", "decimal")
