"""Commands whose output nobody reads any more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from arraycomm.core.base.command import CLOSED, command

COMMANDS = {
    "info": ["arraycomm.info"],
    "json": ["arraycomm.info", "--json"],
    "help": ["arraycomm.bench", "tune", "--help"],  # argparse prints, and leaves
    "ranks": ["arraycomm.bench", "all_reduce", "-b", "8", "-e", "8", "-n", "2", "--nproc", "2"],  # a rank prints
    "launcher": ["arraycomm.launch", "--nproc-per-node", "2", "-m", "platform"],
    "torch's launcher": ["arraycomm.distributed.launch", "--help"],
    "trace": ["arraycomm.trace", "--help"],
}


@pytest.fixture
def unread() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_ends_quietly(arguments: list[str], unread: int) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=unread, stderr=subprocess.PIPE, text=True, timeout=60,
                          env={**environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (CLOSED, "")


def test_a_connection_of_its_own_is_told() -> None:
    @command
    def main() -> None:
        raise BrokenPipeError("a socket's")

    with pytest.raises(BrokenPipeError, match="a socket's"):
        main()


FAILING = """
import sys
from arraycomm.core.base.command import command

@command
def main():
    print("a first line")
    {}

sys.exit(main())
"""


@pytest.mark.parametrize("failure, code, told", [("raise ValueError('wrong values')", 1, "ValueError: wrong values\n"),
                                                 ("return 3", 3, ""), ("sys.exit('wrong values')", 1, "wrong values\n")])
def test_a_failure_is_told_all_the_same(failure: str, code: int, told: str, unread: int) -> None:
    """Python holds the line until the flush at the end, which fails."""
    done = subprocess.run([sys.executable, "-c", FAILING.format(failure)], stdout=unread, stderr=subprocess.PIPE, text=True,
                          timeout=60)
    assert done.returncode == code and done.stderr.endswith(told) and "BrokenPipe" not in done.stderr
    assert bool(done.stderr) == bool(told)


@pytest.mark.parametrize("arguments", ["arraycomm.info", "arraycomm.launch --no-python echo"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_from_the_beginning(arguments: str, closed: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(f"{sys.executable} -m {arguments} {closed}", shell=True, text=True, stderr=subprocess.PIPE, timeout=60,
                          env=environ)
    assert (done.returncode, done.stderr) == (0, "")
