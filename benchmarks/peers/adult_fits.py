"""Fits of Adult in a new process, imports and all: ``python adult_fits.py WHAT STARTED data.npz``.

WHAT is diffprivlib, dpvi or na_dpvi (fits of one library or solver), or search (45 fits of a grid
search). STARTED is the time (``time.time()``) at which the process was started. The archive has
``X``, ``y`` and ``norm``. Prints a line of JSON.
"""

import json
import sys
import time
import warnings

import numpy as np

# Nine parameters and five folds make 45 fits.
GRID = {"epsilon": [0.5, 1.0, 2.0], "prior_scale": [0.5, 1.0, 2.0]}


def diffprivlib(norm, epsilon=1.0):
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")  # that it does not converge in its 100 iterations
    return LogisticRegression(epsilon=epsilon, data_norm=norm)


def dpvi(norm, epsilon=1.0, solver="dpvi", **own):
    from skdpbayes import DPBayesianLogisticRegression

    return DPBayesianLogisticRegression(
        epsilon=epsilon, classes=[0, 1], data_norm=norm, solver=solver, **own
    )


def na_dpvi(norm, epsilon=1.0):
    return dpvi(norm, epsilon, "na-dpvi")


def compilations():
    """One item for each program that XLA compiles from now on."""
    import jax

    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **kwargs: seen.append(event) if "backend_compile" in event else None
    )
    return seen


def search(X, y, norm):
    """Programs that are compiled for 45 fits beyond those of one fit, and seconds."""
    from sklearn.model_selection import GridSearchCV

    model = dpvi(norm, n_steps=200)
    model.fit(X[: len(X) - len(X) // 5], y[: len(X) - len(X) // 5])
    seen = compilations()
    start = time.perf_counter()
    GridSearchCV(model, GRID, cv=5, refit=False).fit(X, y)
    return {"recompiled": len(seen), "seconds": time.perf_counter() - start}


def fits(make, started, X, y, norm):
    """Seconds from the start of the process to the ends of a first fit and a smaller second."""
    make(norm).fit(X, y)
    found = {"first": time.time() - started, "cpu": time.process_time()}
    seen = compilations() if make is not diffprivlib else []
    start = time.perf_counter()
    make(norm, 0.7).fit(X[:-1000], y[:-1000])
    return found | {"second": time.perf_counter() - start, "recompiled": len(seen)}


if __name__ == "__main__":
    what, started, path = sys.argv[1:]
    with np.load(path) as data:
        arrays = data["X"], data["y"], float(data["norm"])
    answer = search(*arrays) if what == "search" else fits(globals()[what], float(started), *arrays)
    print(json.dumps(answer))
