"""rendezvous(): gets rank, size and a common store from an init_method, a store or the environment.

The store is hosted by our launcher or torchrun if the environment says so, else by rank 0. If a scheduler started all
ranks on one host and no address is given, the store is a file in a private directory, named after the job: this
avoids collisions of ports between jobs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple

from ..base import settings
from ..base.errors import AuthFailed, DistNetworkError
from ..base.log import log
from ..base.printable import printable
from ..base.private import private_directory
from . import ends
from . import secret as secrets
from .address import loopback_address, outside_address, publish_addresses, select_addresses
from .environment import Place, detect, hosted_by_torch, unknown_rank, with_master
from .environment import hosted as is_hosted
from .gathering import MEET, Gathering, TooLate, agreed
from .store import HashStore, PrefixStore, Store, TCPStore
from .store.connections import StoreClosed, StoreLost

_ADVICE = "see whether they were started with the same MASTER_ADDR and MASTER_PORT, and what they printed"
_TOGETHER = 0.5  # s: a rank that timed out this late started with this one; it raises and does not retry
_ANNOUNCE = timedelta(seconds=5)  # for a store on this host, or one that is known to be up
LINGER = 1.0  # s that rank 0 keeps serving the store for ranks that are still leaving


class Rendezvous(NamedTuple):
    """The input of a backend to connect the ranks. `close` closes the store if it was opened here."""

    rank: int
    size: int
    store: Store  # under a prefix of this world
    secret: bytes | None
    job: str  # random, equal on all ranks, unique to this world
    addresses: list[str]  # to listen on, and to publish to the peers
    local_rank: int | None = None
    close: Callable[[], None] = lambda: None

    def part(self, members: Sequence[int], label: str) -> Rendezvous:
        """A Rendezvous of a subset of the ranks, in this order. Only they call it, after their rendezvous.

        label: unique within this world.
        """
        store = PrefixStore(f"part/{label}", self.store)
        rank, job = list(members).index(self.rank), sha256(f"{self.job}/{label}".encode()).hexdigest()[:32]
        with contextlib.suppress(StoreLost):  # survivors may not need the store; otherwise the error comes on its next use
            Gathering(store, rank, len(members), self.secret).enter()
        return self._replace(rank=rank, size=len(members), store=store, job=job, close=lambda: None)


class _Meeting(NamedTuple):
    """A store before the rendezvous."""

    store: Store
    host: str | None = None  # the server's host; None for files and memory
    port: int = 0
    owned: bool = True
    noted: bool = False  # a launcher serves it and writes exit reports there, by ranks of this world

    def close(self) -> None:
        if not self.owned:
            return
        if isinstance(self.store, TCPStore):
            self.store.close(linger=LINGER)
        else:
            self.store.close()


class _WrongSize(ValueError):
    """The ranks have different world sizes. size: that of the other ranks."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size


def rendezvous(init_method: str | None = None, *, rank: int | None = None, world_size: int | None = None,
               store: Store | None = None, timeout: timedelta = timedelta(seconds=300), name: str = "world",
               backend: str = "", environ: Mapping[str, str] | None = None) -> Rendezvous:
    """Meets the other ranks; returns when all have come.

    init_method: "env://" (the default), "tcp://host:port" (rank 0 serves the store there), "file:///path"; ranks and
    size as arguments, as "?rank=0&world_size=2" or from the environment. A process that nothing says anything about is
    a world of one. `name` tells worlds apart that are open at the same time. `backend` is compared between the ranks.

    Raises ValueError for missing or contradicting arguments and variables, and for another backend than another rank's,
    DistNetworkError, AuthFailed and DistStoreError (which ranks did not come) as the stores do.
    """
    environ = os.environ if environ is None else environ
    if store is not None and init_method is not None:
        raise ValueError("give either store or init_method, not both")
    if init_method is not None:
        init_method, rank, world_size = _split_query(init_method, rank, world_size)
    place = _place(init_method, rank, world_size, store is not None, environ)
    secret = secrets.find(environ)
    end = time.monotonic() + timeout.total_seconds()
    while True:
        left = timedelta(seconds=max(end - time.monotonic(), 0.001))
        meeting = _Meeting(store, owned=False) if store else _open(init_method, place, secret, left, environ)
        try:
            return _join(meeting, place, secret, left, name, backend, environ)
        except StoreClosed:
            # This rank left an earlier world before rank 0, and connected to that world's store.
            meeting.close()
            if place.rank == 0 or store is not None or time.monotonic() >= end:
                raise
        except BaseException:
            meeting.close()
            raise


@contextlib.contextmanager
def announced(backend: str, name: str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """For a backend whose ranks meet elsewhere: meanwhile ranks of another one, which wait in the store for this one, are told,
    and this rank of those that came before. Only where a store is at hand: the launcher's, or a file for the ranks of one host.

    Raises ValueError as rendezvous() does.
    """
    place = detect(environ)
    if place is None or place.size == 1 or not (is_hosted(environ) or _in_file(place, environ)):
        yield
        return
    secret = secrets.find(environ)
    meeting = _open_env(place, secret, _ANNOUNCE, environ)
    try:
        store, _ = _turn(meeting, place, name, environ)
        gathering = Gathering(store, place.rank, place.size, secret)
        try:
            _agree(store, place, backend, secret)
        except (ValueError, AuthFailed) as error:
            gathering.fail(error)
            raise
        yield
    finally:
        meeting.close()


def _split_query(url: str, rank: int | None, size: int | None) -> tuple[str, int | None, int | None]:
    from urllib.parse import parse_qs  # lazy, as below: most worlds need no URL

    bare, _, query = url.partition("?")
    values = parse_qs(query, keep_blank_values=True)
    unknown = set(values) - {"rank", "world_size"}
    if unknown:
        raise ValueError(f"init_method {url!r}: unknown {', '.join(sorted(unknown))}; rank and world_size are known")
    found: list[int | None] = []
    for name, given in (("rank", rank), ("world_size", size)):
        try:
            told = int(values[name][0]) if name in values else None
        except ValueError:
            raise ValueError(f"init_method {url!r}: {name} must be a whole number") from None
        if None not in (given, told) and given != told:
            raise ValueError(f"{name} is {given} by argument and {told} by init_method {url!r}")
        found.append(told if given is None else given)
    return bare, found[0], found[1]


def _place(init_method: str | None, rank: int | None, size: int | None, has_store: bool,
           environ: Mapping[str, str]) -> Place:
    """Rank and size; arguments override the environment."""
    told = rank is not None and size is not None
    elsewhere = has_store or (init_method is not None and not init_method.startswith("env://"))
    place = None if told and elsewhere else detect(environ, rank, size)
    if place is None and not told:
        return _untold(rank, size, environ, alone=not elsewhere and init_method is None)
    if place is None:
        place = Place("arguments", rank or 0, size or 0)
        if not elsewhere:
            place = with_master(place, environ)
    elif (rank, size) != (None, None):
        place = place._replace(rank=place.rank if rank is None else rank, size=place.size if size is None else size)
    if place.size < 1 or not 0 <= place.rank < place.size:
        raise ValueError(f"rank {place.rank} of world_size {place.size} (from {place.launcher}): a rank is at least 0 "
                         "and below the world size")
    return place


def _untold(rank: int | None, size: int | None, environ: Mapping[str, str], *, alone: bool) -> Place:
    """The error if rank or size is in neither the arguments nor the environment. alone: a world of one may be meant."""
    if alone and rank is None and size is None:
        if found := unknown_rank(environ):
            log().warning("%s is set, by a launcher that arraycomm does not know: this process is a world of its own. For one "
                          "world of all ranks, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its variables", found)
        return Place("a plain process", 0, 1, 0, 1)
    missing = " and ".join(n for n, v in (("rank (RANK)", rank), ("world_size (WORLD_SIZE)", size)) if v is None)
    raise ValueError(f"{missing} not given and not found in the environment: pass rank= and world_size=, set the "
                     "variables, or start with arraycomm-run, torchrun, mpirun or srun")


def _open(init_method: str | None, place: Place, secret: bytes | None, timeout: timedelta,
          environ: Mapping[str, str]) -> _Meeting:
    if not init_method:
        return _open_env(place, secret, timeout, environ)
    from urllib.parse import unquote, urlsplit

    url = urlsplit(init_method)
    if url.scheme == "env":
        return _open_env(place, secret, timeout, environ)
    if url.scheme == "tcp":
        try:
            host, port = url.hostname, url.port
        except ValueError:
            host, port = None, None
        if not host or not port:
            raise ValueError(f"init_method {init_method!r} needs a host and a port, as tcp://10.0.0.1:29500")
        return _open_tcp(host, port, place, secret, timeout, hosted=False)
    if url.scheme == "file":
        if url.netloc or not url.path.strip("/"):
            raise ValueError(f"init_method {init_method!r} needs three slashes and a path, as file:///shared/run1")
        from .store.file import FileStore  # lazy, as the other rare stores

        return _Meeting(FileStore(unquote(url.path), place.size, timeout))
    raise ValueError(f"init_method {init_method!r}: unknown scheme; there are env://, tcp://host:port and file:///path")


def _open_env(place: Place, secret: bytes | None, timeout: timedelta, environ: Mapping[str, str]) -> _Meeting:
    hosted = is_hosted(environ)
    if place.size == 1 and not hosted:
        return _Meeting(HashStore(timeout))
    if _in_file(place, environ):
        from .store.file import FileStore

        return _Meeting(FileStore(_meeting_file(place, environ), place.size, timeout))
    missing = [name for name, value in (("MASTER_ADDR to the host of rank 0", place.host),
                                        ("MASTER_PORT to a free port there", place.port)) if not value]
    if missing or not place.host or not place.port:
        raise ValueError(f"rank {place.rank} of {place.size} (from {place.launcher}) does not know where the ranks "
                         f"meet: set {' and '.join(missing)}, on all ranks "
                         "(mpirun: -x NAME=value with Open MPI, -genv NAME value with MPICH)")
    if hosted_by_torch(environ):
        from .store.torch import TorchStore

        return _Meeting(TorchStore(place.host, place.port, timeout), place.host, place.port)
    noted = hosted and environ.get("RANK") == str(place.rank)  # not if init() was given another rank than the launcher's
    return _open_tcp(place.host, place.port, place, secret, timeout, hosted=hosted)._replace(noted=noted)


def _in_file(place: Place, environ: Mapping[str, str]) -> bool:
    return place.local and "MASTER_ADDR" not in environ and place.launcher != "environment"


def _open_tcp(host: str, port: int, place: Place, secret: bytes | None, timeout: timedelta, *,
              hosted: bool) -> _Meeting:
    """`hosted`: the launcher serves the store at this address."""
    if place.local and not hosted:
        host = loopback_address()
    store = TCPStore(host, port, is_master=place.rank == 0 and not hosted, timeout=timeout, secret=secret or b"",
                     job="" if hosted else place.job)
    return _Meeting(store, host, port)


def _meeting_file(place: Place, environ: Mapping[str, str]) -> str:
    """The path of this job's rendezvous file: in a private directory, named after the job.

    MPICH's mpirun sets no job name, but its ranks have a common parent, the proxy process on this host.
    """
    job = place.job or f"parent {os.getppid()} {_start_time(os.getppid())}"
    directory = private_directory(environ)
    return os.path.join(directory, sha256(f"{place.launcher} {job} {place.size}".encode()).hexdigest()[:32])


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks after boot: distinguishes processes that reuse a pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""  # hidden (hidepid): use the pid alone


def _join(meeting: _Meeting, place: Place, secret: bytes | None, timeout: timedelta, name: str, backend: str,
          environ: Mapping[str, str]) -> Rendezvous:
    try:
        _check_in(PrefixStore(_prefix(name, environ), meeting.store), place)
    except _WrongSize as error:
        store, _ = _turn(meeting, place, name, environ)
        Gathering(store, place.rank, error.size, secret).fail(ValueError(str(error)))  # notifies waiting peers
        raise ValueError(str(error)) from None
    end = time.monotonic() + timeout.total_seconds()
    while True:
        store, turn = _turn(meeting, place, name, environ)
        try:
            job, addresses = _meet(store, meeting, place, secret, backend, max(end - time.monotonic(), 0.001), name)
            break
        except TooLate:  # the next attempt has the next number
            if time.monotonic() >= end - _TOGETHER:
                raise
    if place.rank == 0 and turn > 1 and meeting.store._lists_keys:
        old = PrefixStore(f"{_prefix(name, environ)}/{turn - 1}", meeting.store)  # all ranks have left the previous one
        for key in old.list_keys():
            old.delete_key(key)
    return Rendezvous(place.rank, place.size, store, secret, job, addresses, place.local_rank,
                      meeting.close)


def _prefix(name: str, environ: Mapping[str, str]) -> str:
    return f"arraycomm/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _turn(meeting: _Meeting, place: Place, name: str, environ: Mapping[str, str]) -> tuple[Store, int]:
    """Counts the worlds opened in the same store, the same number on all ranks; each has its own keys."""
    prefix = _prefix(name, environ)
    turn = PrefixStore(prefix, meeting.store).add(f"turn/{place.rank}", 1)
    return PrefixStore(f"{prefix}/{turn}", meeting.store), turn


def _agree(store: Store, place: Place, backend: str, secret: bytes | None) -> None:
    first = agreed(store, "backend", secret, f"the backend of {place.size} ranks", f"{backend}\0{place.rank}".encode())
    told, _, other = first.decode(errors="replace").partition("\0")
    if told != backend:
        raise ValueError(f"rank {place.rank} of {place.size} has backend {backend!r}, rank {printable(other)} {told!r}: give all "
                         "ranks the same to init(), or in ARRAYCOMM_BACKEND")


def _meet(store: Store, meeting: _Meeting, place: Place, secret: bytes | None, backend: str,
          seconds: float, name: str) -> tuple[str, list[str]]:
    """Waits for all ranks. Returns the job's name, chosen by the last rank, and this rank's listen addresses."""
    gathering = Gathering(store, place.rank, place.size, secret)
    gathering.enter()
    try:
        if backend and place.size > 1:
            _agree(store, place, backend, secret)
        meeting.store.set(_name_key(place.rank), name)
        job = gathering.wait(MEET, seconds, lambda absent: _advice(meeting.store, name, absent),
                             result=lambda: os.urandom(16).hex().encode(),
                             watch=(lambda: ends.tell(meeting.store, gathering, MEET)) if meeting.noted else None,
                             where=lambda absent: _whereabouts(meeting, place, absent))
        if meeting.noted and place.rank == 0:
            ends.met(meeting.store)
        return job.decode(), _addresses(meeting, place, secret)
    except BaseException as error:
        gathering.fail(error)
        raise


def _whereabouts(meeting: _Meeting, place: Place, absent: Sequence[int]) -> str:
    """The hosts or nodes of these ranks, for messages."""
    local = place.local_size
    if place.local:
        on = ", on this host"
    elif local and place.launcher == "environment" and place.size % local == 0:  # ranks are consecutive on a node
        nodes = sorted({rank // local for rank in absent})
        on = f", of node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))} ({local} ranks a node)"
    else:
        on = ""
    others = ends.turned_away(meeting.store)
    return f"{on}{others and '; '}{others}"


def _name_key(rank: int) -> str:
    return f"arraycomm/name/{rank}"


def _advice(store: Store, name: str, absent: Sequence[int]) -> str:
    """Advice in a timeout error: among others, missing ranks may have opened a world of another name in this store."""
    keys = [_name_key(rank) for rank in absent]
    others = sorted({store.get(key).decode(errors="replace") for key in keys if store.check([key])} - {name})
    if not others:
        return _ADVICE
    return (f"this rank joined with name={name!r}, and some absent ranks joined last with "
            f"name={', '.join(map(repr, others))}: ranks with different names are in different worlds; {_ADVICE}")


def _check_in(world: Store, place: Place) -> None:
    mine, size = f"{socket.gethostname()} process {os.getpid()} (started {_start_time(os.getpid())})", str(place.size)
    owner = world.compare_set(f"rank/{place.rank}", "", mine)
    if owner != mine.encode():
        raise AuthFailed(f"rank {place.rank} is taken by {printable(owner)}: two processes have the same rank, or another job "
                         "uses this store; choose another MASTER_PORT (or path)")
    told = world.compare_set("size", "", size)
    if told != size.encode():
        raise _WrongSize(f"rank {place.rank} has world_size {size}, others in this store have {printable(told)}: start all with "
                         "the same WORLD_SIZE, or another job in another store (MASTER_PORT or path)",
                         int(told) if told.isdigit() else 1)


def _addresses(meeting: _Meeting, place: Place, secret: bytes | None) -> list[str]:
    """This rank's listen addresses. Raises AuthFailed for one that is not loopback if there is no secret."""
    if place.size == 1 or (place.local and not settings.get("ARRAYCOMM_SOCKET_IFNAME")):
        return [loopback_address()]
    if meeting.host is not None:
        addresses = publish_addresses(meeting.host, meeting.port)
    else:
        addresses = select_addresses() or [_anywhere(secret)]
    for address in addresses:
        secrets.require(secret, address)
    return addresses


def _anywhere(secret: bytes | None) -> str:
    """Listen addresses for a file or a user's store, which does not show the peers' hosts: not loopback only with a secret."""
    if secret is None and not settings.get_flag("ARRAYCOMM_INSECURE"):
        return loopback_address()
    try:
        return outside_address()
    except DistNetworkError:
        return loopback_address()
