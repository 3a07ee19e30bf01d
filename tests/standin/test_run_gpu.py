"""tests/run_gpu itself, which is to work the first time that there is a GPU: its parts over the stand-ins, and what becomes of
one that hangs or dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu import frameworks, overhead, run
from tests.standin import build

PARTS = {  # and what the report has of each
    "all_reduce in place on 2 ranks": "| 128 | ",
    "operations of torch, 2 ranks": f"| {frameworks.STANDIN} | 2 | ",
    "staged": "| all_reduce | ",
    "functions, 2 ranks": "functions, 2 ranks | ok",
    "symmetric memory, 2": "| symmetric memory, 2",
    "programs of jax, 2": "| programs of jax, 2",
    "a peer dies": "| nccl | is killed | first | wait | PeerLost | ",
    "modules of torch, 2": "| powerSGD_hook | 2 | ",
    "windows, 2": f"| new_window | {frameworks.STANDIN} | nccl | 2 | ",
}
FEW = ("staged", "functions, 2 ranks", "a peer dies")


def test_the_parts_and_the_report(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    parts = PARTS if pytestconfig.getoption("--gpu-parts") else [part for part in PARTS if part in FEW]
    only = [word for part in parts for word in ("--only", part)]
    environ = {"OUT": str(tmp_path), "ARRAYCOMM_CUDART_LIBRARY": build.cudart(), "ARRAYCOMM_NCCL_LIBRARY": build.nccl()}
    done = subprocess.run([sys.executable, str(run.ROOT / "tests/gpu/run.py"), "--standin", *only], capture_output=True,
                          text=True, timeout=1200, env=os.environ | environ)
    report = (tmp_path / "gpu.md").read_text()
    assert done.returncode == 0, (tmp_path / "gpu.log").read_text()
    assert done.stdout.strip() == report.strip() and report.count("| ok |") == len(parts)
    for part in parts:
        assert PARTS[part] in report


@pytest.mark.parametrize(("end", "result"), [
    ("time.sleep(60)", "was ended after 2 s"), ("raise SystemExit(3)", "not here"),
    ("os.kill(os.getpid(), 9)", "failed with -9")])
def test_what_a_part_printed_survives_it(end: str, result: str, tmp_path: Path) -> None:
    begin, program = time.monotonic(), f"import os, time; print('| a | row |', flush=True); {end}"
    output, got = run.run(["-X", "faulthandler", "-c", program], 2, dict(os.environ), tmp_path)
    assert got == result and time.monotonic() - begin < 20
    assert ("most recent call first" in output) == ("sleep" in end)  # its stack
    tmp_path = tmp_path / "made" / "by it"
    report = run.Report(str(tmp_path))
    report.add("one", output, got, 2)
    report.add("another", "", "ok", 1)
    assert (tmp_path / "gpu.md").read_text() == report.text()
    assert f"| one | {result} | 2 |" in report.text() and "\n| a | row |\n" in report.text()
    assert report.failures == ("not here" not in result)


@pytest.mark.parametrize(("version", "name", "value"), [
    (23000, "NCCL_MULTI_RANK_GPU_ENABLE", "1"), (22809, "NCCL_HOSTID", "rank 1")])
def test_ranks_that_share_a_gpu(version: int, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "library", lambda: SimpleNamespace(version=version))
    monkeypatch.setattr(os, "environ", {"NCCL_MAX_CTAS": "3"})
    frameworks.share(1)
    assert os.environ == {name: value, "NCCL_MAX_CTAS": "3", "NCCL_NVLS_ENABLE": "0"}


def test_a_wheel_of_another_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    tops = {"arraycomm": "arraycomm", "backends": "arraycomm/backends", "bench": "arraycomm/bench"}
    for folder in ("dist", *tops):
        (tmp_path / folder).mkdir()
    with zipfile.ZipFile(tmp_path / "dist" / "arraycomm-0.1-py3-none-any.whl", "w") as wheel:
        for top, inside in tops.items():
            (tmp_path / top / "one.py").write_text(top)
            wheel.writestr(f"{inside}/one.py", top)
    assert run.install(tmp_path / "first") == tmp_path / "first"
    (tmp_path / "backends" / "one.py").write_text("changed")
    with pytest.raises(ValueError, match=r"is of another tree: 1 files differ, arraycomm/backends/one.py say"):
        run.install(tmp_path / "second")


def test_wheels_of_this_interpreter() -> None:
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = f"manylinux_2_17_{os.uname().machine}"
    fitting = [f"cffi-2.0.0-{here}-{here}-{platform}.whl", f"arraycomm-0.1-cp310-abi3-{platform}.whl", "x-1-py3-none-any.whl"]
    assert [run._fits(name) for name in fitting] == [True] * 3
    assert not run._fits(f"cffi-2.0.0-cp39-cp39-{platform}.whl") and not run._fits("arraycomm-0.1-cp310-abi3-linux_other.whl")


def test_a_row_of_the_comparison() -> None:
    assert overhead.row(8, [[2.0, 1.0, 4.0], [3.0, 2.0, 4.0], [9.0, 3.0, 9.0]]) == (
        "| 8 | 3.00 | 2.00 | 4.00 | 2.000 (1.500 to 3.000) | 0.750 (0.500 to 1.000) |")
    assert overhead.row(8, [[2.0, 1.0]]) == "| 8 | 2.00 | 1.00 | - | 2.000 (2.000 to 2.000) | - |"
