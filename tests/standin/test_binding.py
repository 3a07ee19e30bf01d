"""How much of ours lies around a call of NCCL's: counted, because time depends on the machine."""

from __future__ import annotations

import re
import subprocess
import sys


def test_few_functions_around_a_call() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.standin.binding"], capture_output=True, text=True, timeout=120,
                          check=True)
    counts = re.findall(r"^(.*): \d+ ns \(.*\), (\d+) Python and (\d+) C functions$", done.stdout, re.M)
    most = {"all_reduce": (23, 14), "all_reduce, asynchronous, and wait()": (34, 16), "ncclAllReduce by cffi alone": (1, 0)}
    assert [name for name, *_ in counts] == list(most)
    for name, *found in counts:
        assert all(int(number) <= limit for number, limit in zip(found, most[name], strict=True)), done.stdout
