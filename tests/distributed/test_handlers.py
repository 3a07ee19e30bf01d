"""What a signal's handler raises in a call comes out as itself, and the call is not made again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist

LIMIT = timedelta(seconds=60)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": lambda x, out: dist.all_reduce(x),
    "all_reduce, async_op": lambda x, out: dist.all_reduce(x, async_op=True).wait(),
    "broadcast": lambda x, out: dist.broadcast(x, 0),
    "all_gather_single": lambda x, out: dist.all_gather_single(out, x),
    "reduce_scatter_single": lambda x, out: dist.reduce_scatter_single(x, out),
    "barrier": lambda x, out: dist.barrier(),
    "send": lambda x, out: dist.send(x, 1 - dist.get_rank()),
    "recv": lambda x, out: dist.recv(x, 1 - dist.get_rank()),
}


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Raises(ValueError):
    """As a program's own, which must not pass for this package's."""


def _raise(number: int, frame: object) -> None:
    raise Raises("by the handler")


@pytest.mark.parametrize("kind", [ValueError, TypeError, AttributeError])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("send", "recv")])
def test_an_error_after_the_operation_is_no_refusal(alone: None, monkeypatch: pytest.MonkeyPatch, name: str,
                                                    kind: type[Exception]) -> None:
    """As of a handler that runs when the native call has just returned."""
    made = []
    core: Any = dist.group.WORLD.core  # type: ignore[union-attr]

    class Interrupted:
        """The core group, of which each native call ends in a handler's error."""

        rank = 0

        def __getattr__(self, attribute: str) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                made.append(attribute)
                getattr(core, attribute)(*args, **named)
                raise kind("by the handler")
            return call

    monkeypatch.setattr(dist.group.WORLD, "plain", Interrupted())
    monkeypatch.setattr(dist.group.WORLD, "rooted", Interrupted())
    with pytest.raises(kind, match="by the handler"):
        CALLS[name](np.ones(4), np.ones(4))
    assert len(made) == 1


def _interrupted(rank: int, name: str) -> None:
    dist.init_process_group("gloo", timeout=LIMIT)
    signal.signal(signal.SIGALRM, _raise)
    dist.barrier()
    if rank == 0:
        with pytest.raises(Raises, match="by the handler"):
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # rank 1 does not call it; should it come before the call, that raises too
            CALLS[name](np.ones(4), np.ones(8))
    else:
        core: Any = dist.group.WORLD.core  # type: ignore[union-attr]
        with pytest.raises((arraycomm.Aborted, arraycomm.PeerLost)):
            core.recv(np.zeros(1), 0, 99)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_single", "barrier", "recv"])
def test_a_handler_that_raises_while_the_call_waits(name: str) -> None:
    arraycomm.spawn(_interrupted, (name,), nprocs=2)


def test_what_is_not_plain_is_declined_and_not_refused(alone: None) -> None:
    core: Any = dist.group.WORLD.core  # type: ignore[union-attr]
    for x in (object(), "text", np.ones((4, 4)).T, np.ones(4, object), None):
        assert core.plain_all_reduce(x, "sum", out=x) is NotImplemented
    x = np.ones(4)
    assert core.plain_all_reduce(x, "", out=x) is core.plain_all_reduce(x, "sum", out=object()) is NotImplemented
    assert core.plain_all_reduce(x, "sum", out=x) is x and core.plain_barrier() is None
    with pytest.raises(TypeError, match="tensor"):
        dist.all_reduce(object())
