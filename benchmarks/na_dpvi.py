"""Tables 1 and 2 of the NA-DPVI paper, with widths: ``make bench-na-dpvi``.

A cell is a problem at a privacy level. A block is some replicates of a cell: parameters from the prior, records given
parameters, and what a contender takes for the posterior. Figures of a block and a contender go to a JSON file under
``benchmarks/results/na_dpvi/``; files that are there are not computed again, so a run that was stopped goes on, and
``--shard i/n`` shares a run out between processes. After a change of a contender, remove its files.

A contender is a function ``(cell, data, rng) -> {line of the table: draws}`` in `CONTENDERS`, with draws of shape
(replicates, draws, parameters) in unconstrained coordinates.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import _log
from benchmarks._na_dpvi_problems import PROBLEMS

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "na_dpvi"
DELTA, N_DRAWS, BLOCK = 1e-5, 4_000, 20
PAPER_K = 500  # replicates of one TARP repetition in the paper
SHORT, FULL = 100, 2_000  # replicates of a cell


@dataclass(frozen=True)
class Cell:
    """A problem at a privacy level, and the paper's TARP errors there."""

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
    return Cell(problem, epsilon, {k: v for k, v in zip(lines, figures, strict=True) if v is not None})


# Figures of NA-DPVI (NUTS), NA-DPVI (Laplace), naive, DPVIm in the paper's Tables 1 and 2.
CELLS = [
    _cell("Gamma-Exponential", 0.1, 0.023, None, 0.232, 0.038),
    _cell("Beta-Bernoulli", 0.1, 0.016, None, 0.273, 0.044),
    _cell("Dirichlet-Categorical", 0.1, 0.020, None, 0.355, 0.251),
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
    reference : array of shape (R, n)
        Draws from the prior, independent of the rest: TARP's reference points.
    """

    truth: Array
    records: NDArray[np.float32]
    reference: Array


def simulate(cell: Cell, block: int, size: int) -> Data:
    """The same replicates for every contender and at every privacy level."""
    rng = np.random.default_rng([zlib.crc32(cell.problem.encode()), block])
    truth, reference = cell.model.draw_prior(rng, size), cell.model.draw_prior(rng, size)
    return Data(truth, np.stack([cell.model.draw_records(rng, theta) for theta in truth]), reference)


def not_private(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """The exact posterior given the records."""
    return {"not private": np.stack([cell.model.draw_posterior(rng, rows, N_DRAWS) for rows in data.records])}


def _run(kind: Any, cell: Cell, data: Data, rng: np.random.Generator) -> Any:
    from benchmarks import _na_dpvi_recipe as recipe
    from skdpbayes.privacy import GaussianSteps, calibrate_noise
    from skdpbayes.privacy.mechanism import MechanismSpec
    from skdpbayes.privacy.random import fit_keys

    settings = PROBLEMS[cell.problem][1]
    sigma = calibrate_noise(cell.epsilon, DELTA, recipe.SAMPLING_RATE, recipe.N_STEPS).noise_multiplier
    spec = MechanismSpec((GaussianSteps(sigma, recipe.SAMPLING_RATE, recipe.N_STEPS),))
    own = recipe.solver(kind, cell.model, settings, sigma)
    state = recipe.run(fit_keys(rng, len(data.truth)), data.records, cell.model, own, spec)
    return state, recipe.regression(state, settings, sigma, own.beta)


def _mean_field(phi: Array, rng: np.random.Generator) -> Array:
    """Draws of theta given variational parameters (mu, u), of shape (..., 2 n)."""
    from skdpbayes.solvers._collapsed import softplus

    mu, u = np.split(np.asarray(phi, float), 2, axis=-1)
    return mu + softplus(u) * rng.standard_normal(mu.shape)


def published(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """NA-DPVI by the paper's recipe: one private run, three ways to read its trace."""
    from benchmarks._na_dpvi_recipe import Published
    from skdpbayes.solvers._collapsed import exact, laplace

    state, regression = _run(Published, cell, data, rng)
    last = np.broadcast_to(state.phi, (N_DRAWS, *state.phi.shape))
    optima = {
        "published, exact": exact(regression).sample(rng, N_DRAWS)[0],
        "published, Laplace": laplace(regression).sample(rng, N_DRAWS)[0],
        "published, last iterate": last,
    }
    return {name: np.moveaxis(_mean_field(phi, rng), 0, 1) for name, phi in optima.items()}


def dpvim(cell: Cell, data: Data, rng: np.random.Generator) -> dict[str, Array]:
    """DPVIm: aligned gradients, and the averaged iterate; with the spread of mu's iterates, around either iterate.

    The spread is how DPVIm accounts for noise. It is that of the last iterate, and too wide around the average.
    """
    from benchmarks._na_dpvi_recipe import Aligned

    state, regression = _run(Aligned, cell, data, rng)
    sums = regression.sums
    average, last = (_mean_field(np.broadcast_to(y, (N_DRAWS, *y.shape)), rng) for y in (sums.mean_x, state.phi))
    noise = np.sqrt(sums.sxx / sums.n)[:, : data.truth.shape[1]] * rng.standard_normal(last.shape)
    lines = {"DPVIm": average, "DPVIm + spread": average + noise, "DPVIm, last + spread": last + noise}
    return {name: np.moveaxis(y, 0, 1) for name, y in lines.items()}


Contender = Callable[[Cell, Data, np.random.Generator], dict[str, Array]]
CONTENDERS: dict[str, Contender] = {"not-private": not_private, "published": published, "dpvim": dpvim}


def tarp_fractions(draws: Array, truth: Array, reference: Array) -> Array:
    """For each replicate the share of draws nearer to the reference point than the truth is (Lemos et al. 2023).

    Uniform if the posteriors are right; shapes (R, draws, n), (R, n), (R, n) give (R,).
    """
    distance = np.linalg.norm(draws - reference[:, None], axis=2)
    return np.asarray(np.mean(distance < np.linalg.norm(truth - reference, axis=1)[:, None], axis=1))


def tarp_error(fractions: Array) -> float:
    """Root mean square difference of the fractions' distribution from the uniform one, over credible levels."""
    levels = np.linspace(0, 1, 101)[1:-1]
    covered = np.searchsorted(np.sort(fractions), levels) / len(fractions)
    return float(np.sqrt(np.mean((covered - levels) ** 2)))


def repeated_error(fractions: Array, size: int) -> float:
    """Mean of `tarp_error` over disjoint groups of `size` replicates; NaN if there are not that many."""
    groups = [fractions[i : i + size] for i in range(0, len(fractions) - size + 1, size)]
    return float(np.mean([tarp_error(g) for g in groups])) if groups else math.nan


def floor(size: int) -> float:
    """What a perfect posterior scores, about (the root of the mean of the square): ``1 / sqrt(6 K)``."""
    return (6 * size) ** -0.5


def figures(draws: Array, data: Data) -> dict[str, list[Any]]:
    """What is kept of a block: for each replicate, and where it says so for each coordinate."""
    sd = draws.std(axis=1)
    whitened = tarp_fractions(draws / sd[:, None], data.truth / sd, data.reference / sd)
    coordinates = range(draws.shape[2])
    marginal = [tarp_fractions(draws[..., [j]], data.truth[:, [j]], data.reference[:, [j]]) for j in coordinates]
    low, high = np.quantile(draws, [0.05, 0.95], axis=1)
    ordered, n = np.sort(draws, axis=1), draws.shape[1]
    # E|X - truth| - E|X - X'| / 2, the second by order statistics.
    half_gini = np.einsum("rsn,s->rn", ordered, 2 * np.arange(n) - n + 1) / (n * (n - 1))
    crps = np.abs(draws - data.truth[:, None]).mean(axis=1) - half_gini
    kept = {
        "tarp": whitened,
        "tarp_marginal": np.stack(marginal, axis=1),
        "covered_90": (low < data.truth) & (data.truth < high),
        "sd": sd,
        "crps": crps,
        "z": (draws.mean(axis=1) - data.truth) / sd,
    }
    return {name: np.round(np.asarray(x, float), 7).tolist() for name, x in kept.items()}


def path_of(cell: Cell, contender: str, block: int) -> Path:
    """Where the figures of a block are."""
    return RESULTS / f"{cell.name}_{contender}_{block:04d}.json"


def work(cells: Iterable[Cell], contenders: Iterable[str], blocks: Iterable[int]) -> None:
    """Compute the blocks that are not there yet, printing the rate and what is left."""
    units = [(c, name, b) for b in blocks for c in cells for name in contenders if not path_of(c, name, b).exists()]
    took: dict[tuple[str, str], list[float]] = {}
    RESULTS.mkdir(parents=True, exist_ok=True)
    for i, (cell, name, block) in enumerate(units):
        start = time.perf_counter()
        data = simulate(cell, block, BLOCK)
        seed = [zlib.crc32(f"{cell.name} {name}".encode()), block]
        lines = CONTENDERS[name](cell, data, np.random.default_rng(seed))
        record = {**_log.context(), "replicates": BLOCK, "lines": {k: figures(v, data) for k, v in lines.items()}}
        path = path_of(cell, name, block)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(record))
        part.replace(path)
        took.setdefault((cell.name, name), []).append(time.perf_counter() - start)
        # The first block of a kind compiles; before every kind has run, the mean stands for the others.
        seconds = {kind: min(t) for kind, t in took.items()}
        mean = sum(seconds.values()) / len(seconds)
        left = sum(seconds.get((c.name, n), mean) for c, n, _ in units[i + 1 :])
        rate = 60 * BLOCK / took[cell.name, name][-1]
        print(f"{path.stem}: {rate:.0f} replicates a minute; about {left / 60:.0f} minutes left", flush=True)


def collected(cell: Cell, contender: str, blocks: Iterable[int]) -> dict[str, dict[str, Array]]:
    """Figures of the blocks that are there, by line of the table."""
    lines: dict[str, dict[str, list[Any]]] = {}
    for block in blocks:
        path = path_of(cell, contender, block)
        if path.exists():
            for line, kept in json.loads(path.read_text())["lines"].items():
                for name, values in kept.items():
                    lines.setdefault(line, {}).setdefault(name, []).extend(values)
    return {line: {name: np.array(v, float) for name, v in kept.items()} for line, kept in lines.items()}


HEADER = [
    "line", "K", "paper", f"K={PAPER_K}", "all", "marginal", "covered", "worst", "sd", "CRPS", "sd of z",
]  # fmt: skip


def row(line: str, kept: dict[str, Array], paper: float | None) -> list[str]:
    """One line of a cell's table."""
    n = len(kept["tarp"])
    marginal = [tarp_error(f) for f in kept["tarp_marginal"].T]
    covered = kept["covered_90"].mean(axis=0)
    at_paper = repeated_error(kept["tarp"], PAPER_K)
    return [
        line,
        f"{n}",
        "" if paper is None else f"{paper:.3f}",
        "" if math.isnan(at_paper) else f"{at_paper:.3f}",
        f"{tarp_error(kept['tarp']):.3f}",
        f"{np.mean(marginal):.3f}",
        f"{covered.mean():.3f}",
        f"{covered[np.argmax(np.abs(covered - 0.9))]:.3f}",
        f"{np.median(kept['sd']):.4f}",
        f"{kept['crps'].mean():.4f}",
        f"{kept['z'].std():.2f}",
    ]


def report(cells: Iterable[Cell], contenders: Iterable[str], blocks: Iterable[int]) -> str:
    """All tables."""
    parts = [
        f"TARP error (whitened): the paper's, ours with K={PAPER_K} and with all replicates; mean TARP error of the",
        "marginals; coverage of central 90% intervals, mean and worst coordinate; median posterior standard deviation;",
        "mean CRPS; standard deviation of (posterior mean - truth) / posterior standard deviation.",
        f"A perfect posterior's TARP error is about 1 / sqrt(6 K): {floor(PAPER_K):.4f} with K={PAPER_K}.",
    ]
    text = "\n".join(parts)
    for cell in cells:
        rows = []
        for name in contenders:
            for line, kept in collected(cell, name, blocks).items():
                rows.append(row(line, kept, cell.paper.get(line)))
        text += f"\n\n{cell.problem}, epsilon = {cell.epsilon:g}\n\n{_log.table(HEADER, rows)}"
    return text


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--full", action="store_true", help=f"{FULL} replicates of a cell instead of {SHORT} (hours)")
    parser.add_argument("--replicates", type=int, help=f"of a cell, in blocks of {BLOCK}")
    parser.add_argument("--cells", nargs="+", choices=[c.name for c in CELLS], metavar="CELL")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--shard", default="0/1", help="i/n: of the blocks, those whose number is i modulo n")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    options = parser.parse_args()
    cells = [c for c in CELLS if options.cells is None or c.name in options.cells]
    n_blocks = math.ceil((options.replicates or (FULL if options.full else SHORT)) / BLOCK)
    shard, n_shards = map(int, options.shard.split("/"))
    if not options.report:
        work(cells, options.contenders, range(shard, n_blocks, n_shards))
    print(report(cells, options.contenders, range(n_blocks)))


if __name__ == "__main__":
    main()
