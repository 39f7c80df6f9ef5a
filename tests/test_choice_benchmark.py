"""The benchmark of priors chosen after a fit: its tasks, fits and lines."""

import numpy as np
import pytest

from benchmarks import choice

pytestmark = pytest.mark.usefixtures("compiled_quickly")
SIMULATIONS = [name for name in choice.TASKS if name != "adult"]


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_task_is_fixed_by_its_seed(name):
    one, again, other = (choice.TASKS[name](seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.X, again.X)
    np.testing.assert_array_equal(one.y, again.y)
    assert not np.array_equal(one.X, other.X)
    assert one.X.shape == (choice.ROWS, choice.COLUMNS)
    logits = np.log(one.probability / (1 - one.probability)) + 0.5
    coefficients = np.linalg.lstsq(one.fresh, logits)[0]
    sizes = {"sparse": (3 / 20) ** 0.5, "dense-0.1": 0.1, "dense-0.5": 0.5, "dense-2": 2.0}
    assert np.sqrt((coefficients**2).mean()) == pytest.approx(sizes[name], rel=0.6)
    assert name != "sparse" or np.sum(np.abs(coefficients) > 1e-6) == 3


@pytest.mark.slow
def test_figures_of_methods_by_hand():
    task = choice.TASKS["sparse"](0)
    found = choice.fits(task, 8.0, 0, ("defaults", "prior", "columns"))
    assert list(found) == ["defaults", "prior", "columns"]
    assert all(0 < own.loss < 0.01 and np.isnan(own.auc) for own in found.values())
    assert found["columns"].loss < found["defaults"].loss  # three columns of twenty
    assert found["columns"].chosen.startswith("3 ") and found["defaults"].chosen == ""


def test_a_line_has_the_mean_and_its_error():
    figures = [choice.Figures(loss, 0.7, 0.9, 1.0, "a") for loss in (0.001, 0.003)]
    assert choice.line("x", 1.0, "prior", figures) == [
        *("x", "1", "prior", "2.00", "1.00", "0.7000", "0.90", "1.00", "a")
    ]
