"""Ends while callbacks of futures run: ending.py {torch|facade|bare} {destroy|open|raise|exit|absent}; a rank."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from typing import Any

import numpy as np

api, way = sys.argv[1:]
if api == "torch":
    import torch
    import torch.distributed as dist
else:
    if api == "facade":
        import torch  # the futures are torch's then
    import arraycomm.distributed as dist  # type: ignore[no-redef]

ending = threading.Event()


def callback(future: Any) -> None:
    """Longer than the program. Each rank's ends in another way."""
    here = threading.current_thread() is threading.main_thread()  # the operation had ended when it was asked for
    if way != "destroy" and not here:
        ending.wait()
    time.sleep(0.3)  # where Python would end a daemon's thread
    print("callback", flush=True)
    if dist_rank == 1:
        raise ValueError("a callback's")
    if dist_rank == 2 and not here:
        sys.exit(9)


dist.init_process_group("arraycomm" if api == "torch" else "gloo")
dist_rank = dist.get_rank()
atexit.register(ending.set)
x = np.ones(4) if api == "bare" else torch.ones(4)
if way != "absent" or dist_rank:
    work = dist.all_reduce(x, async_op=True)
    after = work.get_future().then(callback)
    if api != "torch":
        dropped = dist.all_reduce((np.ones((4, 4)) if api == "bare" else torch.ones(4, 4)).T, async_op=True)
        del dropped
if way == "destroy":
    dist.destroy_process_group()
    print("destroyed", flush=True)
elif way == "raise":
    raise KeyError("the program's")
elif way == "exit":
    sys.exit(5)
