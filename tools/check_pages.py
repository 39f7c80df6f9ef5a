"""Look for what must not be on a built page: ``python tools/check_pages.py docs/_build/html``.

Tracebacks, addresses of objects, paths of the machine that built the page, and, in the output of
cells, warnings and failed downloads. ``make docs`` ends with this. Standard library only.
"""

import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ANYWHERE = {
    "a traceback": re.compile(r"Traceback \(most recent call last\)"),
    "the address of an object": re.compile(r"\bat 0x[0-9a-fA-F]{6,}"),
    "a path of this machine": re.compile(
        "|".join(
            re.escape(str(folder)) + r"(?![\w-])"
            for folder in dict.fromkeys(
                [ROOT, Path(sys.prefix), Path.home(), Path(tempfile.gettempdir())]
            )
            if len(folder.parts) > 1
        )
        + r"|/home/\w|/root/\w|/Users/\w|C:\\Users"
    ),
}
IN_OUTPUT = {
    "a warning": re.compile(r"\b\w*Warning\b|\bwarnings\.warn\b|\bwarning:", re.IGNORECASE),
    "an error": re.compile(r"\b\w+(?:Error|Exception)\b"),
    "a failed download": re.compile(r"OpenML|HTTP Error|urlopen|not to be had", re.IGNORECASE),
}
_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "wbr",
}


class Page(HTMLParser):
    """Text of a page, and that of the output of its cells, without scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.text, self.output = [], []
        self._open = []  # (tag, skipped, output) of each element that is open
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Note where output begins."""
        if tag in _VOID:
            return
        classes = (dict(attrs).get("class") or "").split()
        skipped, output = self._open[-1][1:] if self._open else (False, False)
        if tag in ("div", "p", "pre"):
            self.handle_data("\n")
        self._open.append(
            (tag, skipped or tag in ("script", "style"), output or "sphx-glr-script-out" in classes)
        )

    def handle_endtag(self, tag):
        """Close the element, and what was left open in it."""
        names = [name for name, *_ in self._open]
        if tag in names:
            del self._open[len(names) - 1 - names[::-1].index(tag) :]

    def handle_data(self, data):
        """Collect."""
        skipped, output = self._open[-1][1:] if self._open else (False, False)
        if not skipped:
            self.text.append(data)
            if output:
                self.output.append(data)


def findings(html):
    """List what must not be on a page, as (what it is, what surrounds it)."""
    page = Page(html)
    return [
        (what, text[max(0, found.start() - 60) : found.end() + 60].replace("\n", " "))
        for text, patterns in (("".join(page.text), ANYWHERE), ("".join(page.output), IN_OUTPUT))
        for what, pattern in patterns.items()
        for found in pattern.finditer(text)
    ]


def main(folder):
    """Print the findings on the pages in `folder`; return the numbers of pages and findings."""
    pages = sorted(Path(folder).rglob("*.html"))
    found = [(page, *finding) for page in pages for finding in findings(page.read_text("utf-8"))]
    for page, what, context in found:
        print(f"{page.relative_to(folder)}: {what}: ...{context}...")
    print(f"{len(pages)} pages, {len(found)} findings")
    return len(pages), len(found)


if __name__ == "__main__":
    n_pages, n_findings = main(sys.argv[1])
    sys.exit(n_findings > 0 or n_pages == 0)
