"""Fits of records that are divided over devices or processes; run as a program, it prints digests.

``python divided.py DEVICES`` fits on one device and on so many, in one process, ``python divided.py
PORT I N`` in the I-th of N processes, each of which has some of the rows. Both fit the first case
(``... all``: all). ``... die`` ends the last process in the middle of its fit; ``... disagree``
gives it a larger epsilon.
"""

import hashlib
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

N_ROWS, ROUNDS = 900, 12
CASES = (
    ("dpvi", {"sampling_rate": 0.2, "n_steps": ROUNDS}),
    ("na-dpvi", {"n_steps": ROUNDS}),
)


def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 3)).astype(np.float32)
    X[5] = np.nan
    return X, (X[:, 0] + rng.logistic(size=N_ROWS) > 0).astype(int)


def fitted(solver, settings, X, y, *, seed=1, epsilon=1.0, **how):
    from skdpbayes import DPBayesianLogisticRegression

    model = DPBayesianLogisticRegression(
        epsilon=epsilon, classes=[0, 1], solver=solver, random_state=seed, n_posterior_samples=20,
        **settings, **how,
    )  # fmt: skip
    return model.fit(X, y)


def digest(model):
    samples = model.posterior_samples_.values()
    words = [model.coef_, model.intercept_, *samples, [model.usable_records_.estimate]]
    return hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in words)).hexdigest()[:16]


def main(more, devices, process=None, n_processes=None):
    flags = os.environ.get("XLA_FLAGS", "")
    n = devices if process is None else 2
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={n}"
    warnings.simplefilter("ignore")
    import jax

    import skdpbayes
    from skdpbayes.privacy import PrivacyLedger

    X, y = table()
    seed = 1 if not process else 77  # the first process's counts
    if process is not None:
        jax.distributed.initialize(
            f"localhost:{devices}", n_processes, process, heartbeat_timeout_seconds=10
        )
        cut = [0, 350, N_ROWS]  # of unequal size
        X, y = (own[cut[process] : cut[process + 1]] for own in (X, y))
        if process == 1:
            import arrow_files

            folder = tempfile.TemporaryDirectory()
            X, y = arrow_files.of_rows(Path(folder.name) / "t.arrow", X, y)
    if "die" in more and process == n_processes - 1:
        from skdpbayes.estimators import _progress

        _progress.Progress.__call__ = lambda self, step: os._exit(9)
    from skdpbayes.privacy import report

    report.now = lambda: f"2030-01-01T00:00:0{process or 0}+00:00"  # clocks differ
    epsilon = 50.0 if "disagree" in more and process else 1.0
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-3) if not process else None
    cases = CASES if "all" in more else CASES[:1]  # programs take long to compile
    for where in (None, "all") if process is None else ("all",):
        for solver, settings in cases:
            with skdpbayes.execution(devices=where):
                model = fitted(solver, settings, X, y, ledger=ledger, seed=seed, epsilon=epsilon)
            print(solver, digest(model), model.privacy_spent_.public["n_samples"], flush=True)
    if ledger is not None:
        print("charged", len(ledger.entries), flush=True)


if __name__ == "__main__":
    numbers = [int(arg) for arg in sys.argv[1:] if arg.isdigit()]
    main([arg for arg in sys.argv[1:] if not arg.isdigit()], *numbers)
