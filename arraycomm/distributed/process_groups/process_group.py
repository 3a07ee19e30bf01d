"""ProcessGroup: the handle that every function of arraycomm.distributed takes, and how its core groups are opened."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from arraycomm.core.base import settings
from arraycomm.core.base.errors import DeviceError, counted_in
from arraycomm.core.base.log import log
from arraycomm.core.base.printable import numbered
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.bootstrap.store import Store
from arraycomm.core.diagnostics.watch import Watched, attach
from arraycomm.core.group import arguments
from arraycomm.core.group.group import Group
from arraycomm.core.group.start import open_group
from arraycomm.core.interface.backend import Backend as Engine

from .. import debug
from ..constants import default_pg_nccl_timeout
from ..operations.methods import Operations, Timed, untimed
from ..operations.work import Boxable
from ..store import PrefixStore
from . import backend as backends
from . import devices, nccl
from .backend import Backend, BackendConfig, BackendType
from .derived import DerivedCommunicator, PluginBackend, Unopened
from .hooks import Hooked
from .members import Members
from .world import default_group, state

if TYPE_CHECKING:
    from .window import Window

_WAITING = "wait() orders the device's stream behind the operation, and wait(timeout) blocks the host"
_ERRORS = "an operation that fails, or whose timeout passes, always raises an exception, on all ranks; the process is not ended"
_OF_TORCHS_NCCL = {"TORCH_NCCL_BLOCKING_WAIT": _WAITING, "NCCL_BLOCKING_WAIT": _WAITING, "NCCL_ASYNC_ERROR_HANDLING": _ERRORS,
                   "TORCH_NCCL_ASYNC_ERROR_HANDLING": _ERRORS}


class ProcessGroup(Operations, Hooked, Members, Boxable):
    """One process's end of a group of ranks. Made by init_process_group(), new_group() and dist2.new_group().

    Its methods have torch's names and forms: each begins an operation and returns its Work. Ranks are ranks of the group. Where a
    method takes a list of arrays, each array is an operation, and the Work stands for all; the list is as long on all ranks. opts
    is
    an object such as AllreduceOptions; a timeout is a timedelta, and None takes the group's.

    A program's own class calls `super().__init__(rank, size)` and defines allreduce() and so on. Backend.register_backend() takes
    a
    function that makes such a group.

    Attributes:
        core: the arraycomm.Group that carries the operations.
        ranks: global ranks in group order.
        group_name: unique among the open groups.
        group_desc: a description, "undefined" without one.
        backend: the name that was asked for.
        bound_device_id: None, or the device that this process works on.

    - Blocks: the methods of operations do not; Work.wait() does.
    - Errors: as the functions of arraycomm.distributed. ValueError for an empty list, CollectiveMismatch where lists differ in
      length.

    Examples:
        >>> def work(group):
        ...     pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=store, rank=group.rank, world_size=2)
        ...     x, y, other = np.ones(1), np.empty(2), 1 - pg.rank()
        ...     pg.allreduce([x]).wait()
        ...     pg.broadcast(x, 0).wait()
        ...     pg.reduce(np.ones(1), 0).wait()
        ...     pg.all_gather_single(y, x).wait()
        ...     pg.reduce_scatter_single(np.empty(1), y).wait()
        ...     pg.all_to_all_single(np.empty(2), y, [], []).wait()
        ...     pg.allgather([[np.empty(1), np.empty(1)]], [x]).wait()
        ...     pg.gather([[np.empty(1), np.empty(1)]] if pg.rank() == 0 else [], [x]).wait()
        ...     pg.scatter([np.empty(1)], [[x, x]] if pg.rank() == 0 else []).wait()
        ...     pg.reduce_scatter([np.empty(1)], [[x, x]]).wait()
        ...     pg.alltoall([np.empty(1), np.empty(1)], [x, x]).wait()
        ...     pg.allreduce_coalesced([x]).wait()
        ...     pg.allgather_coalesced([[np.empty(1)], [np.empty(1)]], [x]).wait()
        ...     pg.all_gather_single_coalesced([np.empty(2)], [x]).wait()
        ...     pg.reduce_scatter_single_coalesced([np.empty(1)], [y]).wait()
        ...     sent = pg.send([x], other, 7)
        ...     pg.recv([x], other, 7).wait(); sent.wait()
        ...     sent = pg.send([x], other, 8)
        ...     pg.recv_anysource([x], 8).wait(); sent.wait()
        ...     pg.barrier().wait()
        ...     pg.monitored_barrier(timedelta(seconds=60))
        ...     pg.set_timeout(timedelta(seconds=30))
        ...     part = pg.split_group([pg.rank()])
        ...     found = pg.size(), pg.name(), pg.getBackendName(), pg.get_backend("cpu") is pg.core, part.size(), x.item()
        ...     pg.shutdown()
        ...     return found, pg.closed
        >>> store = dist.HashStore()
        >>> arraycomm.run(work, 2)[0]
        ((2, 'gloo', 'gloo', False, 1, 4.0), True)
        >>> pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=dist.HashStore(), rank=0, world_size=1)
        >>> pg.get_group_store().set("key", "value")
        >>> pg.supports_window, pg.new_window() is not None, pg.supports_reconfigure, pg.use_pg_for_symm_mem_rendezvous
        (True, True, True, True)
        >>> pg.get_reconfigure_handle()[:9], dist.ProcessGroup.unbox(pg.boxed()) is pg
        ('arraycomm', True)
        >>> pg.merge_remote_group(dist.HashStore(), 1).size()
        1
        >>> pg.reconfigure(dist2.ReconfigureOptions(1, [pg.get_reconfigure_handle()])).wait()
        True
        >>> pg.register_pre_hook(1, lambda args: print("before", args.name.name))
        >>> pg.register_post_hook(1, lambda args: print("after"))
        >>> pg.register_abort_hook(1, lambda: print("aborted"))
        >>> pg.barrier().wait()
        before BARRIER
        after
        True
        >>> pg.unregister_pre_hook(1); pg.unregister_post_hook(1)
        >>> pg.abort()
        aborted
        >>> pg.unregister_abort_hook(1)
    """

    BackendType = BackendType
    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL, CUSTOM = BackendType

    def __init__(self, *place: Any) -> None:
        """For classes that derive from this one: (rank, size), or (store, rank, size) as torch has it too."""
        if len(place) not in (2, 3):
            raise TypeError(f"ProcessGroup() takes (rank, size) or (store, rank, size), got {len(place)} arguments")
        rank, size = place[-2:]
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"the size of a group is an int of at least 1, got {size!r}")
        unopened: Any = Unopened(check_rank(rank, size), size)
        self.core, self.ranks = unopened, tuple(range(unopened.size))
        self.group_name, self.group_desc, self.bound_device_id = "", "undefined", None
        self.backend, self._config = Backend.UNDEFINED, BackendConfig(Backend.UNDEFINED)
        self._watched = True  # disables the core group's fast path
        self._hold(None)

    @classmethod
    def _of(cls, core: Group, ranks: Sequence[int], *, name: str, desc: str | None, backend: str, config: BackendConfig,
           meeting: Rendezvous, bound_device_id: Any = None, base: Store | None = None) -> ProcessGroup:
        """The handle of a core group; the program's own object if a program's class implements the group.

        meeting: the world's rendezvous. base: the store for the rendezvous of reconfigure().
        """
        carrier = core._communicator if isinstance(core, Group) else None
        group = carrier.group if isinstance(carrier, DerivedCommunicator) else cls.__new__(cls)
        group.group_name, group.group_desc = name, desc or "undefined"
        group.backend, group._config = backend, config
        group.bound_device_id = bound_device_id
        group._base = PrefixStore("reconfigure", base or meeting.store)
        group._install(core, ranks, meeting)
        return group

    def _install(self, core: Group, ranks: Sequence[int], meeting: Rendezvous) -> None:
        """Sets the members."""
        self._meeting = meeting
        self.core = core
        self.ranks = tuple(ranks)
        self._place = {global_rank: rank for rank, global_rank in enumerate(self.ranks)}
        self._agreements = self._splits = self._windows = 0  # counts, equal on all ranks of the group
        self._monitored = -1, -1  # number of the last monitored_barrier()
        self._passed = ""  # number of the last monitored_barrier() that all ranks passed: its keys are still in the store
        if self.size():
            debug.opened(self)
        self._watched = isinstance(core, Watched)  # permanently: a trace or the DETAIL checks are attached
        self._hold(None)
        if self._hooks is not None:
            self._hooks.failed = False
            self._watch(self._hooks)

    def __repr__(self) -> str:
        return (f"<arraycomm.distributed.ProcessGroup {self.group_name!r} ({self.group_desc}): rank {self.rank()} of "
                f"{self.size()}, {self._config}>")

    def _hold(self, collected: list[Any] | None, *, everything: bool = False) -> None:
        """collected: the list for a coalescing manager's deferred operations; None: calls run at once. everything: messages and
        collectives of all kinds are deferred.

        plain: the core group if calls can take the fast path (no watcher, nothing deferred), else None. rooted: the same if
        global ranks equal group ranks.
        """
        self._collected, self._holds_all = collected, everything
        self._plain: Any = self.core if collected is None and not self._watched else None
        self._rooted: Any = self._plain if self.ranks == tuple(range(len(self.ranks))) else None

    def rank(self) -> int:
        """This process's rank in the group.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return int(self.core.rank)

    def size(self) -> int:
        """The group's number of ranks.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return int(self.core.size)

    def name(self) -> str:
        """The backend's name, as getBackendName().

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return self.getBackendName()

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name of the backend that was asked for. A program's own class may give another name.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return self.backend

    @property
    def closed(self) -> bool:
        """Whether the group is closed.

        - Blocks: never, as any attribute.
        - Errors: none, on a closed group too.
        """
        return bool(self.core.closed)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the default timeout of the group's operations that begin afterwards.

        - Blocks: never; nothing is sent.
        - Timeout: a timedelta.
        - Errors: TypeError for what is no timedelta, ValueError for 0 or less.
        """
        if timeout is None:
            raise TypeError("set_timeout needs a datetime.timedelta, got None")
        timed: Any = Timed(self.core, seconds_of(timeout))
        self.core = timed
        self._hold(self._collected)

    def get_backend(self, device: Any) -> Group:
        """The core group that carries the operations on arrays of this device. set_timeout() does not change its timeout.

        - Blocks: never; nothing is sent.
        - Errors: DeviceError (a ValueError) where there is none.
        """
        kind = devices.type_of(device)
        if kind not in self._config.device_backend_map:
            raise DeviceError(f"No backend type associated with device type {kind}: group {self.group_name!r} has {self._config}")
        return untimed(self.core)

    def _watch(self, watcher: Any) -> None:
        """Tells a Watcher (arraycomm.core.diagnostics.watch) of all operations from now on."""
        if self.core.size:
            attach(untimed(self.core), watcher)
        self._watched = True
        self._hold(self._collected)

    @property
    def use_pg_for_symm_mem_rendezvous(self) -> bool:
        """True: the ranks of symmetric arrays, which core.empty() makes, always meet through the group itself.

        - Blocks: never, as any attribute.
        - Errors: ValueError when it is set to False.
        """
        return True

    @use_pg_for_symm_mem_rendezvous.setter
    def use_pg_for_symm_mem_rendezvous(self, value: bool) -> None:
        if not value:
            raise ValueError("the group itself always agrees on symmetric arrays; False is not supported")

    @property
    def supports_window(self) -> bool:
        """Whether new_window() can be called: over this package's engine and over MPI.

        - Blocks: never, as any attribute.
        - Errors: none; it is False for other backends.
        """
        return self.core.backend in ("socket", "mpi")

    def new_window(self, tensor: Any = None) -> Window:
        """A Window; with a tensor it is registered. All ranks call it.

        - Shapes: any; may differ between ranks.
        - Dtypes: the same on all ranks.
        - Memory: tensor must be contiguous and writable. The window keeps it.
        - Blocks: with a tensor until every rank has called it.
        - Errors: RuntimeError where supports_window is False.
        """
        from .window import Window  # imported on demand: few programs use it

        if not self.supports_window:
            why = "; NCCL puts and signals (ncclPutSignal), and a window is read and reduced into as well"
            raise RuntimeError(f"group {self.group_name!r} has no windows: they need arraycomm's own engine, not {self._config}"
                               + (why if Backend.NCCL in self._config._names() else ""))
        window = Window(self)
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def split_group(self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None,
                    group_name: str | None = None, group_desc: str | None = None,
                    device_types: Sequence[Any] | None = None) -> ProcessGroup | None:
        """A group of these ranks of this group, in this order; None outside of it. Every rank of this group calls it.

        Lists that do not overlap may be given by different ranks at once.

        Args:
            timeout: a timedelta, the default of the new group's operations; None takes this group's.
            opts: for backends that take options.
            device_types: the devices whose arrays the new group takes; None: all that this group takes.

        - Blocks: until the members of the new group have met.
        - Timeout: CollectiveTimeout where a member does not come.
        - Errors: ValueError for ranks that the group does not have or that come twice, and for a device without a backend.
        """
        members = check_ranks(ranks, self.size())
        config = self._config if device_types is None else self._config_of(device_types)
        label = f"{numbered(members)}/{self._splits}"
        self._splits += 1
        if self.rank() not in members:
            return None
        seconds = self.core.timeout if timeout is None else seconds_of(timeout)
        _announce_ignored(config, opts)
        core = self.core.subgroup(members, label, timeout=seconds, backends=config._engines())
        return ProcessGroup._of(core, [self.ranks[rank] for rank in members], name=group_name or f"{self.group_name}:{label}",
                            desc=group_desc, backend=self.backend, config=config, meeting=self._meeting,
                            bound_device_id=self.bound_device_id)

    def _config_of(self, device_types: Sequence[Any]) -> BackendConfig:
        kinds = dict.fromkeys(devices.type_of(device) for device in device_types)
        if not kinds:
            raise ValueError("split_group: device_types is empty; pass None for all devices of this group")
        for kind in kinds:
            self.get_backend(kind)
        return BackendConfig(",".join(f"{kind}:{self._config.device_backend_map[kind]}" for kind in kinds))

    def shutdown(self) -> None:
        """Closes the group. It stays listed until destroy_process_group().

        - Blocks: never for operations; those in progress end with Aborted.
        - Errors: none; it may be called again.
        """
        self.core.close()

    def abort(self) -> None:
        """Ends every operation in progress, here and on the peers, after the abort hooks have run.

        - Blocks: never; the peers are notified within a second.
        - Errors: none; a closed group stays as it is.
        """
        if self._hooks is not None:
            self._hooks.run_abort()
        self.core.abort("ProcessGroup.abort() was called")

    def get_group_store(self) -> PrefixStore:
        """A store of this group, in which its ranks can meet.

        - Blocks: never; nothing is sent.
        - Errors: ValueError when the group is closed.
        """
        if self.closed:
            raise ValueError(f"group {self.group_name!r} is closed, and its store with it")
        return PrefixStore(f"group/{self.core.name}", self._meeting.store)


def check_rank(rank: Any, size: int) -> int:
    """A rank of a group of this size. Raises TypeError for what is no integer, ValueError for one that is out of range."""
    if isinstance(rank, bool) or not hasattr(rank, "__index__"):
        raise TypeError(f"a rank is an int, got {rank!r}")
    number = int(rank)
    if size == 0:
        raise ValueError("the group has no members yet: call reconfigure()")
    if not 0 <= number < size:
        raise ValueError(f"Rank {number} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})")
    return number


def check_ranks(ranks: Sequence[Any], size: int) -> list[int]:
    """As check_rank(), for some ranks; ValueError also for none, and for one that comes twice."""
    members = [check_rank(rank, size) for rank in ranks]
    if not members:
        raise ValueError("a group needs at least one rank, got an empty list")
    if len(set(members)) != len(members):
        raise ValueError(f"ranks list must not contain duplicate entries, got {members}")
    return members


def seconds_of(timeout: object, backend: str = "") -> float:
    """Of a timedelta, or None: the default, which of backend "nccl" is torch's own unless ARRAYCOMM_TIMEOUT is set. Raises
    TypeError for anything else, ValueError for one of 0 or less."""
    if timeout is None and backend == Backend.NCCL and "ARRAYCOMM_TIMEOUT" not in os.environ:
        timeout = default_pg_nccl_timeout
    if timeout is None:
        return arguments.group_seconds(settings.get_number("ARRAYCOMM_TIMEOUT"))
    if not isinstance(timeout, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r}")
    if timeout <= timedelta(0):
        raise ValueError(f"timeout must be above 0, got {timeout}")
    return arguments.group_seconds(timeout.total_seconds())


def open_world(meeting: Rendezvous, config: BackendConfig, timeout: float, pg_options: Any, device: Any) -> Group:
    """The core group of all ranks. Closing it, or a failure here, closes the meeting. device: a result of devices.bound()."""
    _announce_ignored(config, pg_options)
    return open_group(meeting, _chosen(config, pg_options, range(meeting.size), device), timeout, "world")


def part_of(meeting: Rendezvous, kind: str) -> tuple[Rendezvous, str]:
    """A new rendezvous of the same ranks over the same store, and its name."""
    state.parts += 1
    name = f"{kind} {state.parts}"
    return meeting.part(range(meeting.size), name), name


def open_part(ranks: Sequence[int], turn: int, config: BackendConfig, timeout: float, pg_options: Any) -> Group:
    """The core group of these ranks of the default group. Only these ranks call it.

    turn: how many groups of these ranks there were before.
    """
    parent = default_group()
    _announce_ignored(config, pg_options)
    label = f"{numbered(ranks)}#{turn}"
    if shares(parent, config, pg_options):
        return parent.core.subgroup(ranks, label, timeout=timeout, backends=config._engines())  # type: ignore[no-any-return]
    chosen, label = _chosen(config, pg_options, ranks, parent.bound_device_id), f"{config._spelled()} {label}"
    with counted_in(parent.core.ranks, parent.core.name, [parent.core.ranks[rank] for rank in ranks]):
        return open_group(parent._meeting.part(ranks, label), chosen, timeout, label)


def shares(parent: ProcessGroup, config: BackendConfig, pg_options: Any) -> bool:
    """Whether a group uses the parent's connections: if the parent has the same backends. A program's own backend, and NCCL with
    options, make a communicator for each group."""
    own = set(Backend._plugins) if pg_options is None else {*Backend._plugins, Backend.NCCL}
    return set(config._engines()) <= set(parent._config._engines()) - own


def _announce_ignored(config: BackendConfig, pg_options: Any) -> None:
    takers = [name for name in config._names() if name == Backend.NCCL or
              (name in Backend._plugins and Backend._plugins[name].extended_api)]
    if pg_options is not None and not takers:
        warnings.warn(f"{config} has no options of its own: pg_options is ignored", stacklevel=5)
    if Backend.NCCL in takers:
        for name, instead in _OF_TORCHS_NCCL.items():
            if name in os.environ:
                log().warning("%s=%s changes nothing here: %s", name, os.environ[name], instead)


def _chosen(config: BackendConfig, pg_options: Any, ranks: Sequence[int], device: Any) -> dict[Engine, frozenset[int]]:
    """As the core's registry.choose(). ranks: the global ones of the group."""
    def load(name: str) -> Engine:
        plugin = Backend._plugins.get(name)
        engine = PluginBackend(name, plugin, pg_options, ranks) if plugin else backends.engine_for(name)
        if name == Backend.NCCL:
            nccl.configure(engine, pg_options, device, asked=config._asked)
        return engine

    return {load(name): types for name, types in config._engines().items()}
