"""What must not be on a built page is found, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tools import check_pages

CLEAN = """
<html><head><title>a Warning</title><style>a { b: url(/root/x) }</style></head><body>
<p>ConvergenceWarning is raised, say the docs of OpenML; ValueError too.<br>See <img src="/root/a.png"> </p>
<div class="sphx-glr-script-out notranslate"><div><pre><span></span>epsilon 1, error 0.3</pre></div></div>
<p>PrivacyLeakWarning, in prose again. At 0x of the budget, and 0x00ff in hexadecimal.</p>
<script>var path = "/home/somebody/x"; // Traceback (most recent call last)</script>
</body></html>
"""


def with_output(text):
    return f'<div class="sphx-glr-script-out"><div class="highlight"><pre><span>{text}</span></pre></div></div>'


def test_clean_page():
    assert check_pages.findings(CLEAN) == []


@pytest.mark.parametrize(
    ("html", "what"),
    [
        ("<p>Traceback (most recent call last):</p>", "a traceback"),
        (
            "<pre>&lt;matplotlib.legend.Legend object at 0x7f3a12b4c5d0&gt;</pre>",
            "the address of an object",
        ),
        (
            "<code>&lt;<span>function</span> f at <b>0x7f3a12b4c5d0</b>&gt;</code>",
            "the address of an object",
        ),
        ("<code>&lt;Legend object at 0x7f&gt;</code>", "the address of an object"),
        (
            f"<div class='highlight-python notranslate'><pre><span>x</span> = {'y' * 97}</pre></div>",
            "a wide line of code",
        ),
        ("<p>/home/somebody/skdpbayes/x.py</p>", "a path of this machine"),
        ("<p>see /root/x</p>", "a path of this machine"),
        (f"<p>{check_pages.ROOT}/skdpbayes/x.py:12</p>", "a path of this machine"),
        ("<code>python:None</code>", "a name as only an inventory spells it"),
        (f"<p>{Path(tempfile.gettempdir(), 'x.png')}</p>", "a path of this machine"),
        (with_output("x.py:12: UserWarning: odd"), "a warning"),
        (with_output("x.py:12: PrivacyLeakWarning: random_state"), "a warning"),
        (with_output("warnings.warn("), "a warning"),
        (with_output("x.py:3: <b>Runtime</b>Warning"), "a warning"),
        (with_output("ConnectionError: no"), "an error"),
        (with_output("Adult could not be had from OpenML"), "a failed download"),
    ],
)
def test_what_must_not_be_there(html, what):
    found = check_pages.findings(CLEAN + html)
    assert {name for name, _ in found} == {what}


def test_code_that_fits_and_wide_output_pass():
    fits = (
        f"<div class='highlight-python'><pre><span>x</span> = {'y' * 96}\n{'z' * 100}</pre></div>"
    )
    assert check_pages.findings(fits + with_output("y" * 200) + f"<pre>{'t' * 200}</pre>") == []


def test_references_have_links(tmp_path):
    link = "<a href='https://doi.org/10.1/x'>10.1/x</a>"
    page = f"<ul><li>menu</li></ul><article><ul><li><p>A, {link}</p></li>%s</ul></article>"
    for item, what in (
        ("<li>B, <a href='https://arxiv.org/abs/1'>arXiv</a></li>", []),
        ("<li>B (2020), <em>C</em></li>", ["a reference without a link"]),
        (
            "<li>B, <a href='https://example.org/doi.org/'>C</a></li>",
            ["a reference without a link"],
        ),
    ):
        (tmp_path / "references.html").write_text(page % item, "utf-8")
        found = check_pages.findings(page % item, references=True)
        assert [name for name, _ in found] == what
        assert check_pages.main(tmp_path) == (1, len(what))


def test_all_pages_are_read_and_findings_named(tmp_path, capsys):
    (tmp_path / "below").mkdir()
    (tmp_path / "index.html").write_text(CLEAN, "utf-8")
    assert check_pages.main(tmp_path) == (1, 0)
    (tmp_path / "below" / "page.html").write_text(with_output("UserWarning"), "utf-8")
    capsys.readouterr()
    assert check_pages.main(tmp_path) == (2, 1)
    assert "below/page.html: a warning" in capsys.readouterr().out
    assert check_pages.main(tmp_path / "nowhere") == (0, 0)  # which ends with an error status


def test_documentation_is_checked_when_it_is_built():
    makefile = (check_pages.ROOT / "Makefile").read_text("utf-8")
    recipe = makefile.split("\ndocs:")[1].split("\n\n")[0]
    assert "check_pages.py docs/_build/html" in recipe.splitlines()[-1]
