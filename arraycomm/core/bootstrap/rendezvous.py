"""rendezvous(): from an init_method, a store or the environment to rank, size and a store in which all ranks are.

Who hosts the store: our launcher or torchrun where they say so, else rank 0. Where a scheduler put all ranks on one
host and nobody named an address, they meet in a file in a directory that only this user can enter, named after the
job: then no port can be taken by another job.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from ..base import settings
from ..base.digest import sha256
from ..base.errors import AuthFailed, DistNetworkError
from ..base.log import log
from ..base.printable import printable
from ..base.private import private_directory
from ..base.record import Record
from . import ends
from . import secret as secrets
from .address import loopback_address, outside_address, publish_addresses, select_addresses
from .environment import Place, detect, hosted_by_torch, unknown_rank, with_master
from .environment import hosted as is_hosted
from .gathering import MEET, Gathering, TooLate, agreed
from .store import HashStore, PrefixStore, Store, TCPStore
from .store.connections import StoreClosed, StoreLost

_ADVICE = "see whether they were started with the same MASTER_ADDR and MASTER_PORT, and what they printed"
_TOGETHER = 0.5  # s: who gave up as late as that began with this rank, and does not try again, but says who did not come
_ANNOUNCE = timedelta(seconds=5)  # for a store that is on this host, or serves the ranks already
LINGER = 1.0  # s that rank 0 serves the store for ranks that are still leaving


class Rendezvous(Record):
    """What a backend needs to connect the ranks. `close` gives the store back, if it was opened here."""

    rank: int
    size: int
    store: Store  # under a prefix of this world's own
    secret: bytes | None
    job: str  # random, equal on all ranks, of no other world
    addresses: list[str]  # where to listen, and what to tell the peers
    local_rank: int | None = None
    close: Callable[[], None] = lambda: None

    def part(self, members: Sequence[int], label: str) -> Rendezvous:
        """The same for these ranks, in this order, who alone call it: they have met already.

        label: of no other part of this world.
        """
        store = PrefixStore(f"part/{label}", self.store)
        rank, job = list(members).index(self.rank), sha256(f"{self.job}/{label}".encode()).hexdigest()[:32]
        with contextlib.suppress(StoreLost):  # survivors may need no store: who does hears of it
            Gathering(store, rank, len(members), self.secret).enter()
        return self._replace(rank=rank, size=len(members), store=store, job=job, close=lambda: None)


class _Meeting(Record):
    """A store before the ranks have met in it."""

    store: Store
    host: str | None = None  # where it is served; None for files and memory
    port: int = 0
    owned: bool = True
    noted: bool = False  # a launcher serves it, and notes there which ranks have ended, by the numbers of this world

    def close(self) -> None:
        if not self.owned:
            return
        if isinstance(self.store, TCPStore):
            self.store.close(linger=LINGER)
        else:
            self.store.close()


class _WrongSize(ValueError):
    """size: that the other ranks were told."""

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
            # This rank came back faster than rank 0 from an earlier world, and found that one's store.
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
    from urllib.parse import parse_qs  # as below: most worlds need no URL

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
    """Rank and size, by argument before environment."""
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
    """Where neither arguments nor the environment tell both. alone: a world of one may be meant."""
    if alone and rank is None and size is None:
        if found := unknown_rank(environ):
            log().warning("%s is set, by a launcher that arraycomm does not know: this process is a world of its own. Where the "
                          "ranks are to meet, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its variables", found)
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
        from .store.file import FileStore  # as the other rare stores: where it is used

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
    noted = hosted and environ.get("RANK") == str(place.rank)  # not where init() was told another number than the launcher gave
    return _open_tcp(place.host, place.port, place, secret, timeout, hosted=hosted)._replace(noted=noted)


def _in_file(place: Place, environ: Mapping[str, str]) -> bool:
    return place.local and "MASTER_ADDR" not in environ and place.launcher != "environment"


def _open_tcp(host: str, port: int, place: Place, secret: bytes | None, timeout: timedelta, *,
              hosted: bool) -> _Meeting:
    """`hosted`: the launcher serves it, at the address that it named."""
    if place.local and not hosted:
        host = loopback_address()
    store = TCPStore(host, port, is_master=place.rank == 0 and not hosted, timeout=timeout, secret=secret or b"",
                     job="" if hosted else place.job)
    return _Meeting(store, host, port)


def _meeting_file(place: Place, environ: Mapping[str, str]) -> str:
    """A path that the ranks of this job share and nobody else: in a private directory, named after the job.

    MPICH's mpirun gives its job no name, but its ranks have one parent, the proxy on this host.
    """
    job = place.job or f"parent {os.getppid()} {_start_time(os.getppid())}"
    directory = private_directory(environ)
    return os.path.join(directory, sha256(f"{place.launcher} {job} {place.size}".encode()).hexdigest()[:32])


def _start_time(pid: int) -> str:
    """Clock ticks after boot at which a process started: tells two users of one process id apart."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""  # hidden (hidepid): the id alone must do


def _join(meeting: _Meeting, place: Place, secret: bytes | None, timeout: timedelta, name: str, backend: str,
          environ: Mapping[str, str]) -> Rendezvous:
    try:
        _check_in(PrefixStore(_prefix(name, environ), meeting.store), place)
    except _WrongSize as error:
        store, _ = _turn(meeting, place, name, environ)
        Gathering(store, place.rank, error.size, secret).fail(ValueError(str(error)))  # the others need not wait for this rank
        raise ValueError(str(error)) from None
    end = time.monotonic() + timeout.total_seconds()
    while True:
        store, turn = _turn(meeting, place, name, environ)
        try:
            job, addresses = _meet(store, meeting, place, secret, backend, max(end - time.monotonic(), 0.001), name)
            break
        except TooLate:  # their next try has the next number
            if time.monotonic() >= end - _TOGETHER:
                raise
    if place.rank == 0 and turn > 1 and meeting.store.lists_keys:
        old = PrefixStore(f"{_prefix(name, environ)}/{turn - 1}", meeting.store)  # all ranks have left that one
        for key in old.list_keys():
            old.delete_key(key)
    return Rendezvous(place.rank, place.size, store, secret, job, addresses, place.local_rank,
                      meeting.close)


def _prefix(name: str, environ: Mapping[str, str]) -> str:
    return f"arraycomm/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _turn(meeting: _Meeting, place: Place, name: str, environ: Mapping[str, str]) -> tuple[Store, int]:
    """A world may be opened again in the same store, by all ranks equally often; each time has its own keys."""
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
    """Waits for all ranks; the job's name, which the last one makes up, and where this one listens."""
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
    """Where these ranks are expected."""
    local = place.local_size
    if place.local:
        on = ", on this host"
    elif local and place.launcher == "environment" and place.size % local == 0:  # numbered node by node
        nodes = sorted({rank // local for rank in absent})
        on = f", of node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))} ({local} ranks a node)"
    else:
        on = ""
    others = ends.turned_away(meeting.store)
    return f"{on}{others and '; '}{others}"


def _name_key(rank: int) -> str:
    return f"arraycomm/name/{rank}"


def _advice(store: Store, name: str, absent: Sequence[int]) -> str:
    """For who waits for ranks that may have come to a world of another name in this store, last of all."""
    keys = [_name_key(rank) for rank in absent]
    others = sorted({store.get(key).decode(errors="replace") for key in keys if store.check([key])} - {name})
    if not others:
        return _ADVICE
    return (f"this rank came with name={name!r}, and of those some came last with name={', '.join(map(repr, others))}: worlds of "
            f"different names do not meet; {_ADVICE}")


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
    """Where this rank listens. Raises AuthFailed where that is not loopback and there is no secret."""
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
    """A file or a user's store does not tell where the others are: beyond this host only with a secret."""
    if secret is None and not settings.get_flag("ARRAYCOMM_INSECURE"):
        return loopback_address()
    try:
        return outside_address()
    except DistNetworkError:
        return loopback_address()
