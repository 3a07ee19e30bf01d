"""A page that shows what the ranks of a job do: which one is late, since when, and where it is.

    from arraycomm.debug import start_debug_server
    server = start_debug_server(group)
    print(server.url)  # on rank 0

It is loaded, and has overhead, only if it is started. docs/guide/debug.md
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import subprocess
import sys
import weakref
from collections.abc import Collection
from typing import Any

from arraycomm.core.base import kernel, settings
from arraycomm.core.base.errors import DistBackendError, DistNetworkError
from arraycomm.core.base.log import log
from arraycomm.core.bootstrap import secret as job_secret
from arraycomm.core.bootstrap.address import loopback_address, outside_address, select_addresses
from arraycomm.core.bootstrap.environment import IMPORTED_FROM
from arraycomm.core.group.group import Group

from . import dumps
from .board import EXITED, STOPPED, Board
from .recorder import Recorder
from .stacks import StackFile

__all__ = ["DebugServer", "start_debug_server"]

_END = 5.0  # s that a process may take to end


def start_debug_server(group: Group, port: int = 0, *, timeout: float = 5.0, dump_dir: str | os.PathLike[str] | None = None,
                       dump_interval: float = 60.0, enabled_dumps: Collection[str] | None = None) -> DebugServer:
    """Records what the ranks of a world do and serves a page that shows it. Collective: all ranks of `group` call it.

    port: where rank 0 serves it, on 127.0.0.1 or ARRAYCOMM_DEBUG_ADDRESS; 0 takes a free one. The address with its token is the
    result's `url` on rank 0, and is logged there, without a token that ARRAYCOMM_DEBUG_TOKEN gave.
    timeout: seconds that the page waits for stacks of ranks that do not answer.
    dump_dir: a folder of rank 0's host, made where it is missing, into which the page's contents are written every
    dump_interval seconds: "stacks" (text) and "fr_trace" (JSON, as /state), or those that enabled_dumps names, of these and
    "metrics": arraycomm.prom, for the text file collector of Prometheus' node_exporter.

    Groups split from this one are shown too. It ends with close(), or when all ranks have closed the group or ended.
    Raises TypeError and ValueError for wrong arguments, and on all ranks DistBackendError when one of them cannot start its
    part: the port is taken, say, or ranks on several hosts have no secret, or a page beyond loopback has no token of yours
    (SECURITY.md).
    """
    if not isinstance(group, Group):
        raise TypeError(f"start_debug_server() takes a Group, as arraycomm.init() gives it; got {type(group).__name__}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"start_debug_server() takes a port from 0 to 65535, got {port!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"start_debug_server() takes a timeout in seconds above 0, got {timeout!r}")
    return DebugServer(group, port, timeout, dumps.check(dump_dir, dump_interval, enabled_dumps))


class DebugServer:
    """One rank's part. url: the page's address on rank 0, None on the others."""

    def __init__(self, group: Group, port: int, timeout: float, dumped: dict[str, Any] | None) -> None:
        self.url: str | None = None
        self._closed = False
        self._board = Board()
        self._stacks: StackFile | None = None
        self._process: subprocess.Popen[str] | None = None
        self._page: subprocess.Popen[str] | None = None  # rank 0's agent, after its group has been closed
        self._recorder: Recorder | None = None
        try:
            self._start(group, port, timeout, dumped)
        except BaseException:
            self.close()
            raise
        self._recorder = Recorder(group, self._board, self._release)
        atexit.register(self._exited)
        _servers.add(self)

    def __enter__(self) -> DebugServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends this rank's part: it is no longer recorded and, on rank 0, the page is gone. Idempotent, not collective."""
        if self._recorder is not None:
            self._recorder.stop()
        if self._process is not None:
            self._board.end(STOPPED)
        self._release(at_once=True)
        if self._page is not None:
            self._page.terminate()
            self._page.wait()

    # ---- starting ----

    def _start(self, group: Group, port: int, timeout: float, dumped: dict[str, Any] | None) -> None:
        _lingering[:] = [process for process in _lingering if process.poll() is None]
        hosts = group.all_gather_object([_host(), _address()])
        host = loopback_address() if len({name for name, _ in hosts}) == 1 else hosts[0][1]  # rank 0's where they don't share one
        orders = {"rank": group.rank, "size": group.size, "world": group.name, "pid": os.getpid(), "host": host}
        if group.rank == 0:
            chosen = settings.get("ARRAYCOMM_DEBUG_TOKEN")
            token, here = chosen or secrets.token_urlsafe(16), settings.get("ARRAYCOMM_DEBUG_ADDRESS") or loopback_address()
            told = self._ask({**orders, "job": secrets.token_hex(16), "store_port": 0, "port": port, "token": token,
                              "address": here, "chosen": bool(chosen), "timeout": timeout, "dumps": dumped})
            group.broadcast_object({name: told[name] for name in ("error", "store_port", "job") if name in told})
        else:
            told = group.broadcast_object(None)
            if "error" not in told:
                told = self._ask({**orders, **told})
        errors = [f"rank {rank}: {error}" for rank, error in enumerate(group.all_gather_object(told.get("error"))) if error]
        if errors:
            raise DistBackendError(f"the debug server of group {group.name!r} cannot be started: {errors[0]}")
        if group.rank == 0:
            page = f"http://{f'[{here}]' if ':' in here else here}:{told['port']}/"
            self.url = f"{page}?token={token}"
            log().warning("the debug page of group %r is at %s", group.name, page if chosen else self.url)

    def _ask(self, orders: dict[str, Any]) -> dict[str, Any]:
        """Starts this rank's agent process; returns its reply, with the configuration that the other ranks need too.

        An error is returned, not raised: the other ranks wait for this rank's reply.
        """
        try:
            self._stacks = StackFile()
            orders = {**orders, "secret": (job_secret.find() or b"").hex(), "board": self._board.descriptor,
                      "stacks": self._stacks.descriptor, "signal": self._stacks.number}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arraycomm.monitor.agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                pass_fds=(self._board.descriptor, self._stacks.descriptor), start_new_session=True,
                cwd=IMPORTED_FROM)
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(orders) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            self._process.stdout.close()
            told = json.loads(line) if line else {"error": "its process ended; see its output above"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"job": orders["job"], **told}

    # ---- ending ----

    def _exited(self) -> None:
        self._board.end(EXITED)

    def _release(self, at_once: bool = False) -> None:
        """at_once False: the group has been closed. The agent reports that; rank 0's serves until all groups are closed."""
        atexit.unregister(self._exited)
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # wakes it
            self._wait(process, at_once)
        if not self._closed:
            self._closed = True
            if self._stacks is not None:
                self._stacks.close()  # after the agent: without the handler, the agent's signal would kill this process
            self._board.close()

    def _wait(self, process: subprocess.Popen[str], at_once: bool) -> None:
        if at_once or self.url is None:
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        else:
            self._page = process
            _lingering.append(process)

    def _forget(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()  # the board belongs to the parent
        atexit.unregister(self._exited)
        self._recorder, self._process, self._page, self._closed = None, None, None, True


_lingering: list[subprocess.Popen[str]] = []  # agents of rank 0 that wait for the other ranks' end
_servers: weakref.WeakSet[DebugServer] = weakref.WeakSet()


def _forked() -> None:
    """Runs in a forked child: the child's activity and exit must not be reported as the rank's."""
    for server in _servers:
        server._forget()


os.register_at_fork(after_in_child=_forked)


def _host() -> str:
    """The host's identity, equal for processes that reach each other by loopback: same kernel, same network namespace."""
    return f"{kernel.boot_id()} {os.readlink('/proc/self/ns/net')} {socket.gethostname()}"


def _address() -> str:
    """The address at which other hosts reach this one; loopback if there is none."""
    try:
        return (select_addresses() or [outside_address()])[0]
    except DistNetworkError:
        return loopback_address()
