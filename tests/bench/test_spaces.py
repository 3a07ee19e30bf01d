"""Namespaces that outlive the process that made them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arraycomm.bench import spaces

_OWNER = """
import subprocess, sys
from arraycomm.bench.spaces import Spaces, inside
with Spaces(1) as made:
    child = subprocess.Popen([*inside(made.names[0]), "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    child.stdout.readline()  # it is there
    print(made.switch, made.names[0], child.pid, flush=True)
    sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(bool(reason := spaces.missing(())), reason=reason)


def test_what_a_killed_process_left_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin and owner.stdout
    switch, name, pid = owner.stdout.readline().split()
    with owner.stdin, owner.stdout:
        assert spaces.sweep() == []  # it lives
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    left = os.pidfd_open(int(pid))
    with spaces.Spaces(1) as made:
        assert Path("/run/netns", made.names[0]).exists()
        assert f"{name}, {switch}" in capsys.readouterr().err
        assert not Path("/run/netns", name).exists() and not Path("/run/netns", switch).exists()
    assert select.select([left], [], [], 10)[0], "its process still runs"
    os.close(left)
    assert not Path("/run/netns", made.names[0]).exists()


def test_one_processor_receives_all_of_a_connection() -> None:
    """Else packets overtake each other, and what is measured is TCP's answer to that."""
    with spaces.Spaces(1) as made:
        for space, interface in ((made.names[0], "eth0"), (made.switch, made.port(0))):
            file = f"/sys/class/net/{interface}/queues/rx-0/rps_cpus"
            told = subprocess.run(["ip", "netns", "exec", space, "cat", file], capture_output=True, text=True, check=True)
            assert int(told.stdout.replace(",", ""), 16) != 0, interface
