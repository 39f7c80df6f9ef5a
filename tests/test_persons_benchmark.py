"""The benchmark of persons with several rows: its data and lines."""

import numpy as np
import pytest

from benchmarks import persons


@pytest.mark.parametrize("cell", persons.CELLS, ids=lambda cell: f"{cell.model}, {cell.rows}")
def test_data_are_as_a_line_says(cell):
    cell = cell._replace(persons=200)
    (data, owner), (again, _) = persons.persons(cell, 3), persons.persons(cell, 3)
    np.testing.assert_array_equal(data.X, again.X)
    each = np.bincount(owner)
    assert len(each) == 200 and each.max() == cell.most
    assert each.min() == (1 if cell.rows == "one to" else cell.most)
    assert len(data.truth) == data.X.shape[1] + (cell.model in ("logistic", "rare"))
    if cell.rows == "alike":
        within = data.X - np.array([data.X[owner == i].mean(axis=0) for i in range(200)])[owner]
        whole = np.mean(data.truth * (1 - data.truth)) if cell.model == "repeated" else 1
        shared = 1 - within.var() * cell.most / (cell.most - 1) / whole
        # Of binary columns less than of the normal variable behind them.
        assert shared == pytest.approx(0.3 if cell.model == "repeated" else 0.5, abs=0.1)


def test_a_line_by_hand():
    z = np.array([[0.0, 2.0], [1.0, 1.0]])
    assert persons.line(persons.CELLS[1], z, 1.234)[4:] == [
        *("one to 5", "0.750", "0.50", "1.22", "1.23")
    ]


@pytest.mark.slow
def test_a_cell_is_measured(compiled_quickly):
    cell = persons.Cell("binary", "dpvi", 4.0, 200, 3, 2, "one to")
    z, width = persons.measured(cell, 1)
    assert z.shape == (1, 2) and np.isfinite(z).all() and 0.5 < width < 3


@pytest.mark.parametrize("model", persons.DENSITIES)
def test_rows_of_densities_are_alike_where_a_line_says_so(model):
    owner = np.repeat(np.arange(300), 4)
    shared = []
    for alike in (False, True):
        X = persons.DENSITIES[model](np.random.default_rng(0), owner, alike)
        assert len(X) == len(owner)
        of_persons = X.reshape(300, 4, -1).mean(axis=1)
        shared.append(of_persons.var(axis=0).sum() / X.var(axis=0).sum())
    assert shared[0] == pytest.approx(0.25, abs=0.05) and shared[1] > 0.5


@pytest.mark.slow
def test_a_density_is_measured(compiled_quickly):
    losses = persons.lost(persons.Density("mixture", "vips", 2.0, 300, 3, "all"), 1)
    assert losses.shape == (1, 2) and np.isfinite(losses).all()
