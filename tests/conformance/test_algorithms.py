"""Every algorithm of the engine's table, forced, and the edges between them, made cheap to reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from arraycomm.core.base import settings
from arraycomm.core.interface import tuning
from arraycomm.core.interface.kinds import COLLECTIVES

from .worlds import Settings, World, only

BACKENDS = ("socket",)  # algorithms are the engine's

Special = Callable[..., World]
EDGES = [1, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 8193, 20_000]


def table(transport: str | None = None) -> list[tuple[str, str]]:
    """(collective, algorithm) of every row, or of those that run there."""
    return [(kind, name) for kind, algorithms in tuning.names(transport).items() for name in algorithms]


# These add in the order of the ranks. The others promise the same bits on all ranks and from run to run.
ORDERED = {(row.kind, row.name) for row in tuning.rows() if row.ordered}


def several(settings: Settings) -> bool:
    """A world of one runs no algorithm: it copies."""
    return settings.size > 1


def share(settings: Settings) -> bool:
    return several(settings) and settings.transport == "shm"


@only(several)
@pytest.mark.parametrize(("kind", "name"), table("tcp"))
def test_forced(world: World, kind: str, name: str, tmp_path: Path) -> None:
    """Every algorithm for links: over TCP, and over links in shared memory."""
    world.run("algorithms.forced", kind=kind, name=name, exact=(kind, name) in ORDERED, folder=str(tmp_path))


@only(share)
@pytest.mark.parametrize(("kind", "name"), [row for row in table("symmetric") if row not in table("tcp")])
def test_forced_on_one_host(world: World, kind: str, name: str, tmp_path: Path) -> None:
    world.run("algorithms.forced", kind=kind, name=name, exact=(kind, name) in ORDERED, folder=str(tmp_path))


@pytest.mark.parametrize("hosts", ["aab", "abcb"])
def test_forced_over_hosts(special: Special, hosts: str, tmp_path: Path) -> None:
    """Those for several hosts, and those for any ranks, which begin in the host then."""
    world = special(len(hosts), "auto", hosts=tuple(hosts))
    for kind, name in table("hosts"):
        folder = tmp_path / f"{kind}-{name}"
        folder.mkdir()
        world.run("algorithms.forced", kind=kind, name=name, exact=(kind, name) in ORDERED, folder=str(folder))


def test_the_table_is_covered() -> None:
    """A new algorithm is tested from the row in the table on; a new collective needs its task here."""
    assert {kind for kind, _ in table()} == COLLECTIVES | {"recv"}


@only(share)
def test_unlike_calls(world: World) -> None:
    world.run("algorithms.unlike", names=["ring", "bruck"])


@only(share)
def test_small_pieces(world: World) -> None:
    """Staging pieces so small that every operation takes many rounds, and ends in the middle of one."""
    world.run("algorithms.varied", environ={"ARRAYCOMM_PIECE_BYTES": "4096"}, counts=EDGES, exact=True)


@only(share)
def test_without_mechanisms(world: World) -> None:
    world.run("algorithms.varied", environ={"ARRAYCOMM_WITHOUT": ",".join(settings.MECHANISMS)}, counts=EDGES, exact=True)


@only(several)
def test_low_thresholds(world: World) -> None:
    """Every algorithm for 256 bytes more than the one before it, and counts around these limits: neighbours meet."""
    limits = ",".join(f"{kind}={name}:{256 * number}" for kind, algorithms in tuning.names().items()
                      for number, name in enumerate([name for name in algorithms if name != "library"], 1))
    counts = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 193, 257, 321, 385, 449, 1000]
    world.run("algorithms.varied", environ={"ARRAYCOMM_ALGORITHM": limits}, counts=counts, exact=False)


@only(several)
def test_without_comparison(world: World) -> None:
    """ARRAYCOMM_CHECK=0 leaves the comparison of calls away, and nothing else."""
    world.run("algorithms.varied", environ={"ARRAYCOMM_CHECK": "0"}, counts=[0, 1, 1000, 10_000], exact=False)


@only(lambda settings: settings == Settings(2, "shm"))
def test_names_are_checked(world: World) -> None:
    world.run("algorithms.unknown_names")


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aaab", "abcd", "aabbc"])
def test_hosts(special: Special, hosts: str) -> None:
    """Ranks that believe in several hosts: shared memory inside, TCP between."""
    world = special(len(hosts), "auto", hosts=tuple(hosts))
    world.run("reductions.matrix", framework="numpy", dtypes=("float32", "bfloat16", "int64", "complex64"),
              exact=False)
    world.run("movement.matrix", framework="mixed", dtypes=("bool", "float16", "float64"))
    world.run("reductions.sizes", counts=[1, 1000, 70_001], ops=("sum",), exact=False)
    world.run("movement.sizes", counts=[1, 1000, 70_001], dtypes=("float32",))
    world.run("movement.uneven", framework="numpy", rows=[[1, 0], [3, 2, 7]])
    for task in ("messages.ring", "asynchrony.in_flight"):
        world.run(task, framework="numpy")
    world.run("movement.long_uneven")
    world.run("reductions.long_uneven")
    for task in ("messages.everyone", "messages.any_source", "groups.subsets", "groups.outsiders_and_keys",
                 "asynchrony.several_groups", "mismatches.matrix", "mismatches.root_ahead", "mismatches.late"):
        world.run(task)


def test_long_blocks_of_more_ranks_than_cores(special: Special) -> None:
    """Which they read past the caches, on machines of up to three cores."""
    special(4, "shm", {"ARRAYCOMM_ALGORITHM": "all_to_all=direct"}).run("movement.long_even")


def test_several_connections(special: Special) -> None:
    """Messages striped over several sockets a pair."""
    world = special(3, "tcp", {"ARRAYCOMM_SOCKET_CONNECTIONS": "3"})
    counts = [1, 1000, 16_384, 70_001, 500_000]
    world.run("reductions.sizes", counts=counts, dtypes=("float32",), ops=("sum",), exact=False)
    world.run("movement.sizes", counts=counts, dtypes=("int8",))
    world.run("messages.ring", framework="numpy")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 5])
def test_repeatable(special: Special, transport: str, size: int) -> None:
    """The same bits from call to call, and from world to world."""
    counts = [1, 100, 5000, 50_000]
    first = special(size, transport)
    again = [first.run("reductions.bits_of_sums", counts=counts)[0].value for _ in range(2)]
    first.close()
    second = special(size, transport)
    assert again[0] == again[1] == second.run("reductions.bits_of_sums", counts=counts)[0].value
