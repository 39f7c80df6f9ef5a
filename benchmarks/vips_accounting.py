"""Noise and privacy in the settings of the VIPS paper: ``make bench-vips-accounting``.

It takes about a minute. The paper is arXiv:1611.00340, in the version that accounts by concentrated
privacy. What it does not state is marked with a star in the tables. ``docs/vips-paper.md`` says
what is wrong in it and why.

A noise multiplier is the standard deviation of the noise over the distance by which one exchanged
record moves the statistic. Privacy is that of ``(1-q) N(0, s^2) + q N(1, s^2)`` against ``N(0,
s^2)``: a batch that holds record A with probability q, where all other records equal B, against
data of B alone. It is the same pair for batches of fixed size, which the paper draws, as for
Poisson batches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr, ndtr

from benchmarks import _log
from skdpbayes.privacy import GaussianSteps, calibrate_noise, compose
from skdpbayes.privacy.accounting._baselines import (
    advanced_epsilon,
    linear_epsilon,
    moments_epsilon,
    zcdp_epsilon,
)
from skdpbayes.privacy.accounting._gaussian import gaussian_delta, gaussian_mu

PIXELS = 784  # of MNIST


@dataclass(frozen=True)
class Setting:
    """One experiment of the paper.

    Attributes
    ----------
    name : str
    n_records, batch, rounds : int
        N, S and T.
    epsilon, delta : float
        Claimed in total.
    counted : int
        Releases per round, as the paper counts them.
    distance : float
        Largest distance that one exchanged record moves all releases of a round together, each in
        units of its own.
    """

    name: str
    n_records: int
    batch: int
    rounds: int
    epsilon: float
    delta: float = 1e-4
    counted: int = 1
    distance: float = 1.0

    @property
    def rate(self) -> float:
        return self.batch / self.n_records

    @property
    def releases(self) -> int:
        return self.counted * self.rounds


def lda(epsilon: float, batch: int = 10) -> Setting:
    """Section 4.3: 400 000 documents, batches of 10 until 160 000 are seen."""
    star = "" if batch == 10 else "*"
    return Setting(f"LDA, S={batch}{star}", 400_000, batch, 160_000 // batch, epsilon)


def logistic(epsilon: float) -> Setting:
    """Section 6.3: 10 069 patients, batches of 10, 400 rounds, two releases in each.

    With c the cosine of two rows of norm 1 the distances of ``(y - 1/2) x`` and ``xi x x'`` are at
    most ``sqrt((1 + |c|) / 2)`` and ``sqrt((1 - c^2) / 8)``, the paper's 1 and 1/2; both together
    are longest at |c| = 1/2.
    """
    return Setting(
        "logistic, S=10*", 10_069, 10, 400, epsilon, counted=2, distance=math.sqrt(1.125)
    )


def sbn(
    epsilon: float, batch: int, hidden: int, rounds: int | None = None, delta: float = 1e-4
) -> Setting:
    """Section 7: 60 000 images, ``5 + J + K`` releases a round, K of them without data (xi^(1)).

    Neither rounds nor delta are stated: one pass over the data and delta of the other experiments,
    unless given.
    """
    count = 60_000 // batch if rounds is None else rounds
    name = f"SBN, S={batch}, K={hidden}*"
    return Setting(
        name, 60_000, batch, count, epsilon, delta, 5 + PIXELS + hidden, math.sqrt(5 + PIXELS)
    )


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The rho for which ``rho + 2 sqrt(rho log(1/delta))`` is epsilon (proposition 4)."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


@dataclass(frozen=True)
class TableOne:
    """Budget and noise of one release by Table 1: equations 13, 14 and 11.

    Equation 13 fixes ``epsilon'`` for each ``delta'``, and nothing fixes ``delta'``: here it is the
    total over the number of releases, as in the paper's linear composition, unless `delta_iter` is
    given.
    """

    setting: Setting
    delta_iter: float | None = None

    @property
    def delta_one(self) -> float:
        """Delta of one release before sampling (``delta_iter``)."""
        s = self.setting
        return s.delta / s.releases / s.rate if self.delta_iter is None else self.delta_iter

    @property
    def epsilon_one(self) -> float:
        """Epsilon of one release before sampling (``epsilon_iter``)."""
        s = self.setting
        log = math.log(1.25 / (self.delta_one * s.rate))
        sampled = math.sqrt(4 * zcdp_rho(s.epsilon, s.delta) * log / s.releases)
        return math.log1p(math.expm1(sampled) / s.rate)

    @property
    def multiplier(self) -> float:
        """Noise of one release in units of its own sensitivity."""
        return math.sqrt(2 * math.log(1.25 / self.delta_one)) / self.epsilon_one

    @property
    def joint(self) -> float:
        """Noise of all releases of a round, as the one release that they are."""
        return self.multiplier / self.setting.distance


def holds(setting: Setting, multiplier: float) -> float:
    """Epsilon of `rounds` releases with this noise, at the setting's delta."""
    return compose(GaussianSteps(multiplier, setting.rate, setting.rounds)).epsilon(setting.delta)


def holds_text(setting: Setting, multiplier: float) -> str:
    """`holds`, or a lower bound if noise is so small that the loss needs too large a grid."""
    if multiplier < 0.08:
        return f">{at_least(setting, multiplier):.3g}"
    return f"{holds(setting, multiplier):.3g}"


def at_least(setting: Setting, multiplier: float) -> float:
    """A lower bound of epsilon at the setting's delta.

    The test: some round lies above a threshold t. It fires with probability ``1 - (1 - q
    Phi((1-t)/s))^T`` where the record is there, and at most ``T Phi(-t/s)`` where it is not; the
    best of many t.
    """
    t = np.linspace(0, 1 + 4 * multiplier, 2001)
    fires = -np.expm1(setting.rounds * np.log1p(-setting.rate * ndtr((1 - t) / multiplier)))
    falsely = math.log(setting.rounds) + log_ndtr(-t / multiplier)
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon = np.where(
            fires > setting.delta, np.log(fires - setting.delta) - np.minimum(falsely, 0), 0
        )
    return float(np.max(epsilon))


def needed(setting: Setting) -> dict[str, float]:
    """Noise multiplier of one release per round that each accountant asks for."""

    def invert(epsilon: Callable[[GaussianSteps], float]) -> float:
        def excess(log_multiplier: float) -> float:
            found = epsilon(GaussianSteps(math.exp(log_multiplier), setting.rate, setting.rounds))
            return min(math.log(max(found, 1e-9) / setting.epsilon), 50.0)

        return math.exp(brentq(excess, math.log(0.05), math.log(1e6), xtol=1e-4))

    def earlier(function: Callable[..., float]) -> float:
        return invert(lambda steps: function((steps,), setting.delta, "zero_out"))

    return {
        "linear": earlier(linear_epsilon),
        "advanced": earlier(advanced_epsilon),
        "zCDP": earlier(zcdp_epsilon),
        "Table 1": TableOne(replace(setting, counted=1)).multiplier,
        "moments": earlier(moments_epsilon),
        "RDP": invert(lambda steps: compose(steps).rdp_epsilon(setting.delta)),
        "PLD": calibrate_noise(
            setting.epsilon, setting.delta, setting.rate, setting.rounds
        ).noise_multiplier,
    }


def sbn_statistics(y: NDArray[np.float64], weight: float, hidden: int) -> list[NDArray[np.float64]]:
    """Expected statistics of one image over their sensitivities (without the paper's second).

    By equations 53, 55 and 56 with the posterior at a point: all weights are `weight` over
    `hidden`, all biases c of pixels are minus `weight`, and b = 0.
    """
    W, c = np.full((len(y), hidden), weight / hidden), -weight
    z = np.full(hidden, float(y[0]))
    for _ in range(20):
        mean, variance = W @ z + c, W**2 @ (z * (1 - z))
        root = np.sqrt(mean**2 + variance)
        xi = np.where(root > 1e-9, np.tanh(root / 2) / (2 * np.maximum(root, 1e-9)), 0.25)
        others = mean[:, None] - W * z
        z = expit(y @ W - 0.5 * np.sum(W + xi[:, None] * (2 * others * W + W**2), axis=0))
    outer = np.outer(z, z) + np.diag(z * (1 - z))
    J, K = len(y), hidden
    return [
        z / math.sqrt(K),
        y / math.sqrt(J),
        4 * xi / math.sqrt(J),
        4 * np.outer(xi, z) / math.sqrt(J * K),
        np.outer(y, z) / math.sqrt(J * K),
        *(4 * x * outer / K for x in xi),
    ]


def sbn_distance(weight: float, hidden: int = 50) -> float:
    """Distance of a white from a black image, over its bound; tends to 1 for large weights."""
    white, black = (sbn_statistics(np.full(PIXELS, shade), weight, hidden) for shade in (1.0, 0.0))
    squares = [np.sum((a - b) ** 2) for a, b in zip(white, black, strict=True)]
    return math.sqrt(sum(squares) / (5 + PIXELS))


def total_noise(
    sensitivities: NDArray[np.float64], sizes: NDArray[np.float64], shares: NDArray[np.float64]
) -> float:
    """Squared noise of all entries over the squared multiplier: ``sum_b d_b Delta_b^2 / p_b``."""
    return float(np.sum(sizes * sensitivities**2 / shares))


def sbn_noise(hidden: int) -> dict[str, float]:
    """Squared noise at one joint multiplier: the paper's 789 blocks, and three optimal ones."""
    J, K = float(PIXELS), float(hidden)
    sensitivity = np.sqrt([K, J, J / 16, J * K / 16, J * K, *[K * K / 16] * PIXELS])
    size = np.array([K, J, J, J * K, J * K, *[K * K] * PIXELS])
    merged = np.sqrt([K, J * (K + 1), J * (K + 1) ** 2 / 16])
    merged_size = np.array([K, J * (K + 1), J * (K + 1) ** 2])
    best = merged * np.sqrt(merged_size)
    return {
        "paper": total_noise(sensitivity, size, np.full(len(size), 1 / len(size))),
        "three blocks, equal shares": total_noise(merged, merged_size, np.full(3, 1 / 3)),
        "three blocks, best shares": total_noise(merged, merged_size, best / best.sum()),
    }


def _print(title: str, header: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n\n{_log.table(header, rows)}")


def needed_table(settings: list[Setting]) -> None:
    rows = []
    for s in settings:
        values = needed(s)
        sizes = [f"{s.epsilon:g}", f"{s.rate:.3g}", str(s.rounds)]
        rows.append([s.name, *sizes, *(f"{values[name]:.3g}" for name in values)])
    header = ["setting", "eps", "q", "T", *values]
    _print(
        "Noise multiplier of one release per round; 'Table 1' is the paper's, not a bound",
        header,
        rows,
    )


def table_one(settings: list[Setting]) -> None:
    rows = []
    for s in settings:
        one = TableOne(s)
        exact = float(gaussian_delta(one.epsilon_one, 1 / one.multiplier))
        rows.append(
            [
                *(
                    s.name,
                    f"{s.epsilon:g}",
                    str(s.releases),
                    f"{one.epsilon_one:.3g}",
                    f"{one.delta_one:.2g}",
                ),
                *(
                    f"{exact:.2g}",
                    f"{one.multiplier:.3g}",
                    f"{one.joint:.3g}",
                    holds_text(s, one.joint),
                ),
            ]
        )
    header = [
        "setting",
        "claimed",
        "releases",
        "eps_iter",
        "delta_iter",
        "exact delta",
        "noise",
        "joint",
        "holds",
    ]
    _print("Table 1 with the right sensitivity of a batch: the epsilon that holds", header, rows)


def sensitivity_table(settings: list[Setting]) -> None:
    rows = []
    for s in settings:
        noise = TableOne(s).joint * s.rate
        epsilon, seen = at_least(s, noise), -math.expm1(s.rounds * math.log1p(-s.rate))
        rows.append(
            [
                s.name,
                f"{s.epsilon:g}",
                f"{1 / s.rate:.5g}",
                f"{noise:.2g}",
                f"{epsilon:.2g}",
                f"{seen:.2g}",
            ]
        )
    header = ["setting", "claimed", "N/S", "noise", "eps at least", "in some batch"]
    _print("Noise for the sensitivity of a mean over N, added to a mean over S", header, rows)


def substitution_table(settings: list[Setting]) -> None:
    rows = []
    for s in settings:
        noise = TableOne(s).joint
        both = [holds(s, noise), holds(s, noise / math.sqrt(2))]
        exact = calibrate_noise(s.epsilon, s.delta, s.rate, s.rounds).noise_multiplier
        rows.append(
            [f"{s.epsilon:g}", *(f"{e:.3g}" for e in both), f"{holds(s, exact / math.sqrt(2)):.3g}"]
        )
    header = ["claimed", "distance L", "distance sqrt(2) L", "sqrt(2) L, noise exact for L"]
    _print("LDA, S=10: epsilon that holds", header, rows)


def delta_table(setting: Setting, deltas: list[float]) -> None:
    rows = []
    for delta in deltas:
        one = TableOne(setting, delta)
        rows.append(
            [
                f"{delta:.2g}",
                f"{delta * setting.rate:.2g}",
                f"{one.epsilon_one:.3g}",
                f"{one.multiplier:.3g}",
            ]
        )
        rows[-1].append(holds_text(setting, one.joint))
    title = f"{setting.name}: one claim ({setting.epsilon:g}, {setting.delta:g}), any delta'"
    _print(title, ["delta_iter", "delta'", "eps_iter", "noise", "eps that holds"], rows)


def counterexamples() -> None:
    rows = []
    for name, s in (
        ("equation 11, one release", Setting("", 1_000, 1, 1, 1.0)),
        ("exact noise, 10 000 releases", Setting("", 10, 2, 10_000, 1.0, 1e-6)),
    ):
        one = TableOne(s)
        noise = one.multiplier if s.rounds == 1 else 1 / gaussian_mu(one.epsilon_one, one.delta_one)
        exact = float(gaussian_delta(one.epsilon_one, 1 / noise))
        cells = [
            f"({s.epsilon:g}, {s.delta:g})",
            f"{s.rate:g}",
            f"{one.epsilon_one:.3g}",
            f"{one.delta_one:.2g}",
        ]
        rows.append([name, *cells, f"{exact:.2g}", f"{noise:.3g}", f"{holds(s, noise):.4g}"])
    header = ["", "claimed", "q", "eps_iter", "delta_iter", "exact delta", "noise", "holds"]
    _print("One release per round, the right sensitivity, delta' = delta / T", header, rows)


def sbn_table(hidden: int, delta: float) -> None:
    batches, rows = (50, 100, 200), []
    for rounds in (1, 10, 100, 300, None, 3000):
        cells = []
        for batch in batches:
            for epsilon in (0.5, 1.0):
                s = sbn(epsilon, batch, hidden, rounds, delta)
                cells.append(holds_text(s, TableOne(s).joint))
        rows.append(["one pass" if rounds is None else str(rounds), *cells])
    header = ["T", *(f"S={batch}, eps={epsilon:g}" for batch in batches for epsilon in (0.5, 1.0))]
    _print(f"SBN, K={hidden}, delta {delta:g}: the epsilon that holds, T rounds", header, rows)


def batch_table(epsilon: float) -> None:
    rows = []
    for batch in (10, 20, 50, 100, 200, 400, 4_000, 40_000, 400_000):
        s = replace(lda(epsilon, batch), rounds=max(160_000 // batch, 1))
        noise = calibrate_noise(epsilon, s.delta, s.rate, s.rounds).noise_multiplier
        rows.append(
            [
                str(batch),
                str(s.rounds),
                f"{noise:.3g}",
                f"{noise / s.rate / math.sqrt(s.rounds):.3g}",
            ]
        )
    title = (
        f"LDA, epsilon {epsilon:g}: standard deviation of the noise in the average of T estimates "
        "of the full sum"
    )
    _print(f"{title}, over L", ["S", "T", "noise multiplier", "of the average"], rows)


def main() -> None:
    budgets = (0.5, 1.0, 2.0, 4.0)
    ldas, patients = [lda(e) for e in budgets], [logistic(0.2), *(logistic(e) for e in budgets)]
    images = [sbn(e, batch, 50) for batch in (50, 100, 200) for e in (0.5, 1.0)]
    whole = [
        replace(logistic(e), name="logistic, batch*", batch=10_069, rounds=10) for e in budgets
    ]
    sweep = [lda(1.0, batch) for batch in (20, 50, 100, 200, 400)]

    needed_table([*ldas, *sweep, *patients[:1], *whole, *images])
    table_one([*ldas, *patients, *images])
    sensitivity_table([*ldas, *patients[:1], *images])
    delta_table(lda(1.0), [2.5e-4, 0.01, 0.1, 0.5, 0.9, 1.2, 1.249])
    counterexamples()
    substitution_table(ldas)
    for hidden in (50, 100):
        sbn_table(hidden, 1e-4)
    sbn_table(50, 1e-5)
    batch_table(1.0)
    reached = functools.partial(sbn_distance, hidden=50)
    print("\nSBN, K=50: white against black image, distance over its bound at weights of")
    print(", ".join(f"{weight}: {reached(weight):.4f}" for weight in (10.0, 100.0, 1e3, 1e4)))
    print("\nSBN, K=50: squared noise of all entries at the same privacy, over the least")
    noise = sbn_noise(50)
    print(", ".join(f"{name}: {value / min(noise.values()):.3g}" for name, value in noise.items()))


if __name__ == "__main__":
    main()
