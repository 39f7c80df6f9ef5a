"""Tables and figures of the papers: ``make bench-papers PAPERS_ARGS="--only dp-advi-fig1"``."""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import asdict
from pathlib import Path

from benchmarks import _log, _peers
from benchmarks.papers._entry import Entry, Found, Missing, Order
from benchmarks.papers.registry import BY_NAME, ENTRIES

OUT = _log.ROOT / "results" / "papers"


def listing() -> str:
    """The list of entries."""
    rows = [[entry.name, entry.what, entry.shows] for entry in ENTRIES]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{a.ljust(widths[0])}  {b.ljust(widths[1])}  {c}" for a, b, c in rows)


def data_of(words: list[str]) -> dict[str, Path]:
    """Files by name, of ``NAME=FILE`` words."""
    pairs = [word.partition("=") for word in words]
    if any(not (name and sign and path) for name, sign, path in pairs):
        raise ValueError(f"--data takes NAME=FILE; got {' '.join(words)}")
    return {name: Path(path) for name, _, path in pairs}


def run(entry: Entry, order: Order, out: Path) -> Found | None:
    """Run an entry, print its tables, write its figure and log; None if data are missing."""
    print(f"\n=== {entry.name}: {entry.paper}, {entry.what}. {entry.shows}\n", flush=True)
    start = time.perf_counter()
    try:
        found = entry.run(order)
    except Missing as error:
        print(f"{entry.name}: SKIPPED. {error}.", flush=True)
        return None
    seconds = time.perf_counter() - start
    print(f"Ran: {found.ran}\n")
    print("\n\n".join(map(str, found.tables)))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{entry.name}.png"
    found.figure.savefig(path, dpi=110)
    record = {"entry": entry.name, "ran": found.ran, "full": order.full, "seconds": seconds}
    log = _log.append("papers", record | {"tables": [asdict(table) for table in found.tables]})
    shown = path.relative_to(_log.ROOT) if path.is_relative_to(_log.ROOT) else path
    print(f"\n{entry.name}: {seconds:.0f} s. Drew {shown}; appended to {log.name}", flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; the number of entries that were skipped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="list the entries, and run none")
    parser.add_argument(
        "--only", nargs="+", choices=list(BY_NAME), metavar="ENTRY", help="(default: all)"
    )
    parser.add_argument(
        "--full", action="store_true", help="the papers' sizes: hours, where they are large"
    )
    parser.add_argument("--seeds", type=int, help="fits behind each point (default: the entry's)")
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="NAME=FILE",
        help="NPZ files of svhn, fashion-mnist and cifar-10: x_train, y_train, x_test, y_test",
    )
    parser.add_argument("--peers", action="store_true", help="run d3p itself too, in .peers")
    _peers.add_python(parser)
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder of pictures (default: results/papers)"
    )
    options = parser.parse_args(arguments)
    if options.list:
        print(listing())
        return 0
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    try:
        data = data_of(options.data)
    except ValueError as error:
        parser.error(str(error))
    warnings.simplefilter("ignore")
    order = Order(options.full, options.seeds, data, options.peers, options.python)
    found = {name: run(BY_NAME[name], order, options.out) for name in options.only or list(BY_NAME)}
    skipped = [name for name, what in found.items() if what is None]
    if skipped:
        print(f"\nSkipped: {', '.join(skipped)}")
    return len(skipped)


if __name__ == "__main__":
    main()
