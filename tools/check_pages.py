"""Look for what must not be on a built page: ``python tools/check_pages.py docs/_build/html``.

Tracebacks, addresses of objects, paths of the machine that built the page; in the output of cells,
warnings and failed downloads; code that is wider than a page; references without a link to what
they refer to. ``make docs`` ends with this. Standard library only.
"""

import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ANYWHERE = {
    "a traceback": re.compile(r"Traceback \(most recent call last\)"),
    "the address of an object": re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\bobject at 0x"),
    "a name as only an inventory spells it": re.compile(r"\b(?:python|numpy):[A-Za-z]\w*"),
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
WIDEST = 100  # columns of code that a page has room for, as docs/_static/wide.css says
_CODE = {"highlight-python", "highlight-python3", "highlight-default", "highlight-Python",
         "highlight-sh", "highlight-shell", "highlight-bash"}  # fmt: skip
_WHERE = re.compile(r"https://(doi\.org|arxiv\.org|proceedings\.neurips\.cc)/")
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
    """Text of a page, of the output of its cells and of its code, without scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.text, self.output, self.code = [], [], []
        self.unlinked = []  # items of lists without a link to a paper
        self._item = None  # text and links of the item that is open
        self._open = []  # (tag, skipped, output, code) of each element that is open
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Note where output begins."""
        if tag in _VOID:
            return
        classes = (dict(attrs).get("class") or "").split()
        skipped, output, code = self._inside()
        if tag in ("div", "p", "pre"):
            self.handle_data("\n")
        if tag == "li":
            self._item = ["", []]
        if tag == "a" and self._item is not None:
            self._item[1].append(dict(attrs).get("href") or "")
        self._open.append(
            (
                tag,
                skipped or tag in ("script", "style"),
                output or "sphx-glr-script-out" in classes,
                code or bool(_CODE & set(classes)),
            )
        )

    def _inside(self):
        """Whether it is within what is skipped, output and code."""
        return self._open[-1][1:] if self._open else (False, False, False)

    def handle_endtag(self, tag):
        """Close the element, and what was left open in it."""
        if tag == "li" and self._item is not None:
            text, links = self._item
            if not any(map(_WHERE.match, links)):
                self.unlinked.append(" ".join(text.split()))
            self._item = None
        names = [name for name, *_ in self._open]
        if tag in names:
            del self._open[len(names) - 1 - names[::-1].index(tag) :]

    def handle_data(self, data):
        """Collect."""
        skipped, output, code = self._inside()
        if skipped:
            return
        self.text.append(data)
        if self._item is not None:
            self._item[0] += data
        if output:
            self.output.append(data)
        elif code:
            self.code.append(data)


def findings(html, references=False):
    """List what must not be on a page, as (what it is, what surrounds it).

    Items of a page of references must have a link to a DOI or to arXiv.
    """
    page = Page(html)
    found = [("a wide line of code", line) for line in "".join(page.code).splitlines()
             if len(line) > WIDEST]  # fmt: skip
    if references:
        body = Page(html.partition("<article")[2].partition("</article>")[0])
        found += [("a reference without a link", item) for item in body.unlinked]
    return found + [
        (what, text[max(0, found.start() - 60) : found.end() + 60].replace("\n", " "))
        for text, patterns in (("".join(page.text), ANYWHERE), ("".join(page.output), IN_OUTPUT))
        for what, pattern in patterns.items()
        for found in pattern.finditer(text)
    ]


def main(folder):
    """Print the findings on the pages in `folder`; return the numbers of pages and findings."""
    pages = sorted(Path(folder).rglob("*.html"))
    found = [
        (page, *finding)
        for page in pages
        for finding in findings(page.read_text("utf-8"), page.name == "references.html")
    ]
    for page, what, context in found:
        print(f"{page.relative_to(folder)}: {what}: ...{context}...")
    print(f"{len(pages)} pages, {len(found)} findings")
    return len(pages), len(found)


if __name__ == "__main__":
    n_pages, n_findings = main(sys.argv[1])
    sys.exit(n_findings > 0 or n_pages == 0)
