"""The end of a process in which callbacks of futures, or operations that threads wait for, are under way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

PROGRAM = Path(__file__).parent / "programs" / "ending.py"
CODES = {"destroy": 0, "open": 0, "absent": 0, "raise": 1, "exit": 5}


@pytest.mark.parametrize(("api", "way"), [("torch", "destroy"), ("torch", "exit"), ("facade", "absent"),
                                          ("facade", "raise"), ("bare", "open")])
def test_callbacks_end_before_the_interpreter(api: str, way: str, tmp_path: Path) -> None:
    if api != "bare" and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = subprocess.Popen([sys.executable, str(PROGRAM), api, way, str(tmp_path)], env=os.environ | place, text=True,
                             stdout=subprocess.PIPE, start_new_session=True)
    try:
        codes = list(map(int, ranks.communicate(timeout=120)[0].split()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
    assert len(codes) == 3
    for number, code in enumerate(codes):
        out, err = (Path(tmp_path, f"{number}.{stream}").read_text() for stream in (1, 2))
        assert code == CODES[way], f"rank {number} ended with {code}:\n{err}"
        expected = ["destroyed"] if way == "destroy" else []
        if way != "absent" or number:
            expected.insert(0, "callback")
        assert out.split() == expected, f"rank {number}: {out}\n{err}"
        assert "terminate called" not in err and "Fatal Python error" not in err, err
