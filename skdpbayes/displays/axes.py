"""What the displays share: axes, colours and styles. matplotlib is loaded when something is drawn."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's (2008), which colour-blind readers tell apart; the lightest come last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
BAND = {"color": "0.85", "linewidth": 0}
DIAGONAL = {"color": "0.4", "linestyle": "--", "linewidth": 1}
LEFT = "0.85"  # what is not used up


def axes(ax: Any, **figure: Any) -> tuple[Any, Any]:
    """`ax` and its figure, or axes in a new figure (with these options); lines take `COLOURS` in turn."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                "plots need matplotlib, which is not installed: pip install skdpbayes[plot]"
            ) from error
        _, ax = plt.subplots(layout="constrained", **figure)
    if not ax.lines:  # else it goes on with its own, so that two displays in one picture differ
        ax.set_prop_cycle(color=COLOURS)
    return ax, ax.figure
