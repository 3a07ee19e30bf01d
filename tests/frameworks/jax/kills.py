"""Kills a process of a sharded program at a random point, again and again: python -m tests.frameworks.jax.kills COUNT [SEED].

Every survivor has to name the dead one in JAX's error, and to end by itself; nothing may be left behind. A fixed point
of it is in test_cpu_collectives.py. With argument `rank` it is one of the processes.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

SIZE = 3
LIMIT = 120  # s, for all to end: processes start slowly on a busy machine
LAST = re.compile(rb"raised after ([0-9.]+) s: .*rank (\d+) \(host ")


def rank() -> None:
    """Sums and permutations until something is wrong. process 0 has JAX's coordinator: without it jaxlib ends the others."""
    import jax
    from jax import lax

    from tests.frameworks.jax.unchanged import NamedSharding, P, mesh, shard_map, values

    jax.distributed.initialize()
    over, rows = mesh(), values(3000, "float32", jax.device_count())
    ring = [(i, (i + 1) % over.size) for i in range(over.size)]
    x = jax.make_array_from_callback(rows.shape, NamedSharding(over, P("x")), lambda index: rows[index])
    steps = [jax.jit(shard_map(fn, mesh=over, in_specs=P("x"), out_specs=P("x"), check_vma=False))
             for fn in (lambda row: lax.psum(row, "x"), lambda row: lax.ppermute(row, "x", ring))]
    for step in steps:
        step(x).block_until_ready()
    print("ready", flush=True)
    began, number = time.monotonic(), 0
    try:
        while True:
            began, number = time.monotonic(), number + 1
            steps[number % 2](x).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(f"raised after {time.monotonic() - began:.2f} s: {error}".replace("\n", " "), flush=True)


def left() -> set[str]:
    """Segments and sockets of the file system that could stay behind."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*arraycomm*")}


def once(draw: random.Random) -> list[float]:
    """How long the survivors waited in the operation that failed, seconds."""
    from arraycomm.launch.environ import Place
    from arraycomm.launch.nodes import meet

    before, victim = left(), draw.randrange(1, SIZE)
    with meet(1, 0, SIZE) as meeting:
        running = []
        for number in range(SIZE):
            variables = Place(number, SIZE, number, SIZE, 0, meeting.address, meeting.port).variables(meeting.secret_fd)
            running.append(subprocess.Popen([sys.executable, "-m", "arraycomm_jax", "-m", "tests.frameworks.jax.kills", "rank"],
                                            env={**os.environ, **variables, "ARRAYCOMM_JAX": "1", "OMP_NUM_THREADS": "1"},
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[meeting.secret_fd or 0]))
        for process in running:
            assert process.stdout and process.stdout.readline() == b"ready\n", process.communicate()
        time.sleep(draw.uniform(0, 0.2))
        running[victim].kill()
        waited = []
        for number, process in enumerate(running):
            out, err = process.communicate(timeout=LIMIT)
            if number != victim:
                found = LAST.search(out)
                assert found and int(found[2]) == victim, (number, victim, out, err)
                assert process.returncode == 0, err
                waited.append(float(found[1]))
    assert left() <= before, left() - before
    return waited


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    draw, waited = random.Random(seed), []
    for _ in range(count):
        waited += once(draw)
    print(f"{count} kills, {len(waited)} survivors named the dead process, after {max(waited):.2f} s at most; nothing was left")


if __name__ == "__main__":
    rank() if sys.argv[1] == "rank" else main()
