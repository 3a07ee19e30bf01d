"""The streams of who asks for a future, for the thread that completes it: what callbacks enqueue belongs on the program's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack

from arraycomm.core.base.typed import Any


def followed(complete: Callable[[], object]) -> Callable[[], None]:
    """complete(), for another thread: its current device and streams are the caller's then, of torch where it has used a GPU, of
    CuPy where it is loaded and there is one."""
    contexts: list[Any] = []
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        contexts.append(torch.cuda.stream(torch.cuda.current_stream()))
    if cupy is not None and cupy.cuda.is_available():
        contexts += [cupy.cuda.Device(), cupy.cuda.get_current_stream()]

    def run() -> None:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            complete()

    return run
