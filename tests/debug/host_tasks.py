"""What the ranks of test_hosts.py are asked. Tasks for tests/faults/job.py."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import numpy as np

from arraycomm.debug import start_debug_server

from ..faults.job import Context


def page(context: Context) -> Any:
    """Of rank 0: the page's state once all ranks have reported what they did, and their stacks."""
    group = context.world
    with start_debug_server(group) as server:
        for _ in range(10):
            group.all_reduce(np.ones(100_000))
        found = _look(server.url, group.size) if server.url is not None else None
        group.barrier()
        return found


def _look(url: str, size: int) -> tuple[Any, Any]:
    end = time.monotonic() + 20
    while True:
        state = _ask(url.replace("/?", "/state?"))
        if [row["calls"] for rank in state["ranks"] for row in rank["counts"]] == [10] * size or time.monotonic() > end:
            return state, _ask(url.replace("/?", "/stacks?"), "POST")
        time.sleep(0.1)


def _ask(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
        return json.load(answer)
