"""The pages of the gallery run, and draw."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    pyplot.close("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyplot, "show", lambda: None)  # Agg shows nothing, and says so
        runpy.run_path(str(path))
    assert pyplot.get_fignums()
    pyplot.close("all")


def test_examples_are_found():
    assert EXAMPLES
