from __future__ import annotations

import argparse
from types import ModuleType

import pytest

from arraycomm.bench import compare, tune
from arraycomm.bench.arguments import at_least, numbers, parse_size, some_of
from arraycomm.bench.peers import GROUPS


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("64K", 65536), ("256m", 256 << 20), ("1G", 1 << 30), ("1.5M", 3 << 19), ("4KiB", 4096)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "8T", "1e3", "8 8"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size; write 8, 64K"):
        parse_size(text)


def test_numbers_come_once() -> None:
    assert numbers(1)("2,4,2") == (2, 4)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "two", "1_0", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a whole number of at least 1"):
        at_least(1)(text)


def test_one_name_may_stand_for_several() -> None:
    assert some_of(("gloo", *GROUPS["mpi4py"]), "peer", GROUPS)("mpi4py,gloo,mpich") == ("openmpi", "mpich", "impi", "gloo")


@pytest.mark.parametrize(("module", "option", "told"), [
    *((module, "--sizes=8,5x", "'5x' is not a size; write 8, 64K, 1.5M or 1G") for module in (compare, tune)),
    *((module, "--np=2,x", "'x' is not a whole number of at least") for module in (compare, tune)),
    *((module, "--ops=barriers", "unknown operation 'barriers'; choose from all_reduce") for module in (compare, tune)),
    (compare, "--ops=mpi4py", "unknown operation 'mpi4py'"),
    (tune, "--transport=sea", "unknown transport 'sea'; choose from shm, symmetric, loopback"),
    (compare, "--rounds=0", "'0' is not a whole number of at least 1")])
def test_every_command_refuses_what_does_not_do(module: ModuleType, option: str, told: str,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        module.main([option])
    assert f"argument {option.partition('=')[0]}: {told}" in capsys.readouterr().err
