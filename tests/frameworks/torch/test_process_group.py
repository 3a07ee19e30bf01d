"""The same programs give the same over gloo and over arraycomm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.logged import logged

pytest.importorskip("torch")


def test_programs(tmp_path: Path) -> None:
    size = 4
    done = subprocess.run([sys.executable, "-m", "tests.frameworks.torch.ranks", str(size), str(tmp_path)],
                          cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    told = "\n".join((tmp_path / f"errors-{rank}").read_text() for rank in range(size)).strip()
    assert not told, told


def test_a_torch_that_marks_code_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only compiled programs need the mark: for all others the back end goes on, with a warning."""
    from torch._C._dynamo import eval_frame

    from arraycomm.frameworks.torch import process_group

    monkeypatch.delattr(eval_frame, "set_code_exec_strategy")
    with logged() as lines:
        assert process_group._marker() is None
    assert len(lines) == 1 and "a compiled DistributedDataParallel may fail" in lines[0], lines


def test_a_torch_without_an_operation_of_its_compiler() -> None:
    """As 2.11, which has no batch_p2p_ops: its compiler does not call what it does not have."""
    from arraycomm.frameworks.torch import functional

    functional._for_ours("an_operation_of_a_later_torch", 0, lambda *_: None)
    with_it = functional._ops.all_gather_into_tensor_out.default.name()
    assert with_it == "_c10d_functional::all_gather_into_tensor_out"
