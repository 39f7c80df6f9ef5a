"""Make the environment that a lock file describes, whole or not at all. Standard library only.

``python3 tools/bootstrap.py --env .venv --lock requirements/test.lock --package`` is what ``make``
runs first. A stamp that names the lock's content is written last; without it (an interrupted run, a
new lock, another Python) the environment is made again. Whatever is missing on the machine is said
by name.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)
MARKER = "made-by-skdpbayes-make"

# What pip prints, and what it means. The first that matches is said.
CAUSES = (
    (
        ("DO NOT MATCH THE HASHES",),
        "a downloaded file differs from the locked one. The registry or a mirror serves other "
        "files; nothing was installed.",
    ),
    (("No space left on device",), "the disk is full. The environment needs about 1 GB."),
    (
        (
            "NewConnectionError",
            "NameResolutionError",
            "Failed to establish a new connection",
            "Temporary failure in name resolution",
            "Name or service not known",
            "ConnectTimeoutError",
            "Read timed out",
            "ProxyError",
            "SSLError",
            "Connection refused",
            "Network is unreachable",
        ),
        "the package registry cannot be reached. Check the network (or the proxy, or the index "
        "that "
        "`pip config list` shows) and run make again; what was downloaded is kept in pip's cache.",
    ),
    (
        ("No matching distribution found",),
        "the registry did not offer that package for this Python and system. If it is the first of "
        "the "
        "list, the registry (see `pip config list`) was most likely not reached at all.",
    ),
)


def stop(message):
    """Say what is wrong and end."""
    sys.stdout.flush()
    sys.exit(f"\nskdpbayes: {message}")


def check_python():
    """Stop unless this Python is supported and can make environments."""
    found = sys.version_info[:2]
    if not OLDEST <= found <= NEWEST:
        names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
        usable = [name for name in names if shutil.which(name) and _runs(name)]
        advice = (
            f"{usable[0]} is here: run make PYTHON={usable[0]}"
            if usable
            else "install one of them and run make PYTHON=/path/to/it"
        )
        stop(
            f"{sys.executable} is Python {found[0]}.{found[1]}; Python {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]} is needed. {advice}."
        )
    missing = []
    for name in ("venv", "ensurepip"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        stop(
            f"{sys.executable} has no module {' and no module '.join(missing)}, so it cannot make "
            "an "
            f"environment with pip. On Debian and Ubuntu: apt install python3-venv "
            f"(or python{found[0]}.{found[1]}-venv)."
        )


def _runs(name):
    # A version manager's shim can be on the path and name no installed Python.
    return (
        subprocess.run(
            [name, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


def python_of_the_system():
    """The Python behind this one, which may belong to the environment about to be replaced."""
    return getattr(sys, "_base_executable", None) or sys.executable


def make(env, lock, package):
    """Bring `env` to the state that `lock` (and the package's metadata) describes."""
    root = Path(__file__).resolve().parents[1]
    content = [sys.version, str(env), lock.read_text()]
    if package:
        # Here, because an older Python must come as far as the message that it is too old.
        import tomllib

        metadata = tomllib.loads((root / "pyproject.toml").read_text())
        content.append(json.dumps([metadata["project"], metadata["build-system"]]))
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()
    stamp = env / f"{lock.stem}.stamp"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    if env.exists() and not (env / MARKER).is_file():
        stop(
            f"{env} exists and make did not make it. Move it away, or run make with "
            "VENV=another-folder."
        )

    # Another lock's whole environment of the same Python is added to; anything else is started
    # anew.
    others = [other for other in env.glob("*.stamp") if other != stamp] if env.exists() else []
    if stamp.is_file() or not others:
        python = python_of_the_system()
        print(
            f"Making the environment {env} with {python} (the first time takes a few minutes) ...",
            flush=True,
        )
        shutil.rmtree(env, ignore_errors=True)
        env.mkdir(parents=True)
        (env / MARKER).touch()
        created = subprocess.run(
            [python, "-m", "venv", str(env)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if created.returncode:
            stop(
                f"{python} -m venv failed:\n{created.stdout}\nOn Debian and Ubuntu: apt install "
                "python3-venv."
            )
    kept = {other.name: other.read_text() for other in others if other.is_file()}
    for name in kept:  # Not whole while pip is at work.
        (env / name).unlink()

    inner = env / "bin" / "python" if os.name != "nt" else env / "Scripts" / "python.exe"
    pip = [
        str(inner),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "--quiet",
    ]
    run_pip([*pip, "--require-hashes", "--only-binary=:all:", "-r", str(lock)], str(lock))
    if package:
        run_pip(
            [*pip, "--no-deps", "--no-build-isolation", "--editable", str(root)],
            "the package itself",
        )
    for name, text in {**kept, stamp.name: digest}.items():
        part = env / (name + ".part")
        part.write_text(text)
        part.replace(env / name)


def run_pip(command, what):
    """Run pip; on failure print what it said and what that usually means."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return
    lines = [line for line in done.stdout.splitlines() if "is ignored: it is neither" not in line]
    print("\n".join(lines[-15:]))
    for signs, meaning in CAUSES:
        if any(sign in done.stdout for sign in signs):
            stop(f"pip could not install {what}: {meaning}")
    stop(f"pip could not install {what}; its last words are above. Ran: {' '.join(command)}")


def main():
    """Read the command line and make the environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", type=Path, required=True, help="folder of the environment")
    parser.add_argument("--lock", type=Path, required=True, help="lock file with hashes")
    parser.add_argument(
        "--package", action="store_true", help="install the checkout too, as editable"
    )
    options = parser.parse_args()
    check_python()
    options.env = Path(os.path.abspath(str(options.env)))
    options.env.parent.mkdir(parents=True, exist_ok=True)
    # Two makes at once in one checkout wait for each other where the system can lock files.
    with open(str(options.env) + ".lock", "w") as guard:
        try:
            import fcntl
        except ImportError:
            pass
        else:
            fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            make(options.env, options.lock, options.package)
        except KeyboardInterrupt:
            stop("interrupted; the next make starts again.")


if __name__ == "__main__":
    main()
