"""What a signal's handler raises in a call comes out as itself, and the call is not made again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import arraycomm.distributed as dist
from arraycomm.core.arrays import arrays
from tests.present import present

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": lambda x, out: dist.all_reduce(x),
    "all_reduce, async_op": lambda x, out: present(dist.all_reduce(x, async_op=True)).wait(),
    "broadcast": lambda x, out: dist.broadcast(x, 0),
    "all_gather_single": lambda x, out: dist.all_gather_single(out, x),
    "reduce_scatter_single": lambda x, out: dist.reduce_scatter_single(x, out),
    "barrier": lambda x, out: dist.barrier(),
}


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [ValueError, TypeError, AttributeError])
@pytest.mark.parametrize("name", CALLS)
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

    monkeypatch.setattr(dist.group.WORLD, "_plain", Interrupted())
    monkeypatch.setattr(dist.group.WORLD, "_rooted", Interrupted())
    with pytest.raises(kind, match="by the handler"):
        CALLS[name](np.ones(4), np.ones(4))
    assert len(made) == 1


def test_what_is_not_plain_is_declined_and_not_refused(alone: None) -> None:
    core: Any = dist.group.WORLD.core  # type: ignore[union-attr]
    for x in (object(), "text", np.ones((4, 4)).T, np.ones(4, object), None):
        assert core._plain_all_reduce(x, "sum", out=x) is NotImplemented
    x = np.ones(4)
    assert core._plain_all_reduce(x, "", out=x) is core._plain_all_reduce(x, "sum", out=object()) is NotImplemented
    assert core._plain_all_reduce(x, "sum", out=x) is x and core._plain_barrier() is None
    with pytest.raises(TypeError, match="tensor"):
        dist.all_reduce(object())


def test_an_error_while_an_array_is_opened_is_no_refusal(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the slow path would open it again, without the handler, the call would go on."""
    torch = pytest.importorskip("torch")
    resolved, made = arrays.torch_resolved, []

    def interrupted(tensor: Any) -> Any:
        made.append(tensor)
        if len(made) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return resolved(tensor)

    def handler(*_: Any) -> None:
        raise ValueError("by the handler")

    monkeypatch.setattr(arrays, "torch_resolved", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(ValueError, match="by the handler"):
            dist.all_gather_single(torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64).conj())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(made) == 1


FIRST = """
import signal
import numpy as np
import {library} as library
import arraycomm.distributed as dist
from arraycomm.core.arrays import arrays

class Stop({kind}):
    pass

def handler(*_):
    raise Stop("by the handler")

def interrupted(*args, wanted=arrays.{function}):
    signal.raise_signal(signal.SIGUSR1)
    return wanted(*args)

arrays.{function} = interrupted
signal.signal(signal.SIGUSR1, handler)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = {array}
try:
    {call}
except Stop:
    print("stopped")
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
{call}
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("function", "kind", "library", "array", "call"), [
    ("codes", "ValueError", "numpy", "np.ones(4)", "dist.all_reduce(x)"),
    ("codes", "KeyboardInterrupt", "numpy", "np.ones(4)", "dist.all_reduce(x)"),
    ("torch_byte", "TypeError", "torch", "library.ones(4, dtype=library.int8).as_subclass(type('Own', (library.Tensor,), {}))",
     "dist.all_reduce(x)"),
    ("torch_samples", "KeyboardInterrupt", "torch", "library.ones(4)", "dist.all_reduce(x)"),
])
def test_an_error_in_the_first_call_of_a_process(function: str, kind: str, library: str, array: str, call: str) -> None:
    """What native code looks up once, in Python, is where a handler runs then."""
    pytest.importorskip(library.partition(".")[0])
    script = FIRST.format(function=function, kind=kind, library=library, array=array, call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "stopped\n"
