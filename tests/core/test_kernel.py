"""A Python that was built for an old glibc runs everything that starts ranks and shares memory."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from arraycomm.core.base import kernel

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


def _forbidden(*_: object) -> int:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_filter_that_forbids_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", _forbidden)
    with pytest.raises(PermissionError, match="memfd_create: Operation not permitted.*seccomp"):
        kernel.memory_file("test")


def test_a_file_that_need_not_be_sealed_is_found_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", _forbidden)
    with open(kernel.unnamed_file("test"), "r+b", buffering=0) as file:
        status = os.fstat(file.fileno())
        assert (status.st_nlink, status.st_mode & 0o777) == (0, 0o600) and not os.get_inheritable(file.fileno())
        assert file.write(b"kept") == 4 and os.pread(file.fileno(), 9, 0) == b"kept"


def test_files_that_must_not_be_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As sysctl vm.memfd_noexec=2 has it."""
    create, tried = os.memfd_create, []

    def strict(name: str, flags: int) -> int:
        tried.append(flags)
        if not flags & 8:
            raise PermissionError(errno.EACCES, "Permission denied")
        return create(name, flags & ~8)

    monkeypatch.setattr(os, "memfd_create", strict)
    os.close(kernel.memory_file("test", sealable=True))
    assert len(tried) == 2


def test_an_end_is_heard_of_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", _forbidden)
    with subprocess.Popen(["sleep", "600"]) as child:
        descriptor = kernel.process_descriptor(child.pid)
        assert not select.select([descriptor], [], [], 0)[0] and not os.get_inheritable(descriptor)
        child.kill()
        assert select.select([descriptor], [], [], 60)[0]
        assert child.wait() == -signal.SIGKILL  # nobody else has waited for it
    os.close(descriptor)
