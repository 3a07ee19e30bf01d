from __future__ import annotations

import pytest

from arraycomm.bench.__main__ import SUBCOMMANDS, main
from arraycomm.bench.collectives import COLLECTIVES
from arraycomm.bench.data import DTYPES
from arraycomm.bench.options import parse, sizes


def test_factor() -> None:
    assert sizes(parse(["all_reduce", "-b", "8", "-e", "64", "-f", "2"])) == [8, 16, 32, 64]


def test_increment() -> None:
    assert sizes(parse(["all_reduce", "-b", "0", "-e", "24", "-i", "8"])) == [0, 8, 16, 24]


def test_a_factor_of_one_means_the_increment() -> None:
    assert sizes(parse(["all_reduce", "-b", "1M", "-e", "3M", "-f", "1"])) == [1 << 20, 2 << 20, 3 << 20]


def test_one_size() -> None:
    assert sizes(parse(["all_reduce", "-b", "128M"])) == [128 << 20]


def test_nccl_spellings() -> None:
    given = parse(["all_reduce", "-d", "float,half,bfloat16,int8,uint8,double", "-o", "prod,mulsum"])
    assert given.dtypes == ("float32", "float16", "bfloat16", "int8", "uint8", "float64")
    assert given.ops == ("product", "premul_sum")


def test_all() -> None:
    given = parse(["all", "-d", "all", "-o", "all", "-r", "all"])
    assert given.operations == tuple(COLLECTIVES)
    assert sorted(given.dtypes) == sorted(DTYPES)
    assert len(given.ops) == 9
    assert given.root == -1


def test_nccl_letters() -> None:
    given = parse(["all_reduce", "-r1", "-n7", "-w3", "-c2", "-a1", "-Jout.json", "--nproc=4"])
    assert (given.root, given.calls, given.warmup, given.checks, given.average, given.json, given.nproc) == (
        1, 7, 3, 2, 1, "out.json", 4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["all_reduc"], "unknown operation 'all_reduc'; choose from all_reduce"),
        (["all_reduce", "-o", "xor"], "unknown reduction 'xor'; choose from sum, prod"),
        (["all_reduce", "-d", "float33"], "unknown datatype 'float33'"),
        (["all_reduce", "-b", "64", "-e", "8"], "-e 8 is less than -b 64"),
        (["all_reduce", "-b", "0", "-f", "2"], "-b 0 never grows by a factor"),
        (["all_reduce", "-i", "0"], "-i 0 never reaches"),
        (["all_reduce", "-n", "0"], "'0' is not a whole number of at least 1"),
        (["broadcast", "-r", "-5"], "'-5' is not a rank; write a number from 0, or all"),
        (["all_reduce", "--timeout", "0"], "'0' is not a number of seconds above 0"),
        (["all_reduce", "--plot", "x.pdf"], "'x.pdf' must end in .svg or .png"),
    ],
)
def test_errors_name_what_was_wrong(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(arguments)
    assert left.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_subcommand_is_told_of_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (["--help"], f"arraycomm-bench {name}"), ([name, "--help"], f"usage: arraycomm-bench {name}"):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0 and expected in capsys.readouterr().out
