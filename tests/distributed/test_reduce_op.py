"""ReduceOp beside torch's: names, numbers, texts, equality, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as theirs

import arraycomm.distributed as dist
from arraycomm.core.arrays.types import DType
from arraycomm.distributed import ReduceOp
from arraycomm.distributed.operations.arguments import reduction
from arraycomm.distributed.operations.reduce_op import RedOpType, _make_nccl_premul_sum

NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


@pytest.mark.parametrize("name", NAMES)
def test_members_are_torchs(name: str) -> None:
    kind: Any = ReduceOp  # as torch's, with members that are numbers
    ours, other = getattr(kind, name), getattr(theirs.ReduceOp, name)
    assert (str(ours), repr(ours), ours.name) == (str(other), repr(other), other.name)
    assert ours.value == int(ours) == other.value == int(other)
    assert getattr(kind.RedOpType, name) is ours and isinstance(ours, ReduceOp)
    assert copy.deepcopy(ours) == ours == kind(ours) and hash(ours) == hash(kind(ours)) and kind(ours).op is ours
    assert pickle.loads(pickle.dumps(ours)) is ours
    assert dist.supports_complex(ours) == theirs.supports_complex(other)


def test_members_differ() -> None:
    assert len({getattr(ReduceOp, name) for name in NAMES}) == len(NAMES) and RedOpType(4) == ReduceOp.MAX
    assert tuple(RedOpType.__members__) == NAMES == tuple(theirs.ReduceOp.RedOpType.__members__)
    assert ReduceOp.SUM != "sum" and ReduceOp.SUM != 0


def test_wrong_ones() -> None:
    with pytest.raises(TypeError):
        ReduceOp("sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="9 is not the number of a reduction"):
        RedOpType(9)
    with pytest.raises(RuntimeError, match="Only PREMUL_SUM supports accessing factor"):
        _ = ReduceOp(ReduceOp.SUM).factor


@pytest.mark.parametrize("factor", [2, 2.0, np.float32(2), np.array([2.0]), torch.tensor(2.0)])
def test_premul_sum(factor: object) -> None:
    op = _make_nccl_premul_sum(factor)
    assert op.factor == 2.0 and op.op is ReduceOp.PREMUL_SUM and op != ReduceOp.PREMUL_SUM
    assert pickle.loads(pickle.dumps(op)) == op and str(reduction("x", op, DType.FLOAT32)) == "premul_sum(2.0)"


def test_torchs_own_are_taken_too() -> None:
    assert reduction("x", theirs.ReduceOp.MAX, DType.FLOAT32).name == "max"
    assert reduction("x", theirs._make_nccl_premul_sum(3.0), DType.FLOAT32).factor == 3.0


def test_the_deprecated_class_warns() -> None:
    with pytest.warns(FutureWarning, match="`torch.distributed.reduce_op` is deprecated"):
        assert dist.reduce_op.MAX is ReduceOp.MAX
