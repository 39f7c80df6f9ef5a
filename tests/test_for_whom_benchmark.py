"""The table of what privacy costs by the number of rows."""

import pytest

from benchmarks import for_whom


@pytest.mark.slow
def test_more_rows_and_a_larger_epsilon_cost_less(capsys):
    for_whom.main(["--models", "linear", "--rows", "500", "5000", "--epsilons", "1", "--fits", "2"])
    head, *rows = capsys.readouterr().out.splitlines()
    few, many = (dict(zip(head.split(), row.split(), strict=True)) for row in rows)
    assert few["rows"] == "500" and many["rows"] == "5000"
    assert float(few["noise"]) > 2 * float(many["noise"]) > 0
    assert float(few["sd"]) > 2 * float(many["sd"]) and float(many["sign"]) == 1.0
