"""The recipe of members that come and go, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "recipes" / "members.py"
LIMIT = 60  # s


def test_elastic() -> None:
    ran = subprocess.run([sys.executable, RECIPE], capture_output=True, text=True, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    changes = [re.fullmatch(r"change (\d): (\d) members, after (\d+) steps", line) for line in lines]
    found = [tuple(map(int, change.groups())) for change in changes if change]
    assert [(change, members) for change, members, _ in found] == [(1, 3), (2, 2), (3, 3)]
    assert found[0][2] == 0 and 20 <= found[1][2] <= 21 and found[2][2] >= found[1][2]
    assert "worker 1 was ended by signal 9" in lines and lines[-1] == "exit codes: [0, 0, 0]"
    ended = [re.fullmatch(r"worker ([023]) has ended as rank (\d) of 3", line) for line in lines]
    assert sorted(match[2] for match in ended if match) == ["0", "1", "2"]
