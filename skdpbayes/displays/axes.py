"""Axes, colours and styles of the displays. matplotlib is loaded when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# The palette of Okabe and Ito (2008), which colour-blind readers can tell apart; lightest last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
BAND: dict[str, Any] = {"color": "0.85", "linewidth": 0}
DIAGONAL: dict[str, Any] = {"color": "0.4", "linestyle": "--", "linewidth": 1}
UNUSED = "0.85"
"""Colour of the part of a budget that is left."""


class Display:
    """Base of the displays: `plot` provides the axes, and `_draw` fills them."""

    ax_: Axes
    figure_: Figure | SubFigure

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw into `ax`, or into a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        self.ax_ = _axes(ax, self._figsize())
        self.figure_ = self.ax_.figure
        self._draw(self.ax_)
        return self

    def _figsize(self) -> tuple[float, float] | None:
        """Width and height of a new figure in inches; None for matplotlib's default."""
        return None

    def _draw(self, ax: Axes) -> None:
        raise NotImplementedError


def _axes(ax: Axes | None, figsize: tuple[float, float] | None) -> Axes:
    """`ax`, or axes in a new figure; lines take `COLOURS` in turn."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                "plots need matplotlib, which is not installed: pip install skdpbayes[plot]"
            ) from error
        _, ax = plt.subplots(layout="constrained", figsize=figsize)
    if not ax.lines:  # else keep the cycle, so that two displays in one picture differ
        ax.set_prop_cycle(color=COLOURS)
    return ax
