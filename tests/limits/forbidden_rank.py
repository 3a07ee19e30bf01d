"""A rank of test_forbidden.py: calls of every kind."""

from __future__ import annotations

import logging
import os

import numpy as np

import arraycomm

logging.basicConfig(level="WARNING", format="%(message)s")
with arraycomm.init(timeout=30) as group:
    for elements in (1, 100_000, 600_000):
        x = np.full(elements, group.rank + 1.0)
        assert (group.all_reduce(x) == 3).all()
        assert (group.all_to_all(np.repeat(x, 2)).reshape(2, elements)[:, 0] == [1, 2]).all()
        sent = group.isend(x, 1 - group.rank)
        got = group.recv(like=x, source=1 - group.rank).array
        sent.wait()
        assert (got == 2 - group.rank).all()
    symmetric = group.empty((1000,), np.float64, like=np.zeros(1))
    symmetric[:] = 1
    assert (group.all_reduce(symmetric, out=symmetric) == 2).all()
    half = group.split(0)
    assert half is not None and half.all_reduce(np.ones(3))[2] == 2
    half.close()
    os.write(1, b"all right\n")
