"""Python blocks of README.md and docs/ run, they and `skdpbayes` print what is shown; examples in docstrings run.

A block marked ``output`` shows what the Python block before it prints.
"""

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest

import skdpbayes
from skdpbayes.__main__ import main

pytestmark = pytest.mark.usefixtures("compiled_quickly", "only_documented_warnings")

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(python|console|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ skdpbayes ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        *(
            path
            for folder in (".", "api", "models", "solvers")
            for path in (ROOT / "docs" / folder).glob("*.md")
        ),
    ]
    if BLOCK.search(path.read_text("utf-8"))
)


LONG = (
    "amortised.md",
    "topics-gradients.md",
    "mixture.md",
    "hierarchical.md",
    "numpyro.md",
    "networks.md",
    "preprocessing.md",
    "calibration.md",
    "audit.md",
    "choosing-priors.md",
    "interoperability.md",
    "large.md",
    "linear.md",
    "persons.md",
    "privacy.md",
    "reference.md",
    "results.md",
    "schema.md",
    "topics.md",
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p.name in LONG else []) for p in PAGES],
)
def test_page(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page run one after the other, in a namespace and a folder of their own."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    namespace = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        if block[1] == "console":
            for command in COMMAND.finditer(block[2]):
                assert printed(command[1], capsys) == command[2].rstrip("\n")
            continue
        if block[1] == "output":
            assert "".join(capsys.readouterr()).rstrip() == block[2].rstrip()
            continue
        capsys.readouterr()
        above = text.count(
            "\n", 0, block.start(2)
        )  # so that a traceback shows the line of the page
        exec(compile("\n" * above + block[2], str(page), "exec"), namespace)


def printed(command, capsys):
    """What a shell shows."""
    capsys.readouterr()
    try:
        main(shlex.split(command.replace("\\\n", " ")))
    except SystemExit:
        pass
    return "".join(capsys.readouterr()).rstrip("\n")


def test_parts_of_pages_that_others_include_are_there():
    """Or the docs are not built, which takes minutes to find out."""
    found = 0
    for page in (ROOT / "docs").rglob("*.md"):
        for block in re.finditer(
            r"```{include} (\S+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL
        ):
            included = (page.parent / block[1]).read_text("utf-8")
            for marker in re.findall(r":(?:start-after|end-before): (.+)", block[2]):
                found += 1
                assert marker.strip('"') in included, (
                    f"{page.name} looks for {marker} in {block[1]}"
                )
    assert found >= 2


def test_files_and_tests_that_pages_and_docstrings_name_are_there():
    """A proof names the test that dies without it."""
    known = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")]
    tests = {name: (ROOT / name).read_text("utf-8") for name in known if name.startswith("tests/")}
    found = 0
    for path in [*(ROOT / "docs").rglob("*.md"), *Path(skdpbayes.__file__).parent.rglob("*.py")]:
        for name, test in re.findall(r"`((?:\w+/)+\w+\.py)(?:::(\w+))?`", path.read_text("utf-8")):
            found += 1
            there = [own for own in known if own == name or own.endswith(f"/{name}")]
            assert there, f"{path.name} names {name}, which is not there"
            assert not test or f"def {test}(" in tests[name], f"{name} has no {test}: {path.name}"
    assert found > 50


def test_commands_and_what_they_print_are_found():
    found = COMMAND.findall("$ skdpbayes noise\na\n\nb\n\n$ make demo\nc\n$ skdpbayes --version\n")
    assert found == [("noise", "a\n\nb\n\n"), ("--version", "")]
    assert COMMAND.findall("$ skdpbayes noise \\\n  --a b\nc\n") == [("noise \\\n  --a b", "c\n")]
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    assert len(COMMAND.findall(page)) == page.count("$ skdpbayes ") > 5


BENCHMARK = re.compile(
    r"make (bench-[a-z0-9-]+)|python -m benchmarks\.(\w+)((?:\s--?[\w-]+|\s[\w.]+)*)"
)


def test_the_benchmarks_that_pages_name_exist():
    """With the options that the page gives; what they print is for a reader to check."""
    targets = set(
        re.findall(r"^(bench-[a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [match for page in pages for match in BENCHMARK.findall(page.read_text("utf-8"))]
    assert len(found) > 50
    for target, module, options in found:
        if target:
            assert target in targets, target
            continue
        source = (ROOT / "benchmarks" / f"{module}.py").read_text("utf-8")
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in source, (module, option)


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    linked = re.findall(
        r"^\| \[(\d+)\]\((\1-[\w-]+\.md)\)", (folder / "index.md").read_text("utf-8"), re.MULTILINE
    )
    records = sorted(folder.glob("0*.md"))
    assert [name for _, name in linked] == [path.name for path in records]
    for number, name in linked:
        text = (folder / name).read_text("utf-8")
        assert text.startswith(f"# {number}: ")
        for part in ("**Context.**", "**Decision.**", "**Consequences.**", "**See it again.**"):
            assert part in text, (name, part)


def test_pages_are_found():
    assert {
        "README.md",
        "quickstart.md",
        "privacy.md",
        "architecture.md",
        "choosing-epsilon.md",
        "mixture.md",
    } <= {page.name for page in PAGES}


def public_objects():
    """What the pages of the API list as public."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        if page.name == "internals.md":
            continue
        module = ""
        for line in page.read_text("utf-8").splitlines():
            if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = found[1]
            elif found := re.fullmatch(r"   (\w+)", line):
                yield module, found[1]


def test_every_public_object_has_an_example():
    listed = list(public_objects())
    assert len(listed) > 60
    parser = doctest.DocTestParser()
    objects = [getattr(importlib.import_module(module), name) for module, name in listed]
    assert not [item.__name__ for item in objects if not parser.get_examples(item.__doc__ or "")]


def test_citation_names_this_version():
    lines = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    assert f"version: {skdpbayes.__version__}" in lines


def test_the_tests_that_proofs_and_pages_name_exist():
    """A reviewer is sent from a proof to the tests that die if it does not hold."""
    sources = [*(ROOT / "skdpbayes").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named = {
        (str(source.relative_to(ROOT)), path)
        for source in sources
        for path in re.findall(r"\btests/[\w/]+\.py\b", source.read_text("utf-8"))
    }
    assert len(named) > 20
    assert [(source, path) for source, path in sorted(named) if not (ROOT / path).is_file()] == []


def test_the_tests_that_the_audit_page_names_exist():
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "audit.md").read_text("utf-8")
    )
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), (path, name)
