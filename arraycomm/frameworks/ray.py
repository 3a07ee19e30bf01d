"""Ray: arraycomm as a back end of ray.util.collective. `import arraycomm.frameworks.ray` registers it, in each process.

    collective.init_collective_group(world_size, rank, backend="arraycomm", group_name="default")

Arrays are NumPy's, torch's and CuPy's, one a call (the multigpu forms are refused). The ranks meet through Ray's key-value
store: rank 0 serves a store on its node and writes its address and a fresh secret there; readers of Ray's store can read both.
Operations have the timeout ARRAYCOMM_TIMEOUT; errors are this package's.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.collective import types
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistNetworkError, DistStoreError
from arraycomm.core.bootstrap.rendezvous import LINGER, rendezvous
from arraycomm.core.bootstrap.store import TCPStore
from arraycomm.core.group.start import open_group
from arraycomm.core.interface import registry
from arraycomm.distributed.operations import collectives, lists, point_to_point
from arraycomm.distributed.operations.reduce_op import ReduceOp
from arraycomm.distributed.process_groups.backend import BackendConfig
from arraycomm.distributed.process_groups.process_group import ProcessGroup

__all__ = ["Group"]

NAME = "ARRAYCOMM"
_LOOK = 0.05  # s between polls: Ray's store has no blocking wait
_TRY = 1.0  # s for one connection: the stored address may be stale, from killed ranks


class Group(BaseGroup):
    """One rank's end of a group of ray.util.collective. Ray makes it in an actor or a task:
    init_collective_group(backend="arraycomm").

    Methods have Ray's names. Each takes a list with one array: NumPy's, torch's or CuPy's. The timeout of operations is the
    setting
    ARRAYCOMM_TIMEOUT.

    - Blocks: the constructor until all ranks have come; methods as their counterparts of arraycomm.distributed.
    - Timeout: ARRAYCOMM_TIMEOUT; DistStoreError from the constructor names the ranks that did not come.
    - Errors: ValueError for a list of several arrays. Then DistErrors.

    Examples:
        >>> import ray
        >>> from arraycomm.frameworks.ray import Group
        >>> context = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        >>> def work(rank_of_thread):
        ...     group, x, y = Group(2, rank_of_thread.rank, "documented"), np.ones(1), [np.empty(1), np.empty(1)]
        ...     group.allreduce([x])
        ...     group.reduce([np.ones(1)])
        ...     group.broadcast([x])
        ...     group.allgather([y], [x])
        ...     group.reducescatter([np.empty(1)], [y])
        ...     group.barrier()
        ...     peer = types.SimpleNamespace(dst_rank=1, src_rank=0)
        ...     group.send([x], peer) if group.rank == 0 else group.recv([x], peer)
        ...     group.destroy_group()
        ...     return x.item()
        >>> import types
        >>> arraycomm.run(work, 2)
        [2.0, 2.0]
        >>> Group.backend(), Group.check_backend_availability()
        ('ARRAYCOMM', True)
        >>> ray.shutdown()
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        seconds = settings.get_number("ARRAYCOMM_TIMEOUT")
        key = f"{ray.get_runtime_context().get_job_id()}/{group_name}".encode()
        self._store, secret = _serve(key, seconds) if rank == 0 else _find(key, seconds)
        try:
            meeting = rendezvous(rank=rank, world_size=world_size, store=self._store, timeout=timedelta(seconds=seconds),
                                 environ={"ARRAYCOMM_SECRET": secret})
            core = open_group(meeting, registry.choose("socket"), seconds, f"ray {group_name}")
        except BaseException:
            self._store.close()
            raise
        finally:
            if rank == 0:  # all ranks have read it, or have failed
                internal_kv._internal_kv_del(key, namespace=NAME)
        self._pg = ProcessGroup._of(core, range(world_size), name=group_name, desc=None, backend="arraycomm",
                                config=BackendConfig("cpu:gloo"), meeting=meeting)

    def destroy_group(self) -> None:
        """Closes the group and its store.

        - Blocks: rank 0 for its clients, at most a moment.
        - Errors: none; operations in progress end with Aborted.
        """
        self._pg.shutdown()
        self._store.close(linger=LINGER if self.rank == 0 else 0)

    @classmethod
    def backend(cls) -> str:
        """The backend's name, which is "ARRAYCOMM".

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """True: the package is installed.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return True

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduces every rank's array in place.

        - Shapes: any, the same on all ranks.
        - Dtypes: the same on all ranks; those for which the reduction is defined.
        - Memory: the array is input and output.
        - Blocks: until every rank has called it.
        - Errors: as arraycomm.distributed.all_reduce().
        """
        collectives.all_reduce(_one(tensor), _op(allreduce_options), group=self._pg)

    def barrier(self, barrier_options: Any = None) -> None:
        """Returns when every rank has called it.

        - Blocks: until the last rank has called it.
        - Errors: as arraycomm.distributed.barrier().
        """
        self._pg.core.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """Reduces every rank's array into the array of the root.

        - Shapes: any, the same on all ranks.
        - Dtypes: the same on all ranks; those for which the reduction is defined.
        - Memory: only the root's array is written.
        - Blocks: until every rank has called it.
        - Errors: as arraycomm.distributed.reduce().
        """
        root = 0 if reduce_options is None else reduce_options.root_rank
        collectives.reduce(_one(tensor), op=_op(reduce_options), group=self._pg, group_dst=root)

    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = None) -> None:
        """Copies every rank's array into the list of arrays.

        - Shapes: entry r is as large as rank r's array.
        - Dtypes: every one, the same on all ranks.
        - Memory: the list's arrays are written.
        - Blocks: until every rank has called it.
        - Errors: as arraycomm.distributed.all_gather().
        """
        lists.all_gather(_one(tensor_list), _one(tensor), group=self._pg)

    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        """Copies the root's array into the others'.

        - Shapes: any, the same on all ranks.
        - Dtypes: every one, the same on all ranks.
        - Memory: the arrays of the other ranks are written.
        - Blocks: until the array has arrived.
        - Errors: as arraycomm.distributed.broadcast().
        """
        root = 0 if broadcast_options is None else broadcast_options.root_rank
        collectives.broadcast(_one(tensor), group=self._pg, group_src=root)

    def reducescatter(self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = None) -> None:
        """Reduces every rank's list entry by entry; rank r gets entry r.

        - Shapes: entry r is as large as rank r's output.
        - Dtypes: the same on all ranks; those for which the reduction is defined.
        - Memory: the output is written.
        - Blocks: until every rank has called it.
        - Errors: as arraycomm.distributed.reduce_scatter().
        """
        lists.reduce_scatter(_one(tensor), _one(tensor_list), _op(reducescatter_options), group=self._pg)

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Sends the array to send_options.dst_rank.

        - Shapes: any; the receiver's array has as many elements.
        - Dtypes: every one; the receiver's is the same.
        - Memory: the array may be changed when the call has returned.
        - Blocks: until the array may be changed.
        - Errors: as arraycomm.distributed.send().
        """
        point_to_point.send(_one(tensor), group=self._pg, group_dst=send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Receives into the array from recv_options.src_rank.

        - Shapes: the message has as many elements as the array.
        - Dtypes: the message's is the array's.
        - Memory: the array is written.
        - Blocks: until the message has arrived.
        - Errors: as arraycomm.distributed.recv().
        """
        point_to_point.recv(_one(tensor), group=self._pg, group_src=recv_options.src_rank)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})


def _one(arrays: list[Any]) -> Any:
    if len(arrays) != 1:
        raise ValueError(f"backend 'arraycomm' takes one array a process, got {len(arrays)}: give each GPU a process of its own")
    return arrays[0]


def _op(options: Any) -> ReduceOp:
    found = types.ReduceOp.SUM if options is None else options.reduceOp
    return getattr(ReduceOp, found.name)  # type: ignore[no-any-return]


def _serve(key: bytes, seconds: float) -> tuple[TCPStore, str]:
    secret = secrets.token_hex(32)
    host = ray.util.get_node_ip_address()
    store = TCPStore(host, 0, is_master=True, timeout=timedelta(seconds=seconds), secret=secret.encode())
    internal_kv._internal_kv_put(key, json.dumps([host, store.port, secret]).encode(), overwrite=True, namespace=NAME)
    return store, secret


def _find(key: bytes, seconds: float) -> tuple[TCPStore, str]:
    end = time.monotonic() + seconds
    trouble: Exception | None = None
    while time.monotonic() < end:
        told = internal_kv._internal_kv_get(key, namespace=NAME)
        if told is not None:
            host, port, secret = json.loads(told)
            try:
                store = TCPStore(host, port, timeout=timedelta(seconds=_TRY), secret=secret.encode())
                store.timeout = timedelta(seconds=seconds)
                return store, secret
            except (DistNetworkError, DistStoreError) as error:
                trouble = error
        time.sleep(_LOOK)
    raise DistStoreError(f"rank 0 of Ray's group {key.decode()!r} did not join within {seconds:g} s; see whether all its ranks "
                         "call init_collective_group with backend 'arraycomm'") from trouble


register_collective_backend(NAME, Group)
