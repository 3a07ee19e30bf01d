"""The page's contents, written into a folder periodically: for users who look only after the job has ended.

Files are named as those of torch's debug server, stacks_20261128_101500.txt and so on, and appear atomically. The metrics are one
file, arraycomm.prom, for the text file collector of node_exporter.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arraycomm.core.base.errors import DistError
from arraycomm.core.base.log import log

from .board import INTERVAL

if TYPE_CHECKING:
    from .server import Server

NAMES = ("stacks", "fr_trace")  # torch's, in the order in which they are written
KNOWN = (*NAMES, "metrics")


def check(folder: Any, interval: Any, enabled: Any) -> dict[str, Any] | None:
    """The arguments for Dumps(); None if folder is None. TypeError and ValueError for invalid arguments."""
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0 < interval <= threading.TIMEOUT_MAX:
        raise ValueError(f"start_debug_server() takes a dump_interval in seconds above 0, got {interval!r}")
    if enabled is not None and (isinstance(enabled, str) or not isinstance(enabled, Collection)):
        raise TypeError(f"start_debug_server() takes a set of names as enabled_dumps, of {', '.join(KNOWN)}; got {enabled!r}")
    unknown = sorted(repr(name) for name in enabled or () if name not in KNOWN)
    if unknown:
        raise ValueError(f"start_debug_server() writes the dumps {', '.join(KNOWN)}; enabled_dumps has {', '.join(unknown)}")
    if folder is None:
        return None
    names = [name for name in KNOWN if name in (NAMES if enabled is None else enabled)]
    return {"folder": os.path.abspath(os.fsdecode(folder)), "interval": interval, "names": names}


class Dumps:
    """Runs in rank 0's agent, in its own thread. Raises OSError if files cannot be created in the folder."""

    def __init__(self, server: Server, orders: dict[str, Any], limit: float) -> None:
        self._server, self._limit = server, limit
        self._folder, self._interval = Path(orders["folder"]), orders["interval"]
        known: dict[str, Callable[[], str]] = {"stacks": self._stacks, "fr_trace": self._records, "metrics": server.metrics}
        self._kinds = {name: known[name] for name in orders["names"]}
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        until = time.monotonic() + self._limit
        while len(self._server.reports()) < self._server.size and time.monotonic() < until:
            time.sleep(INTERVAL / 2)
        while True:
            try:
                for name, text in self._kinds.items():
                    self._write(name, text())
            except DistError:  # the store is closed: this process is ending
                return
            except OSError as error:  # possibly temporary, as a full disk
                log().warning("a dump of the debug server is not written: %s", error)
            time.sleep(self._interval)

    def _write(self, name: str, text: str) -> None:
        made, path = tempfile.mkstemp(dir=self._folder, prefix=".")
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        if name == "metrics":
            os.chmod(path, 0o644)  # node_exporter has a user of its own
        os.replace(path, self._folder / ("arraycomm.prom" if name == "metrics" else time.strftime(f"{name}_%Y%m%d_%H%M%S.txt")))

    def _stacks(self) -> str:
        return "\n".join(f"=== Rank {rank} ===\n{text}" for rank, text in self._server.stacks().items())

    def _records(self) -> str:
        self._server.state()  # requests the ranks' records
        time.sleep(2 * INTERVAL)
        return json.dumps(self._server.state(), indent=1)
