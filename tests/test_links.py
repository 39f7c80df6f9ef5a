"""Links from docstrings to other packages' pages, which are made without a network."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "docs" / "links.py"


@pytest.fixture(scope="module")
def links():
    spec = importlib.util.spec_from_file_location("links", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("numpy.ndarray", "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html"),
        ("numpy.typing.ArrayLike",
         "https://numpy.org/doc/stable/reference/typing.html#numpy.typing.ArrayLike"),
        ("sklearn.pipeline.Pipeline",
         "https://scikit-learn.org/stable/modules/generated/sklearn.pipeline.Pipeline.html"),
        ("pandas.DataFrame", "https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.html"),
        ("float", "https://docs.python.org/3/library/stdtypes.html#float"),
        ("ValueError", "https://docs.python.org/3/library/exceptions.html#ValueError"),
        ("collections.abc.Mapping",
         "https://docs.python.org/3/library/collections.abc.html#collections.abc.Mapping"),
        ("numpyro.distributions.Normal",
         "https://num.pyro.ai/en/stable/distributions.html#numpyro.distributions.Normal"),
        ("numpy", None),
        ("fit", None),
        ("print", None),
        ("x @ y", None),
        ("python:None", None),
        ("skdpbayes.audit", None),
    ],
)  # fmt: skip
def test_addresses(links, name, page):
    assert links.address(name) == page
