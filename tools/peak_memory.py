"""Run a command and print the peak memory of all its processes together. Standard library only.

``python tools/peak_memory.py [--limit GB] -- COMMAND ...`` exits as the command does, or with 1 if
the peak exceeds the limit. Memory is the proportional set size, so that pages that processes share
count once. Systems without ``/proc`` run the command unmeasured.
"""

import argparse
import subprocess
import sys
import threading
from pathlib import Path

_EVERY = 0.5  # seconds
_GB = 2**30


def descendants(root):
    """Process ids of a process and of all that it started, directly or not."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):  # it has ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def proportional_size(pid):
    """Proportional set size of a process, in bytes; zero once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def measured(command):
    """Exit status of a command, and the peak of its memory in bytes (None where it cannot be measured)."""
    process = subprocess.Popen(command)
    peak, over = 0, threading.Event()

    def watch():
        nonlocal peak
        while not over.wait(_EVERY):
            peak = max(peak, sum(map(proportional_size, descendants(process.pid))))

    watcher = threading.Thread(target=watch, daemon=True)
    if Path("/proc/self/smaps_rollup").exists():
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
