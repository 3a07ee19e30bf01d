"""Launcher, spawn and groups together: who is blamed when a rank fails inside a collective."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

import numpy as np
import pytest

import arraycomm
from arraycomm.launch.errors import ProcessExitedException, ProcessRaisedException

from ..ports import free_port
from .test_run import launch, script, start

__all__ = ["script"]  # a fixture

BODY = """
    import numpy as np
    import arraycomm
    with arraycomm.init(timeout=60) as group:
        for i in range(1000):
            total = group.all_reduce(np.full(4, group.rank))
            if i == 5 and group.rank == 1 and len(sys.argv) > 1:
                if sys.argv[1] == 'raise':
                    raise ValueError('the cause')
                os.kill(os.getpid(), signal.SIGKILL)
    print(total.tolist())
    """


def test_a_group_under_two_launchers_at_once(script: Callable[[str], str]) -> None:
    both = [start("--nproc-per-node", "3", script(BODY)) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and out.count("[3, 3, 3, 3]") == 3, err


@pytest.mark.parametrize(("how", "code", "end", "last"), [
    ("raise", 1, "exited with code 1", "ValueError: the cause"), ("kill", 137, "was killed by SIGKILL", None)])
def test_the_launcher_blames_the_cause(script: Callable[[str], str], how: str, code: int, end: str, last: str | None) -> None:
    done = launch("--nproc-per-node", "4", script(BODY), how, timeout=60)
    headline = re.findall(r"arraycomm-run: (rank \d+) \(.*?\) (.*)", done.stderr)[-1]
    assert done.returncode == code and headline[0] == "rank 1" and headline[1].startswith(end), done.stderr
    assert last is None or done.stderr.splitlines()[-1] == last


def test_a_program_that_meets_elsewhere(script: Callable[[str], str]) -> None:
    """Its rank 0 serves the store there, though the launcher has told torch's programs to join one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = launch("--nproc-per-node", "3", script(f"\n    os.environ['MASTER_PORT'] = '{port}'" + BODY), timeout=60)
    assert done.returncode == 0 and done.stdout.count("[3, 3, 3, 3]") == 3, done.stderr


def collective(rank: int, how: str) -> None:
    with arraycomm.init(timeout=60) as group:
        for i in range(1000):
            group.all_reduce(np.full(4, rank))
            if i == 5 and rank == 1:
                if how == "raise":
                    raise ValueError("the cause")
                import os

                os._exit(9)


def test_spawn_raises_the_cause() -> None:
    with pytest.raises(ProcessRaisedException, match="rank 1 .*raised ValueError: the cause"):
        arraycomm.spawn(collective, ("raise",), nprocs=3)
    with pytest.raises(ProcessExitedException, match="rank 1 .*exited with code 9"):
        arraycomm.spawn(collective, ("exit",), nprocs=3)


def meet_by_torch(rank: int, port: int) -> None:
    from torch.distributed.rendezvous import rendezvous

    os.environ["MASTER_PORT"] = str(port)  # as functions that are written for torch's own spawn do
    store, own, size = next(rendezvous("env://"))
    assert (own, size) == (rank, 2)
    store.set(f"from {rank}", "here")
    assert store.get(f"from {1 - rank}") == b"here"
    if rank == 0:  # which serves the store: it ends with this rank
        store.get("rank 1 has read")
    else:
        store.set("rank 1 has read", "yes")


def test_torch_meets_where_a_spawned_function_says() -> None:
    """Told to join the store of spawn(), its rank 0 served nothing there."""
    pytest.importorskip("torch")  # here, for both ranks
    arraycomm.spawn(meet_by_torch, (free_port(),), nprocs=2, start_method="fork")
