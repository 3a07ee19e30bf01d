"""A job of three ranks with the debug server, whose rank 2 comes to hang in C with the interpreter's lock held."""

from __future__ import annotations

import ctypes
import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import arraycomm
from arraycomm.debug import start_debug_server
from arraycomm.launch.context import SpawnContext

RANKS, LIMIT = 3, 60.0
HOSTILE = "<img src=x onerror=alert(1)>\"'&\\"  # a group's name


def work(rank: int, folder: str, transport: str) -> None:
    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    group = arraycomm.init()
    server = start_debug_server(group)
    if rank == 0:
        assert server.url is not None
        (Path(folder) / "url.new").write_text(server.url)
        os.rename(Path(folder) / "url.new", Path(folder) / "url")
    assert (server.url is None) == (rank != 0)
    operations(group)
    if rank == 2:
        load_the_next_batch(os.path.join(folder, "line"))
    try:
        group.all_reduce(np.ones(3))
    except arraycomm.PeerLost:
        until((Path(folder) / "end").exists)
    group.close()


def operations(group: arraycomm.Group) -> None:
    part = group.split(0, name=HOSTILE)
    assert part is not None
    x = np.ones(1024)
    for _ in range(10):
        group.all_reduce(x)
        part.broadcast(x[:4])
    works = [part.isend(x, (part.rank + 1) % RANKS), part.irecv((part.rank - 1) % RANKS, like=x)]
    for work in works:
        work.wait()
    try:
        group.all_reduce(x, "no such reduction")
    except ValueError:
        group.barrier()


def load_the_next_batch(path: str) -> None:
    """Until somebody opens it for writing, which nobody does. PyDLL: with the interpreter's lock held."""
    ctypes.PyDLL(None).open(path.encode(), os.O_RDONLY)


class Job:
    """The test's side."""

    def __init__(self, context: SpawnContext, folder: Path) -> None:
        self.context, self.folder = context, folder
        self.url = until(lambda: (folder / "url").read_text() if (folder / "url").exists() else "")
        self.agents = until(lambda: self._agents() if len(self._agents()) == RANKS else None)

    def _agents(self) -> list[psutil.Process]:
        children = [psutil.Process(pid).children() for pid in self.context.pids()]
        return [child for its in children for child in its if "arraycomm.monitor.agent" in child.cmdline()]

    def address(self, path: str) -> str:
        return str(self.url).replace("/?", f"/{path}?")

    def ask(self, path: str, method: str = "GET") -> Any:
        with urllib.request.urlopen(urllib.request.Request(self.address(path), method=method), timeout=LIMIT) as answer:
            text = answer.read().decode()
            return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def headline(self, begins: str) -> dict[str, Any]:
        """Waits for a verdict whose headline begins so, and gives the state."""
        def look() -> Any:
            state = self.ask("state")
            return state if state["verdict"]["headline"].startswith(begins) else None

        found: dict[str, Any] = until(look, lambda: self.ask("state")["verdict"]["headline"])
        return found

    def let_go(self) -> None:
        """The ranks that are left end."""
        (self.folder / "end").touch()

    def end(self) -> None:
        self.context.close()
        until(self.gone, lambda: [agent.pid for agent in self.agents])

    def gone(self) -> bool:
        """Whether all agents have ended. What collects orphans may take its time: a zombie has."""
        return all(ended(agent) for agent in self.agents)


def ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def until(look: Callable[[], Any], tell: Callable[[], object] = lambda: "") -> Any:
    """What look() gives once it is true."""
    end = time.monotonic() + LIMIT
    while not (found := look()):
        assert time.monotonic() < end, tell()
        time.sleep(0.05)
    return found


def sent(ranks: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """Bytes that went over TCP from rank to rank, of the connections that have one at both ends."""
    ends = {(c["local"], c["peer"]): rank["rank"] for rank in ranks for c in rank["connections"]}
    found: Counter[tuple[int, int]] = Counter()
    for rank in ranks:
        for c in rank["connections"]:
            if (c["peer"], c["local"]) in ends:
                found[rank["rank"], ends[c["peer"], c["local"]]] += c["sent"]
    return found


def refused(url: str, method: str = "GET", **headers: str) -> int:
    """The status of an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=LIMIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def running(folder: Path, transport: str) -> Iterator[Job]:
    os.mkfifo(folder / "line")
    context = arraycomm.spawn(work, (str(folder), transport), nprocs=RANKS, join=False)
    try:
        job = Job(context, folder)
    except BaseException:
        context.close()
        raise
    try:
        yield job
    finally:
        job.end()
