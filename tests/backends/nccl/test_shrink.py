"""A rank dies, and the others go on without it: shrink_group() over the stand-ins, by a communicator of the survivors' own."""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.distributed.process_groups.subgroups import SHRINK_ABORT, SHRINK_DEFAULT
from tests.present import present
from tests.standin import arrays, build

LAST = 2


def program(rank: int, flags: int) -> None:
    with arrays.as_cupy() as kind:
        dist.init_process_group("nccl", timeout=timedelta(seconds=30))

        def ones() -> arrays.Array:
            return arrays.asarray(np.ones(5, np.float32), kind=kind)

        x = ones()
        dist.all_reduce(x)
        assert x.numpy().tolist() == [3.0] * 5
        dist.barrier()
        if rank == LAST:
            os._exit(0)
        with pytest.raises(arraycomm.GroupError, match="rank 2|aborted"):
            for _ in range(2):  # the first one may have begun before it died
                present(dist.all_reduce(ones(), async_op=True)).wait(timedelta(seconds=20))
        rest = dist.shrink_group([LAST], shrink_flags=flags)
        assert rest is dist.group.WORLD and dist.get_world_size() == 2
        x = ones()
        dist.all_reduce(x)
        assert x.numpy().tolist() == [2.0] * 5
        with dist.new_group([0, 1]).core as part:
            assert part.all_gather(ones(), form="stack").numpy().shape == (2, 5)
        dist.destroy_process_group()


@pytest.mark.parametrize("flags", [SHRINK_DEFAULT, SHRINK_ABORT])
def test_shrink(flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    monkeypatch.setenv("ARRAYCOMM_NCCL_LIBRARY", build.nccl())
    arraycomm.spawn(program, (flags,), nprocs=3)
