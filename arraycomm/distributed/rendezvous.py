"""rendezvous(): from a URL to (store, rank, world size); and registration of a program's own URL schemes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from arraycomm.core.bootstrap import store as core
from arraycomm.core.bootstrap.environment import hosted, hosted_by_torch, number
from arraycomm.core.bootstrap.store.torch import TorchStore

from .process_groups.world import default_pg_timeout
from .store import FileStore, PrefixStore
from .tcp_store import TCPStore

Place = tuple[core.Store, int, int]
Handler = Callable[..., Iterator[Place]]

_OWN = ("rank", "world_size")


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Makes rendezvous() and init_process_group() call `handler` for URLs of this scheme.

    The handler is called as handler(url, timeout=..., ...), and gives an iterator over (store, rank, world_size).

    - Blocks: never; the handler is called later.
    - Errors: RuntimeError for a scheme that is registered already.

    Examples:
        >>> def handler(url, **options):
        ...     yield dist.HashStore(), 0, 1
        >>> dist.register_rendezvous_handler("documented", handler)
        >>> next(dist.rendezvous("documented://"))[1:]
        (0, 1)
    """
    if scheme in _handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[Place]:
    """An iterator over (store, rank, world_size), as torch.distributed.rendezvous() gives it.

    Args:
        url: env://, tcp://host:port, file:///path, or a registered scheme; also with ?rank=0&world_size=2.

    - Blocks: the first step, until the store can be reached.
    - Errors: ValueError for missing arguments, AssertionError for arguments that the URL has already, RuntimeError for an unknown
      scheme, arguments of other types and a second step.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "store")
        >>> store, rank, size = next(dist.rendezvous(f"file://{path}", rank=0, world_size=1))
        >>> rank, size
        (0, 1)
    """
    handler, complete = _checked(url, rank, world_size)
    return handler(complete, **kwargs)


def place(url: str | None, rank: int, world_size: int, timeout: timedelta) -> tuple[str, core.Store | None, int, int]:
    """(URL, store or None, rank, size) from init_process_group()'s arguments: for a built-in scheme the URL, whose store the core
    opens itself; else the items of a program's own handler. None is env://; rank and size are -1 if the environment has
    them. Raises as rendezvous().
    """
    if url is None:
        _check_types(rank, world_size)
        return "env://", None, rank, world_size
    handler, complete = _checked(url, rank, world_size)
    if handler not in _BUILT_IN:
        return url, *next(handler(complete, timeout=timeout))
    query, bare = _query(complete), url.partition("?")[0]
    if handler is not _env:
        _required(query, bare.partition(":")[0])
    told = [number(query, name) if name in query else -1 for name in _OWN]
    return bare, None, told[0], told[1]


def _checked(url: str, rank: int, world_size: int) -> tuple[Handler, str]:
    """The handler of the URL's scheme, and the URL with rank and size in its query."""
    from urllib.parse import parse_qs, urlsplit

    if not isinstance(url, str):
        raise RuntimeError(f"`url` must be a string. Got {url!r}")
    _check_types(rank, world_size)
    parts = urlsplit(url)
    handler = _handlers.get(parts.scheme)
    if handler is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_handlers))
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}:// in {url!r} (there are {known})")
    if (rank, world_size) == (-1, -1):
        return handler, url
    if any(name in parse_qs(parts.query) for name in _OWN):
        raise AssertionError(f"The url: {url} has node-specific arguments(rank, world_size) already.")
    given = [f"{name}={value}" for name, value in zip(_OWN, (rank, world_size), strict=True) if value != -1]
    return handler, parts._replace(query="&".join(filter(None, [parts.query, *given]))).geturl()


def _check_types(rank: object, world_size: object) -> None:
    for name, value in zip(_OWN, (rank, world_size), strict=True):
        if not isinstance(value, int):
            raise RuntimeError(f"`{name}` must be an integer. Got {value!r}")


def _query(url: str) -> dict[str, str]:
    from urllib.parse import parse_qsl, urlsplit

    return dict(parse_qsl(urlsplit(url).query))


def _required(query: dict[str, str], scheme: str) -> tuple[int, int]:
    for name, called in (("rank", "rank"), ("world_size", "world size")):
        if name not in query:
            raise ValueError(f"Error initializing torch.distributed using {scheme}:// rendezvous: {called} parameter missing")
    return _in_world(number(query, "rank"), number(query, "world_size"), f"rank= and world_size= of {scheme}://")


def _in_world(rank: int, size: int, origin: str) -> tuple[int, int]:
    """ValueError for a rank outside the world: no rank would wait for it, or all would wait for another one."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of world_size {size} (from {origin}): a rank is at least 0 and below the world size")
    return rank, size


def _tcp(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[Place]:
    from urllib.parse import urlsplit

    parts, query = urlsplit(url), _query(url)
    if not parts.port or not parts.hostname:
        raise ValueError("Error initializing torch.distributed using tcp:// rendezvous: port number missing")
    rank, size = _required(query, "tcp")
    yield _store(parts.hostname, parts.port, rank, size, timeout, query), rank, size
    raise RuntimeError("Unable to perform re-rendezvous using tcp:// method")


def _file(url: str, **_: Any) -> Iterator[Place]:
    from urllib.parse import unquote, urlsplit

    path = unquote(urlsplit(url).path)
    if not path.strip("/"):
        raise ValueError("Error initializing torch.distributed using file:// rendezvous: path missing")
    rank, size = _required(_query(url), "file")
    yield FileStore(path, size), rank, size
    raise RuntimeError("Unable to perform re-rendezvous using file:// method")


def _env(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[Place]:
    query = _query(url)
    rank, size = (_from(query, name) for name in _OWN)
    _in_world(rank, size, " and ".join(f"{name}=" if name in query else name.upper() for name in _OWN) + " of env://")
    port = _from({}, "master_port")
    yield _store(os.environ["MASTER_ADDR"], port, rank, size, timeout, query), rank, size
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _from(query: dict[str, str], name: str) -> int:
    """The query's value, else the environment variable's. MASTER_ADDR is looked up before MASTER_PORT."""
    if name in query:
        return number(query, name)
    for variable in ("MASTER_ADDR", "MASTER_PORT") if name == "master_port" else (name.upper(),):
        if variable not in os.environ:
            raise ValueError("Error initializing torch.distributed using env:// rendezvous: environment variable "
                             f"{variable} expected, but not set")
    return number(os.environ, name.upper())


def _store(host: str, port: int, rank: int, size: int, timeout: timedelta, query: dict[str, str]) -> core.Store:
    """A store served by rank 0 or by the launcher: torchrun's agent (one store, a prefix per attempt), or arraycomm-run."""
    libuv = query.get("use_libuv", os.environ.get("USE_LIBUV", "1")) == "1"
    attempt = f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if hosted(os.environ):
        return PrefixStore(attempt, TCPStore(host, port, None, False, timeout, use_libuv=libuv))
    if hosted_by_torch(os.environ):
        return PrefixStore(attempt, TorchStore(host, port, timeout))
    return TCPStore(host, port, size, rank == 0, timeout, multi_tenant=True, use_libuv=libuv)


_handlers: dict[str, Handler] = {"tcp": _tcp, "file": _file, "env": _env}
_BUILT_IN = frozenset(_handlers.values())
