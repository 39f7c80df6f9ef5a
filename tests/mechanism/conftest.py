"""Both drivers are checked: some solvers take the compiled loop, the others go round by round."""

import pytest

IN_A_LOOP = ("dpvi", "sgld")


@pytest.fixture(autouse=True)
def driver(request):
    """The compiled loop for solvers that usually take many rounds, however few a test takes."""
    callspec = getattr(request.node, "callspec", None)
    given = [] if callspec is None else callspec.params.values()
    names = [getattr(value, "solver", value) for value in given if not callable(value)]
    if any(isinstance(name, str) and name in IN_A_LOOP for name in names):
        request.getfixturevalue("in_a_loop")
