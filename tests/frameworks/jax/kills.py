"""Kills a process of a sharded program at a random point, again and again: python -m tests.frameworks.jax.kills COUNT [SEED].

Every survivor names the dead one: in JAX's error, where it is in a collective, or in the next that it enters; and on stderr where
jaxlib ends it first, as process 0, which is killed too, had JAX's coordinator. All end by themselves, and nothing is left behind.
With argument `rank` it is one of the processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZE = 3
LIMIT = 120  # s, for all to end: processes start slowly on a busy machine
OUTSIDE = {"": 0.0, "asleep": 0.5, "computing": 0.5}  # s of what a process does beside collectives now and then


def outside(how: str) -> None:
    end = time.monotonic() + OUTSIDE[how]
    while time.monotonic() < end:
        if how == "asleep":
            time.sleep(end - time.monotonic())


def rank(how: str) -> None:
    """Sums and permutations until something is wrong."""
    import jax
    from jax import lax, shard_map
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from tests.frameworks.jax.unchanged import mesh, values

    jax.distributed.initialize()
    over, rows = mesh(), values(3000, "float32", jax.device_count())
    ring = [(i, (i + 1) % over.size) for i in range(over.size)]
    x = jax.make_array_from_callback(rows.shape, NamedSharding(over, P("x")), lambda index: rows[index])
    steps = [jax.jit(shard_map(fn, mesh=over, in_specs=P("x"), out_specs=P("x"), check_vma=False))
             for fn in (lambda row: lax.psum(row, "x"), lambda row: lax.ppermute(row, "x", ring))]
    for step in steps:
        step(x).block_until_ready()
    print("ready", flush=True)
    entered, number = 0.0, 0
    try:
        while True:
            number += 1
            if number % 10 == 0:
                outside(how)
            entered = time.monotonic()
            steps[number % 2](x).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(f"entered {entered} raised {time.monotonic()}: {error}".replace("\n", " "), flush=True)


@contextlib.contextmanager
def processes(draw: random.Random, folder: str) -> Iterator[list[subprocess.Popen[str]]]:
    """They are there, and one of them may be outside of collectives for half of the time."""
    from arraycomm.launch.environ import Place
    from arraycomm.launch.nodes import meet

    hows = ["", "", draw.choice(list(OUTSIDE))]
    draw.shuffle(hows)
    with contextlib.closing(meet(1, 0, SIZE)) as meeting:
        running = []
        for number, how in enumerate(hows):
            variables = Place(number, SIZE, number, SIZE, 0, meeting.address, meeting.port).variables(meeting.secret_fd)
            command = [sys.executable, "-m", "arraycomm_jax", "-m", "tests.frameworks.jax.kills", "rank", how]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
                **os.environ, **variables, "ARRAYCOMM_JAX": "1", "OMP_NUM_THREADS": "1", "TMPDIR": folder,
            }, pass_fds=[meeting.secret_fd or 0]))
        try:
            for process in running:
                assert process.stdout and process.stdout.readline() == "ready\n", process.communicate()
            yield running
        finally:
            for process in running:
                process.kill()
                process.wait()


def once(draw: random.Random, folder: str) -> list[float | None]:
    """How long each survivor was in a collective when a peer was dead, seconds; None: jaxlib has ended it before."""
    victim, waited = draw.randrange(SIZE), list[float | None]()
    with processes(draw, folder) as running:
        time.sleep(draw.uniform(0, 1))
        killed = time.monotonic()
        running[victim].kill()
        told = [process.communicate(timeout=LIMIT) for process in running]
        for number, (out, err) in enumerate(told):
            if number == victim:
                continue
            name, code = rf"rank {victim} \(host ", running[number].returncode
            found = re.search(rf"entered (\S+) raised (\S+): .*{name}", out)
            assert len(re.findall(rf"^arraycomm: .*{name}", err, re.MULTILINE)) == 1, (number, victim, code, out, err)
            assert (found and code == 0) or (victim == 0 and code == -signal.SIGABRT), (number, victim, code, out, err)
            waited.append(float(found[2]) - max(killed, float(found[1])) if found else None)
    return waited


def run(count: int, seed: int) -> str:
    from arraycomm.backends.socket import local

    draw, waited = random.Random(seed), list[float | None]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            try:
                waited += once(draw, folder)
            except Exception as error:
                raise AssertionError(f"kill {number} of seed {seed}") from error
        names = [path for path in Path(folder).rglob("*") if not path.is_dir()]
        if names:
            local.sweep(str(names[0]))  # as the next world does: where all are killed, nobody was left to do so
        assert not any(path.exists() for path in names), names
    named = [seconds for seconds in waited if seconds is not None]
    return (f"{count} kills of seed {seed}: {len(named)} survivors named the dead process in a collective, "
            f"{sum(seconds > 1 for seconds in named)} of them after more than 1 s ({max(named, default=0):.2f} s at most), "
            f"{len(waited) - len(named)} on stderr alone; nothing was left")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2])
    else:
        print(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
