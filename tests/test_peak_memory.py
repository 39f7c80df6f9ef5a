"""The command that measures what all processes of a run need together."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, str(Path(__file__).parents[1] / "tools" / "peak_memory.py")]
HOW = {"capture_output": True, "text": True, "timeout": 60}
BOTH = """
import subprocess, sys, time
hold = "import time; held = bytearray(b'x' * (100 << 20)); time.sleep(2.5)"
children = [subprocess.Popen([sys.executable, "-c", hold]) for _ in range(2)]
sys.exit(max(child.wait() for child in children))
"""


@pytest.mark.skipif(not psutil.LINUX, reason="the system does not tell")
def test_memory_of_children_adds_up_and_the_exit_status_is_the_commands():
    done = subprocess.run([*COMMAND, "--limit", "0.1", "--", sys.executable, "-c", BOTH], **HOW)
    (peak,) = re.findall(r"Peak memory of all processes together: ([\d.]+) GB", done.stdout)
    assert 0.19 < float(peak) < 0.5
    assert done.returncode == 1 and "more than 0.1 GB" in done.stderr
    done = subprocess.run([*COMMAND, "--limit", "9", "--", sys.executable, "-c", "exit(3)"], **HOW)
    assert done.returncode == 3
