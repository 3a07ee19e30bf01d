"""A rank of test_mpi.py: `mpi_rank.py CASE`. Prints what it met; exits with 0 unless the case is to end it otherwise."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import re
import signal
import sys
import time

import numpy as np

import arraycomm
from arraycomm._engine import lib
from arraycomm.backends.mpi import MpiCommunicator
from arraycomm.backends.mpi.library import load
from tests.backends.mapped import mapped


def say(group: arraycomm.Group, text: str) -> None:
    """A whole line at once: some mpiruns mix what ranks write in parts."""
    os.write(1, f"rank {group.rank}: {text}\n".encode())


_LONG = 200_000  # elements: past what travels with the comparison


def late(group: arraycomm.Group, length: int) -> None:
    """Rank 1 comes after rank 0 has given up; then it hears of that."""
    if group.rank == 1:
        time.sleep(1.5)
    group.all_reduce(np.ones(length), timeout=0.5 if group.rank == 0 else 20)


def elsewhere(group: arraycomm.Group) -> None:
    """Each names what it was doing itself, and what the one that gave up was doing."""
    if group.rank == 0:
        group.all_reduce(np.ones(7), timeout=0.5)
    elif group.rank == 1:
        group.recv(2, like=np.ones(3))
    else:
        group.all_reduce(np.ones(7))


def unopened(rank: int) -> None:
    """Rank 1 comes when rank 0 has given up: it hears of that."""
    meet = MpiCommunicator.meet
    MpiCommunicator.meet = lambda group, timeout: (time.sleep(2 * rank), meet(group, 0.7))[1]
    try:
        arraycomm.init()
    except arraycomm.CollectiveTimeout as error:
        os.write(1, f"rank {rank}: {error}\n".encode())


def closes_early(group: arraycomm.Group) -> None:
    """Rank 0 waits in close() until rank 1 has come to its broadcast, and leaves it the processor."""
    part, x = group.split(0), np.ones(4)
    assert part is not None
    if group.rank == 1:
        time.sleep(1)
    part.broadcast(x, 0)
    spent, began = time.process_time(), time.monotonic()
    part.close()
    say(group, f"waited {time.monotonic() - began > 0.8}, at work {time.process_time() - spent > 0.4}")


def straggle(rank: int) -> None:
    """Before a collective of three ranks: rank 0 is through it while rank 2 waits for what rank 1 passes on a second later."""
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: time.sleep(1))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    elif rank == 2:
        time.sleep(0.4)


def differs(group: arraycomm.Group) -> None:
    straggle(group.rank)
    try:
        group.all_reduce(np.ones(4 if group.rank == 0 else 5))
    except arraycomm.GroupError as error:
        say(group, f"{type(error).__name__} {error.ranks} {str(error).partition(': ')[2].partition(';')[0]}")
        sys.exit()


def checks_differ(rank: int) -> None:
    os.environ["ARRAYCOMM_CHECK"] = "0" if rank == 1 else "1"
    meet = MpiCommunicator.meet
    MpiCommunicator.meet = lambda *told: (straggle(rank), meet(*told))[1]
    refused(rank, "world")
    os.environ.update(ARRAYCOMM_CHECK="1", ARRAYCOMM_TRACE="/nowhere" if rank == 2 else "")
    refused(rank, "world")


def refused(rank: int, name: str) -> None:
    try:
        arraycomm.init(timeout=60, name=name)
    except ValueError as error:
        os.write(1, f"rank {rank}: {error}\n".encode())


def compares(group: arraycomm.Group) -> None:
    """Without comparison, in the whole group and in parts of it."""
    for part in group, group.split(0):
        say(group, f"sum {part.all_reduce(np.ones(_LONG)).sum()}")


def leaves(group: arraycomm.Group) -> None:
    if group.rank == 1:
        raise KeyError("my own mistake")
    group.all_reduce(np.ones(_LONG))


def closes(group: arraycomm.Group) -> None:
    """The others are told, and can go on without it."""
    turned = group.subgroup([2, 0, 1], "turned")
    if group.rank == 1:
        group.close()
        return
    for one in (turned, group):
        try:
            one.barrier()
        except arraycomm.PeerLost as error:
            say(group, f"PeerLost {error.ranks} {error.world_ranks} {error}")
    rest = [rank for rank in range(group.size) if rank != 1]
    with group.subgroup(rest, "rest") as part:
        say(group, f"sum {part.all_reduce(np.array([group.rank])).item()}")


def aborts(group: arraycomm.Group) -> None:
    if group.rank == 1:
        group.abort("enough of it")
    group.barrier()


def aborts_receives(group: arraycomm.Group) -> None:
    """The failure comes when rank 1 has just begun to receive: nothing of that call may be written to later, as by close()."""
    for _ in range(60):
        part, x = group.split(0), np.zeros(1)
        assert part is not None
        try:
            if part.rank == 0:
                part.recv(1, like=x)
                part.send(x, 1)
                part.abort("enough of it")
            else:
                part.send(x, 0)
                part.recv(0, like=x)
                part.recv(0, like=x)
        except arraycomm.Aborted:
            pass
        part.close()
        group.barrier()
    say(group, "goes on")


def killed(group: arraycomm.Group) -> None:
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.all_reduce(np.ones(_LONG))


def shrinks(group: arraycomm.Group) -> None:
    """Those that live go on without the one that does not, more than once; not without one of them."""
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_reduce(np.ones(_LONG))
    except arraycomm.PeerLost as error:
        say(group, f"PeerLost {error.ranks}")
    group.subgroup([rank for rank in range(group.size) if rank != 1], "rest").barrier()
    with group.shrink().shrink() as rest:
        say(group, f"left {rest.ranks}")
        part = rest.split(rest.rank % 2)
        assert part is not None
        found = (rest.all_reduce(np.array([group.rank])).item(), part.all_reduce(np.ones(_LONG))[-1].item())
        say(group, f"sums {found}")
        rest.barrier()
        part.close()


def wrapped(group: arraycomm.Group) -> None:
    """mpi4py in the process: its communicator, its own traffic beside ours, its end."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    backwards = comm.Split(0, -comm.rank)
    with arraycomm.from_mpi4py(backwards) as twin:
        ours = twin.all_gather(np.array([comm.rank])).tolist()
        theirs = backwards.allgather(comm.rank)
    good = ours == theirs == list(range(comm.size))[::-1] and twin.rank == backwards.rank and comm.allreduce(1) == group.size
    say(group, f"wrapped {'right' if good else 'WRONG'}")
    for wrong in (3, MPI.COMM_NULL):
        try:
            arraycomm.from_mpi4py(wrong)
        except (TypeError, ValueError) as error:
            say(group, f"{type(error).__name__} {error}")


def ours_first(group: arraycomm.Group) -> None:
    """mpi4py comes later and finds MPI begun; we end it."""
    from mpi4py import MPI

    say(group, f"began {MPI.Is_initialized()}, sum {MPI.COMM_WORLD.allreduce(1)}")


def finalizes(group: arraycomm.Group) -> None:
    """Somebody ends MPI while a group is open: the group has let go of it before, and says so."""
    from mpi4py import MPI

    part = group.split(0)
    MPI.Finalize()
    for one in (group, part):
        try:
            assert one is not None
            one.barrier()
        except arraycomm.Aborted as error:
            say(group, f"Aborted {error}")
    try:
        arraycomm.init()
    except arraycomm.DistBackendError as error:
        say(group, f"DistBackendError {error}")
    assert part is not None
    part.check_peers()
    part.close("KeyError")  # which would be told to the peers
    group.check_peers()
    group.close()
    say(group, "closed both")


def errs(group: arraycomm.Group) -> None:
    """The library's function fails on one rank."""
    if group.rank == 1:
        os.environ["STANDIN_MPI"] = "fails"
    try:
        group.all_gather(np.ones(_LONG))
    except arraycomm.DistBackendError as error:
        say(group, f"DistBackendError {error}")


def splits(group: arraycomm.Group) -> None:
    part = group.split(group.rank % 2)
    assert part is not None
    with part:
        total = part.all_reduce(np.array([group.rank])).item()
    say(group, f"splits {'right' if total == sum(range(group.rank % 2, group.size, 2)) else 'WRONG'}")


def facade(group: arraycomm.Group) -> None:
    import arraycomm.distributed as dist

    dist.init_process_group("mpi")
    x = np.ones(3, np.float32)
    dist.all_reduce(x)
    same = dist.is_mpi_available() and dist.get_backend() == "mpi" and dist.get_rank() == group.rank
    say(group, f"facade {'right' if same and x.tolist() == [group.size] * 3 else 'WRONG'}")
    dist.destroy_process_group()


def listens(group: arraycomm.Group) -> None:
    import psutil

    open_to = [socket.laddr.ip for socket in psutil.Process().net_connections("inet") if socket.status == psutil.CONN_LISTEN]
    say(group, f"listens on {sorted({address for address in open_to if address != '127.0.0.1'})}")


def ahead(group: arraycomm.Group) -> None:
    """The root of short broadcasts does not wait, but only so far, and its close() for all to come, not to end."""
    late = group.rank == group.size - 1
    time.sleep(0.5 * late)
    x, began, early = np.empty(100), time.monotonic(), 0
    for number in range(200):
        group.broadcast(np.full(100, float(number)) if group.rank == 0 else x, 0, out=x)
        early += time.monotonic() - began < 0.3
        if (x != number).any():
            say(group, f"broadcast {number}: {x}")
    if group.rank == 0:
        say(group, f"{early} before the last came")
    part = group.split(0)
    assert part is not None
    time.sleep(0.5 * late)
    part.broadcast(x, 0)
    began = time.monotonic()
    if late:
        time.sleep(2)
    part.close()
    if group.rank == 0:
        say(group, f"closed in time {0.3 < time.monotonic() - began < 1.5}")
    part = group.split(0)
    assert part is not None
    if late:
        part.abort("no broadcast of mine")
    else:
        part.broadcast(x, 0, out=x)
        part.close()  # raises what came of it


def roots(group: arraycomm.Group) -> None:
    """Differences that the next call does not meet are found all the same, soon, and named."""
    size, me = group.size, group.rank
    first = {"halves": me % 2, "a ring": (me + 1) % size, "everybody": me}
    for name, then in itertools.product(first, ("close", "barrier", "broadcast")):
        part, began = group.split(0), time.monotonic()
        assert part is not None
        try:
            for root in (first[name], size - 1, *[0] * (100 if then == "broadcast" else 0)):
                part.broadcast(np.full(4, float(me)), root)
            if then == "barrier":
                part.barrier()
            part.close()
            say(group, f"{name}, {then}: no error")
        except arraycomm.CollectiveMismatch as error:
            found = set(re.findall(r"broadcast #\d of 4 float64, root (\d)", str(error)))
            part.close()
            if len(found) != 2 or time.monotonic() - began > 20:
                say(group, f"{name}, {then}: after {time.monotonic() - began} s {error}")
        group.barrier()
    say(group, "all found")


def deviates(group: arraycomm.Group) -> None:
    """One rank does something else among many calls: all hear of it. Nobody does: all is right."""
    chance = random.Random(1)
    for trial in range(40):
        odd, when, way = chance.randrange(-1, group.size), chance.randrange(30), chance.randrange(3)
        calls = [(chance.random() < 0.15, chance.randrange(group.size), chance.randrange(1, 200)) for _ in range(30)]
        part, wrong = group.split(0), ""
        assert part is not None
        try:
            for number, (reduces, root, count) in enumerate(calls):
                if group.rank == odd and number == when:
                    reduces, root, count = [(not reduces, root, count), (False, (root + 1) % group.size, count + reduces),
                                            (reduces, root, count + 1)][way]
                x = np.full(count, float(number * (group.rank == root or reduces)))
                got = part.all_reduce(x) if reduces else part.broadcast(x, root)
                if not (got == number * (group.size if reduces else 1)).all():
                    wrong = f"{number}: {got}"
            part.close()
            wrong = wrong or ("" if odd < 0 else "no error")
        except arraycomm.CollectiveMismatch as error:
            wrong = wrong or ("" if odd >= 0 else str(error))
            part.close()
        if wrong:
            say(group, f"trial {trial}, rank {odd} at {when}, way {way}: {wrong}")
        group.barrier()
    say(group, "all found")


def long_ones(group: arraycomm.Group) -> None:
    """Contents are sent along with what ranks compare: nobody's arrays are written or kept where they turn out to differ."""
    count, last = _LONG - _LONG % group.size, group.size - 1
    x, out = np.ones(count), np.zeros(count * group.size)
    calls = {"broadcast": lambda part: part.broadcast(x, 0), "other root": lambda part: part.broadcast(x, last),
             "longer": lambda part: part.broadcast(np.ones(2 * count), 0), "short": lambda part: part.broadcast(x[:8], 0),
             "all_gather": lambda part: part.all_gather(x, out=out), "gather": lambda part: part.gather(x, last),
             "all_to_all": lambda part: part.all_to_all(x, out=out[:count]),
             "all_reduce": lambda part: part.all_reduce(x, out=out[:count])}
    for usual, odd in itertools.permutations(calls, 2):
        part, began = group.split(0), time.monotonic()
        assert part is not None
        try:
            calls[odd if group.rank == last else usual](part)
            part.close()
            say(group, f"{usual}, {odd}: no error")
        except arraycomm.CollectiveMismatch:
            communicator = part._communicator
            if time.monotonic() - began > 1 or out.any() or lib.acomm_mpi_stuck(communicator._group):
                say(group, f"{usual}, {odd}: after {time.monotonic() - began} s, written {out.any()}, "
                    f"kept {lib.acomm_mpi_stuck(communicator._group)}")
            part.close()
        group.barrier()
    say(group, "all found")


def both_ways(group: arraycomm.Group) -> None:
    """Calls that differ, one of which, or the next one, goes through shared memory, are named, at once; and nothing is kept."""
    x, began, some = np.ones(_LONG // 20), mapped(), f"{_LONG // 20} float64, root "
    calls = {"roots": (lambda part: part.broadcast(x, min(group.rank, 1)), lambda part: part.barrier(), {some + "0", some + "1"}),
             "lengths": (lambda part: part.broadcast(x[:4], 1) if group.rank == 2 else part.broadcast(x, 0),
                         lambda part: part.broadcast(x[:4], 1), {some + "0", "4 float64, root 1"})}
    for (name, (first, second, expected)), _ in itertools.product(calls.items(), range(5)):
        part, start = group.split(0), time.monotonic()
        assert part is not None
        try:
            first(part)
            second(part)
            part.close()
            say(group, f"{name}: no error")
        except arraycomm.CollectiveMismatch as error:
            found = re.findall(r"broadcast #(\d) of (\d+ float64, root \d)", str(error))
            part.close()
            if {call for _, call in found} != expected or len(dict(found)) != 1 or time.monotonic() - start > 1:
                say(group, f"{name}: after {time.monotonic() - start} s {error}")
        group.barrier()
    say(group, f"mapped {began}, {mapped()}")


def passed_on(group: arraycomm.Group) -> None:
    """Rank 3 would get a broadcast from rank 2, which calls something else, and gives it that."""
    x = np.full(_LONG, float(group.rank))
    for odd in (lambda part: part.all_gather(x), lambda part: part.broadcast(x, 2)):
        with group.subgroup(range(group.size), "part") as part, contextlib.suppress(arraycomm.CollectiveMismatch):
            say(group, f"got {(odd(part) if group.rank == 2 else part.broadcast(x, 0)).max()}")
        group.barrier()
    say(group, "all found")


def ends(group: arraycomm.Group) -> None:
    """What a root that did not wait learns at its end; and nothing of it comes to the next group."""
    for number in range(12):
        part = group.split(0)
        assert part is not None
        if group.rank == 0:
            time.sleep(0.02)  # rank 1 waits, and sends its record
        part.broadcast(np.full(4, float(number)), 0)
        part.close()
        time.sleep(0.02)  # it is freed, and the next communicator gets its number
        group.barrier()
        part = group.split(0)
        assert part is not None
        part.all_reduce(np.ones(4))
        part.close()
    for root in (group.rank, 0):
        part = group.split(0)
        assert part is not None
        try:
            if root == group.rank:
                part.broadcast(np.ones(4), root)
            else:
                time.sleep(0.1)
                part.abort("no broadcast of mine")
            time.sleep(0.3)  # rank 0 hears of it before it closes
            part.close()
        except arraycomm.GroupError as error:
            say(group, f"{type(error).__name__} {error}")
        group.barrier()
    part = group.split(0)
    assert part is not None
    if group.rank == 1:
        for _ in range(3):
            part.all_reduce(np.ones(4), async_op=True)
        part.close()  # two have not begun
    else:
        time.sleep(0.3)
        try:
            for _ in range(3):
                part.all_reduce(np.ones(4))
        except arraycomm.GroupError as error:
            say(group, f"{type(error).__name__} {error}")


def frees(group: arraycomm.Group) -> None:
    """Who closes a group first frees it too, once the others have: MPICH has 2048 communicators."""
    library = ctypes.CDLL(load().facts().path)
    numbers = []
    for _ in range(2):
        comm = ctypes.c_int()
        library.MPI_Comm_dup(ctypes.c_int(0x44000000), ctypes.byref(comm))  # MPI_COMM_WORLD
        numbers.append(comm.value & 0xFFFFFF if comm.value & 0x40000000 else 0)  # beyond the first few
        library.MPI_Comm_free(ctypes.byref(comm))
        for _ in range(60):
            part = group.split(0)
            assert part is not None
            part.barrier()
            time.sleep(0.004 * (group.rank == 1))
            part.close()
        time.sleep(0.1)
    say(group, f"communicators {'freed' if numbers[1] < 30 else numbers}")


CASES = {"elsewhere": elsewhere, "closes early": closes_early, "long": long_ones, "both ways": both_ways, "passed on": passed_on,
         "late": lambda g: late(g, 2), "late long": lambda g: late(g, _LONG), "leaves": leaves, "closes": closes,
         "aborts": aborts, "aborts receives": aborts_receives, "killed": killed, "wrapped": wrapped, "facade": facade,
         "splits": splits, "ours first": ours_first, "finalizes": finalizes, "errs": errs, "shrinks": shrinks, "listens": listens,
         "ahead": ahead, "roots": roots, "deviates": deviates, "ends": ends,
         "frees": frees, "compares": compares, "differs": differs}


def main(case: str) -> None:
    if case in ("wrapped", "finalizes"):
        import mpi4py.MPI  # noqa: F401  it initialises MPI, and ends it
    if case == "unopened":
        return unopened(int(os.environ["RANK"]))
    if case == "checks differ":
        return checks_differ(int(os.environ["RANK"]))
    if case == "names differ":
        return refused(int(os.environ["RANK"]), "one" if os.environ["RANK"] == "0" else "other")
    with arraycomm.init(timeout=60) as group:
        try:
            group.barrier()  # from which a slow rank may be called away
            CASES[case](group)
        except arraycomm.GroupError as error:
            say(group, f"{type(error).__name__} {error.ranks} {error}")


if __name__ == "__main__":
    main(sys.argv[1])
