"""NA-DPVI (Alrawajfeh, Jälkö and Honkela 2025): coverage of posteriors, calibration of predictions.

Tables 1 and 2 with Figures 2 and 3 are ``benchmarks.na_dpvi``, Table 3 with Figure 4
``benchmarks.calibration``; here are their pictures with the paper's figures as points. Blocks of
replicates that are in ``benchmarks/results/na_dpvi`` are not computed again. NA-DPVI's own code is
not run: "published" is its recipe on our mechanism, with its NUTS in closed form.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from benchmarks import calibration, na_dpvi
from benchmarks.papers._entry import (
    Entry,
    Found,
    Line,
    Order,
    Table,
    at_home,
    mean_and_error,
    panels,
    plot,
)

FAMILIES = ("Gamma-Exponential", "Beta-Bernoulli", "Dirichlet-Categorical")

GROUPS = 20  # of the numbers of Gamma-Exponential, in `recipe`
PART = 500  # replicates that run together


def recipe(cell: na_dpvi.Cell, replicates: int) -> dict[str, na_dpvi.Scored]:
    """Scores of the recipe's lines, and of the exact posteriors, of an exponential family.

    All replicates of a part run together, in floating-point arithmetic (`run_together`).
    """
    from benchmarks._na_dpvi_problems import PROBLEMS
    from benchmarks._na_dpvi_recipe import Aligned, Published, fit_together

    kept: dict[str, list[dict[str, np.ndarray]]] = {}
    per_part = PART // na_dpvi.BLOCK
    for start in range(0, replicates // na_dpvi.BLOCK, per_part):
        blocks = range(start, min(start + per_part, replicates // na_dpvi.BLOCK))
        parts = [na_dpvi.simulate(cell, block, na_dpvi.BLOCK) for block in blocks]
        data = na_dpvi.Data(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        rng = np.random.default_rng([7, start])
        settings = PROBLEMS[cell.problem][1], cell.epsilon, na_dpvi.DELTA, data.records
        most = {"Beta-Bernoulli": 2, "Dirichlet-Categorical": 3}.get(cell.problem, GROUPS)
        lines = na_dpvi.read(*fit_together(Published, cell.model, *settings, most, rng), rng)
        lines |= na_dpvi.read_aligned(*fit_together(Aligned, cell.model, *settings, most, rng), rng)
        lines |= na_dpvi.not_private(cell, data, rng)
        for name, draws in lines.items():
            kept.setdefault(name, []).append(na_dpvi.figures(draws, data.truth))
        print(f"{cell.name}: {(blocks[-1] + 1) * na_dpvi.BLOCK} replicates", flush=True)
    return {
        name: na_dpvi.scored({key: np.concatenate([p[key] for p in parts]) for key in parts[0]})
        for name, parts in kept.items()
    }


def coverage(order: Order, problems: tuple[str, ...], levels: tuple[float, ...]) -> Found:
    """TARP errors and curves of cells; `Order.seeds` is the number of replicates."""
    replicates = order.seeds or order.choose(na_dpvi.BLOCK, na_dpvi.FULL)
    blocks = range(math.ceil(replicates / na_dpvi.BLOCK))
    cells = [c for c in na_dpvi.CELLS if c.problem in problems and c.epsilon in levels]
    together = problems == FAMILIES
    many = order.choose(na_dpvi.PAPER_K, na_dpvi.FULL)  # replicates of the recipe's lines there
    contenders = ["skdpbayes"] if together else list(na_dpvi.CONTENDERS)
    na_dpvi.work(cells, contenders, blocks)
    found = na_dpvi.score(cells, contenders, blocks)
    if together:
        found = {cell: recipe(cell, many) | lines for cell, lines in found.items()}
    tables = []
    for cell, lines in found.items():
        sd = lines["not private"].sd
        rows = [na_dpvi.row(name, x, cell.paper.get(name), sd) for name, x in lines.items()]
        tables.append(Table(f"{cell.problem}, epsilon {cell.epsilon:g}", na_dpvi.HEADER, rows))
    figure = errors_figure(found)
    ran = (
        f"{replicates} replicates a cell (paper: {na_dpvi.PAPER_K}), {na_dpvi.N_DRAWS} draws each, "
        f"T=10 000 steps, N=5000, delta 1e-5; blocks 0 to {blocks[-1]} of fixed seeds"
    )
    if together:
        ran += f". The recipe's lines: {many} replicates, run together (column K)"
    return Found(ran, tables, figure)


def errors_figure(found: dict[na_dpvi.Cell, dict[str, na_dpvi.Scored]]) -> Figure:
    """Coverage minus level by line, and errors of all lines beside the paper's."""
    titles = [f"{cell.problem}, epsilon {cell.epsilon:g}" for cell in found]
    figure, axes = panels([*titles, "TARP error (RMSE)"], columns=2)
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    last = axes[-1]
    for i, (ax, (cell, lines)) in enumerate(zip(axes, found.items(), strict=False)):
        for name, x in lines.items():
            style = {"marker": "", "color": f"C{names.index(name) % 10}"}
            plot(ax, [Line(name, x.joint.levels, x.joint.coverage - x.joint.levels, style=style)])
            last.plot(i, x.joint.rmse, "o", color=style["color"], markersize=5)
        for name, error in cell.paper.items():
            color = f"C{names.index(name) % 10}" if name in names else "black"
            last.plot(i + 0.15, error, "D", color=color, markersize=5, markeredgecolor="black")
        first = next(iter(lines.values())).joint
        ax.fill_between(first.levels, first.lower - first.levels, first.upper - first.levels,
                        color="0.5", alpha=0.25, linewidth=0)  # fmt: skip
        ax.set(xlabel="credible level", ylabel="coverage minus level")
    axes[0].legend(fontsize="x-small", ncols=2)
    last.set_xticks(range(len(titles)), [t.replace(", ", "\n") for t in titles], fontsize="x-small")
    last.set(yscale="log", ylabel="RMSE; diamonds: the paper's")
    return figure


def fig1(order: Order) -> Found:
    """Noisy gradients of the recipe's trace against the iterates, and the line fitted to them."""
    from benchmarks._na_dpvi_collapsed import exact
    from benchmarks._na_dpvi_problems import PROBLEMS
    from benchmarks._na_dpvi_recipe import (
        DROPPED,
        N_STEPS,
        SAMPLING_RATE,
        Published,
        regression,
        solver,
    )
    from skdpbayes import inference
    from skdpbayes.mechanism.keys import fit_keys
    from skdpbayes.mechanism.records import Records
    from skdpbayes.mechanism.spec import MechanismSpec
    from skdpbayes.privacy import GaussianSteps, calibrate_noise

    del order
    cell = next(c for c in na_dpvi.CELLS if c.problem == "Gamma-Exponential" and c.epsilon == 0.1)
    settings = PROBLEMS[cell.problem][1]
    rows = na_dpvi.simulate(cell, 0, 1).records[0]
    sigma = calibrate_noise(cell.epsilon, na_dpvi.DELTA, SAMPLING_RATE, N_STEPS).noise_multiplier
    own = solver(Published, cell.model, settings, sigma, len(rows))
    spec = MechanismSpec((GaussianSteps(sigma, SAMPLING_RATE, N_STEPS),))
    records = Records(rows, np.int32(len(rows)))
    state, releases = inference.run(
        fit_keys(0, 1), cell.model, own, spec, records, keep_releases=True
    )
    releases = np.asarray(releases, float)
    # Plain gradient descent: the iterates follow from the releases.
    moves = np.cumsum(own.step_size * releases, axis=0)
    iterates = own.start - np.vstack([np.zeros(releases.shape[1]), moves[:-1]])
    first = int(DROPPED * N_STEPS)
    x, g = iterates[first:, 0], releases[first:, 0] / own.beta[0]
    fitted = regression(
        state._replace(sums=state.sums._replace(**{
            name: np.asarray(value)[None] for name, value in state.sums._asdict().items()
        })),
        settings, sigma, own.beta,
    )  # fmt: skip
    optima = exact(fitted).sample(np.random.default_rng(0), 2_000)[0][:, 0, 0]
    slope = float(((x - x.mean()) * (g - g.mean())).sum() / ((x - x.mean()) ** 2).sum())
    edges = np.quantile(x, np.linspace(0, 1, 21))
    place = np.clip(np.searchsorted(edges, x) - 1, 0, 19)
    bins = [(x[place == i].mean(), *mean_and_error(g[place == i].tolist())) for i in range(20)]
    grid = np.linspace(x.min(), x.max(), 50)
    figure, (ax,) = panels(["Gamma-Exponential, epsilon .1: gradients in mu along the trace"])
    figure.set_size_inches(7, 4.6)
    ax.plot(x[::20], g[::20], ".", color="0.7", markersize=3, label="noisy gradients, one in 20")
    at, means, errors = (np.array(v) for v in zip(*bins, strict=True))
    plot(ax, [Line("their means in twenty bins", at, means, errors, {"linestyle": "none"})])
    ax.plot(grid, slope * (grid - optima.mean()), label="fitted gradient, kappa A (phi - phi*)")
    ax.axvspan(optima.mean() - optima.std(), optima.mean() + optima.std(), color="C1", alpha=0.3,
               label="phi*, one standard deviation")  # fmt: skip
    ax.set(xlabel="mu (unconstrained rate)", ylabel="noisy gradient of a batch",
           ylim=tuple(0.6 * g.std() * np.array([-1, 1])))  # fmt: skip
    ax.legend(fontsize="small")
    found = [
        ["iterates kept", f"{len(x)} of {N_STEPS}"],
        ["iterates: mean, sd", f"{x.mean():.4f}, {x.std():.4f}"],
        ["phi*: posterior mean, sd", f"{optima.mean():.4f}, {optima.std():.4f}"],
        ["slope by least squares", f"{slope:.4g}"],
        ["noise of a gradient, sd", f"{sigma * settings.clipping_norm:.4g}"],
    ]
    ran = "the paper's recipe on one simulated data set (block 0), seed 0; the paper names no seed"
    return Found(ran, [Table("Regression of the trace", ["", "value"], found)], figure)


def table3(order: Order) -> Found:
    """Calibration of predictions on Adult."""
    from benchmarks.utility import adult

    at_home("adult.csv.gz")
    repeats = order.fits(1, 20)
    levels = order.choose((1.0,), calibration.EPSILONS)
    records = calibration.run(adult, levels, calibration.PRIVATE, repeats)
    rows, points = [], []
    for epsilon in (*levels, math.inf):
        for record in (r for r in records if r["epsilon"] == epsilon):
            rows.append([f"{epsilon:g}: {record['line']}", *calibration.row(record)[1:]])
            points.append((record["line"], epsilon, mean_and_error(record["uniform"])[0]))
        for line in calibration.theirs(epsilon)[:-1]:
            rows.append([f"{epsilon:g}: {line[0].strip()}", *line[1:]])
    figure, axes = panels(
        [*(f"epsilon {epsilon:g}" for epsilon in levels), "calibration error (RMSE)"], columns=3
    )
    names = list(dict.fromkeys(r["line"] for r in records if math.isfinite(r["epsilon"])))
    for ax, epsilon in zip(axes, levels, strict=False):
        for record in (r for r in records if r["epsilon"] == epsilon):
            predicted, observed = (np.array(record[k], float) for k in ("predicted", "observed"))
            gap = (observed - predicted).mean(axis=0)
            style = {"color": f"C{names.index(record['line'])}", "markersize": 3}
            plot(ax, [Line(record["line"], predicted.mean(axis=0), gap, style=style)])
        ax.axhline(0, color="0.3", linestyle="--", linewidth=0.8)
        ax.set(xlabel="predicted probability", ylabel="fraction observed minus predicted",
               ylim=(-0.4, 0.4))  # fmt: skip
    axes[0].legend(fontsize="xx-small", ncols=2)
    for name in names:
        own = [(e, y) for line, e, y in points if line == name and math.isfinite(e)]
        plot(axes[-1], [Line(name, *zip(*own, strict=True),
                             style={"color": f"C{names.index(name)}"})])  # fmt: skip
    for marker, (line, values) in zip("D^sv", calibration.PAPER.items(), strict=True):
        x = [e for e in values if e in levels]
        style = {"color": "black", "marker": marker, "linestyle": "none"}
        plot(axes[-1], [Line(f"paper: {line}", x, [values[e][0] for e in x], style=style)])
    axes[-1].set(xscale="log", yscale="log", xlabel="epsilon, at delta 1e-5", ylabel="RMSE")
    axes[-1].legend(fontsize="xx-small")
    ran = (
        f"Adult's own split, {repeats} fits a level (paper: 20), seeds from 0. The paper does not "
        "state its bins; its figures stand under equal widths"
    )
    title = "RMSE of calibration over ten bins, mean and standard deviation"
    return Found(ran, [Table(title, calibration.HEADER, rows)], figure)


ENTRIES = [
    Entry("na-dpvi-fig1", "NA-DPVI", "Figure 1", "Noisy gradients and the fitted line", fig1),
    Entry(
        "na-dpvi-table1",
        "NA-DPVI",
        "Table 1, Figure 2",
        "Coverage in exponential families, epsilon .1",
        partial(coverage, problems=FAMILIES, levels=(0.1,)),
    ),
    Entry(
        "na-dpvi-table2",
        "NA-DPVI",
        "Table 2, Figure 3",
        "Coverage in linear regression, epsilon .1, .3 and 1",
        partial(coverage, problems=("linear regression",), levels=(0.1, 0.3, 1.0)),
    ),
    Entry(
        "na-dpvi-table3",
        "NA-DPVI",
        "Table 3, Figure 4",
        "Calibration of predictions on Adult",
        table3,
    ),
]
