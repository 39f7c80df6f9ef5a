"""``python -m skdpbayes``, or ``skdpbayes``: privacy accounting in a shell.

It does not load JAX, and writes the files that it is told to. No command but ``convert`` reads
records, which it writes to another file. Text is rounded to the safe side; ``--json`` prints all
digits.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat, TypeAlias

from skdpbayes._version import __version__
from skdpbayes.privacy.accounting._steps import ADJACENCIES, GaussianSteps
from skdpbayes.privacy.report import finite, rounded
from skdpbayes.privacy.statements import NEIGHBOURS, largest_factor, neighbours

if TYPE_CHECKING:
    from skdpbayes.privacy import PrivacySpent

_ACCOUNTANTS = {
    "zcdp": "zero-concentrated, without amplification by sampling",
    "linear": "basic composition of amplified rounds",
    "advanced": "advanced composition of amplified rounds",
    "moments": "moments accountant",
    "rdp": "Renyi divergences",
    "pld": "privacy loss distributions",
    "gaussian": "closed form: no round is sampled",
    "none": "a round has no noise",
}

_LEDGER_FILE = "a ledger (PrivacyLedger's path, or its to_json)"
_ABOUT = {
    "name": "name of what is published",
    "by": "who fitted and answers for it",
    "intended_use": "what it is for",
    "description": "what it is",
    "region": "region that the records describe",
}
"""Parts of a statement that no fit knows."""

Answer: TypeAlias = tuple[dict[str, Any], str]
"""What a command prints: for ``--json``, and as text."""

Tpr: TypeAlias = Callable[[float], SupportsFloat]
"""Largest true positive rate of an attack, by its false positive rate."""


class _Parser(argparse.ArgumentParser):
    """A parser that prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def noise(args: argparse.Namespace) -> Answer:
    """The least noise for a budget."""
    from skdpbayes.privacy import calibrate_noise

    found = calibrate_noise(
        args.epsilon, args.delta, args.sampling_rate, args.steps, adjacency=args.adjacency
    )
    names = ("noise_multiplier", "epsilon", "target_epsilon", "delta", "adjacency")
    record = {name: getattr(found, name) for name in names} | {
        "steps": _dicts(found.steps),
        "crosscheck": found.crosscheck.to_dict(),
    }
    size = f"{rounded(found.noise_multiplier)} (standard deviation over the clipping norm)"
    steps = found.steps[0]
    return record, _table(
        ("noise multiplier", size),
        ("epsilon", f"{rounded(found.epsilon)} at most, at delta {rounded(found.delta, 6)}"),
        ("releases", f"{steps.steps} rounds, sampling rate {steps.sampling_rate:g}"),
        ("neighbours", _neighbours(found.adjacency)),
        ("cross-check", str(found.crosscheck)),
    )


def epsilon(args: argparse.Namespace) -> Answer:
    """Epsilon of a fixed schedule of rounds."""
    from skdpbayes.privacy import baselines, compose

    curve = compose(_schedule(args), args.adjacency)
    record = {
        "epsilon": curve.epsilon(args.delta),
        "delta": args.delta,
        "adjacency": curve.adjacency,
        "accountant": curve.accountant,
        "steps": _dicts(curve.steps),
    }
    text = _table(
        ("epsilon", f"{rounded(record['epsilon'])} at most, at delta {rounded(args.delta, 6)}"),
        *_releases(curve.steps),
        ("neighbours", _neighbours(curve.adjacency)),
        ("accountant", _ACCOUNTANTS[curve.accountant]),
    )
    if args.accountants:
        record["accountants"] = table = baselines(curve.steps, args.delta, curve.adjacency)
        rows = ((name, rounded(value), _ACCOUNTANTS[name]) for name, value in table.items())
        text += "\n\nAll of these bound the same rounds:\n" + _table(
            ("accountant", "epsilon", ""), *rows
        )
    return record, text


def meaning(args: argparse.Namespace) -> Answer:
    """What attackers can do."""
    from skdpbayes.privacy import compose

    about: dict[str, Any]
    tpr: Tpr
    if args.epsilon is None:
        if args.delta is not None or args.gaussian:
            raise ValueError(
                "--delta and --gaussian go with --epsilon; a schedule has attack rates without "
                "them."
            )
        curve = compose(_schedule(args), args.adjacency or ADJACENCIES[0])
        about = {"steps": _dicts(curve.steps), "adjacency": curve.adjacency}
        rows = [*_releases(curve.steps), ("neighbours", _neighbours(curve.adjacency))]
        tpr, advantage = curve.tpr, curve.advantage()
    else:
        schedule = (args.noise_multiplier, args.sampling_rate, args.steps, args.adjacency)
        if any(value is not None for value in schedule):
            raise ValueError(
                "--epsilon and --delta are given instead of a schedule and its adjacency: give "
                "one of both."
            )
        supposed, tpr, advantage = _promise(args.epsilon, args.delta, args.gaussian)
        about = {"epsilon": args.epsilon, "delta": args.delta, "supposed": supposed}
        rows = [("supposed", supposed)]
    rates, chances = ([float(tpr(value)) for value in values] for values in (args.fpr, args.prior))
    record = about | {
        "attacks": [{"fpr": fpr, "tpr": rate} for fpr, rate in zip(args.fpr, rates, strict=True)],
        "advantage": advantage,
        "reconstruction": [
            {"prior": p, "success": chance} for p, chance in zip(args.prior, chances, strict=True)
        ],
    }
    text = "\n".join(
        (
            _table(*rows),
            "\nTelling two neighbouring data sets apart, knowing all other records:",
            _table(
                ("false positive rate", "true positive rate, at most"),
                *((f"{fpr:g}", rounded(rate)) for fpr, rate in zip(args.fpr, rates, strict=True)),
            ),
            f"advantage (largest difference of the two rates): {rounded(advantage)} at most",
            "\nGuessing the whole record:",
            _table(
                ("success without the release", "with it, at most"),
                *(
                    (f"{prior:g}", rounded(chance))
                    for prior, chance in zip(args.prior, chances, strict=True)
                ),
            ),
        )
    )
    return record, text


def report(args: argparse.Namespace) -> Answer:
    """A saved `PrivacySpent`."""
    from skdpbayes.privacy import PrivacySpent

    with _reading(args.file, "a report (PrivacySpent.to_json)"):
        record = json.loads(Path(args.file).read_text("utf-8"))
        if "ledger" in record:
            raise ValueError("it is a ledger, which `skdpbayes ledger` reads.")
        if "run_epsilon" in record:
            raise ValueError(
                "it is the report of a private search, which lists no rounds to check: read it "
                "as JSON."
            )
        spent = PrivacySpent.from_dict(record)
    again = spent.epsilon_at(spent.delta)
    if again > 1.01 * spent.epsilon:  # accountants of other versions differ by less
        raise ValueError(
            f"{args.file} claims epsilon={spent.epsilon:g} at delta={spent.delta:g}, but its "
            f"steps spend {again:g}."
        )
    written = _write_statement(args, spent)
    elsewhere = [(delta, spent.epsilon_at(delta)) for delta in args.delta]
    record = spent.to_dict() | {
        "cumulative_epsilon": spent.cumulative_epsilon,
        "guarantee_holds": spent.guarantee_holds,
        "epsilon_at": [{"delta": delta, "epsilon": value} for delta, value in elsewhere],
    }
    holds = (
        "The guarantee holds."
        if spent.guarantee_holds
        else f"GUARANTEE VOID: {'; '.join(spent.voided_by)}."
    )
    delta = rounded(spent.delta, 6)
    promise = f"(epsilon {rounded(spent.epsilon)}, delta {delta})-differential privacy. {holds}"
    if written:
        return record, "\n".join([promise, *(f"Wrote {path}." for path in written)])
    text = "\n".join(
        (
            promise,
            f"With {neighbours(spent)}, any set of results has at most\n"
            f"{largest_factor(spent.epsilon)} times the probability that it had, plus {delta}.\n",
            _table(*spent._rows()),
            "\nThe same fit at other deltas:",
            _table(
                ("delta", "epsilon, at most"),
                *((rounded(delta, 6), rounded(value)) for delta, value in elsewhere),
            ),
        )
    )
    return record, text


def _write_statement(args: argparse.Namespace, spent: PrivacySpent) -> list[str]:
    """Write the page and the JSON of the statement, as far as they were asked for; their paths."""
    from skdpbayes.privacy import PrivacyLedger, statement, statement_page
    from skdpbayes.privacy.ledger import stored_json

    about = {name: getattr(args, name) for name in _ABOUT}
    outputs = [path for path in (args.html, args.statement) if path is not None]
    if not outputs:
        if args.ledger is not None or any(about.values()):
            raise ValueError("--ledger, --by and the like go with --html or --statement.")
        return []
    inputs = {Path(path).resolve() for path in (args.file, args.ledger) if path is not None}
    targets = {Path(path).resolve() for path in outputs}
    if inputs & targets or len(targets) < len(outputs):
        raise ValueError("--html and --statement must name files of their own.")
    book = None
    if args.ledger is not None:
        with _reading(args.ledger, _LEDGER_FILE):
            book = PrivacyLedger.from_json(stored_json(args.ledger))
    record = statement(spent, ledger=book, **about)
    texts = {
        args.html: lambda: statement_page(record),
        args.statement: lambda: json.dumps(record, indent=2, allow_nan=False),
    }
    for path in outputs:
        try:
            Path(path).write_text(texts[path](), "utf-8")
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}.") from error
    return outputs


def verify(args: argparse.Namespace) -> Answer:
    """Check of a saved statement, page or report against its rounds."""
    from skdpbayes.privacy import verify_statement
    from skdpbayes.privacy.page import page_problem
    from skdpbayes.privacy.statements import is_page, read_statement

    with _reading(args.file, "a statement, its page or a report"):
        text = Path(args.file).read_text("utf-8")
        record = read_statement(text)
        verdict = verify_statement(record)
        problem = page_problem(text, record) if is_page(text) else ""
        if problem:
            verdict = verdict._replace(follows=False, problems=(*verdict.problems, problem))
    return verdict._asdict(), str(verdict)


def ledger(args: argparse.Namespace) -> Answer:
    """A saved `PrivacyLedger`; it is not changed."""
    from skdpbayes.privacy import PrivacyLedger
    from skdpbayes.privacy.ledger import stored_json

    with _reading(args.file, _LEDGER_FILE):
        book = PrivacyLedger.from_json(stored_json(args.file))
    spent = book.spent
    entries = [
        {name: value for name, value in entry.items() if name != "cost"} | {"share": share}
        for (_, share), entry in zip(book.shares, book.entries, strict=True)
    ]
    names = ("epsilon", "delta", "adjacency", "unit", "composition")
    record = {name: getattr(book, name) for name in names} | {
        "entries": entries,
        "spent": spent,
        "spent_epsilon": book.spent_epsilon,
        "voided_by": list(book.voided_by),
    }
    if book.plan is None:
        record["affordable_epsilon"] = book.affordable_epsilon()
        may = rounded(record["affordable_epsilon"], up=False)
        left = f"a fit on all rows may take epsilon {may}"
    else:
        left = f"{len(book.plan) - len(entries)} of {len(book.plan)} planned fits"
    text = _table(
        ("budget", f"epsilon {rounded(book.epsilon, 6)}, delta {rounded(book.delta, 6)}"),
        ("neighbours", _neighbours(book.adjacency).replace("record", book.unit)),
        ("composition", book.composition),
        ("spent", f"{rounded(100 * spent)}%, epsilon {rounded(record['spent_epsilon'])}"),
        ("left", f"{rounded(max(0.0, 100 * (1 - spent)), up=False)}%; {left}"),
    )
    if book.voided_by:
        text += f"\nGUARANTEE VOID: {'; '.join(book.voided_by)}."
    if entries:
        rows = ((rounded(100 * entry["share"]) + "%", entry["label"]) for entry in entries)
        text += "\n\n" + _table(("share", "fit"), *rows)
    return record, text


def _promise(epsilon: float, delta: float | None, gaussian: bool) -> tuple[str, Tpr, float]:
    """Supposed mechanism with (epsilon, delta), its true positive rates and its advantage."""
    from skdpbayes.privacy import compose
    from skdpbayes.privacy.accounting._curve import tpr_bound
    from skdpbayes.privacy.accounting._gaussian import gaussian_mu
    from skdpbayes.privacy.accounting._steps import check_delta, check_epsilon

    if delta is None:
        raise ValueError("--epsilon needs --delta (0 if it is pure).")
    if math.isinf(check_epsilon(epsilon)):
        raise ValueError("epsilon=inf promises nothing.")
    if gaussian:
        sigma = 1.0 / gaussian_mu(epsilon, check_delta(delta))
        curve = compose(GaussianSteps(sigma, 1.0, 1))
        which = (
            f"one Gaussian release that is just ({epsilon:g}, {delta:g})-private; others may give "
            "attackers more"
        )
        return which, curve.tpr, curve.advantage()
    if delta != 0.0:
        check_delta(delta)
    # The two branches of the trade-off curve meet where both error rates are equal.
    error = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    which = f"nothing but ({epsilon:g}, {delta:g})-privacy: bounds for every such mechanism"
    return which, functools.partial(tpr_bound, epsilon=epsilon, delta=delta), 1.0 - 2.0 * error


def _schedule(args: argparse.Namespace) -> list[GaussianSteps]:
    if args.noise_multiplier is None or args.steps is None:
        raise ValueError("a schedule needs --noise-multiplier and --steps.")
    if any(not (value == 0.0 or 1e-3 <= value <= 1e9) for value in args.noise_multiplier):
        raise ValueError("--noise-multiplier must be 0 (no noise) or in [0.001, 1e9].")
    blocks = len(args.steps)
    columns = {
        "--noise-multiplier": args.noise_multiplier,
        "--sampling-rate": args.sampling_rate or [1.0],
    }
    for name, values in columns.items():
        if len(values) not in (1, blocks):
            raise ValueError(
                f"--steps has {blocks} blocks and {name} {len(values)}: give one value, or one a "
                "block."
            )
    noise, rates = (values * blocks if len(values) == 1 else values for values in columns.values())
    return [GaussianSteps(*block) for block in zip(noise, rates, args.steps, strict=True)]


def convert(args: argparse.Namespace) -> Answer:
    """A table in the format that `open_table` reads in place."""
    from skdpbayes.intake.conversion import convert

    schema = None
    if args.schema is not None:
        from skdpbayes.schema import Schema

        with _reading(args.schema, "a schema (TOML or JSON)"):
            schema = Schema.load(args.schema)
    try:
        how = {"delimiter": args.delimiter, "decimal": args.decimal}
        n_rows, names = convert(args.source, args.target, schema, **how)
    except (OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    record = {"target": args.target, "rows": n_rows, "columns": names}
    return record, _table(
        ("table", args.target), ("rows", str(n_rows)), ("columns", ", ".join(names))
    )


@contextlib.contextmanager
def _reading(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
        reason = f"it has no {error}." if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not {what}: {reason}") from error


def _dicts(steps: Iterable[GaussianSteps]) -> list[dict[str, Any]]:
    return [block.to_dict() for block in steps]


def _neighbours(adjacency: str) -> str:
    return f"{NEIGHBOURS[adjacency]} ({adjacency})"


def _releases(steps: Sequence[GaussianSteps]) -> list[tuple[str, str]]:
    return [
        (
            "then" if i else "releases",
            f"{block.steps} rounds, sampling rate {block.sampling_rate:g}, noise multiplier "
            f"{block.noise_multiplier:g}",
        )
        for i, block in enumerate(steps)
    ]


def _table(*rows: Sequence[str]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def rate(text: str) -> float:
    """A sampling rate: a number, or batch/records."""
    batch, slash, records = text.partition("/")
    try:
        return float(batch) / float(records) if slash else float(batch)
    except ZeroDivisionError:
        raise argparse.ArgumentTypeError(f"{text!r} divides by zero records") from None


def probability(text: str) -> float:
    """A number in [0, 1]."""
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"must be in [0, 1], got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="skdpbayes", description="Privacy accounting in a shell.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"skdpbayes {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(
        run: Callable[[argparse.Namespace], Answer], help: str, example: str, about: str = ""
    ) -> argparse.ArgumentParser:
        own = commands.add_parser(
            run.__name__,
            help=help,
            description=about or f"Print {help}.",
            epilog=f"example:\n  skdpbayes {run.__name__} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        own.set_defaults(run=run, parser=own)
        own.add_argument("--json", action="store_true", help="print JSON, with all digits")
        return own

    def adjacency(own: argparse.ArgumentParser) -> None:
        own.add_argument(
            "--adjacency", choices=ADJACENCIES, default=ADJACENCIES[0], help="default: zero_out"
        )

    rate_help = "probability that a record is in a round, or batch/records; default: 1"

    several: dict[str, Any] = {"nargs": "+", "metavar": "VALUE"}

    def schedule(own: argparse.ArgumentParser, required: bool) -> None:
        own.add_argument(
            "--noise-multiplier",
            type=float,
            required=required,
            help="standard deviation of the noise over the clipping norm; one for each block of "
            "rounds, or one for all",
            **several,
        )
        own.add_argument("--sampling-rate", type=rate, help=f"{rate_help}; likewise", **several)
        own.add_argument(
            "--steps",
            type=float,
            required=required,
            help="number of rounds of each block",
            **several,
        )
        adjacency(own)

    own = command(
        noise,
        "the least noise that keeps a budget",
        "--epsilon 1 --delta 1e-5 --sampling-rate 600/60000 --steps 10000",
    )
    own.add_argument("--epsilon", type=float, required=True)
    own.add_argument("--delta", type=float, required=True)
    own.add_argument("--sampling-rate", type=rate, default=1.0, metavar="VALUE", help=rate_help)
    own.add_argument("--steps", type=float, required=True, help="number of rounds")
    adjacency(own)

    own = command(
        epsilon,
        "the epsilon that rounds of noisy sums spend",
        "--noise-multiplier 2 4 --sampling-rate 0.01 --steps 5000 5000 --delta 1e-5",
    )
    schedule(own, required=True)
    own.add_argument("--delta", type=float, required=True)
    own.add_argument("--accountants", action="store_true", help="those of earlier papers beside it")

    own = command(
        meaning,
        "what attackers can do, given --epsilon and --delta, or a schedule",
        "--epsilon 1 --delta 1e-5\n"
        "  skdpbayes meaning --noise-multiplier 4 --sampling-rate 0.01 --steps 10000",
    )
    own.add_argument("--epsilon", type=float)
    own.add_argument("--delta", type=float, help="0 for pure differential privacy")
    own.add_argument(
        "--gaussian",
        action="store_true",
        help="suppose one Gaussian release, not just any mechanism with this epsilon",
    )
    schedule(own, required=False)
    own.set_defaults(adjacency=None)
    own.add_argument(
        "--fpr",
        type=probability,
        default=[0.001, 0.01, 0.1],
        help="false positive rates",
        **several,
    )
    own.add_argument(
        "--prior",
        type=probability,
        default=[1e-6, 1e-3, 0.1],
        help="chances to guess a record without the release",
        **several,
    )

    own = command(report, "a saved report of a fit (privacy_spent_.to_json())", "spent.json")
    own.add_argument("file")
    own.add_argument(
        "--delta",
        type=float,
        default=[1e-4, 1e-5, 1e-6, 1e-7, 1e-8],
        help="deltas at which to say epsilon too",
        **several,
    )

    own.add_argument("--html", metavar="FILE", help="write a page for officers to this file")
    own.add_argument(
        "--statement", metavar="FILE", help="write the same as JSON, which `verify` checks"
    )
    own.add_argument("--ledger", metavar="FILE", help="the ledger that was charged")
    for name, about in _ABOUT.items():
        own.add_argument(f"--{name.replace('_', '-')}", default="", metavar="TEXT", help=about)

    own = command(
        verify,
        "whether a statement, its page or a report follows from its rounds; status 1 if not",
        "statement.json",
    )
    own.add_argument("file")

    own = command(
        ledger, "what a saved PrivacyLedger has spent and has left (read only)", "budget.db"
    )
    own.add_argument("file", help="its path, or a file of its to_json()")

    own = command(
        convert,
        "a table as an Arrow file, which `open_table` reads in place",
        "table.parquet table.arrow",
        "Write a Parquet, CSV or Arrow file as an Arrow file of fixed-width columns, block by "
        "block. It holds the records: keep it as you keep the source.",
    )
    own.add_argument("source", help="Parquet, CSV or Arrow (Feather) file")
    own.add_argument("target", help="file that is written")
    own.add_argument(
        "--schema", metavar="FILE", help="columns and categories, in TOML or JSON; needed for CSV"
    )
    own.add_argument("--delimiter", default=",", help="of a CSV file; default: a comma")
    own.add_argument("--decimal", default=".", help="of a CSV file: . or ,; default: a point")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, default=None
        Arguments; None takes those of the process.

    Returns
    -------
    int
        0, or 1 if `verify` finds that a statement does not follow. An error ends the process with
        status 2 and one line on standard error.
    """
    from skdpbayes.privacy import AccountingError

    args = _parser().parse_args(argv)
    try:
        record, text = args.run(args)
    except ArithmeticError as error:
        args.parser.error(f"these numbers are too extreme to compute with: {error}.")
    except (ValueError, AccountingError) as error:
        args.parser.error(str(error))
    sys.stdout.write(
        (json.dumps(finite(record), indent=2, allow_nan=False) if args.json else text) + "\n"
    )
    return 0 if record.get("follows", True) else 1


if __name__ == "__main__":
    sys.exit(main())
