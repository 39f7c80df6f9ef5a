"""Run a command and print the peak memory of all its processes together.

``python tools/peak_memory.py [--limit GB] -- COMMAND ...`` exits as the command does, or with 1 if
the peak exceeds the limit. Memory is the proportional set size, so that pages that processes share
count once. Other systems than Linux run the command unmeasured.
"""

import argparse
import contextlib
import sys
import threading
import time

import psutil

_EVERY = 0.5  # seconds, or more where a measurement is so slow
_SHARE = 0.02  # of one core, which measurements may take
_GB = 2**30


def together(process):
    """Proportional set size of a process and of all that it started, directly or not, in bytes."""
    total = 0
    with contextlib.suppress(psutil.Error):  # it has ended
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += each.memory_full_info().pss
    return total


def measured(command):
    """Exit status of a command, and its peak memory in bytes (None if it cannot be measured)."""
    process = psutil.Popen(command)
    peak, over = 0, threading.Event()

    def watch():
        nonlocal peak
        pause = _EVERY
        while not over.wait(pause):
            begun = time.perf_counter()
            peak = max(peak, together(process))
            pause = max(_EVERY, (time.perf_counter() - begun) / _SHARE)

    watcher = threading.Thread(target=watch, daemon=True)
    if psutil.LINUX:
        watcher.start()
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the command has heard it too
        status = process.wait()
    over.set()
    return status, peak or None


def main():
    """Read the command line, run the command, print its peak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        help="most memory allowed, in GB of 2**30 bytes",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    status, peak = measured(options.command[options.command[:1] == ["--"] :])
    if peak is not None:
        print(f"Peak memory of all processes together: {peak / _GB:.2f} GB", flush=True)
        if peak > options.limit * _GB:
            sys.exit(f"That is more than {options.limit:g} GB.")
    sys.exit(status)


if __name__ == "__main__":
    main()
