"""Tables 1 and 2 and Figures 2 and 3 of the NA-DPVI paper, with widths: ``make bench-na-dpvi``.

A cell is a problem at a privacy level. A block is some replicates of a cell: parameters from the
prior, records given parameters, and what a contender takes for the posterior. What is kept of a
block and a contender goes to an NPZ file under ``benchmarks/results/na_dpvi/``; files that are
there are not computed again, so a run that was stopped goes on, and ``--shard i/n`` shares a run
out between processes. After a change of a contender, remove its files. Pictures go to the same
folder.

A contender is a function ``(cell, data, rng) -> {line of the table: draws}`` in `CONTENDERS`, with
draws of shape (replicates, draws, parameters) in unconstrained coordinates.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from benchmarks import _log
from benchmarks._na_dpvi_problems import PROBLEMS
from skdpbayes.calibration import Coverage, crps, marginal_coverage, rmse_band, tarp_coverage

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "na_dpvi"
DELTA, N_DRAWS, BLOCK = 1e-5, 4_000, 20
# Draws of a posterior kept for TARP and coverage, which are exact with few draws too.
KEPT = 250
PAPER_K = 500  # replicates of one TARP repetition in the paper
SHORT, FULL = 100, 2_000  # replicates of a cell


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem at a privacy level, and the paper's TARP errors, where it has them."""

    problem: str
    epsilon: float
    paper: dict[str, float]

    @property
    def name(self) -> str:
        """As in names of files."""
        return f"{self.problem.replace(' ', '-').lower()}_{self.epsilon:g}"

    @property
    def model(self) -> Any:
        """Prior, likelihood and simulators."""
        return PROBLEMS[self.problem][0]


def _cell(problem: str, epsilon: float, *figures: float | None) -> Cell:
    lines = "published, exact", "published, Laplace", "published, last iterate", "DPVIm"
    return Cell(
        problem, epsilon, {k: v for k, v in zip(lines, figures, strict=False) if v is not None}
    )


# Figures of NA-DPVI (NUTS), NA-DPVI (Laplace), naive, DPVIm in the paper's Tables 1 and 2.
CELLS = [
    _cell("Gamma-Exponential", 0.1, 0.023, None, 0.232, 0.038),
    _cell("Gamma-Exponential", 0.3),
    _cell("Gamma-Exponential", 1.0),
    _cell("Beta-Bernoulli", 0.1, 0.016, None, 0.273, 0.044),
    _cell("Beta-Bernoulli", 0.3),
    _cell("Beta-Bernoulli", 1.0),
    _cell("Dirichlet-Categorical", 0.1, 0.020, None, 0.355, 0.251),
    _cell("Dirichlet-Categorical", 0.3),
    _cell("Dirichlet-Categorical", 1.0),
    _cell("linear regression", 0.1, 0.036, 0.078, 0.512, 0.584),
    _cell("linear regression", 0.3, 0.035, 0.098, 0.307, 0.584),
    _cell("linear regression", 1.0, 0.027, 0.060, 0.360, 0.584),
]


class Data(NamedTuple):
    """Replicates of a cell.

    Attributes
    ----------
    truth : array of shape (R, n)
    records : array of shape (R, N_RECORDS, ...), float32
    """

    truth: Array
    records: NDArray[np.float32]


def simulate(cell: Cell, block: int, size: int) -> Data:
    """The same replicates for every contender and at every privacy level."""
    rng = np.random.default_rng([zlib.crc32(cell.problem.encode()), block])
    truth = cell.model.draw_prior(rng, size)
    return Data(truth, np.stack([cell.model.draw_records(rng, theta) for theta in truth]))


def not_private(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """The exact posterior given the records."""
    return {
        "not private": np.stack(
            [cell.model.draw_posterior(rng, rows, N_DRAWS) for rows in data.records]
        )
    }


def _run(kind: Any, cell: Cell, data: Data, rng: np.random.Generator) -> Any:
    from benchmarks._na_dpvi_recipe import fit

    return fit(kind, cell.model, PROBLEMS[cell.problem][1], cell.epsilon, DELTA, data.records, rng)


def mean_field(phi: Array, rng: np.random.Generator) -> Array:
    """Draws of theta given variational parameters (mu, u), of shape (..., 2 n)."""
    from benchmarks._na_dpvi_collapsed import softplus

    mu, u = np.split(np.asarray(phi, float), 2, axis=-1)
    return mu + softplus(u) * rng.standard_normal(mu.shape)


def published(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """NA-DPVI by the paper's recipe: one private run, three ways to read its trace."""
    from benchmarks._na_dpvi_recipe import Published

    return read(*_run(Published, cell, data, rng), rng)


def read(state: Any, regression: Any, rng: np.random.Generator) -> dict[str, Array]:
    """Three posteriors of a trace."""
    from benchmarks._na_dpvi_collapsed import exact, laplace

    last = np.broadcast_to(state.phi, (N_DRAWS, *state.phi.shape))
    optima = {
        "published, exact": exact(regression).sample(rng, N_DRAWS)[0],
        "published, Laplace": laplace(regression).sample(rng, N_DRAWS)[0],
        "published, last iterate": last,
    }
    return {name: np.moveaxis(mean_field(phi, rng), 0, 1) for name, phi in optima.items()}


def dpvim(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """DPVIm: aligned gradients, averaged iterate, and the spread of mu's iterates.

    The spread is how DPVIm accounts for noise. It is that of the last iterate, and too wide around
    the average.
    """
    from benchmarks._na_dpvi_recipe import Aligned

    return read_aligned(*_run(Aligned, cell, data, rng), rng)


def read_aligned(state: Any, regression: Any, rng: np.random.Generator) -> dict[str, Array]:
    """Posteriors of a run of DPVIm."""
    sums = regression.sums
    average, last = (
        mean_field(np.broadcast_to(y, (N_DRAWS, *y.shape)), rng) for y in (sums.mean_x, state.phi)
    )
    noise = np.sqrt(sums.sxx / sums.n)[:, : last.shape[-1]] * rng.standard_normal(last.shape)
    lines = {
        "DPVIm": average,
        "DPVIm + spread": average + noise,
        "DPVIm, last + spread": last + noise,
    }
    return {name: np.moveaxis(y, 0, 1) for name, y in lines.items()}


def _own(
    cell: Cell,
) -> tuple[dict[str, Any], Callable[[Any], tuple[Any, ...]], Callable[[Any], Array]]:
    """Our estimators with the cell's prior, by line; rows to fit; unconstrained draws."""
    import skdpbayes
    from benchmarks._na_dpvi_collapsed import softplus_inverse

    level = {"epsilon": cell.epsilon, "delta": DELTA}
    name = "skdpbayes"
    if cell.problem == "Gamma-Exponential":
        rates = skdpbayes.DPGammaExponential(**level, prior_shape=8, prior_rate=2)
        return (
            {name: rates},
            lambda x: (x[:, None],),
            lambda m: softplus_inverse(m.posterior_samples_),
        )
    if cell.problem == "Beta-Bernoulli":
        binary = skdpbayes.DPBetaBernoulli(**level, prior_a=10, prior_b=10)
        return {name: binary}, lambda x: (x[:, None],), lambda m: logit(m.posterior_samples_)
    if cell.problem == "Dirichlet-Categorical":
        prior = {"categories": [0, 1, 2], "concentration": 5}
        lines = {name: skdpbayes.DPDirichletCategorical(**level, **prior)}
        return (
            lines,
            lambda x: (x.argmax(axis=1)[:, None],),
            lambda m: log_ratios(m.posterior_samples_),
        )

    # In scaled units the noise variance is s2 / 4^2 and a coefficient w 3 / 4, so w ~ N(0, 4 s2)
    # has the precision 1/4 / 3^2. The intercept gets the same one, where it should get 1/4: its
    # prior is three times too wide.
    linear = skdpbayes.DPBayesianLinearRegression(
        **level,
        bounds=((-3, 3), (-4, 4)),
        prior_shape=20,
        prior_scale=0.5 / 16,
        prior_precision=0.25 / 9,
    )

    def unconstrained(fitted: Any) -> Array:
        draws = fitted.posterior_samples_
        variance = softplus_inverse(draws["noise_std"] ** 2)
        return np.column_stack([draws["coef"], draws["intercept"], variance])

    # Responses beyond their bounds are cut: 4 is too little for some replicates, by a few rows.
    wider = {"solver": "vips", "bounds": ((-3, 3), (-5, 5)), "prior_scale": 0.5 / 25}
    once = skdpbayes.DPBayesianLinearRegression(**linear.get_params() | wider)
    lines = {name: linear, "skdpbayes, vips": once}
    return lines, lambda x: (x[:, :10], x[:, 11]), unconstrained


def log_ratios(p: Array) -> Array:
    """Log-ratios to the last of several probabilities."""
    return np.log(p[:, :-1]) - np.log(p[:, -1:])


def own(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """Our estimators with defaults, the cell's prior and privacy level, and public bounds."""
    from sklearn.base import clone

    from skdpbayes.privacy import PrivacyLeakWarning

    estimators, fields, unconstrained = _own(cell)
    lines: dict[str, list[Array]] = {name: [] for name in estimators}
    with warnings.catch_warnings():
        # About seeds: each fit has its own, and none is the data's.
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        for records in data.records:
            for name, estimator in estimators.items():
                fit = clone(estimator).set_params(random_state=int(rng.integers(2**63)))
                lines[name].append(unconstrained(fit.fit(*fields(records))))
    return {name: np.stack(draws) for name, draws in lines.items()}


Contender = Callable[[Cell, Data, np.random.Generator], dict[str, Array]]
CONTENDERS: dict[str, Contender] = {
    "not-private": not_private,
    "skdpbayes": own,
    "published": published,
    "dpvim": dpvim,
}


def figures(draws: Array, truth: Array) -> dict[str, Array]:
    """Record of a block, for each replicate and coordinate: scores, and some of the draws.

    Replicates whose draws are not finite are left out; the table's K tells.
    """
    usable = np.isfinite(draws).all(axis=(1, 2))
    draws, truth = draws[usable], truth[usable]
    if not len(draws):
        draws = draws[:, :KEPT]
        return {
            "draws": draws.astype(np.float32),
            **dict.fromkeys(("truth", "sd", "crps", "z"), truth),
        }
    sd = draws.std(axis=1)
    thinned = draws[:, :: max(1, draws.shape[1] // KEPT)][:, :KEPT]
    z = (draws.mean(axis=1) - truth) / sd
    return {
        "draws": thinned.astype(np.float32),
        "truth": truth,
        "sd": sd,
        "crps": crps(draws, truth),
        "z": z,
    }


def path_of(cell: Cell, contender: str, block: int) -> Path:
    """Where the figures of a block are."""
    return RESULTS / f"{cell.name}_{contender}_{block:04d}.npz"


def work(cells: Iterable[Cell], contenders: Iterable[str], blocks: Iterable[int]) -> None:
    """Compute the blocks that are not there yet, printing the rate and what is left."""
    units = [
        (c, name, b)
        for b in blocks
        for c in cells
        for name in contenders
        if not path_of(c, name, b).exists()
    ]
    took: dict[tuple[str, str], list[float]] = {}
    RESULTS.mkdir(parents=True, exist_ok=True)
    context = _log.context()
    for i, (cell, name, block) in enumerate(units):
        start = time.perf_counter()
        data = simulate(cell, block, BLOCK)
        seed = [zlib.crc32(f"{cell.name} {name}".encode()), block]
        lines = CONTENDERS[name](cell, data, np.random.default_rng(seed))
        arrays = {
            f"{k}/{part}": x for k, v in lines.items() for part, x in figures(v, data.truth).items()
        }
        path = path_of(cell, name, block)
        part = path.with_suffix(".part")
        with part.open("wb") as stream:
            np.savez(stream, allow_pickle=False, context=np.array(json.dumps(context)), **arrays)
        part.replace(path)
        took.setdefault((cell.name, name), []).append(time.perf_counter() - start)
        # The first block of a kind compiles; before every kind has run, the mean stands for the
        # others.
        seconds = {kind: min(t) for kind, t in took.items()}
        mean = sum(seconds.values()) / len(seconds)
        left = sum(seconds.get((c.name, n), mean) for c, n, _ in units[i + 1 :])
        rate = 60 * BLOCK / took[cell.name, name][-1]
        print(
            f"{path.stem}: {rate:.0f} replicates a minute; about {left / 60:.0f} minutes left",
            flush=True,
        )


def collected(cell: Cell, contender: str, blocks: Iterable[int]) -> dict[str, dict[str, Array]]:
    """What was kept of the blocks that are there, by line of the table."""
    lines: dict[str, dict[str, list[Array]]] = {}
    for block in blocks:
        path = path_of(cell, contender, block)
        if path.exists():
            with np.load(path) as kept:
                for key in kept.files:
                    if key != "context":
                        line, name = key.split("/")
                        lines.setdefault(line, {}).setdefault(name, []).append(kept[key])
    return {
        line: {name: np.concatenate(x) for name, x in kept.items()} for line, kept in lines.items()
    }


class Scored(NamedTuple):
    """A line of a cell's table.

    Attributes
    ----------
    joint, marginal : Coverage
        By TARP: of all coordinates, whitened, and of each.
    at_paper : float
        Mean error over disjoint groups of as many replicates as the paper has; NaN if there are not
        that many.
    covered : array of shape (n,)
        Coverage of central 90% intervals.
    sd, crps : float
        Median and mean.
    mean_z : float
        Mean of z = (posterior mean - truth) / posterior standard deviation in the coordinate where
        it is farthest from zero: of a shift, which TARP hardly sees.
    sd_of_z : float
    """

    joint: Coverage
    marginal: Coverage
    at_paper: float
    covered: Array
    sd: float
    crps: float
    mean_z: float
    sd_of_z: float


def scored(kept: dict[str, Array]) -> Scored:
    """Scores of what was kept."""
    draws, truth = kept["draws"], kept["truth"]
    shifts = kept["z"].mean(axis=0)
    groups = [slice(i, i + PAPER_K) for i in range(0, len(truth) - PAPER_K + 1, PAPER_K)]
    errors = [tarp_coverage(draws[g], truth[g], random_state=0).rmse for g in groups]
    return Scored(
        tarp_coverage(draws, truth, random_state=0),
        tarp_coverage(draws, truth, marginal=True, random_state=0),
        float(np.mean(errors)) if errors else math.nan,
        marginal_coverage(draws, truth, 0.9).coverage,
        float(np.median(kept["sd"])),
        float(kept["crps"].mean()),
        float(shifts[np.argmax(np.abs(shifts))]),
        float(kept["z"].std()),
    )


@cache
def _band(n_replicates: int, n_curves: int = 1) -> str:
    low, high = rmse_band(n_replicates, n_curves=n_curves)
    return f"{low:.3f}-{high:.3f}"


HEADER = [
    "line", "K", "paper", f"K={PAPER_K}", "whitened", "perfect", "marginal", "perfect", "worst",
    "covered", "worst", "sd", "ratio", "CRPS", "mean z", "sd of z",
]  # fmt: skip


def row(line: str, found: Scored, paper: float | None, sd: float | None) -> list[str]:
    """One line of a cell's table; `sd` is that without privacy."""
    n, covered = found.joint.n_replicates, found.covered
    return [
        line,
        f"{n}",
        "" if paper is None else f"{paper:.3f}",
        "" if math.isnan(found.at_paper) else f"{found.at_paper:.3f}",
        f"{found.joint.rmse:.3f}",
        _band(n),
        f"{np.mean(found.marginal.rmse):.3f}",
        _band(n, len(covered)),
        f"{np.max(found.marginal.rmse):.3f}",
        f"{covered.mean():.3f}",
        f"{covered[np.argmax(np.abs(covered - 0.9))]:.3f}",
        f"{found.sd:.4f}",
        "" if sd is None else f"{found.sd / sd:.2f}",
        f"{found.crps:.4f}",
        f"{found.mean_z:.2f}",
        f"{found.sd_of_z:.2f}",
    ]


def score(
    cells: Iterable[Cell], contenders: Iterable[str], blocks: Iterable[int]
) -> dict[Cell, dict[str, Scored]]:
    """Scores of what is there, by cell and line."""
    contenders, blocks = list(contenders), list(blocks)
    found = {}
    for cell in cells:
        kept = [pair for name in contenders for pair in collected(cell, name, blocks).items()]
        found[cell] = {line: scored(x) for line, x in kept if len(x["truth"]) >= 3}
    return {cell: lines for cell, lines in found.items() if lines}


def report(found: dict[Cell, dict[str, Scored]]) -> str:
    """All tables."""
    parts = [
        "K: replicates with a posterior that is finite. TARP error (RMSE over 99 levels) of all "
        "coordinates, whitened:",
        f"the paper's, ours in groups of K={PAPER_K} and with all K, beside the central 95% of a "
        "perfect posterior's",
        "with as many; mean TARP error of the marginals, beside that of perfect and independent "
        "ones, and the worst;",
        "coverage of central 90% intervals, mean and worst coordinate; median posterior standard "
        "deviation, and its",
        "ratio to that without privacy; mean CRPS; of z = (posterior mean - truth) / posterior "
        "standard deviation, the",
        "mean in the coordinate where it is farthest from zero, and the standard deviation.",
        f"With K={PAPER_K} a perfect posterior's TARP error is in {_band(PAPER_K)}.",
    ]
    text = "\n".join(parts)
    for cell, lines in found.items():
        sd = lines["not private"].sd if "not private" in lines else None
        rows = [row(line, x, cell.paper.get(line), sd) for line, x in lines.items()]
        text += f"\n\n{cell.problem}, epsilon = {cell.epsilon:g}\n\n{_log.table(HEADER, rows)}"
    return text


def draw(found: dict[Cell, dict[str, Scored]]) -> list[Path]:
    """Write the paper's Figures 2 and 3: coverage and its error against the level, by cell."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(line for lines in found.values() for line in lines))
    columns = min(3, len(found))
    n_rows = math.ceil(len(found) / columns)
    paths = []
    for file, error in ("coverage", False), ("coverage_error", True):
        figure = Figure(figsize=(3.4 * columns, 3.2 * n_rows + 1), layout="constrained")
        axes = figure.subplots(n_rows, columns, sharex=True, squeeze=False).ravel()
        shown = {}
        for ax, (cell, lines) in zip(axes, found.items(), strict=False):
            for k in sorted({x.joint.n_replicates for x in lines.values()}):
                band = next(x.joint for x in lines.values() if x.joint.n_replicates == k)
                off = band.levels if error else 0
                shade = {"color": "0.5", "alpha": 0.25, "linewidth": 0}
                shown["perfect, 95%"] = ax.fill_between(
                    band.levels, band.lower - off, band.upper - off, **shade
                )
            for line, x in lines.items():
                y = x.joint.coverage - (x.joint.levels if error else 0)
                style = {
                    "color": f"C{names.index(line)}",
                    "linewidth": 1.8 if line.startswith("skdpbayes") else 1.0,
                }
                (shown[line],) = ax.plot(x.joint.levels, y, **style)
            ax.plot([0, 1], [0, 0 if error else 1], color="0.3", linestyle="--", linewidth=0.8)
            ax.set_title(f"{cell.problem}, $\\epsilon$ = {cell.epsilon:g}", fontsize="medium")
            ax.set_xlim(0, 1)
            ax.yaxis.set_major_locator(MaxNLocator(6))
        for ax in axes[len(found) :]:
            ax.set_axis_off()
        figure.supxlabel("credible level")
        figure.supylabel("coverage minus level" if error else "coverage (TARP)")
        order = [name for name in ["perfect, 95%", *names] if name in shown]
        figure.legend(
            [shown[name] for name in order],
            order,
            loc="outside upper center",
            ncols=4,
            frameon=False,
        )
        for suffix in "png", "pdf":
            paths.append(RESULTS / f"{file}.{suffix}")
            figure.savefig(paths[-1], dpi=130)
    return paths


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"{FULL} replicates of a cell instead of {SHORT} (hours)",
    )
    parser.add_argument("--replicates", type=int, help=f"of a cell, in blocks of {BLOCK}")
    parser.add_argument("--cells", nargs="+", choices=[c.name for c in CELLS], metavar="CELL")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS)
    )
    parser.add_argument(
        "--shard", default="0/1", help="i/n: of the blocks, those whose number is i modulo n"
    )
    parser.add_argument("--report", action="store_true", help="only print what is there")
    options = parser.parse_args()
    cells = [c for c in CELLS if options.cells is None or c.name in options.cells]
    n_blocks = math.ceil((options.replicates or (FULL if options.full else SHORT)) / BLOCK)
    shard, n_shards = map(int, options.shard.split("/"))
    if not options.report:
        work(cells, options.contenders, range(shard, n_blocks, n_shards))
    found = score(cells, options.contenders, range(n_blocks))
    print(report(found))
    if found:
        print("\nPictures:", *(path.name for path in draw(found)), f"in {RESULTS}")


if __name__ == "__main__":
    main()
