"""torch's own tests of torch.distributed, as torch installs them, over arraycomm.

`python -m tests.frameworks.torch.torchs_own [NAME...]`, with PyPI's expecttest. Two forked ranks a test (WORLD_SIZE=N: so many).
Without names: all for CPU tensors that torch defines for gloo (BACKEND=mpi: for MPI, which has more of all_to_all).
With ARRAYCOMM_TORCH_AS=gloo they ask for gloo as they are, and none is left out.
Ends with 1 if one of them fails.
"""

from __future__ import annotations

import os
import re
import sys
import unittest

# Tests ask for back ends by name as they are defined. What runs then is arraycomm (setUpClass).
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")

import torch
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

import arraycomm.frameworks.torch  # noqa: F401  registers the back end

# For other devices and back ends; what torch refuses for all but its own (docs/guide/torch.md); what asks for names as it runs.
_AS_GLOO = bool(os.environ.get("ARRAYCOMM_TORCH_AS"))
_ELSEWHERE = re.compile("nccl|cuda" + "|syncbatchnorm|sync_batch_norm|monitored_barrier|compile|mixed_precision|"
                        "accumulate_gradients_no_sync" * (not _AS_GLOO), re.IGNORECASE)


class Forked(TestDistBackend, DistributedTest._DistTestBase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if not _AS_GLOO:
            distributed_test.BACKEND = "arraycomm"

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def main(names: list[str]) -> int:
    found = [name for name in unittest.TestLoader().getTestCaseNames(Forked) if not _ELSEWHERE.search(name)]
    unknown = sorted(set(names) - set(found))
    if unknown:
        print(f"not among torch's tests for CPU tensors: {', '.join(unknown)}", file=sys.stderr)
        return 2
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(Forked, names or found)))
    passed = result.testsRun - len(result.skipped) - len(result.failures) - len(result.errors)
    print(f"{passed} passed, {len(result.skipped)} skipped themselves, {len(result.failures) + len(result.errors)} failed")
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
