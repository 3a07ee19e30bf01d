"""Two ranks as threads of one process: whoever waits for the other with the interpreter's lock waits for ever."""

from __future__ import annotations

import numpy as np

import arraycomm


def _exchange(group: arraycomm.Group, turn: int) -> None:
    x, other = np.full(2, group.rank + turn, np.float32), 1 - group.rank
    assert group.all_reduce(x)[0] == 1 + 2 * turn
    assert group.broadcast(x, root=turn % 2)[0] == turn % 2 + turn
    assert list(group.all_gather(x[:1])) == [turn, turn + 1]
    if group.rank == turn % 2:
        group.send(x, other)
    else:
        assert group.recv(other, like=x).array[0] == other + turn
    group.barrier()


def work(group: arraycomm.Group) -> None:
    for turn in range(50):
        _exchange(group, turn)


if __name__ == "__main__":
    arraycomm.run(work, 2, timeout=20.0)
