"""Accuracy and speed of the accountant: ``python benchmarks/accounting.py [--json FILE]``.

Three tables, about two minutes in all:

1. epsilon at delta = 1e-5 over a grid of (rate, noise, rounds): excess over the limit of ever finer
   grids (extrapolated from two finer ones, the error being quadratic in the spacing), RDP's excess,
   cross-check;
2. calibration: time and number of digits, cache empty;
3. dp_accounting's PLD at its default interval on some of the points: excess and time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path

from skdpbayes.privacy import GaussianSteps, calibrate_noise, compose, crosscheck
from skdpbayes.privacy.accounting._curve import PrivacyCurve
from skdpbayes.privacy.accounting._pld import COARSE, FINE, loss_distribution

DELTA = 1e-5


def limit(steps, used):
    """Extrapolate epsilon to spacing 0 from the spacings used / 2 and used / 4."""
    half, quarter = (
        max(
            loss_distribution((steps,), kind, used * share).epsilon(DELTA)
            for kind in ("remove", "add")
        )
        for share in (0.5, 0.25)
    )
    return quarter - (half - quarter) / 3


def accuracy():
    rows = []
    grid = itertools.product(
        (1e-4, 1e-3, 1e-2, 0.1, 0.5), (0.5, 1.0, 2.0, 5.0, 20.0), (1, 100, 10**4, 10**5)
    )
    for rate, sigma, count in grid:
        steps = GaussianSteps(sigma, rate, count)
        start = time.perf_counter()
        curve = PrivacyCurve((steps,), "zero_out")
        eps = curve.pld_epsilon(DELTA)
        seconds = time.perf_counter() - start
        row = {"q": rate, "sigma": sigma, "T": count, "epsilon": eps, "ms": 1e3 * seconds}
        if eps > 1e-3:
            row["excess"] = eps / limit(steps, 0.02) - 1
            row["rdp_excess"] = curve.rdp_epsilon(DELTA) / eps - 1
            start = time.perf_counter()
            check = crosscheck(steps, eps, DELTA)
            row |= {
                "check": check.accepted,
                "ratio": check.ratio,
                "check_ms": 1e3 * (time.perf_counter() - start),
            }
        rows.append(row)
    return rows


def calibration():
    rows = []
    calibrate_noise(1.0, DELTA, 0.02, 10)  # imports
    for eps, rate, count in itertools.product(
        (0.1, 1.0, 8.0), (1e-3, 1e-2, 0.1), (100, 10**4, 10**5)
    ):
        start = time.perf_counter()
        found = calibrate_noise(eps, DELTA, rate, count)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "epsilon": eps,
                "q": rate,
                "T": count,
                "sigma": found.noise_multiplier,
                "ms": 1e3 * seconds,
            }
        )
        rows[-1]["below"] = 1 - found.epsilon / eps
    return rows


def library():
    from dp_accounting.pld import privacy_loss_distribution as pld

    rows = []
    for rate, sigma, count in [
        (0.01, 2.0, 10**4),
        (0.1, 20.0, 10**4),
        (1e-3, 1.0, 10**4),
        (1e-4, 1.0, 10**5),
    ]:
        start = time.perf_counter()
        one = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, use_connect_dots=True)
        theirs = one.self_compose(count).get_epsilon_for_delta(DELTA)
        seconds = time.perf_counter() - start
        ours = compose(GaussianSteps(sigma, rate, count)).epsilon(DELTA)
        rows.append(
            {
                "q": rate,
                "sigma": sigma,
                "T": count,
                "theirs/ours": theirs / ours,
                "their_ms": 1e3 * seconds,
            }
        )
    return rows


def summary(values):
    values = [value for value in values if value is not None and math.isfinite(value)]
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"median {middle:.3g}, range {low:.3g} to {high:.3g}, n={len(values)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    arguments = parser.parse_args()
    print(f"grid spacing {FINE} to {COARSE} standard deviations of one loss")
    table = {"accuracy": accuracy(), "calibration": calibration(), "dp_accounting": library()}
    rows = table["accuracy"]
    print("PLD ms:           ", summary([row["ms"] for row in rows]))
    print("excess of epsilon:", summary([row.get("excess") for row in rows]))
    print("excess of RDP:    ", summary([row.get("rdp_excess") for row in rows]))
    checked = [row for row in rows if "check" in row]
    print(f"cross-check:       accepted {sum(row['check'] for row in checked)} of {len(checked)}")
    print("  its delta / ours:", summary([row["ratio"] for row in checked]))
    print("  ms:             ", summary([row["check_ms"] for row in checked]))
    print("calibration ms:   ", summary([row["ms"] for row in table["calibration"]]))
    print("  below target by:", summary([row["below"] for row in table["calibration"]]))
    for row in table["dp_accounting"]:
        print("dp_accounting    ", {key: round(value, 4) for key, value in row.items()})
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
