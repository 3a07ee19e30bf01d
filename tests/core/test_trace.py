"""ARRAYCOMM_TRACE: what the ranks write, what the command makes of it, clocks that go wrong."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import arraycomm
from arraycomm.core.base import settings
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics import trace as core_trace
from arraycomm.core.diagnostics.trace import TraceFile
from arraycomm.core.diagnostics.watch import Watched, Watcher, attach, detach
from arraycomm.core.interface.kinds import RECORDED
from arraycomm.monitor import trace

RANKS = 2


def work(rank: int, folder: str, ending: str) -> None:
    os.environ["ARRAYCOMM_TRACE"] = folder
    group = arraycomm.init()
    x, other = np.ones(4), 1 - rank
    group.all_reduce(x)
    group.all_reduce(x.astype(np.float32), "max")
    reduces, sends, receives = group.all_reduce(x, async_op=True), group.isend(x, other, 7), group.irecv(other, 7, like=x)
    assert reduces.result().tolist() == [2.0] * 4
    assert receives.result().source == other and receives.source() == (other, 7)
    while not sends.done():
        sends.wait()
    with group.batch():
        group.send(x, other)
        received: Any = group.recv(other, like=x)
    assert received.result().array.tolist() == [1.0] * 4
    if rank:
        group.send(x, 0)
    else:
        assert group.recv(like=x).source == 1
    with pytest.raises(ValueError, match="unknown reduction"):
        group.all_reduce(x, "no")
    with pytest.raises(TypeError, match="positional arguments"):
        group.all_reduce(x, "sum", x)  # type: ignore[call-overload]
    part = group.split(0)
    assert part is not None and part.all_gather(x).shape == (8,)
    if ending == "close":
        group.close()
    elif ending == "kill":
        group.barrier()
        os._exit(0)


class Late:
    """A clock that is 5 s behind, as Python reads it; the engine's times are moved in the file, by late()."""

    monotonic_ns = staticmethod(lambda: time.monotonic_ns() - 5_000_000_000)
    time = staticmethod(time.time)


def elsewhere(rank: int, folder: str) -> None:
    """As if rank 1 were on a host with another clock."""
    if rank == 1:
        mock.patch.multiple(core_trace, _clock=lambda: 1, time=Late).start()
    work(rank, folder, "close")


def late(folder: Path) -> None:
    (path,) = folder.glob("*-rank1.json")
    events = json.loads(path.read_text())
    lines = [json.dumps({**event, "ts": event["ts"] - 5e6} if "ts" in event else event) for event in events]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def test_another_clock_is_measured(tmp_path: Path) -> None:
    arraycomm.spawn(elsewhere, (str(tmp_path),), nprocs=RANKS)
    late(tmp_path)
    ranks = trace.read(tmp_path)
    about = ranks[1].about
    assert abs(about["offset_us"] - 5e6) <= about["doubt_us"] + 1 < 1e6 and ranks[0].about["doubt_us"] == 0
    merged = {(e["pid"], e["args"]["sequence"]): (e["ts"], e["ts"] + e["dur"]) for e in trace.merge(ranks)
              if e["ph"] == "X" and e["args"].get("sequence") and e["args"]["group"] == "world" and "error" not in e["args"]}
    most = about["doubt_us"] + 1
    for sequence in (1, 2):
        assert merged[0, sequence][1] + most >= merged[1, sequence][0] and merged[1, sequence][1] + most >= merged[0, sequence][0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trace") / "new"
    arraycomm.spawn(work, (str(place), "close"), nprocs=RANKS)
    return place


def test_every_operation_is_there(folder: Path) -> None:
    for path in folder.glob("*.json"):
        events = json.loads(path.read_text())
        done = [(e["name"], e["ph"], e["args"].get("sequence"), e["args"].get("bytes")) for e in events if e["ph"] not in "Me"]
        message = ("send", "X", None, 32) if path.name.endswith("rank1.json") else ("recv", "X", None, 32)
        assert sorted(done, key=str) == sorted([
            ("all_reduce", "X", 1, 32), ("all_reduce", "X", 2, 16), ("all_reduce", "b", 3, 32), ("isend", "b", None, 32),
            ("irecv", "b", None, 32), ("isend", "b", None, 32), ("irecv", "b", None, 32), message,
            ("all_reduce", "X", 4, 32), ("all_gather", "X", 1, 32)], key=str)
        begun = {e["id2"]["local"]: e["ts"] for e in events if e["ph"] == "b"}
        ended = {e["id2"]["local"]: e["ts"] for e in events if e["ph"] == "e"}
        assert begun.keys() == ended.keys() and all(begun[key] <= ended[key] for key in begun)
        assert {e["args"]["group"] for e in events if e["ph"] in "Xb"} == {"world", "world/1.0"}
        assert [e["args"]["dtype"] for e in events if e["args"].get("sequence") == 2] == ["float32"]
        assert [e["args"]["error"] for e in events if "error" in e["args"]][0].startswith("ValueError: unknown reduction")


def test_the_command_merges_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main([str(folder)]) == 0
    assert "of 2 of 2 ranks on 1 clocks" in capsys.readouterr().out
    events = json.loads((folder / "merged.json").read_text())["traceEvents"]
    times = [e["ts"] for e in events if "ts" in e]
    assert times == sorted(times) and times[0] == 0 and {e["pid"] for e in events} == {0, 1}
    spans = [{(e["args"]["group"], e["args"]["sequence"]): (e["ts"], e["ts"] + e["dur"]) for e in events
              if e["ph"] == "X" and e["pid"] == rank and "error" not in e["args"] and "sequence" in e["args"]}
             for rank in range(RANKS)]
    assert len(spans[0]) == 3 and all(spans[0][key][1] >= spans[1][key][0] for key in spans[0])


def test_a_killed_rank_leaves_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*-rank*.json"):
        text = path.read_text()
        cut = text if path.name.endswith("rank0.json") else text[: len(text) * 2 // 3]
        (tmp_path / path.name).write_text(cut)
    whole, part = trace.read(tmp_path)
    assert 4 < len(part.events) < len(whole.events)
    assert trace.main([str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    assert trace.main([str(tmp_path), "-o", str(tmp_path / "no folder" / "out")]) == 1


def test_what_was_merged_before_and_the_ranks_files_stay(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*-rank*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "merged.json").write_text("mine")
    (tmp_path / "merged-2.json").symlink_to(tmp_path / "nowhere")
    assert trace.main([str(tmp_path)]) == trace.main([str(tmp_path)]) == 0
    assert (tmp_path / "merged.json").read_text() == "mine" and not (tmp_path / "nowhere").exists()
    assert (tmp_path / "merged-3.json").read_text() == (tmp_path / "merged-4.json").read_text()
    rank = next(tmp_path.glob("*-rank0.json"))
    before = rank.read_text()
    with pytest.raises(SystemExit):
        trace.main([str(tmp_path), "-o", str(rank)])
    assert rank.read_text() == before


def test_runs_are_told_apart(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arraycomm.spawn(work, (str(tmp_path), "exit"), nprocs=RANKS)  # not closed: the interpreter's end writes the rest
    for path in folder.glob("*-rank*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    last, first = trace.read(tmp_path)[0].about["run"], trace.read(folder)[0].about["run"]
    assert last != first and trace.read(tmp_path, first)[1].about["run"] == first
    assert len(trace.read(tmp_path)[0].events) == len(trace.read(folder)[0].events)
    assert trace.main([str(tmp_path), "--run", "no"]) == 1 and "runs there:" in capsys.readouterr().err
    assert trace.main([str(tmp_path / "nowhere")]) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARRAYCOMM_TRACE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="ARRAYCOMM_TRACE: .*file"):
        arraycomm.init(store=None, rank=0, world_size=1, init_method=None)


def test_nothing_is_watched_without_it() -> None:
    assert settings.get("ARRAYCOMM_TRACE", {}) == ""
    with arraycomm.init() as group:
        assert type(group) is arraycomm.Group
        watcher = Counter()
        attach(group, watcher)
        assert type(group) is Watched
        group.barrier()
        detach(group, watcher)
        group.barrier()
        assert type(group) is arraycomm.Group and watcher.count == 1


class Counter(Watcher):
    count = 0

    def begin(self, call: object) -> None:
        self.count += 1


def measured(rank: int, clock: str, offset: float, doubt: float, at: float) -> trace.Rank:
    found = trace.Rank.__new__(trace.Rank)
    found.about = {"run": "r", "rank": rank, "size": 3, "clock": clock, "offset_us": offset, "doubt_us": doubt}
    found.events = [{"ph": "X", "name": "barrier", "pid": rank, "tid": rank, "ts": at, "dur": 1.0, "args": {}}]
    return found


def test_of_the_ranks_of_a_clock_the_surest_measurement_counts() -> None:
    ranks = [measured(0, "a", 0.0, 0.0, 100.0), measured(1, "b", 1e8 + 40, 50.0, -1e8),
             measured(2, "b", 1e8 + 130, 5.0, 20.0 - 1e8)]
    assert {event["pid"]: event["ts"] for event in trace.merge(ranks)} == {0: 0.0, 1: 30.0, 2: 50.0}


def several_clocks(rank: int) -> tuple[int, int]:
    """Ranks 1 and 3 are on a host whose clock is 5 s behind."""
    with arraycomm.init() as group:
        if rank % 2:
            mock.patch.multiple(core_trace, _clock=lambda: 1, time=Late).start()
        return core_trace._agree(group)[2:]


def test_each_rank_of_another_clock_measures_it() -> None:
    for rank, (offset, doubt) in enumerate(arraycomm.spawn(several_clocks, nprocs=4)):
        assert abs(offset - 5e9 * (rank % 2)) <= doubt < 1e9 and (doubt > 0) == bool(rank % 2)


def test_a_forked_child_that_closes_the_group_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRACE", str(tmp_path))
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
        assert isinstance(group, Watched)
        child = os.fork()
        if not child:
            group._watchers[0].closed(group)  # what close() calls
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        group.barrier()
    (path,) = tmp_path.iterdir()
    assert [event["name"] for event in json.loads(path.read_text()) if event["ph"] == "X"] == ["barrier"]


def _aborted(group: arraycomm.Group) -> None:
    group.abort("enough")
    with pytest.raises(arraycomm.Aborted):
        group.barrier()


CALLS: dict[str, Callable[[arraycomm.Group, Any], Any]] = {
    "plain": lambda group, x: group.all_reduce(x, "max"),
    "root": lambda group, x: group.broadcast(x, root=0),
    "barrier": lambda group, x: group.barrier(),
    "asynchronous": lambda group, x: group.all_gather(x, async_op=True).result(),
    "messages": lambda group, x: [work.wait() for work in (group.isend(x, 0, 3), group.irecv(0, 3, like=x))],
    "messages by NumPy's integers": lambda group, x: [work.wait() for work in (group.isend(x, np.int64(0), np.int64(3)),
                                                                              group.irecv(np.int64(0), np.int64(3), like=x))],
    "refused": lambda group, x: pytest.raises(ValueError, group.all_reduce, x, "no such \"reduction\""),
    "aborted": lambda group, x: _aborted(group),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_calls_are_traced_alike_beside_another_watcher(call: Callable[[arraycomm.Group, Any], Any], tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for watchers in ([], [Watcher()]):
        monkeypatch.setenv("ARRAYCOMM_TRACE", str(tmp_path / str(len(watchers))))
        with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
            for watcher in watchers:
                attach(group, watcher)
            for _ in range(2):
                call(group, np.ones((2, 3)))
        (path,) = (tmp_path / str(len(watchers))).iterdir()
        events = [event for event in json.loads(path.read_text()) if event["ph"] != "M"]
        for event in events:
            assert event.pop("ts") > 0 and event.pop("dur", 0) >= 0 and event["args"].pop("called_us", 0) >= 0
            assert all(type(event["args"].get(name, 0)) is int for name in ("root", "dest", "source", "tag")), event
        found.append(events)
    assert found[0] == found[1] and found[0] and all(event["tid"] == threading.get_native_id() for event in found[0])


class Teller:
    """What a TraceFile asks."""

    def __init__(self) -> None:
        self.failures: list[int] = []

    def failed(self, number: int) -> None:
        self.failures.append(number)

    def error(self, error: BaseException) -> bytes:
        raise RuntimeError("no text")


HEADS = tuple(json.dumps({"name": name})[1:-1].encode() for name in RECORDED)


def test_lines_of_several_threads_are_whole(tmp_path: Path) -> None:
    """More than is kept, so that threads write while others go on; with a name longer than all that is."""
    path, name = tmp_path / "trace", "n" * 3000
    file = TraceFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), HEADS, Teller())
    rows = [file.add_group(json.dumps(text).encode()) for text in (name, "b", "c", "d")]
    file.flush(b"[{}")

    def tell(row: int) -> None:
        for number in range(1000):
            entry = file.begin(row, 8, -1, b',"kind":%d' % number, 0)
            entry.mark(number % 2)
            entry.end(None)

    threads = [threading.Thread(target=tell, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close(b"]")
    file.begin(0, 8, -1, b"", 0).end(None)  # it has an end
    events = json.loads(path.read_text())[1:]
    assert len(events) == 4 * 1500 and {event["name"] for event in events} == {"barrier"}
    for text in (name, "b", "c", "d"):
        mine = [event["args"] for event in events if event["args"].get("group") == text]
        assert sorted((about["sequence"], about["kind"]) for about in mine) == [(n + 1, n) for n in range(1000)]


def test_nothing_follows_the_end_of_a_file_whose_threads_go_on(tmp_path: Path) -> None:
    def tell(file: TraceFile, row: int, stop: threading.Event) -> None:
        while not stop.is_set():
            file.begin(row, 8, -1, b"", 0).end(None)
            file.flush()

    for turn in range(40):
        path, stop = tmp_path / str(turn), threading.Event()
        file = TraceFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), HEADS, Teller())
        row = file.add_group(b'"g"')
        file.flush(b"[{}")
        threads = [threading.Thread(target=tell, args=(file, row, stop)) for _ in range(4)]
        for thread in threads:
            thread.start()
        file.close(b"]")
        stop.set()
        for thread in threads:
            thread.join()
        assert all(event["name"] == "barrier" for event in json.loads(path.read_text())[1:])


def test_a_file_that_cannot_be_written_ends_and_the_program_goes_on(caplog: pytest.LogCaptureFixture, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    teller = Teller()
    file = TraceFile(os.open("/dev/full", os.O_WRONLY), HEADS, teller)
    entries = [file.begin(file.add_group(b'"g"'), 8, -1, b"", 0) for _ in range(2)]
    entries[0].end(None)
    file.flush()
    entries[1].end(None)
    file.close(b"")
    assert teller.failures == [errno.ENOSPC]
    monkeypatch.setenv("ARRAYCOMM_TRACE", str(tmp_path))
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group, caplog.at_level(logging.WARNING):
        core_trace.Trace.failed(group._watchers[0], errno.ENOSPC)  # type: ignore[attr-defined]
        assert "the trace of rank 0 ends here" in caplog.text and "No space left" in caplog.text


def test_an_error_without_a_text_is_one_all_the_same(tmp_path: Path) -> None:
    file = TraceFile(os.open(tmp_path / "trace", os.O_WRONLY | os.O_CREAT), HEADS, Teller())
    file.begin(file.add_group(b'"g"'), 8, -1, b"", 0).end(OSError("why"))
    file.close(b"")
    event = json.loads((tmp_path / "trace").read_text()[2:])
    assert event["args"]["error"].startswith("unknown") and event["args"]["sequence"] == 1


def test_a_close_that_raises_is_told() -> None:
    """As it does for a root whose broadcast no peer came to."""
    class Ends(Watcher):
        def closed(self, group: arraycomm.Group) -> None:
            ended.append(group.name)

    def raises() -> None:
        raise arraycomm.PeerLost("no peer came")

    ended: list[str] = []
    with arraycomm.init(rank=0, world_size=1) as world:
        part = world.split(0)
        assert part is not None
        attach(part, Ends())
        part._end_with(raises)
        with pytest.raises(arraycomm.PeerLost, match="no peer came"):
            part.close()
        assert ended == [part.name]
