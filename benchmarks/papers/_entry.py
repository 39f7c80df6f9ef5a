"""An entry of the list, what is asked of it and what it returns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import _log, _peers


class Missing(Exception):
    """Data, or a peer, that is not here. The message says what to do."""


@dataclass(frozen=True)
class Order:
    """What the command line asks for.

    Attributes
    ----------
    full : bool
        Sizes of the paper, as far as they are known; otherwise those that take minutes.
    seeds : int, optional
        Fits behind each point; None: the number that the entry takes.
    data : dict of str to Path
        Files of data sets that are not in ``SKDPBAYES_DATA_HOME``, by name.
    peers : bool
        Run d3p too, in an environment that is made when it is not there.
    python : str
        Python 3.11 that makes it.
    """

    full: bool = False
    seeds: int | None = None
    data: dict[str, Path] = field(default_factory=dict)
    peers: bool = False
    python: str = "python3.11"

    def choose(self, short: Any, full: Any) -> Any:
        """The second if the paper's sizes are asked for."""
        return full if self.full else short

    def fits(self, short: int, full: int) -> int:
        """Number of fits behind each point."""
        return self.seeds or self.choose(short, full)

    def d3p(self) -> Path:
        """Python of d3p's environment."""
        if not self.peers:
            raise Missing("d3p itself was not asked for (--peers)")
        try:
            return _peers.environment("d3p", self.python)
        except _peers.Unavailable as error:
            raise Missing(str(error)) from error


@dataclass(frozen=True)
class Table:
    """Title, header and cells."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        return f"{self.title}\n\n{_log.table(self.header, self.rows)}"


@dataclass(frozen=True)
class Found:
    """What an entry found.

    Attributes
    ----------
    ran : str
        Settings, seeds and sizes of this run, and whether they are the paper's.
    tables : list of Table
    figure : Figure
        Drawn, not yet written.
    """

    ran: str
    tables: list[Table]
    figure: Figure


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper.

    Attributes
    ----------
    name : str
        As in ``--only`` and in the names of files.
    paper : str
    what : str
        Its name in the paper.
    shows : str
    run : callable
        From an `Order` to what was `Found`. It raises `Missing` where data are not here.
    """

    name: str
    paper: str
    what: str
    shows: str
    run: Callable[[Order], Found]


# --- Pictures -------------------------------------------------------------------------------------

PAPER_STYLE = {"color": "black", "marker": "D", "linestyle": "none", "zorder": 5}


@dataclass(frozen=True)
class Line:
    """A curve of a figure; NaN leaves a gap, and `error` is half of the bars' length."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    style: dict[str, Any] = field(default_factory=dict)


def quoted(x: Sequence[float], y: Sequence[float], label: str = "the paper") -> Line:
    """Values that a paper gives in its text or tables."""
    return Line(label, x, y, style=PAPER_STYLE)


def plot(ax: Any, lines: Iterable[Line]) -> None:
    """Draw lines, with bars where they have errors."""
    for line in lines:
        style = {"marker": "o", "markersize": 4, "linewidth": 1.3} | line.style
        if line.error is None:
            ax.plot(line.x, line.y, label=line.label, **style)
        else:
            ax.errorbar(line.x, line.y, yerr=line.error, label=line.label, capsize=2, **style)


def panels(titles: Sequence[str], columns: int = 2, **shared: Any) -> tuple[Figure, list[Any]]:
    """A figure with a titled panel for each title."""
    columns = min(columns, len(titles))
    n_rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(5.2 * columns, 4.4 * n_rows), layout="constrained")
    axes = list(figure.subplots(n_rows, columns, squeeze=False, **shared).ravel())
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title, fontsize="medium")
        ax.grid(alpha=0.25)
    for ax in axes[len(titles) :]:
        ax.set_axis_off()
    return figure, axes[: len(titles)]


def legend(ax: Any) -> None:
    """Names of lines: beside the panel where they are many, so that they hide nothing."""
    many = len(ax.get_legend_handles_labels()[1]) > 5
    place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if many else {}
    ax.legend(fontsize="small", **place)
    if many and len(ax.figure.axes) == 1:
        ax.figure.set_size_inches(9.5, 5)


def one_panel(title: str, lines: Iterable[Line], **axes: Any) -> Figure:
    """A figure of one panel; `axes` are labels, scales and limits."""
    figure, (ax,) = panels([title])
    figure.set_size_inches(7, 4.6)
    plot(ax, lines)
    ax.set(**axes)
    legend(ax)
    return figure


# --- Cells and statistics -------------------------------------------------------------------------


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, NaN of one value."""
    found = np.asarray(values, float)
    error = found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else math.nan
    return float(found.mean()), float(error)


def cell(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard error."""
    mean, error = mean_and_error(values)
    if math.isnan(mean):
        return "-"
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f" ±{error:.{digits}f}")


def by_level(
    title: str,
    scores: dict[str, dict[float, list[float]]],
    heading: str = "epsilon",
    digits: int = 3,
) -> Table:
    """A row for each line and a column for each level; "-" where there is no score."""
    levels = sorted({level for line in scores.values() for level in line})
    rows = [
        [name, *(cell(line[level], digits) if level in line else "-" for level in levels)]
        for name, line in scores.items()
    ]
    return Table(title, [heading, *(f"{level:g}" for level in levels)], rows)


def curves(scores: dict[str, dict[float, list[float]]], **style: Any) -> list[Line]:
    """A line with bars of each row of `by_level`, without levels that are not finite."""
    found = []
    for name, line in scores.items():
        levels = sorted(level for level in line if math.isfinite(level))
        pairs = [mean_and_error(line[level]) for level in levels]
        means, errors = [m for m, _ in pairs], [0.0 if math.isnan(e) else e for _, e in pairs]
        found.append(Line(name, levels, means, errors, dict(style)))
    return found


# --- Data -----------------------------------------------------------------------------------------


def at_home(name: str) -> Path:
    """A file of the folder that ``SKDPBAYES_DATA_HOME`` names."""
    home = os.environ.get("SKDPBAYES_DATA_HOME")
    path = Path(home or ".") / name
    if not home or not path.exists():
        raise Missing(f"{name} is not here; SKDPBAYES_DATA_HOME must name a folder that holds it")
    return path


@dataclass(frozen=True)
class Images:
    """Rows of bytes and labels, and the shape of an image: (height, width[, channels])."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    shape: tuple[int, ...]


def images(order: Order, name: str) -> Images:
    """A set of images: the NPZ file that the user names, or for MNIST the one at home.

    The file has ``x_train``, ``y_train``, ``x_test`` and ``y_test``: images as unsigned bytes of
    shape (n, height, width) or (n, height, width, channels), labels as whole numbers.
    """
    path = order.data.get(name)
    if path is None:
        if name != "mnist":
            raise Missing(
                f"{name} is not here. Name a file: --data {name}=FILE.npz, with x_train, y_train, "
                "x_test and y_test"
            )
        path = at_home("mnist.npz")
    if not path.exists():
        raise Missing(f"{path} is not there; --data {name}= must name a file")
    with np.load(path) as arrays:
        names = "x_train", "y_train", "x_test", "y_test"
        lacking = [part for part in names if part not in arrays.files]
        if lacking:
            raise Missing(f"{path} has no {', '.join(lacking)}")
        x, y, x_test, y_test = (arrays[part] for part in names)
    shape = x.shape[1:]
    if len(shape) not in (2, 3) or x_test.shape[1:] != shape:
        raise Missing(f"images of {path} must have shape (n, height, width[, channels])")
    rows = [part.reshape(len(part), -1) for part in (x, x_test)]
    labels = [np.asarray(part).ravel().astype(int) for part in (y, y_test)]
    return Images(rows[0], labels[0], rows[1], labels[1], shape)
