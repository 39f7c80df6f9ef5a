"""The page of a statement: one HTML file, which loads nothing."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skdpbayes.privacy.card import percent, rounded
from skdpbayes.privacy.json_values import in_words
from skdpbayes.privacy.report import PrivacySpent
from skdpbayes.privacy.statements import (
    MADE_WITH,
    attack_rates,
    is_schema,
    largest_factor,
    neighbours,
    schemas,
)

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em;color:#1b1b1b}
table{border-collapse:collapse;margin:.5em 0 1.5em;display:block;overflow-x:auto}
th,td{text-align:left;vertical-align:top;padding:.25em 1em .25em 0;border-bottom:1px solid #ddd}
td{overflow-wrap:anywhere;min-width:6em}th{font-weight:600}h2{margin-top:2em}.good{color:#1a7f37}.void{color:#b42318;font-weight:600}
svg{max-width:100%;height:auto}figcaption,.small{color:#555;font-size:90%}
"""
_WIDTH, _HEIGHT, _LEFT, _BELOW = 520, 300, 64, 48
_POINTS = 80


def statement_page(record: Mapping[str, Any]) -> str:
    """Page of a statement.

    Parameters
    ----------
    record : mapping
        As `statement` returns it. The page repeats its numbers, and holds it as JSON, which
        ``skdpbayes verify`` reads.

    Returns
    -------
    page : str
        HTML. It has no scripts to run and loads nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import statement, statement_page
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> told = statement(DPBetaBernoulli(epsilon=0.5).fit(X).privacy_spent_, name="Smokers")
    >>> statement_page(told)[:15]
    '<!DOCTYPE html>'
    """
    spent = PrivacySpent.from_dict(record["spent"])
    deployment = record["deployment"]
    title = deployment["basic"]["name"] or spent.estimator or "A private fit"
    sections = [
        f"<h1>{_text(title)}</h1>",
        *_promise(record, spent),
        "<h2>What an attacker can do</h2>",
        *_attacks(record, spent),
        "<h2>Who, what and when</h2>",
        _table(_origin(record, spent)),
        "<h2>Public schema</h2>",
        *_schemas(spent),
        "<h2>Conditions</h2>",
        *_conditions(spent),
        "<h2>Releases</h2>",
        _releases(spent),
        "<h2>Ledger</h2>",
        _ledger(record["ledger"]),
        "<h2>Fields of the Differential Privacy Deployments Registry</h2>",
        _table(_flat(deployment)),
    ]
    # No tag or comment of a name may end the script, or keep it from ending.
    inside = json.dumps(record, allow_nan=False).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: privacy statement</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(sections)
        + f'\n<script type="application/json" id="statement">{inside}</script>\n</body></html>\n'
    )


def page_problem(text: str, record: Mapping[str, Any]) -> str:
    """Reason why a page may show something else than its statement says; empty if there is none."""
    if record["made_with"] != MADE_WITH:
        return (
            f"the page was made with {record['made_with']}, and {MADE_WITH} cannot tell whether it "
            "shows what its statement says: take the statement's JSON, or that version."
        )
    same = text.splitlines() == statement_page(record).splitlines()
    return "" if same else "the page does not show what its statement says."


def _promise(record: Mapping[str, Any], spent: PrivacySpent) -> list[str]:
    stated = record["deployment"]["privacy_loss"]["privacy_parameters"]
    epsilon, delta = float(stated["epsilon"]), float(stated["delta"])
    state = (
        '<span class="good">The guarantee holds.</span>'
        if spent.guarantee_holds
        else f'<span class="void">GUARANTEE VOID: {_text("; ".join(spent.voided_by))}.</span>'
    )
    return [
        f"<p><b>(&epsilon; = {rounded(epsilon)}, &delta; = {rounded(delta, 3)})-differential "
        f"privacy</b> for each {_text(spent.unit)}. {state}</p>",
        f"<p>With {_text(neighbours(spent))}, any set of results has at most "
        f"{largest_factor(epsilon)} times the probability that it had, plus "
        f"{rounded(delta, 3)}.</p>",
    ]


def _attacks(record: Mapping[str, Any], spent: PrivacySpent) -> list[str]:
    meaning = record["meaning"]
    rows = [
        (percent(float(own["fpr"])), f"{percent(float(own['tpr']))} at most")
        for own in meaning["attacks"]
    ]
    guesses = [
        (percent(float(own["prior"])), f"{percent(float(own['success']))} at most")
        for own in meaning["reconstruction"]
    ]
    unit = _text(spent.unit)
    used = "the rows of a person were" if spent.unit == "person" else f"a {unit} was"
    whole = "all rows of a person" if spent.unit == "person" else f"a whole {unit}"
    out = [
        f"<p>An attacker who knows all other {unit}s, and everything that was published, decides "
        f"whether {used} used.</p>",
        _table(rows, ("false positive rate", "true positive rate")),
        f"<p>An attacker guesses {whole}.</p>",
        _table(guesses, ("success without the release", "success with it")),
    ]
    if math.isfinite(spent.total.epsilon):
        rates = tuple(10.0 ** (-4 + 4 * i / (_POINTS - 1)) for i in range(_POINTS))
        curves = {
            "best attack": list(zip(rates, attack_rates(spent, rates), strict=True)),
            "guessing": [(rate, rate) for rate in rates],
        }
        out.append(_plot(curves, "false positive rate", "largest true positive rate", top=1.0))
        deltas = [10.0 ** (-9 + 7 * i / (_POINTS - 1)) for i in range(_POINTS)]
        points = [(delta, spent.epsilon_at(delta)) for delta in deltas]
        finite_points = [(delta, value) for delta, value in points if math.isfinite(value)]
        # Four steps of one digit each.
        top = 4 * float(rounded(max((value for _, value in finite_points), default=0.0) / 4, 1))
        out.append(_plot({"this fit": finite_points}, "delta", "epsilon", top=top or 1.0))
    return out


def _origin(record: Mapping[str, Any], spent: PrivacySpent) -> list[tuple[str, str]]:
    basic = record["deployment"]["basic"]
    return [
        ("curator", ", ".join(basic["data_curators"]) or "not stated"),
        ("fitted", f"{spent.estimator or 'not stated'}, skdpbayes {spent.version or 'unknown'}"),
        ("date of the fit", spent.date or "not stated"),
        ("intended use", basic["intended_use"] or "not stated"),
        ("statement made", f"{record['made']}, {record['made_with']}"),
        *((f"public: {name}", in_words(_brief(value))) for name, value in spent.public.items()),
    ]


def _brief(value: object) -> object:
    """A public value in which a table of its own stands for a schema."""
    if not isinstance(value, Mapping):
        return value
    return {key: "in the schema below" if is_schema(x) else x for key, x in value.items()}


def _schemas(spent: PrivacySpent) -> list[str]:
    """Table of the model's schema, and of each step's in a pipeline."""
    declared = schemas(spent)
    if not declared:
        return ["<p>No schema was declared.</p>"]
    return [part for name, own in declared for part in (f"<p>{_text(name)}</p>", _columns(own))]


def _columns(schema: Mapping[str, Any]) -> str:
    columns = [*schema.get("columns", ()), *filter(None, [schema.get("outcome")])]
    rows = [
        (
            own["name"],
            own.get("kind", "outcome"),
            ", ".join(map(in_words, _values(own))),
            "" if own.get("missing") is None else in_words(own["missing"]),
            own.get("unit", ""),
        )
        for own in columns
    ]
    head = ("column", "kind", "bounds, categories or labels", "value of missing cells", "unit")
    return _table(rows, head)


def _values(column: Mapping[str, Any]) -> Sequence[Any]:
    """What a column of a schema may hold."""
    named = (column.get(name) for name in ("bounds", "categories", "labels"))
    return next(filter(None, named), ())


def _conditions(spent: PrivacySpent) -> list[str]:
    idealised = spent.numerics == "fast"
    rows = [
        ("one record", f"one {spent.unit}; adjacency {spent.adjacency}"),
        (
            "clipping norm",
            "adaptive" if spent.clipping_norm is None else f"{spent.clipping_norm:g}",
        ),
        ("arithmetic", "floating point (idealised)" if idealised else "integers"),
        ("randomness", (spent.random_source or "not stated") + (", seeded" * spent.seeded)),
        ("accountant", f"{spent.accountant}; independent: {spent.crosscheck}"),
    ]
    items = "".join(f"<li>{_text(why)}</li>" for why in spent.not_covered)
    return [_table(rows), f"<p>The guarantee does not cover:</p><ul>{items}</ul>"]


def _releases(spent: PrivacySpent) -> str:
    kinds = (("rounds", spent.steps), ("beside them", spent.along), ("earlier", spent.cumulative))
    rows = [
        (kind, f"{own.steps}", f"{own.sampling_rate:g}", f"{own.noise_multiplier:.6g}")
        for kind, blocks in kinds
        for own in blocks
    ]
    return _table(
        rows, ("", "number", "sampling rate", "noise multiplier (standard deviation over the norm)")
    )


def _ledger(ledger: Mapping[str, Any] | None) -> str:
    if ledger is None:
        return "<p>No ledger was given.</p>"
    about, entries = ledger["content"]["ledger"], ledger["content"]["entries"]
    head = (
        f"<p>Budget: epsilon {rounded(float(about['epsilon']))}, delta "
        f"{rounded(float(about['delta']), 3)}. Spent: epsilon "
        f"{rounded(float(ledger['spent_epsilon']))}, {percent(float(ledger['spent_share']))} of "
        "the budget.</p>"
    )
    void = "".join(
        f'<p class="void">GUARANTEE VOID: {_text(why)}.</p>' for why in ledger["voided_by"]
    )
    rows = [(own["label"] or "a fit", own["when"] or "", own["version"] or "") for own in entries]
    return head + void + _table(rows, ("fit", "charged", "version"))


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Leaves of nested mappings, with their paths."""
    if isinstance(value, Mapping):
        return [
            leaf
            for key, item in value.items()
            for leaf in _flat(item, f"{name}.{key}" if name else str(key))
        ]
    return [(name, _words(value) or "(to be filled in)")]


def _words(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else json.dumps(value)
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    top = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{body}</table>"


def _plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str, *, top: float
) -> str:
    """Curves over a logarithmic axis, as SVG; all quantities are without units."""
    xs = [x for points in curves.values() for x, _ in points]
    if not xs:
        return ""
    low, high = math.log10(min(xs)), math.log10(max(xs))
    right, bottom = _WIDTH - 16, _HEIGHT - _BELOW

    def across(x: float) -> float:
        return _LEFT + (math.log10(x) - low) / (high - low) * (right - _LEFT)

    def up(y: float) -> float:
        return bottom - y / top * (bottom - 16)

    parts = [
        f'<rect x="{_LEFT}" y="16" width="{right - _LEFT}" height="{bottom - 16}" fill="none" '
        'stroke="#888"/>'
    ]
    for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1):
        x = across(10.0**power)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#888"/>'
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10.0**power:g}</text>'
        )
    for i in range(5):
        y = up(top * i / 4)
        parts.append(
            f'<line x1="{_LEFT - 5}" x2="{_LEFT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#888"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * i / 4:.3g}</text>'
        )
    styles = ('stroke="#0b62c4" stroke-width="2"', 'stroke="#555" stroke-dasharray="4 4"')
    for i, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" {styles[i]}/>')
        if len(curves) == 1:
            continue
        parts.append(
            f'<line x1="{_LEFT + 12}" x2="{_LEFT + 40}" y1="{34 + 18 * i}" y2="{34 + 18 * i}" '
            f'{styles[i]}/><text x="{_LEFT + 46}" y="{38 + 18 * i}">{_text(name)}</text>'
        )
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{_text(x_name)}</text>'
        f'<text transform="translate(14 {(16 + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{_text(y_name)}</text>'
    )
    title = _text(f"{y_name.capitalize()} against {x_name}")
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'font-size="13" font-family="system-ui,sans-serif"><title>{title}</title>'
        + "".join(parts)
        + f"</svg><figcaption>{title}. Both are without units.</figcaption></figure>"
    )
