"""What fits in worker processes do to ledgers that are open above them; prints JSON. Loads no JAX: it forks."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from skdpbayes.privacy import BudgetError, GaussianSteps, PrivacyLedger
from skdpbayes.privacy.ledger import ledger_in_force
from skdpbayes.privacy.ledger import open_ledgers as opened_ledgers


def fit():
    """What a fit without a ledger of its own does before it runs."""
    try:
        ledger = ledger_in_force()
        if ledger is None:
            return "not charged"
        ledger.charge(GaussianSteps(100.0, 1.0, 1))
    except BudgetError:
        return "refused"
    return "charged"


def fit_below():
    """The same in a process that this one starts."""
    return subprocess.run(
        [sys.executable, __file__, "fit"], capture_output=True, text=True, check=True
    ).stdout.strip()


def charge_often(ledger, steps, out):
    """Put in a queue how many of ten charges were taken."""
    taken = 0
    for _ in range(10):
        try:
            ledger.charge(steps)
            taken += 1
        except BudgetError:
            pass
    out.put(taken)


def spent(*ledgers):
    return [len(ledger.entries) for ledger in ledgers]


def outcomes(method, folder):
    """Of a pool that was there before, and of one that was started inside a block."""
    context = multiprocessing.get_context(method)
    one, other = (
        PrivacyLedger(1.0, 1e-5, path=folder / f"{method} {name}") for name in ("one", "other")
    )
    memory = PrivacyLedger(1.0, 1e-5)
    found = {}

    def in_blocks(pool, *ledgers, call=fit):
        with ExitStack() as stack:
            for ledger in ledgers:
                stack.enter_context(ledger)
            return [pool.apply(call), spent(one, other, memory)]

    with context.Pool(1) as pool:
        found["old pool, no ledger"] = in_blocks(pool)
        found["old pool, file"] = in_blocks(pool, one)
        found["old pool, memory"] = in_blocks(pool, memory)
        found["old pool, two files"] = in_blocks(pool, one, other)
        found["old pool, the same twice"] = in_blocks(pool, one, one)
        found["below a worker, file"] = in_blocks(pool, one, call=fit_below)
        found["old pool, all closed"] = in_blocks(pool)
    with one:
        pool = context.Pool(1)
        found["new pool, file"] = in_blocks(pool)
    found["new pool, other file"] = in_blocks(pool, other)
    found["new pool, all closed"] = in_blocks(pool)
    pool.terminate()
    with memory, context.Pool(1) as pool:
        found["new pool, memory"] = in_blocks(pool)
    return found


def killed():
    """A process that is killed inside a block; whether its file is still there, and what it shows."""
    pid = os.fork()
    if not pid:
        with PrivacyLedger(1.0, 1e-5):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    file = opened_ledgers._file(opened_ledgers._folder(), pid)
    left = file.exists(), opened_ledgers._shown_by(pid)
    file.unlink()
    return left


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        print(fit())
    else:
        results = {
            method: outcomes(method, Path(sys.argv[1]))
            for method in ("fork", "spawn", "forkserver")
        }
        print(json.dumps(results | {"killed": killed(), "JAX": "jax" in sys.modules}))
