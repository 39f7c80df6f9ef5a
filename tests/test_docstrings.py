"""Examples of docstrings run and print what they say."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
from cases import slow_but

import skdpbayes

pytestmark = pytest.mark.usefixtures("compiled_quickly", "only_documented_warnings")

MODULES = sorted(info.name for info in pkgutil.walk_packages(skdpbayes.__path__, "skdpbayes."))


# Each of these compiles for seconds.
LONG = {
    "skdpbayes.audit.auditing",
    "skdpbayes.model_selection",
    "skdpbayes.execution",
    "skdpbayes.intake.arrow",
    *(
        f"skdpbayes.estimators.{name}"
        for name in (
            "_autoencoder",
            "_hierarchical",
            "_mixture",
            "_mlp_classifier",
            "_mlp_regressor",
            "_numpyro",
            "_topics",
        )
    ),
}


@pytest.mark.parametrize("name", slow_but(MODULES, *set(MODULES) - LONG))
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert not result.failed, (
        f"{result.failed} of {result.attempted} examples in {name} failed; see the output"
    )


def test_long_ones_exist():
    assert set(MODULES) >= LONG


def test_examples_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {
        test.name
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    }
    assert any(name.endswith("DPBayesianLogisticRegression") for name in with_examples)


def test_defaults_are_those_of_the_signature():
    """Where a docstring says the default of a parameter."""
    checked = 0
    for name in skdpbayes.__all__:
        kind = getattr(skdpbayes, name)
        if not hasattr(kind, "get_params"):
            continue
        signature = inspect.signature(kind).parameters
        for own, said in re.findall(
            r"^    (\w+) : [^\n]*?default=([^\n]+)$", kind.__doc__, re.MULTILINE
        ):
            if own not in signature:
                continue  # of another function
            assert signature[own].default == ast.literal_eval(said), (name, own)
            checked += 1
    assert checked > 150
