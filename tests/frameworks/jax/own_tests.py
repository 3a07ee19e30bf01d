"""Runs JAX's own tests of several processes on CPUs, each file over gloo and over arraycomm, and prints what passed where.

The tests come with JAX's source, not with its wheel: PATH is the folder tests/multiprocess of the version that is installed, or
some of its files. A test has passed when it has in every process.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OVER = {
    "gloo": {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"},
    "arraycomm": {"ARRAYCOMM_JAX": "1"},
}
PATIENCE = 600  # s, of JAX's barriers and heartbeats too: machines are busy
WORST = ("crashed", "failed", "skipped", "passed")
# What absltest writes when a test begins and ends.
LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+)", re.M)
WORD = {"RUN": "crashed", "OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def run(test: Path, over: str, processes: int, devices: int, timeout: float) -> tuple[dict[str, str], str]:
    """What became of each test of a file, and what the processes wrote."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = os.environ | OVER[over] | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder, str(rank)) for rank in range(processes)]
        running = []
        for rank in range(processes):
            command = [sys.executable, str(test), f"--num_processes={processes}", f"--multiprocess_test_worker_id={rank}",
                       f"--multiprocess_test_controller_address=localhost:{port}",
                       *(f"--{name}={PATIENCE}" for name in ("heartbeat_timeout", "initialization_timeout", "barrier_timeout"))]
            with written[rank].open("wb") as output:
                running.append(subprocess.Popen(command, env=environ, stdout=output, stderr=output, cwd=folder))
        try:
            for process in running:
                process.wait(timeout)
        except subprocess.TimeoutExpired:
            for process in running:
                process.kill()
                process.wait()
        texts = [path.read_text(errors="replace") for path in written]
    found: dict[str, str] = {}
    for text in texts:
        here = {name: WORD[word] for word, name in LINE.findall(text)}  # the last word of each
        for name in {*found, *here}:
            found[name] = min(found.get(name, here.get(name, "crashed")), here.get(name, "crashed"), key=WORST.index)
    return found, "\n".join(texts)


def files(paths: Sequence[Path]) -> list[Path]:
    return [found.resolve() for path in paths for found in (sorted(path.glob("*_test.py")) if path.is_dir() else [path])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="+", help="the folder tests/multiprocess of JAX's source, or files of it")
    parser.add_argument("--over", default="gloo,arraycomm", help="collectives to compare: gloo, arraycomm")
    parser.add_argument("-n", "--processes", type=int, default=4, help="(4, as in JAX's own runs)")
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--timeout", type=float, default=900, help="s for one file")
    parser.add_argument("--verbose", action="store_true", help="what processes wrote where a test passed over gloo only")
    options = parser.parse_args()
    over = options.over.split(",")
    worse = []
    import jax  # only its version

    print(f"JAX {jax.__version__}, {options.processes} processes of {options.devices} devices\n")
    print(f"| file | tests | {' | '.join(f'passed over {name}' for name in over)} |\n|---|--:|{'--:|' * len(over)}", flush=True)
    for test in files(options.path):
        results = {name: run(test, name, options.processes, options.devices, options.timeout) for name in over}
        tests = sorted({name for found, _ in results.values() for name in found})
        passed = [sum(word == "passed" for word in results[name][0].values()) for name in over]
        print(f"| {test.name} | {len(tests)} | {' | '.join(map(str, passed))} |", flush=True)
        for name in tests:
            words = [results[which][0].get(name, "did not begin") for which in over]
            if words[0] == "passed" != words[-1]:
                worse.append(f"{test.name} {name}: {words[-1]}")
                if options.verbose:
                    print(results[over[-1]][1], file=sys.stderr)
    print("\n" + "\n".join(worse or [f"all that passed over {over[0]} passed over {over[-1]}"]))
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
