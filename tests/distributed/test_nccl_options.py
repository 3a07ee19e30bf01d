"""pg_options of backend nccl, over the stand-ins."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.backends.nccl.config import check
from tests.present import present
from tests.standin import arrays, build

from ..logged import logged


def whole_program(rank: int) -> None:
    with arrays.as_cupy() as kind:  # what is written in place has to be of a library whose current stream is known
        program(rank, kind)


def program(rank: int, kind: type) -> None:
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 4
    assert dist.is_nccl_available()
    dist.init_process_group("nccl", pg_options=options)
    x = arrays.asarray(np.full(5, rank + 1.0, np.float32), kind=kind)
    dist.all_reduce(x)
    assert x.numpy().tolist() == [3.0] * 5
    work = present(dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True))
    assert work.wait() and x.numpy().tolist() == [3.0] * 5
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    world = present(dist.group.WORLD).core._communicator
    assert (dict(world.options), world.priority) == ({"maxCTAs": 4}, True)
    other = dist.ProcessGroupNCCL.Options()
    other.config.min_ctas = 2
    made = dist.new_group([0, 1], pg_options=other).core._communicator
    assert (dict(made.options), made.priority) == ({"minCTAs": 2}, False)
    dist.destroy_process_group()


def test_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    monkeypatch.setenv("ARRAYCOMM_NCCL_LIBRARY", build.nccl())
    arraycomm.spawn(whole_program, nprocs=2)


def bound(rank: int) -> None:
    """device_id, and not the rank, says which GPU is this process's."""
    arrays.cuda().tell("standin_reset", 2)
    with arrays.as_cupy() as kind:
        dist.init_process_group("nccl", device_id=f"cuda:{1 - rank}")
        x = arrays.asarray(np.full(5, rank + 1.0, np.float32), device=1 - rank, kind=kind)
        dist.all_reduce(x)
        assert x.numpy().tolist() == [3.0] * 5
        dist.destroy_process_group()


def test_device_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    monkeypatch.setenv("ARRAYCOMM_NCCL_LIBRARY", build.nccl())
    arraycomm.spawn(bound, nprocs=2)


def asked(config: dict[str, int], version: int) -> list[str]:
    """What is logged of options of NCCL's. Raises what is wrong with them."""
    library: Any = SimpleNamespace(version=version, path="libnccl.so.2")
    with logged() as said:
        check(library, config)
    return said


def test_options_that_a_version_lacks_and_those_without_effect() -> None:
    assert asked({"CTAPolicy": 2, "blocking": 0, "splitShare": 0}, 22803) == []
    with pytest.raises(dist.DistBackendError, match=r"zero-CTA policy needs version 2\.28\.0 or later.* is 2\.27\.5"):
        asked({"CTAPolicy": 2}, 22705)
    with pytest.raises(dist.DistBackendError, match=r"option trafficClass needs version 2\.27\.0"):
        asked({"trafficClass": 1}, 22105)
    assert "splitShare has no effect" in asked({"splitShare": 1}, 23203)[0]


def test_config() -> None:
    config = dist.ProcessGroupNCCL.NCCLConfig()
    assert config.cta_policy is None and config.fields() == {}
    config.cta_policy = config.CTA_POLICY_ZERO
    config.comm_name = "mine"
    assert config.fields() == {"CTAPolicy": 2, "commName": "mine"}
    with pytest.raises(AttributeError, match="no field 'max_cta'; it has blocking"):
        config.max_cta = 3


def defaults(rank: int) -> None:
    with logged() as lines:
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    assert sum("TORCH_NCCL_BLOCKING_WAIT=1 changes nothing here: wait() orders" in line for line in lines) == 1, lines
    assert sum("NCCL_ASYNC_ERROR_HANDLING=3 changes nothing here" in line for line in lines) == 1, lines
    assert present(dist.group.WORLD).core.timeout == dist.new_group([0]).core.timeout == 600
    assert dist.new_group([0], timeout=timedelta(seconds=50)).core.timeout == 50
    dist.destroy_process_group()
    os.environ["ARRAYCOMM_TIMEOUT"] = "70"
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    assert present(dist.group.WORLD).core.timeout == 70
    dist.destroy_process_group()
    del os.environ["ARRAYCOMM_TIMEOUT"]
    with logged() as lines:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    assert present(dist.group.WORLD).core.timeout == 1800 and not any("NCCL" in line for line in lines)
    dist.destroy_process_group()


def test_defaults_of_torchs_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes, as there; variables of its that have no meaning here are announced, where the backend is this."""
    for name, value in (("ARRAYCOMM_CUDART_LIBRARY", build.cudart()), ("ARRAYCOMM_NCCL_LIBRARY", build.nccl()),
                        ("TORCH_NCCL_BLOCKING_WAIT", "1"), ("NCCL_ASYNC_ERROR_HANDLING", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ARRAYCOMM_TIMEOUT", raising=False)
    arraycomm.spawn(defaults, nprocs=1)
