"""rendezvous(): URLs to stores, errors as torch's, and schemes of a program's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import arraycomm.distributed as dist

from ..ports import free_port
from ..threads import at_once

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LIMIT = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "ARRAYCOMM_STORE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "USE_LIBUV"):
        monkeypatch.delenv(name, raising=False)


def meet(url: Any, *arguments: Any, **keywords: Any) -> Any:
    return next(dist.rendezvous(url, *arguments, **keywords))


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ((3,), RuntimeError, "`url` must be a string"), (("tcp://h:1", "0"), RuntimeError, "`rank` must be an integer"),
    (("tcp://h:1", 0, None), RuntimeError, "`world_size` must be an integer"),
    (("foo://x",), RuntimeError, "No rendezvous handler for foo://"), (("x",), RuntimeError, "No rendezvous handler for ://"),
    (("tcp://127.0.0.1", 0, 1), ValueError, "port number missing"), (("tcp://h:1",), ValueError, "rank parameter missing"),
    (("tcp://h:1", 0), ValueError, "world size parameter missing"), (("tcp://h:1?rank=x&world_size=1",), ValueError, "rank"),
    (("tcp://h:1?rank=0&world_size=1", 0, 2), AssertionError, "node-specific arguments"),
    (("file://", 0, 1), ValueError, "path missing"), (("file:///x",), ValueError, "rank parameter missing"),
    (("env://",), ValueError, "environment variable RANK expected"),
    (("env://", 0), ValueError, "environment variable WORLD_SIZE expected"),
    (("env://", 0, 1), ValueError, "environment variable MASTER_ADDR expected"),
    (("tcp://127.0.0.1:1", 2, 2), ValueError, r"rank 2 of world_size 2 \(from rank= and world_size= of tcp://\)"),
    (("tcp://127.0.0.1:1?rank=-1&world_size=2",), ValueError, "rank -1 of world_size 2"),
    (("file:///x?rank=0&world_size=0",), ValueError, "rank 0 of world_size 0")])
def test_refusals(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        meet(*arguments)


@pytest.mark.parametrize("form", ["arguments", "query"])
@pytest.mark.parametrize("scheme", ["tcp", "file", "env"])
def test_two_ranks_meet(scheme: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    url = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{tmp_path}/a%20b", "env": "env://"}[scheme]

    def come(rank: int) -> Any:
        if form == "query":
            return meet(f"{url}?rank={rank}&world_size=2", timeout=LIMIT)
        return meet(url, rank, 2, timeout=LIMIT)

    stores = at_once(2, come)
    for rank, (store, told, size) in enumerate(stores):
        assert (told, size) == (rank, 2) and isinstance(store, dist.Store)
        store.set(str(rank), "here")
    for store, _, _ in stores:
        assert store.multi_get(["0", "1"]) == [b"here", b"here"]
    for store, _, _ in reversed(stores):
        store.close()


def test_a_rank_outside_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: it would wait for a world that it is not in."""
    for name, value in zip(VARIABLES, ("2", "2", "127.0.0.1", str(free_port())), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"rank 2 of world_size 2 \(from RANK and WORLD_SIZE of env://\)"):
        meet("env://", timeout=LIMIT)
    with pytest.raises(ValueError, match=r"rank 3 of world_size 2 \(from rank= and WORLD_SIZE of env://\)"):
        meet("env://?rank=3", timeout=LIMIT)


def test_environment_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(free_port())), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("USE_LIBUV", "0")
    places = dist.rendezvous("env://")
    store, rank, size = next(places)
    assert isinstance(store, dist.TCPStore) and (rank, size, store.libuvBackend) == (0, 1, False)
    with pytest.raises(RuntimeError, match="re-rendezvous using env://"):
        next(places)
    store.close()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ValueError, match="RANK"):
        meet("env://")


def test_schemes_of_a_program() -> None:
    seen: list[str] = []

    def handler(url: str, timeout: timedelta) -> Iterator[Any]:
        seen.append(url)
        yield dist.HashStore(), 0, 1

    dist.register_rendezvous_handler("mine", handler)
    for scheme in ("mine", "env"):
        with pytest.raises(RuntimeError, match="already registered"):
            dist.register_rendezvous_handler(scheme, handler)
    assert meet("mine://there?a=b", 0, 1, timeout=LIMIT)[1:] == (0, 1)
    dist.init_process_group("gloo", init_method="mine://there")
    assert dist.get_world_size() == 1
    dist.destroy_process_group()
    assert seen == ["mine://there?a=b&rank=0&world_size=1", "mine://there"]
