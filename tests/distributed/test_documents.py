"""documents.py: every code block of torch.distributed's documents has a test that is there and run."""

from __future__ import annotations

import pytest

from .documents import EXAMPLES, Example, blocks, example_of, is_run

MARKDOWN = """Text with dist.all_reduce() in it.

```
import torch.distributed as dist
dist.init_process_group(backend, init_method='tcp://10.1.1.20:23456')
```

Example::

    >>> import torch.distributed as dist
    >>> output = [None for _ in gather_objects]
    >>> dist.all_gather_object(output, gather_objects[dist.get_rank()])
    >>> # All tensors below are of torch.int64 type.
    >>> dist.no_such_function(1)

    python -m torch.distributed.launch --nproc-per-node=2
"""


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row.marks[0])
def test_every_example_has_a_test(row: Example) -> None:
    if not row.test:
        assert row.why
        return
    assert is_run(row.test), f"{row.test} is not there, or nobody runs it"


def test_a_function_that_is_not_run() -> None:
    assert not is_run("test_examples.no_such_function") and not is_run("test_examples.equal")


def test_blocks_are_found() -> None:
    rows = [example_of(block) for block in blocks(MARKDOWN)]
    assert [row and row.test for row in rows] == [
        "test_examples.run", "test_examples.objects", None, "test_launch.test_the_launcher_under_torchs_arguments"]
