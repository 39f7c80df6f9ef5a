"""Seconds to calibrate noise, cold: ``noise_calibration.py LIBRARY EPSILON DELTA Q T``.

Runs in the environment that has the library, skdpbayes, d3p or dp_accounting, and prints a line of
JSON. d3p's default accountant is of one exchanged record, the others' of one that is added or
removed (or set to zero); of ours the noise for an exchanged one is printed too.
"""

import json
import sys
import time


def skdpbayes(epsilon, delta, rate, count, **adjacency):
    from skdpbayes.privacy import calibrate_noise

    calibrate_noise(2 * epsilon, delta, 2 * rate, 10)  # imports what it needs
    return lambda: calibrate_noise(epsilon, delta, rate, count, **adjacency).noise_multiplier


def d3p(epsilon, delta, rate, count):
    from d3p.dputil import approximate_sigma

    return lambda: float(approximate_sigma(epsilon, delta, rate, count)[0])


def dp_accounting(epsilon, delta, rate, count):
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    def event(sigma):
        return dp.SelfComposedDpEvent(
            dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), count
        )

    bracket = dp.LowerEndpointAndGuess(0, 1)
    return lambda: dp.calibrate_dp_mechanism(PLDAccountant, event, epsilon, delta, bracket)


if __name__ == "__main__":
    library, *numbers = sys.argv[1:]
    *budget, count = map(float, numbers)
    find = globals()[library](*budget, int(count))
    start = time.perf_counter()
    noise = find()
    found = {"seconds": time.perf_counter() - start, "noise_multiplier": noise}
    if library == "skdpbayes":
        found["replace_one"] = skdpbayes(*budget, int(count), adjacency="replace_one")()
    print(json.dumps(found))
