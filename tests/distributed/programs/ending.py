"""Ends while callbacks of futures run: ending.py {torch|facade|bare} {destroy|open|raise|exit|absent} FOLDER.

Its ranks are forked from it once torch, which takes seconds, has been imported. What they print comes into the folder, and their
exit statuses on standard output.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

import numpy as np

api, way, folder = sys.argv[1:]
if api == "torch":
    import torch
    import torch.distributed as dist
else:
    if api == "facade":
        import torch  # the futures are torch's then
    import arraycomm.distributed as dist


def begin(rank: int) -> None:
    """In the process of this rank: what it prints comes into its file."""
    os.environ["RANK"] = str(rank)
    for number in (1, 2):
        os.dup2(os.open(f"{folder}/{rank}.{number}", os.O_WRONLY | os.O_CREAT, 0o600), number)


started: list[int] = []
while len(started) < int(os.environ["WORLD_SIZE"]):
    child = os.fork()
    if child == 0:
        begin(len(started))
        break
    started.append(child)
else:
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started))
    sys.exit()

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
