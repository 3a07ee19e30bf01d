"""A Python that was built for an old glibc runs everything that starts ranks and shares memory."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from arraycomm.core import kernel

OLD = """
import fcntl, os
for module, names in ((os, ("memfd_create", "pidfd_open")), (os, [n for n in dir(os) if n.startswith("MFD_")]),
                      (fcntl, [n for n in dir(fcntl) if "SEAL" in n])):
    for name in names:
        delattr(module, name)
"""
PROGRAM = OLD + """
import arraycomm, numpy

def work(rank):
    with arraycomm.init(timeout=20) as group:
        shared = group.empty(1000, "float32", like=numpy.empty(0))
        shared[:] = rank
        assert group.all_reduce(shared)[999] == 1 and group.all_reduce(numpy.ones(3))[0] == 2

arraycomm.spawn(work, nprocs=2, start_method="fork")
"""
LAUNCHER = OLD + """
import sys
from arraycomm.launch.__main__ import main

sys.exit(main(["--nproc-per-node", "2", "--no-python", "true"]))
"""


@pytest.mark.parametrize("program", [PROGRAM, LAUNCHER], ids=["spawn", "launcher"])
def test_old_glibc(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "pidfd_open")
    descriptor = kernel.memory_file("test", sealable=True)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:test") and not os.get_inheritable(descriptor)
    os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        kernel.process_descriptor(2**22 + 1)


def test_a_machine_without_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(OSError, match="x86_64, aarch64 only, not on riscv64: take a Python"):
        kernel.memory_file("test")


@pytest.mark.parametrize("name, call", [("memfd_create", lambda: kernel.memory_file("test")),
                                        ("pidfd_open", lambda: kernel.process_descriptor(os.getpid()))])
def test_a_filter_that_forbids_it_is_named(name: str, call, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, name, forbidden)
    with pytest.raises(PermissionError, match=f"{name}: Operation not permitted.*seccomp"):
        call()
