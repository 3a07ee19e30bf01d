"""A rank's agent process: reads the rank's board periodically and reports to the server. `python -m arraycomm.monitor.agent`.

A process, not a thread: it keeps running, and reports, if the rank holds the GIL, is stopped or dies. It reads its configuration
as a line of JSON from its standard input (so the secret is neither in arguments nor in the environment), writes a line as reply,
and exits when the rank closes it or its group, or has died. Rank 0's agent also serves the page (server.py), until all ranks
have ended.

Reports go through a store (core/bootstrap/store) that rank 0's agent serves only for this purpose, authenticated like every
connection of the job.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

from arraycomm.core.base.errors import DistError
from arraycomm.core.bootstrap.store import TCPStore

from .board import CLOSED, EXITED, INTERVAL, STACKS, STOPPED, WATCHED, Board, describe, no_stacks
from .process import Process, connections
from .stacks import ask

_TIMEOUT = timedelta(seconds=30)
_HOW = {CLOSED: "closed", EXITED: "exited", STOPPED: "unrecorded"}


class Agent:
    """One rank's agent."""

    def __init__(self, orders: dict[str, Any], store: TCPStore) -> None:
        self._rank, self._pid, self._store = orders["rank"], orders["pid"], store
        self._board, self._stack_signal = Board(orders["board"]), (orders["signal"], orders["stacks"])
        self._process = Process(self._pid)
        self._count = 0
        self._answered = [int(word) for word in store.multi_get([STACKS, WATCHED])]

    def run(self) -> bool:
        """Reports until the rank has ended. True if the rank continues and only its recording has ended."""
        line = [0]
        while not self.look():
            if select.select(line, [], [], INTERVAL)[0]:  # EOF: the rank has ended
                line = []  # or called exec(): the end of the stream is handled once
        self._store.check([STACKS])  # a round trip: afterwards the last report is in the store
        return self._board.ended == STOPPED

    def look(self) -> str:
        """Reports once; returns how the rank ended, or "" if it runs."""
        gone = os.getppid() != self._pid  # checked before the board is read, so that the rank's last writes are seen
        ended = _HOW.get(self._board.ended, "died" if gone else "")
        report = self.report(ended)
        stacks, watched = (int(word) for word in self._store.multi_get([STACKS, WATCHED]))
        if watched != self._answered[1]:
            self._store.set(f"records/{self._rank}", json.dumps(self._records()))
        self._store.set(f"report/{self._rank}", json.dumps(report))
        if stacks != self._answered[0]:
            self._store.set(f"stacks/{self._rank}", json.dumps({"request": stacks, "text": self._stacks(ended)}))
        self._answered = [stacks, watched]
        return ended

    def report(self, ended: str) -> dict[str, Any]:
        self._count += 1
        board, records, now = self._board, self._board.read_records(), time.monotonic_ns()
        texts = board.read_texts()  # after the records: a record's text is always written before the record
        groups = _groups(texts)
        last = max((record for record in records if record[2]), key=lambda record: record[2], default=None)
        return {"rank": self._rank, "count": self._count, "time": now / 1e9, "host": socket.gethostname(), "pid": self._pid,
                "ended": ended, "process": {} if ended else self._process.look(),
                "groups": [{**about, **board.read_group(row)} for row, about in groups.items()],
                "open": [describe(record, texts, groups, now) for record in records if not record[2]],
                "last": describe(last, texts, groups, now) if last else None,
                "counts": board.read_counts(),
                "links": [{"group": groups[text["row"]]["group"], "peer": text["peer"],
                           "bytes": board.words[board.links + text["link"]]} for text in texts if "link" in text],
                **self._connections(ended)}

    def _connections(self, ended: str) -> dict[str, Any]:
        try:
            return {"connections": [] if ended else connections(self._pid)}
        except OSError as error:
            return {"connections": [], "connections_error": f"the kernel does not report TCP connections here: {error}"}

    def _records(self) -> list[dict[str, Any]]:
        records, now = self._board.read_records(), time.monotonic_ns()
        texts = self._board.read_texts()
        groups = _groups(texts)
        return [describe(record, texts, groups, now) for record in records]

    def _stacks(self, ended: str) -> str:
        if ended:
            return no_stacks(ended)
        try:
            text = ask(self._pid, *self._stack_signal)
        except OSError as error:
            return f"No stacks: {error}"
        state = self._process.look().get("state", "gone")
        return text or f"No answer within a second: the process is {state}."


def _groups(texts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The description of each group, by its row on the board."""
    return {text["row"]: {name: text[name] for name in ("group", "rank", "size")} for text in texts if "group" in text}


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent ends with its rank
    orders = json.loads(sys.stdin.readline())
    try:
        store = TCPStore(orders["host"], orders["store_port"], is_master=orders["rank"] == 0, timeout=_TIMEOUT,
                         secret=bytes.fromhex(orders["secret"]), job=orders["job"])
        server = None
        if orders["rank"] == 0:
            from .server import Server  # imported on demand: it loads http.server, which only rank 0 needs

            store.multi_set([STACKS, WATCHED], ["0", "0"])
            server = Server(store, orders)
        agent = Agent(orders, store)
    except (DistError, OSError, ValueError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    print(json.dumps({"store_port": store.port, "port": server.port if server else 0}), flush=True)
    return _serve(agent, server, store)


def _serve(agent: Agent, server: Any, store: TCPStore) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # a reader of the rank's output must see EOF when the rank exits
        os.dup2(null, descriptor)
    try:
        stopped = agent.run()
        if server is not None and not stopped:
            server.linger()
    except DistError:
        return 1  # rank 0's agent and its store have gone
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
