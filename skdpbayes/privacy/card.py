"""The card that notebooks show: a guarantee, its state, and a table of the conditions."""

from __future__ import annotations

import decimal
import html
import math
from collections.abc import Iterable

_CELL = "text-align:left;padding:1px 12px 1px 0;font-weight:normal;opacity:.7"


def card(
    epsilon: float,
    delta: float,
    what: str,
    state: str,
    rows: Iterable[tuple[str, str]],
    *,
    good: bool = True,
) -> str:
    """HTML of a card; all texts are escaped here."""
    body = "".join(
        f'<tr><th style="{_CELL}">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        '<div style="border:1px solid #8886;border-radius:6px;padding:8px 12px;max-width:44em">'
        f"<div><b>(&epsilon; = {rounded(epsilon)}, &delta; = {rounded(delta, 3)})</b> "
        f"{html.escape(what)}, "
        f'<span style="color:{"#1a7f37" if good else "#b42318"}">{html.escape(state)}</span></div>'
        f'<table style="border-collapse:collapse;font-size:90%">{body}</table></div>'
    )


def guarantee(
    epsilon: float, delta: float, voided_by: tuple[str, ...], rows: Iterable[tuple[str, str]]
) -> str:
    """Card of a fit or a search."""
    state = "guarantee holds" if not voided_by else "guarantee void: " + "; ".join(voided_by)
    return card(epsilon, delta, "differential privacy", state, rows, good=not voided_by)


def rounded(value: float, digits: int = 4, *, up: bool = True) -> str:
    """Return `value` in so many digits, rounded up (or down), so that a bound stays a bound."""
    if not math.isfinite(value):
        return str(float(value))
    context = decimal.Context(
        prec=digits, rounding=decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    )
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"


def percent(share: float, *, up: bool = True) -> str:
    """Return a share in per cent, rounded up (or down)."""
    return f"{rounded(100 * share, 3, up=up)}%"
