"""A rank of test_mpi.py: `mpi_rank.py CASE`. Prints what it met; exits with 0 unless the case is to end it otherwise."""

from __future__ import annotations

import atexit
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import arraycomm
from arraycomm.backends.mpi.library import load


def say(group: arraycomm.Group, text: str) -> None:
    """A whole line at once: some mpiruns mix what ranks write in parts."""
    os.write(1, f"rank {group.rank}: {text}\n".encode())


_SHORT, _LONG = 5, 200_000  # elements: of one chunk of a link, and of more than its ring has


def events(group: arraycomm.Group, *names: str) -> list[Path]:
    """Named pipes, by which ranks 0 and 1 wait for each other without a call of MPI's: a reader goes on when one writes."""
    folder = group.broadcast_object(tempfile.mkdtemp() if group.rank == 0 else None)
    paths = [Path(folder, name) for name in names]
    if group.rank == 0:
        atexit.register(shutil.rmtree, folder)
        for path in paths:
            os.mkfifo(path)
    group.barrier()
    return paths


def on_gpu(count: int) -> Any:
    """Ones, on a device of the stand-in."""
    from tests.standin import arrays

    return arrays.asarray(np.ones(count))


def killed_inside(group: arraycomm.Group) -> None:
    """Rank 1 dies in MPI's collective, which has the others' arrays; a group without it stages them, and that is right."""
    from arraycomm.backends.mpi import on_gpus

    group.all_reduce(on_gpu(_SHORT))
    if group.rank == 1:
        os.environ["STANDIN_MPI"] = "dies"
    try:
        group.all_reduce(on_gpu(_LONG))
    except arraycomm.PeerLost as error:
        say(group, f"PeerLost {error.ranks}, kept {len(on_gpus._forever)}")
    with group.shrink() as rest:
        say(group, f"sum {rest.all_reduce(on_gpu(_LONG)).numpy().sum() / _LONG}")


def killed_sending(group: arraycomm.Group) -> None:
    """Rank 1 dies when it gives its array to MPI, which has rank 2's. Messages go on without it, from GPU to GPU."""
    from arraycomm.backends.mpi import on_gpus

    group.barrier()
    if group.rank == 1:
        os.environ["STANDIN_MPI"] = "dies"
        group.isend(on_gpu(_LONG), 2).wait()
    try:
        if group.rank == 0:
            group.send(on_gpu(_LONG), 1)
        else:
            group.recv(1, like=on_gpu(_LONG))
    except arraycomm.PeerLost as error:
        say(group, f"PeerLost {error.ranks}, kept {len(on_gpus._forever)}")
    given = ctypes.CDLL(load().path).standin_mpi_taken
    with group.shrink() as rest:
        before = given()
        got = rest.sendrecv(on_gpu(_LONG), 1 - rest.rank)
        say(group, f"mean {got.array.numpy().mean()} from {got.source}, MPI got {given() - before}")


def one_refuses(group: arraycomm.Group) -> None:
    group.all_reduce(on_gpu(_SHORT))
    say(group, f"MPI got {ctypes.CDLL(load().path).standin_mpi_taken()}")


def late(group: arraycomm.Group) -> None:
    """Rank 1 comes after rank 0 has given up; then it hears of that."""
    (given_up,) = events(group, "given up")
    if group.rank == 1:
        given_up.read_text()
        while True:  # what rank 0 has given is there, its word that it has given up may still be on its way
            group.all_reduce(np.ones(_SHORT))
    try:
        group.all_reduce(np.ones(_SHORT), timeout=0.5)
    finally:
        given_up.write_text("")


def late_on_gpus(group: arraycomm.Group) -> None:
    """Rank 1 comes after rank 0 has given up in MPI."""
    (given_up,) = events(group, "given up")
    group.all_reduce(on_gpu(_SHORT))
    if group.rank == 1:
        given_up.read_text()
        while True:
            group.all_reduce(np.ones(_SHORT))
    try:
        group.all_reduce(on_gpu(_SHORT), timeout=0.5)
    finally:
        given_up.write_text("")


def refused(rank: int, name: str) -> None:
    try:
        arraycomm.init(timeout=60, name=name)
    except ValueError as error:
        os.write(1, f"rank {rank}: {error}\n".encode())


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
        for other in (0, 2, 3):  # they have left the barrier: its last messages could die with this rank
            group.recv(other, like=np.ones(1))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.send(np.ones(1), 1)
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
    part.close("KeyError")  # which would be told to the peers
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


def facade(group: arraycomm.Group) -> None:
    import arraycomm.distributed as dist

    dist.init_process_group("mpi")
    x = np.ones(3, np.float32)
    dist.all_reduce(x)
    same = dist.is_mpi_available() and dist.get_backend() == "mpi" and dist.get_rank() == group.rank
    say(group, f"facade {'right' if same and x.tolist() == [group.size] * 3 else 'WRONG'}")
    dist.destroy_process_group()


def windows(group: arraycomm.Group) -> None:
    """Each rank writes into the next one's array, adds to rank 0's, and reads the one before."""
    import arraycomm.distributed as dist

    dist.init_process_group("mpi")
    whole, rank, size = dist.group.WORLD, group.rank, group.size
    own, read = np.zeros(4), np.zeros(1)
    assert whole is not None
    window = whole.new_window(own)
    window.put(np.full(2, rank + 1.0), (rank + 1) % size)
    window.accumulate(np.ones(1), 0, 3)
    window.fence()
    window.get(read, (rank - 1) % size, 1)
    say(group, f"window {own.tolist()} {read.tolist()}")
    window.tensor_deregister()
    dist.destroy_process_group()


def deviates(group: arraycomm.Group) -> None:
    """One rank does something else among many calls: all get an error, at close() at the latest. Nobody does: all is right."""
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
            wrong = wrong or ("no error" if odd >= 0 else "")
        except arraycomm.CollectiveMismatch as error:
            wrong = wrong or ("" if odd >= 0 else str(error))
            part.close()
        if wrong:
            say(group, f"trial {trial}, rank {odd} at {when}, way {way}: {wrong}")
        group.barrier()
    say(group, "all found")


def differs(group: arraycomm.Group) -> None:
    try:
        group.all_reduce(np.ones(4 if group.rank == 0 else 5))
    except arraycomm.CollectiveMismatch as error:
        say(group, f"{error.ranks} {str(error).partition(': ')[2].partition(';')[0]}")


def in_flight(group: arraycomm.Group) -> None:
    """What a rank sends moves though it calls nothing any more, and arrives though it has closed the group."""
    part = group.split(0)
    assert part is not None
    got_first, closed = events(group, "got first", "closed")
    if group.rank == 0:
        for number in range(3):
            part.isend(np.full(_LONG, float(number)), 1)
        got_first.read_text()
        part.send(np.ones(_SHORT), 1)
        part.close()
        closed.write_text("")
    else:
        got = [part.recv(0, like=np.empty(_LONG)).array[-1]]
        got_first.write_text("")
        got += [part.recv(0, like=np.empty(_LONG)).array[-1] for _ in range(2)]
        closed.read_text()
        got.append(part.recv(0, like=np.empty(_SHORT)).array.sum() / _SHORT)
        say(group, f"got {[int(x) for x in got]}")


def many(group: arraycomm.Group) -> None:
    """Groups that come and go, in which messages stay unreceived: nothing comes to a later one."""
    wrong = 0
    for number in range(60):
        part = group.split(0)
        assert part is not None
        part.send(np.full(3, float(number)), (part.rank + 1) % part.size, tag=number % 2)
        wrong += part.all_reduce(np.ones(_SHORT))[-1] != part.size
        if number % 2 == 0:
            wrong += part.recv((part.rank - 1) % part.size, like=np.empty(3), tag=0).array[0] != number
        part.close()
    say(group, f"wrong {wrong}")


def frees(group: arraycomm.Group) -> None:
    """A world that is closed gives its communicator back once the other ranks have closed it too: MPICH has 2048."""
    import gc

    library = ctypes.CDLL(load().facts().path)

    def number() -> int:
        """Of the next communicator, the larger of the ranks'; 0: one of the first few."""
        comm = ctypes.c_int()
        group.barrier()
        library.MPI_Comm_dup(ctypes.c_int(0x44000000), ctypes.byref(comm))  # MPI_COMM_WORLD
        found = comm.value & 0xFFFFFF if comm.value & 0x40000000 else 0
        library.MPI_Comm_free(ctypes.byref(comm))
        return int(group.all_reduce(np.array(found), op="max"))

    for name in range(20):
        with arraycomm.init(name=f"world {name}", timeout=60) as world:
            world.all_reduce(np.ones(_SHORT))
        del world
        gc.collect()
    looks = 0
    while number() >= 12 and looks < 600:
        looks += 1
        time.sleep(0.05)
    say(group, f"communicators {'freed' if looks < 600 else number()}")


def hosts(group: arraycomm.Group) -> None:
    """Whatever there is, between hosts and inside them."""
    total = group.all_reduce(np.full(_SHORT, group.rank + 1.0))[0]
    row = group.split(group.rank % 2)
    assert row is not None
    with row:
        parts = row.all_gather(np.array([group.rank])).tolist()
    sent = group.isend(np.array([group.rank]), (group.rank + 1) % group.size)
    came = group.recv(like=np.array([0])).array.item()
    sent.wait()
    good = total == sum(range(1, group.size + 1)) and parts == list(range(group.rank % 2, group.size, 2))
    say(group, f"hosts {good and came == (group.rank - 1) % group.size}")


CASES = {"late": late, "leaves": leaves, "closes": closes, "aborts": aborts, "aborts receives": aborts_receives, "killed": killed,
         "wrapped": wrapped, "facade": facade, "ours first": ours_first, "finalizes": finalizes, "errs": errs, "shrinks": shrinks,
         "deviates": deviates, "frees": frees, "differs": differs, "in flight": in_flight, "many": many, "hosts": hosts,
         "windows": windows, "killed inside": killed_inside, "killed sending": killed_sending, "one refuses": one_refuses,
         "late on gpus": late_on_gpus}


def main(case: str, *hosted: str) -> None:
    """hosted: ranks to a host, where there are to be several."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    if hosted:
        os.environ["ARRAYCOMM_HOSTID"] = f"host {rank // int(hosted[0])}"
    if case == "one refuses":
        os.environ["ARRAYCOMM_MPI_GPU"] = "0" if rank == 1 else ""
    if case in ("wrapped", "finalizes"):
        import mpi4py.MPI  # noqa: F401  it initialises MPI, and ends it
    if case == "settings differ":
        os.environ["ARRAYCOMM_CHECK"] = str(int(rank != 1))
        return refused(rank, "world")
    if case == "names differ":
        return refused(rank, "one" if rank == 0 else "other")
    with arraycomm.init(timeout=60) as group:
        try:
            group.barrier()  # from which a slow rank may be called away
            CASES[case](group)
        except arraycomm.GroupError as error:
            say(group, f"{type(error).__name__} {error.ranks} {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
