"""What dir() of the public modules and classes offers is what users may call: everything else has an underscore."""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from pathlib import Path
from typing import Any

import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm import dist2

MODULES = ["arraycomm", "arraycomm.distributed", "arraycomm.dist2", "arraycomm.frameworks.jax", "arraycomm.frameworks.torch",
           "arraycomm.frameworks.ray"]
_PACKAGES = {"debug", "dist2", "distributed", "frameworks", "trace"}  # of arraycomm, once they are imported
_GROUP = {
    "abort", "all_gather", "all_gather_object", "all_reduce", "all_to_all", "backend", "barrier", "batch", "broadcast",
    "broadcast_object", "cart", "check_peers", "close", "closed", "empty", "exscan", "gather", "gather_object", "handle", "irecv",
    "irecv_object", "isend", "isend_object", "name", "probe", "rank", "ranks", "recv", "recv_object", "reduce", "reduce_scatter",
    "scan", "scatter", "scatter_objects", "send", "send_object", "sendrecv", "shrink", "size", "split", "subgroup", "timeout",
}
_WORK = {"done", "result", "source", "wait"}
_CART = {"coords", "coords_of", "dims", "group", "halo_exchange", "periods", "rank_of", "shift", "sub"}
_REDUCER = {"buckets", "finish", "group", "op", "push", "reduce"}
_TABLES = Path(__file__).resolve().parents[1] / "distributed"
# Beside torch's members: attributes, and methods that torch has under other classes or not at all.
_FACADE = {
    "ProcessGroup": {"backend", "bound_device_id", "closed", "core", "getBackendName", "get_backend", "get_reconfigure_handle",
                     "group_desc", "group_name", "new_window", "ranks", "reconfigure", "supports_reconfigure", "supports_window",
                     *(f"{verb}_{kind}_hook" for verb in ("register", "unregister") for kind in ("pre", "post", "abort"))},
    "BackendConfig": {"device_backend_map"},
    "DistributedSampler": {"dataset", "drop_last", "epoch", "num_replicas", "num_samples", "rank", "seed", "shuffle",
                           "total_size"},
    **dict.fromkeys(("Store", "HashStore", "FileStore", "PrefixStore", "TCPStore"), {"close"}),
}


def public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_a_group_and_what_it_gives_have_public_names_only() -> None:
    def names(group: arraycomm.Group) -> list[set[str]]:
        return [public(group), public(group.barrier(async_op=True)), public(group.cart([1])),
                public(arraycomm.GradientReducer(group, []))]

    assert arraycomm.run(names, 1) == [[_GROUP, _WORK, _CART, _REDUCER]]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_offers_what_it_exports(name: str) -> None:
    if name.startswith("arraycomm.frameworks."):
        pytest.importorskip(name.rpartition(".")[2])
    module = importlib.import_module(name)
    assert public(module) - (_PACKAGES if module is arraycomm else set()) == set(module.__all__)
    assert all(hasattr(module, exported) for exported in module.__all__)


def _torchs() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for table in ("torch_distributed_2.13.json", "torch_dist2.json"):
        for names in json.loads((_TABLES / table).read_text())["modules"].values():
            for name, entry in names.items():
                found.setdefault(name, set()).update(entry.get("members", ()) if isinstance(entry, dict) else ())
    return found


def _facade_objects() -> list[Any]:
    store = dist.HashStore()
    group = dist2.new_group("gloo", dist.default_pg_timeout, "cpu", store=store, rank=0, world_size=1)
    try:
        group.register_pre_hook(1, print)
        objects = [group, group.barrier(), dist.BackendConfig("gloo"), dist.Backend, store, dist.PrefixStore("p", store),
                   dist.ReduceOp.SUM, dist.DistributedSampler([1], 1, 0), dist.TCPStore, dist.FileStore, dist.Store,
                   dist.DeviceMesh, dist.P2POp, dist.ProcessGroup]
        return [(value.__name__ if inspect.isclass(value) else type(value).__name__, public(value)) for value in objects]
    finally:
        group.shutdown()


def test_the_facades_objects_have_torchs_names_and_listed_ones() -> None:
    theirs = _torchs()
    for name, names in _facade_objects():
        known = theirs["ReduceOp"] | {"name", "value"} if name == "RedOpType" else theirs[name]
        inherited = set(dir(str)) if name == "Backend" else set()
        assert names - inherited - known - _FACADE.get(name, set()) == set(), name


def test_types_with_parameters_are_made_at_run_time() -> None:
    """As `Work[Array]` in a program without `from __future__ import annotations`."""
    assert typing.get_origin(arraycomm.Work[int]) is arraycomm.Work
    assert arraycomm.Received[bytes](b"x", 2, 3) == (b"x", 2, 3)
