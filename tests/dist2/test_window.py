"""One-sided windows: what ranks do to each other's arrays, over memory and over TCP."""

from __future__ import annotations

import array
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm import dist2
from arraycomm.core.group import served

from .groups import LIMIT, on_ranks, open_group

LONG = 300_000  # float64: beyond what is sent at once


@pytest.fixture(params=["auto", "tcp"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", request.param)
    return str(request.param)


def test_put_and_signal() -> None:
    def work(group: Any) -> list[float]:
        me, size = group.rank(), group.size()
        window = group.new_window(mine := np.zeros(4))
        right, left = (me + 1) % size, (me - 1) % size
        assert window.put(np.array([me + 1.0, me + 2.0]), right, 1).is_completed()
        window.signal(right)
        assert window.wait_signal(left).is_success()
        found: list[float] = mine.tolist()
        window.tensor_deregister()
        return found

    assert on_ranks(4, work) == [[0.0, r + 1.0, r + 2.0, 0.0] for r in (3, 0, 1, 2)]


def test_get_reads_what_its_owner_never_gave() -> None:
    def work(group: Any) -> None:
        window = group.new_window(np.arange(float(LONG)) + group.rank())
        for source in range(group.size()):  # oneself among them
            works = [window.get(y := np.zeros(LONG), source, async_op=True),
                     window.get(tail := np.zeros(3), source, LONG - 3, True)]
            assert all(work.wait() for work in works) and works[0].result()[0] is y
            assert y[0] == source and y[-1] == LONG - 1 + source and tail.tolist() == y[-3:].tolist()
        window.fence()
        window.tensor_deregister()

    on_ranks(3, work)


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_accumulate_is_atomic(name: str) -> None:
    op, times = getattr(dist2.ReduceOp, name), 5

    def work(group: Any) -> list[int]:
        me = group.rank()
        window = group.new_window(mine := np.full(LONG // 50, 6))
        for _ in range(times):
            for target in range(group.size()):
                window.accumulate(np.full(LONG // 50, me + 2), target, op=op)
        window.fence()
        assert (mine == mine[0]).all()
        value = int(mine[0])
        window.tensor_deregister()
        return [value]

    expected = {"SUM": 6 + times * 9, "PRODUCT": 6 * 24**times, "MIN": 2, "MAX": 6, "BAND": 0, "BOR": 7, "BXOR": 6 ^ 2 ^ 3 ^ 4}
    assert on_ranks(3, work) == [[expected[name]]] * 3


def test_one_ranks_operations_take_effect_in_their_order() -> None:
    def work(group: Any) -> None:
        me, peer, random_of = group.rank(), 1 - group.rank(), random.Random(group.rank())
        window, model, length = group.new_window(np.zeros(2 * LONG)), np.zeros(LONG), LONG
        works = []
        for turn in range(60):  # each rank in a half of its own, of the peer's array
            count = random_of.choice([1, 7, 1000, length])
            at, value = random_of.randrange(length - count + 1), np.full(count, float(turn))
            if turn % 3:
                works.append(window.put(value, peer, me * length + at, async_op=True))
                model[at:at + count] = value
            else:
                works.append(window.accumulate(value, peer, me * length + at, async_op=True))
                model[at:at + count] += value
        window.get(seen := np.zeros(length), peer, me * length)
        assert (seen == model).all() and all(work.wait() for work in works)
        window.fence()
        window.tensor_deregister()

    on_ranks(2, work)


def test_a_get_reads_what_was_there_before_what_its_rank_asked_next() -> None:
    """Long enough to be under way when the next request comes."""
    count = 10 * LONG

    def work(group: Any) -> None:
        me, peer = group.rank(), 1 - group.rank()
        window = group.new_window(mine := np.zeros(count))
        for turn in range(1, 4):
            window.put(np.full(count, float(turn + me)), peer)
            works = [window.get(seen := np.zeros(count), peer, async_op=True),
                     window.put(np.full(count, -1.0), peer, async_op=True)]
            assert all(work.wait() for work in works) and (seen == turn + me).all()
            window.get(last := np.zeros(count), peer, async_op=True)
            window.signal(peer)
            window.wait_signal(peer)
            mine[:] = -2
            window.fence()
            assert (last == -1).all()
        window.tensor_deregister()

    on_ranks(2, work)


def test_signals_are_counted() -> None:
    def work(group: Any) -> None:
        me, peer = group.rank(), 1 - group.rank()
        window = group.new_window(np.zeros(1))
        if me == 0:
            for _ in range(3):
                window.signal(peer, async_op=True).wait()
        else:
            waiting = window.wait_signal(peer, async_op=True)
            window.wait_signal(peer)
            window.wait_signal(peer)
            assert waiting.wait() and waiting.is_completed() and waiting.wait()
        late = window.wait_signal(peer, async_op=True, timeout=timedelta(seconds=0.2))
        assert not late.is_completed()
        with pytest.raises(RuntimeError, match="has not ended within 0.05 s"):
            late.wait(timedelta(seconds=0.05))
        with pytest.raises(arraycomm.CollectiveTimeout, match=f"no signal of rank {peer} arrived in time") as caught:
            late.wait()
        assert caught.value.ranks == (peer,)
        window.tensor_deregister()

    on_ranks(2, work)


def test_several_threads_and_windows() -> None:
    def work(group: Any) -> None:
        peer, windows = 1 - group.rank(), [group.new_window(np.zeros(8, np.float32)) for _ in range(2)]

        def hammer(slot: int) -> None:
            for turn in range(40):
                for window in windows:
                    window.accumulate(np.ones(1, np.float32), peer, slot)
                    window.get(np.zeros(8, np.float32), peer)
                assert turn >= 0

        threads = [threading.Thread(target=hammer, args=(slot,)) for slot in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        group.allreduce(np.ones(3)).wait()  # the group's own operations go on beside
        for window in windows:
            window.fence()
            assert window.get_tensor().tolist() == [40.0] * 4 + [0.0] * 4
            window.tensor_deregister()

    on_ranks(2, work)


def test_properties_and_registration() -> None:
    def work(group: Any) -> None:
        assert group.supports_window
        window = group.new_window()
        for call in (window.fence, lambda: window.shape, lambda: window.put(np.zeros(1), 0)):
            with pytest.raises(RuntimeError, match="has no tensor"):
                call()
        window.tensor_register(x := np.zeros((2, 3)))
        with pytest.raises(RuntimeError, match="tensor_deregister"):
            window.tensor_register(x)
        assert (window.shape, window.dtype, window.get_size(), str(window.device)) == ([2, 3], np.float64, 48, "cpu")
        me = group.rank()
        assert window.get_tensor() is x and window.map_remote_tensor(me) is x
        kinds = [window.get_attr(rank).access_type for rank in range(2)]
        assert kinds[me] is dist2.WindowAccessType.UNIFIED and kinds[1 - me] is dist2.WindowAccessType.SEPARATE
        with pytest.raises(RuntimeError, match="is reached by get"):
            window.map_remote_tensor(1 - me)
        window.tensor_deregister()
        window.tensor_register(y := np.zeros(me + 1), owning=False)  # sizes may differ
        assert window.get_tensor() is None
        window.put(np.full(1, 5.0), 1, 1)
        window.fence()
        assert me == 0 or y.tolist() == [0.0, 5.0]
        window.tensor_deregister()

    on_ranks(2, work)


def test_wrong_calls_are_refused_before_anything_is_sent() -> None:
    def work(group: Any) -> None:
        window, x = group.new_window(np.zeros(3)), np.zeros(2)
        call: Callable[[], Any]
        for call, error, text in (
                (lambda: window.put(x, 1, 2), RuntimeError, "2 elements from 2 on exceed the window size: rank 1 has 3"),
                (lambda: window.get(x, 1, -1), RuntimeError, "exceed the window size"),
                (lambda: window.put(x, 2), ValueError, "rank"), (lambda: window.signal(-1), ValueError, "rank"),
                (lambda: window.wait_signal(9), ValueError, "rank"), (lambda: window.get_attr(2), ValueError, "rank"),
                (lambda: window.put(x.astype(np.float32), 1), ValueError, "dtype is float64, the array's float32"),
                (lambda: window.get(x[::-1], 1), ValueError, "contiguous"), (lambda: window.put("x", 1), TypeError, "tensor"),
                (lambda: window.put(x, 1, 0.5), TypeError, "offset"),
                (lambda: window.accumulate(x, 1, op=dist2.ReduceOp.AVG), ValueError, "not avg"),
                (lambda: window.accumulate(x, 1, op=dist2.ReduceOp.BAND), RuntimeError, "BAND"),
                (lambda: group.new_window("x"), TypeError, "array")):
            with pytest.raises(error, match=text):
                call()
        window.fence()
        assert window.get_tensor().tolist() == [0.0] * 3
        window.tensor_deregister()

    on_ranks(2, work)


def test_what_one_rank_cannot_give_is_an_error_on_all() -> None:
    def work(group: Any) -> None:
        refused = np.zeros(4)
        refused.flags.writeable = False
        if group.rank() == 1:
            with pytest.raises(ValueError, match="read-only"):
                group.new_window(refused)
        else:
            with pytest.raises(arraycomm.CollectiveMismatch, match="rank 1 gave no array") as caught:
                group.new_window(np.zeros(4))
            assert caught.value.ranks == (1,)
        window = group.new_window(mine := np.zeros(1))  # the group is as it was
        window.put(np.ones(1), 1 - group.rank())
        window.fence()
        assert mine.tolist() == [1.0]
        window.tensor_deregister()

    on_ranks(2, work)


def test_symmetric_arrays_and_private_ones(transport: str) -> None:
    """On ranks of one host nobody serves a window, whatever its arrays are; a rank may have none."""
    def work(group: Any) -> None:
        me, size = group.rank(), group.size()
        for kinds in ("sss", "psp", "sps"):
            mine = group.core.empty(LONG, "float64")
            if kinds[me] == "p":
                mine = np.zeros(LONG)
            mine[:] = 0
            window = group.new_window(mine if (kinds, me) != ("sps", 2) else np.zeros(0))
            group.barrier().wait()
            target = 1 if me != 1 else 0
            for turn in range(3):
                window.accumulate(np.full(LONG, 2.0 * turn + me), target)
            window.fence()
            window.get(found := np.zeros(LONG), target)
            expected = 6 + 3 * (1 if me == 1 else 0) if target == 0 else 2 * 6 + 3 * (0 + 2)
            assert (found == expected).all(), (kinds, me, found[:3])
            window.tensor_deregister()
        assert size == 3

    on_ranks(3, work)


def test_who_waits_is_woken_when_its_window_is_closed(transport: str) -> None:
    def work(group: Any) -> None:
        window = group.new_window(np.zeros(1))
        window.fence()
        told: list[BaseException] = []

        def wait() -> None:
            try:
                window.wait_signal(1 - group.rank())
            except arraycomm.GroupError as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not group.core._children[0]._communicator.closed:
            group.barrier().wait()
            group.core._children[0].close()
        thread.join(20)
        assert not thread.is_alive() and len(told) == 1, told

    on_ranks(2, work)


def test_an_array_that_nobody_holds_here_is_still_the_others() -> None:
    """As long as they may write to it: until the window ends."""
    def work(group: Any) -> None:
        mine = np.zeros(1000)
        held = weakref.ref(mine)
        group.new_window(mine)
        del mine
        gc.collect()
        assert held() is not None
        group.shutdown()
        gc.collect()
        assert held() is None

    on_ranks(2, work)


def test_dtypes_must_agree() -> None:
    def work(group: Any) -> None:
        with pytest.raises(ValueError, match="rank 0 gives float64 and rank 1 float32"):
            group.new_window(np.zeros(1, np.float32 if group.rank() else np.float64))

    on_ranks(2, work)


def test_few_elements_and_many(transport: str) -> None:
    """Around what travels in a request itself where the owner serves it."""
    def work(group: Any) -> None:
        me, peer = group.rank(), 1 - group.rank()
        for dtype in (np.float64, np.int8):
            most = served.INLINE // np.dtype(dtype).itemsize
            window = group.new_window(mine := np.ones(2 * most, dtype))
            expected = mine.copy()
            for count in (0, 1, most - 1, most, most + 1):
                at = 2 * most - count
                window.put(np.arange(count, dtype=dtype), peer, at)
                expected[at:] = np.arange(count)
                window.accumulate(np.full(count, 3, dtype), peer, at)
                expected[at:] += 3
                window.fence()
                assert mine.tolist() == expected.tolist(), (me, count)
                window.fence()
            window.tensor_deregister()

    on_ranks(2, work)


LENGTH, BEYOND = "not the length that it should have", "elements beyond the window"
REQUESTS = {  # kind, offset, count, detail, bytes in the header; elements behind it
    "unknown": ((7, 0, 0, 0, -1), 0, "something unknown"),
    "negative": ((-1, 0, 0, 0, -1), 0, "something unknown"),
    "beyond": ((served.PUT, 3, 2, 0, 16), 0, BEYOND),
    "before": ((served.GET, -1, 1, 0, -1), 0, BEYOND),
    "overflow": ((served.GET, 2, 2**63 - 1, 0, -1), 0, BEYOND),
    "less than none": ((served.PUT, 0, -1, 0, -1), 0, BEYOND),
    "reduction": ((served.ACCUMULATE, 0, 4, 4, 32), 0, "a reduction that there is not"),  # band of floats
    "negative tag": ((served.GET, 0, 4, -3, -1), 0, "a tag that there is not"),
    "fewer elements": ((served.PUT, 0, 4, 0, 16), 0, LENGTH),
    "more elements": ((served.PUT, 0, 4, 0, 4000), 0, LENGTH),
    "other elements behind": ((served.ACCUMULATE, 0, 4, 0, -1), 3, LENGTH),
}


@pytest.mark.parametrize(("words", "behind", "text"), REQUESTS.values(), ids=REQUESTS.keys())
def test_a_request_that_no_rank_sends_ends_the_window(words: tuple[int, ...], behind: int, text: str, transport: str) -> None:
    if transport != "tcp":
        return  # nobody is asked there

    def work(group: Any) -> None:
        window = group.new_window(mine := np.zeros(4))
        group.barrier().wait()  # rank 1 may still be on its way out of new_window
        if group.rank() == 0:
            mine_group = window._core._carrier._group
            mine_group.isend(array.array("q", [*words, *[0] * 8]), 1, 0)
            if behind:
                mine_group.isend(np.ones(behind), 1, 1)
        with pytest.raises(arraycomm.DistError, match=text):
            window.wait_signal(1 - group.rank())
        assert mine.tolist() == [0.0] * 4
        window.tensor_deregister()
        group.allreduce(x := np.ones(1)).wait()
        assert x.tolist() == [2.0]

    on_ranks(2, work)


COMPUTING = """
import sys, time
from datetime import timedelta
import numpy as np
from arraycomm import dist2

group = dist2.new_group("gloo", timedelta(seconds=60), "cpu")
window = group.new_window(x := np.zeros(1000))
if group.rank() == 1:
    sys.setswitchinterval(1000)  # whoever has the lock keeps it
    end = time.monotonic() + 60
    while x[-1] != -1 and time.monotonic() < end:
        pass
    assert x[0] == 20 and x[-1] == -1, x[-2:]
else:
    for _ in range(10):
        window.accumulate(np.full(1000, 2.0), 1)
        window.get(seen := np.zeros(1000), 1)
    assert (seen == 20).all()
    window.put(np.full(1, -1.0), 1, 999)
window.fence()
window.tensor_deregister()
group.shutdown()
"""


def _raise(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_wait_and_not_the_window() -> None:
    group = open_group(dist2.HashStore(), 0, 1)
    window = group.new_window(np.zeros(4))
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            window.wait_signal(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    window.signal(0)
    assert window.wait_signal(0).is_success()
    window.tensor_deregister()
    group.shutdown()


def test_a_target_that_keeps_pythons_lock_serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(COMPUTING)
    run = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", str(tmp_path / "work.py")],
                         capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr


def _dies(rank: int, path: str) -> None:
    group = dist2.new_group("gloo", LIMIT, "cpu")
    window = group.new_window(np.zeros(4))
    window.fence()
    store = group.get_group_store()
    if rank == 1:
        store.wait(["rank 0 has left the fence"])
        os._exit(0)
    store.set("rank 0 has left the fence", b"")
    found: list[Any] = []
    call: Callable[[], Any]
    for call in (lambda: window.fence(), lambda: window.wait_signal(1), lambda: window.wait_signal(1),
                 lambda: window.put(np.zeros(4), 1)):
        try:
            call()
            found.append("came")
        except arraycomm.PeerLost as error:
            found.append(error.ranks)
    Path(path).write_text(repr(found))
    group.shutdown()


def test_a_dead_rank_is_told_to_who_waits_for_it(tmp_path: Path, transport: str) -> None:
    """Once its signals are used up."""
    arraycomm.spawn(_dies, args=(str(tmp_path / "seen"),), nprocs=2)
    assert (tmp_path / "seen").read_text() == repr([(1,), (1,), (1,), (1,)])
