"""Planned fits: common part of the scripts that ``benchmarks._peers.run`` starts for d3p."""

import json
import sys
import time

import jax
import numpy as np


def run(fit):
    """Do what ``python <script> data.npz plan.json`` asks for, and print one line of JSON a fit.

    Each entry of the plan is fitted to each data set in turn: ``fit(entry, arrays, i)`` gives
    parameters, and a function of none that gives what is released of them, by which the other side
    scores it.
    """
    data, plan = sys.argv[1:]
    with np.load(data) as archive:
        sets = {name: archive[name] for name in archive.files}
    with open(plan) as file:
        entries = json.load(file)
    for entry in entries:
        for i in range(entry["fits"]):
            arrays = {name: x[i % len(x)] for name, x in sets.items()}
            start = time.perf_counter()
            params, release = fit(entry, arrays, i)
            jax.block_until_ready(params)
            seconds = time.perf_counter() - start
            line = {"entry": entry["entry"], "fit": i, **release(), "seconds": seconds}
            print(json.dumps(line), flush=True)
