"""JAX's own collectives between processes on CPUs (psum in shard_map, sharded jit), over the engine. See docs/guide/jax.md.

jaxlib's "mpi" implementation loads MPI's functions from the library that an environment variable names: the engine
(../native/mpi_calls.c). Each device is a rank; several devices of one process are ranks in threads of that process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

import jax
from jax._src import clusters, distributed, xla_bridge
from jax._src.lib import _jax

from arraycomm._engine import ffi, lib
from arraycomm.core.base import settings, threads
from arraycomm.core.base.errors import PeerLost
from arraycomm.core.base.log import log
from arraycomm.core.bootstrap import secret as secrets
from arraycomm.core.bootstrap.environment import detect
from arraycomm.core.bootstrap.gathering import Gathering
from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous
from arraycomm.core.bootstrap.store import PrefixStore, TCPStore
from arraycomm.core.group.group import Group
from arraycomm.core.group.start import open_group, seconds_of
from arraycomm.core.interface import registry

from . import trampoline
from .errors import FOREIGN, report
from .primitives import number

_NAME = "jax"  # name of the worlds
_SOON = 10.0  # s; join timeout for a thread that is about to end
_JAXLIB_LIMIT = 100.0  # s, after which jaxlib ends processes that have lost a peer
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"  # unset: JAX's coordinator listens on all addresses of the host


class _Devices:
    """The world of one backend of JAX: a rank for each device of all processes, in the order of their ids."""

    def __init__(self, devices: Sequence[int], here: Sequence[int], open_rank: Callable[[int, int], Group]) -> None:
        """devices: ids of all devices; here: ids of this process's. open_rank(rank, size): called for all ranks at once."""
        self._ranks = {device: rank for rank, device in enumerate(sorted(devices))}
        with ThreadPoolExecutor(len(here)) as pool:
            opened = [pool.submit(open_rank, self._ranks[device], len(devices)) for device in here]
        self._worlds = {device: world.result() for device, world in zip(here, opened, strict=True)}
        self._joined: list[Group] = []
        self._endpoint: Any = self._worlds[here[0]]._communicator._endpoint
        self._watcher = threading.Thread(target=self._watch, name="arraycomm-jax-watch", daemon=True)
        threads.start(self._watcher)

    def _watch(self) -> None:
        """Logs lost peers at once: if the lost process had JAX's coordinator, jaxlib will end this process in any case."""
        lib.acomm_mpi_will_say()
        try:
            self._endpoint.await_failure()
        except PeerLost as error:
            print(f"arraycomm: {error}", file=sys.stderr, flush=True)
        finally:
            lib.acomm_mpi_said()

    def join(self, clique: Sequence[int], index: int) -> int:
        """The number of the group of these devices, for the one at `index`."""
        members = [self._ranks[device] for device in clique]
        world = self._worlds[clique[index]]
        if members != list(range(world.size)):
            world = world.subgroup(members, ",".join(map(str, members)))
        self._joined.append(world)
        return number(world, "cpu")

    def lost(self) -> PeerLost | None:
        try:
            self._endpoint.check_failed()
        except PeerLost as error:
            self._watcher.join(_SOON)  # so that its log line is written
            return error
        return None

    def outlive(self, reason: str) -> None:
        """Aborts this process's groups, which notifies waiting peers. Returns when the peers have gone."""
        for group in self._joined:
            group.abort(reason)
        here = [self._ranks[device] for device in self._worlds]
        self._endpoint.await_others([rank for rank in self._ranks.values() if rank not in here], _JAXLIB_LIMIT)

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()


class _State:
    """This process's state: the rendezvous, once it is done; the open world; the count of worlds."""

    meeting: Rendezvous | None = None
    devices: _Devices | None = None
    turn = 0
    timeout: float | None = None
    bound: str | None = None  # the value of _BIND that was set for JAX's coordinator


def _leave() -> None:
    """At exit, before the engine closes. Peers may still run a program whose results this process does not read, so JAX shuts
    down collectively; not if the process ends by an exception (peers are notified at once) or a peer was lost (JAX would wait
    for it). jaxlib ends all processes when the coordinator's process exits, so that process exits last."""
    state, devices, well = distributed.global_state, _State.devices, not hasattr(sys, "last_type")
    if well:
        for array in jax.live_arrays("cpu"):
            with contextlib.suppress(*FOREIGN):  # errors of failed programs, which their results have already raised
                array.block_until_ready()
    lost = devices and devices.lost()
    if well and not lost:
        jax.distributed.shutdown()
    if devices and lost:
        if state.service is not None:
            devices.outlive(str(lost))
        for held in (state.preemption_sync_manager, state.client, state.service):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))  # their end would do the same
        state.preemption_sync_manager = state.client = state.service = None


@ffi.def_extern()
def acomm_mpi_join(devices: Any, size: int, index: int, text: Any) -> int:
    """Called from C when XLA makes a communicator; text: of 1024 bytes."""
    try:
        if _State.devices is None:
            raise RuntimeError("there is no world of JAX's devices: JAX's backend was not made through arraycomm")
        return _State.devices.join([devices[i] for i in range(size)], index)
    except BaseException as error:
        words = report(0, error).encode()[:1023]
        ffi.memmove(text, words + b"\0", len(words) + 1)
        return 0


def meet() -> Rendezvous:
    """The rendezvous of the processes, by the environment; done once, by all processes."""
    if _State.meeting is None:
        _State.meeting = rendezvous(name=_NAME, timeout=timedelta(seconds=seconds_of(_State.timeout)))
    return _State.meeting


def coordinator() -> str:
    """The address of JAX's coordinator, chosen by rank 0, on all ranks. The coordinator must listen on this address only."""
    meeting = meet()
    if meeting.rank == 0:
        family, host = (socket.AF_INET6, f"[{meeting.addresses[0]}]") if ":" in meeting.addresses[0] else (
            socket.AF_INET, meeting.addresses[0])
        with socket.socket(family) as free:
            free.bind((meeting.addresses[0], 0))
            meeting.store.set("coordinator", f"{host}:{free.getsockname()[1]}")
    return meeting.store.get("coordinator").decode()


def initialize(*, timeout: float | timedelta | None = None) -> None:
    """JAX's collectives between processes on CPUs run over arraycomm from now on. Every process calls it before it uses JAX.

    It calls jax.distributed.initialize() by what the launcher has set (arraycomm-run, torchrun, mpirun, srun, a Kubernetes
    indexed job, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT), unless the program has. A process that nothing says anything
    about stays alone.

    - Blocks: until the processes have met.
    - Timeout: of the collectives, seconds or a timedelta; None takes ARRAYCOMM_TIMEOUT (1800).
    - Errors: RuntimeError where JAX's backend has been made, or jaxlib has no "mpi" collectives; what arraycomm.init() raises
      where the ranks do not meet.

    Examples:
        >>> def program():                               # each process of arraycomm-run -n 4
        ...     comm.initialize()
        ...     return jax.device_count()                # 4
    """
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX's backend exists already, with other collectives: call arraycomm.frameworks.jax.initialize() "
                           "before anything that makes it, as jax.devices(), jnp.zeros() and jax.device_put() do")
    _State.timeout = seconds_of(timeout)
    plug()


def register() -> None:
    """Makes JAX's next CPU backend use these collectives, if there are other processes."""
    if not hasattr(_jax, "make_mpi_collectives"):
        raise RuntimeError(f'jaxlib {jax.lib.__version__} has no "mpi" collectives, which arraycomm replaces: '
                           "docs/guide/jax.md names the versions that have them")
    xla_bridge.register_backend_factory("cpu", _make_client, priority=0, fail_quietly=False)


def plug() -> None:
    """Installs the collectives if ARRAYCOMM_JAX is set, before JAX makes its backend; jax.distributed.initialize() is called
    unless the program has."""
    register()
    if not jax.distributed.is_initialized() and meet().size > 1:
        address = coordinator()
        jax.distributed.initialize(address, meet().size, meet().rank, cluster_detection_method="deactivate",
                                   coordinator_bind_address=os.environ.get(_BIND, address))


class _Cluster(clusters.ClusterEnv):
    """Cluster detection for jax.distributed.initialize(), from a launcher's variables; active if ARRAYCOMM_JAX is set."""

    name = "arraycomm"

    @classmethod
    def is_env_present(cls) -> bool:
        return settings.get_flag("ARRAYCOMM_JAX") and detect(os.environ) is not None

    @classmethod
    def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
        address = coordinator()
        if _BIND not in os.environ:
            os.environ[_BIND] = _State.bound = address  # reset when the backend is made
        return address

    @classmethod
    def get_process_count(cls) -> int:
        return meet().size

    @classmethod
    def get_process_id(cls) -> int:
        return meet().rank


clusters.ClusterEnv._cluster_types.insert(0, clusters.ClusterEnv._cluster_types.pop())  # JAX uses the first match


def _make_client() -> Any:
    if distributed.global_state.client is None or distributed.global_state.num_processes == 1:
        return xla_bridge.make_cpu_client()
    if _State.devices is not None:
        _State.devices.close()  # belongs to a backend that JAX has dropped
        _State.devices = None
    if _State.bound and os.environ.get(_BIND) == _State.bound:
        del os.environ[_BIND]
    trampoline.use()
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    with _enough_threads():
        client = xla_bridge.make_cpu_client()
    meeting, state = _State.meeting, distributed.global_state
    if meeting is None or (meeting.rank, meeting.size) != (state.process_id, state.num_processes):
        meeting = _State.meeting = _meet_by_jax()
    _State.turn += 1
    ids = [device.id for device in client.devices()]
    _State.devices = _Devices(ids, [device.id for device in client.local_devices()],
                              partial(_open_rank, meeting, _State.turn))
    atexit.unregister(_leave)
    atexit.register(_leave)  # registered after the engine's handler, so it runs before it
    log().info("JAX's CPU collectives run over arraycomm: process %d of %d, %d devices, %d of them here",
               state.process_id, state.num_processes, len(ids), len(client.local_devices()))
    return client


@contextlib.contextmanager
def _enough_threads() -> Iterator[None]:
    """Raises the size of XLA's thread pool while the backend is made. By default it is the number of CPUs; a device's program
    occupies a thread while it waits for peers, and with fewer than two threads per device the devices of a process deadlock."""
    flag = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    told = xla_bridge.num_cpu_devices.value
    wanted = 2 * (told if told >= 0 else int(flag[1]) if flag else 1)
    before = os.environ.get("PJRT_NPROC")
    if wanted > int(before or os.environ.get("NPROC") or len(os.sched_getaffinity(0))):
        os.environ["PJRT_NPROC"] = str(wanted)
    try:
        yield
    finally:
        os.environ.pop("PJRT_NPROC", None)
        if before is not None:
            os.environ["PJRT_NPROC"] = before


def _meet_by_jax() -> Rendezvous:
    """The rendezvous for a program that called jax.distributed.initialize() with arguments: rank 0 publishes its store's address
    in JAX's coordinator. If the job has no secret, the store's own secret is published too, readable by every client of the
    coordinator; the job's secret is never sent."""
    state = distributed.global_state
    timeout = timedelta(seconds=seconds_of(_State.timeout))
    host = str(state.coordinator_address).rpartition(":")[0].strip("[]")
    own = secrets.find(os.environ)
    if state.process_id == 0:
        secret = own or os.urandom(32)
        store = TCPStore(host, 0, is_master=True, timeout=timeout, secret=secret)
        state.client.key_value_set("arraycomm", f"{store.port} {'' if own else secret.hex()}")
    else:
        told = state.client.blocking_key_value_get("arraycomm", round(timeout.total_seconds() * 1000))
        port, _, made = told.partition(" ")
        if not (own or made):
            raise RuntimeError("process 0 of this JAX program has a secret (ARRAYCOMM_SECRET, docs/reference/settings.md), and "
                               f"process {state.process_id} has none: give all processes the same one")
        secret = own or bytes.fromhex(made)
        store = TCPStore(host, int(port), timeout=timeout, secret=secret)
    return rendezvous(store=store, rank=state.process_id, world_size=state.num_processes, name=_NAME, timeout=timeout,
                      environ={"ARRAYCOMM_SECRET": secret.hex()})


def _open_rank(meeting: Rendezvous, turn: int, rank: int, size: int) -> Group:
    store = PrefixStore(f"devices/{turn}", meeting.store)
    Gathering(store, rank, size, meeting.secret).enter()
    job = sha256(f"{meeting.job}/devices/{turn}".encode()).hexdigest()[:32]
    where = meeting._replace(rank=rank, size=size, store=store, job=job, local_rank=None, close=lambda: None)
    # MPI has one rank per process
    over = "mpi" if settings.get("ARRAYCOMM_BACKEND") == "mpi" and size == distributed.global_state.num_processes else "socket"
    return open_group(where, registry.choose(over), seconds_of(_State.timeout), _NAME)
