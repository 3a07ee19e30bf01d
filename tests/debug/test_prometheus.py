"""A real Prometheus, configured by the recipe, answers what the board asks, and a real node_exporter serves the file of metrics.

Debian's packages prometheus and prometheus-node-exporter have the programs: installed, or unpacked and on PATH.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.bootstrap.address import outside_address
from arraycomm.debug import start_debug_server

from ..ports import free_port
from .jobs import running, until

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "guide" / "recipes"
TOKEN = "the token of this test"


@contextlib.contextmanager
def started(folder: Path, *command: str) -> Iterator[str]:
    """The address at which this program serves."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()
        print((folder / "log").read_text())


def fetched(url: str) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())
    return ""


def found(prometheus: str, expression: str) -> list[Any]:
    answer = json.loads(fetched(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})) or "{}")
    return list(answer.get("data", {}).get("result", []))


def test_each_panel_of_the_board_shows_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_DEBUG_ADDRESS", outside_address())
    monkeypatch.setenv("ARRAYCOMM_DEBUG_TOKEN", TOKEN)
    config = (RECIPES / "prometheus.yml").read_text().replace("10s", "1s")
    board = json.loads((RECIPES / "grafana.json").read_text())
    with running(tmp_path, "tcp") as job:
        (tmp_path / "prometheus.yml").write_text(config.replace("127.0.0.1:25999", job.url.split("/")[2]))
        (tmp_path / "token").write_text(TOKEN)
        with started(tmp_path, "prometheus", "--config.file=prometheus.yml") as prometheus:
            for panel in board["panels"]:
                for target in panel["targets"]:
                    until(partial(found, prometheus, target["expr"]))
            assert found(prometheus, "arraycomm_ranks")[0]["value"][1] == "3"


def test_node_exporter_serves_the_file(tmp_path: Path) -> None:
    with (arraycomm.init() as group,
          start_debug_server(group, dump_dir=tmp_path, dump_interval=0.1, enabled_dumps={"metrics"}),
          started(tmp_path, "prometheus-node-exporter", f"--collector.textfile.directory={tmp_path}") as exporter):
        group.all_reduce(np.ones(2))
        until(lambda: 'arraycomm_operations_total{operation="all_reduce",rank="0"} 1' in fetched(f"{exporter}/metrics"))
        assert "node_textfile_scrape_error 0" in fetched(f"{exporter}/metrics")
