"""Every algorithm of the engine's table, forced, and the edges between them, made cheap to reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arraycomm._engine import ffi, lib

from .worlds import World

Special = Callable[..., World]
COUNTS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 4097]
EDGES = [1, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 8193, 20_000]


def table() -> list[tuple[str, str]]:
    """(collective, algorithm) of every row."""
    kind, name, rows, row = ffi.new("char **"), ffi.new("char **"), {}, 0
    while lib.acomm_algorithm(row, kind, name):
        rows[ffi.string(kind[0]).decode(), ffi.string(name[0]).decode()] = None
        row += 1
    return list(rows)


# The order of additions is that of the ranks in these, over links too; the others promise equal bits on all ranks only.
RANK_ORDER = {"whole", "sliced", "shared", "pairwise"}
SHARED = {"whole", "sliced", "shared"}
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(("kind", "name"), table())
def test_forced(special: Special, kind: str, name: str, size: int) -> None:
    """Every algorithm on every kind of count, on the transport that it is made for, and links over shared memory too."""
    for transport in ["shm"] if name in SHARED else ["tcp", "shm"] if size in (3, 4) else ["tcp"]:
        world = special(size, transport, {"ARRAYCOMM_ALGORITHM": f"{kind}={name}"})
        if kind in REDUCING:
            world.run("algorithms.reducing", kind=kind, name=name, counts=COUNTS, exact=name in RANK_ORDER)
        else:
            world.run("algorithms.moving", kind=kind, name=name, counts=COUNTS)
        world.close()


@pytest.mark.parametrize("size", [2, 4, 5])
def test_small_pieces(special: Special, size: int) -> None:
    """Staging pieces so small that every operation takes many rounds, and ends in the middle of one."""
    world = special(size, "shm", {"ARRAYCOMM_PIECE_BYTES": "4096"})
    world.run("reductions.sizes", counts=EDGES, ops=("sum",))
    world.run("movement.sizes", counts=EDGES, dtypes=("int8", "float64"))
    world.run("movement.roots")
    world.run("movement.uneven", framework="numpy", rows=[[1000, 0], [3, 2000, 1]])
    world.run("reductions.uneven_scatter", rows=[[1000, 0], [3, 2000, 1]])
    world.run("messages.ring", framework="numpy")


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_low_thresholds(special: Special, size: int, transport: str) -> None:
    """All limits of the table at 256 bytes and their neighbourhood: each pair of neighbours in the table is met."""
    limits = ",".join(f"{kind}.{name}=256" for kind, name in LIMITED)
    world = special(size, transport, {"ARRAYCOMM_THRESHOLDS": limits})
    counts = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 1000]
    world.run("reductions.sizes", counts=counts, exact=False)
    world.run("movement.sizes", counts=counts, dtypes=("int8", "float32"))


LIMITED = [("all_reduce", "doubling"), ("reduce", "whole"), ("all_gather", "bruck")]


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aaab", "abcd", "aabbc"])
def test_hosts(special: Special, hosts: str) -> None:
    """Ranks that believe in several hosts: shared memory inside, TCP between."""
    world = special(len(hosts), "auto", hosts=tuple(hosts))
    world.run("reductions.matrix", framework="numpy", dtypes=("float32", "bfloat16", "int64", "complex64"))
    world.run("movement.matrix", framework="mixed", dtypes=("bool", "float16", "float64"))
    world.run("reductions.sizes", counts=[1, 1000, 70_001], ops=("sum",), exact=False)
    world.run("movement.sizes", counts=[1, 1000, 70_001], dtypes=("float32",))
    world.run("movement.uneven", framework="numpy", rows=[[1, 0], [3, 2, 7]])
    for task in ("messages.ring", "asynchrony.in_flight"):
        world.run(task, framework="numpy")
    for task in ("messages.everyone", "messages.any_source", "groups.subsets", "groups.outsiders_and_keys",
                 "asynchrony.several_groups", "mismatches.matrix", "mismatches.late"):
        world.run(task)


def test_several_connections(special: Special) -> None:
    """Messages striped over several sockets a pair."""
    world = special(3, "tcp", {"ARRAYCOMM_SOCKET_CONNECTIONS": "3"})
    counts = [1, 1000, 16_384, 70_001, 500_000]
    world.run("reductions.sizes", counts=counts, dtypes=("float32",), ops=("sum",), exact=False)
    world.run("movement.sizes", counts=counts, dtypes=("int8",))
    world.run("messages.ring", framework="numpy")


def test_without_checks(special: Special) -> None:
    """ARRAYCOMM_CHECK=0 leaves the comparison of calls away, and nothing else."""
    world = special(3, "auto", {"ARRAYCOMM_CHECK": "0"})
    world.run("reductions.matrix", framework="numpy", dtypes=("float32",))
    world.run("movement.matrix", framework="numpy", dtypes=("float32",))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_repeatable(special: Special, transport: str, size: int) -> None:
    """The same bits from call to call, and from world to world."""
    counts = [1, 100, 5000, 50_000]
    first = special(size, transport)
    again = [first.run("reductions.bits_of_sums", counts=counts)[0].value for _ in range(2)]
    first.close()
    second = special(size, transport)
    assert again[0] == again[1] == second.run("reductions.bits_of_sums", counts=counts)[0].value


@pytest.mark.parametrize("size", [2, 4, 5])
def test_transports_agree(special: Special, size: int) -> None:
    """Rank order is rank order: pairwise over TCP gives the bits of shared memory."""
    results = []
    for transport, algorithm in (("shm", ""), ("tcp", "all_reduce=pairwise")):
        world = special(size, transport, {"ARRAYCOMM_ALGORITHM": algorithm})
        results.append(world.run("reductions.bits_of_sums", counts=[1, 100, 5000])[0].value)
        world.close()
    assert results[0] == results[1]
