"""Which test runs which code block of torch.distributed's documents.

    python -m tests.distributed.documents FILE...    finds the blocks of documents and says which test runs each

A block is known by what it calls: the first row of EXAMPLES all of whose marks are in it, spaces left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """`test`: "module.function"; "" where no code of ours could run it, with the reason in `why`."""

    marks: tuple[str, ...]
    test: str
    why: str = ""


_TORCHS_DDP = "about torch's DistributedDataParallel, which runs on torch's own groups"
_OUTPUT = "what such a program prints, not code"
EXAMPLES = (
    Example(("DistributedDataParallel(",), "", _TORCHS_DDP),
    Example(("register_comm_hook(",), "test_examples.a_future_of_an_average"),
    Example(("DDPInitializedwith",), "", _OUTPUT),
    Example(("Trainingspeed", "Avg"), "", _OUTPUT),
    Example(("Avgforwardcomputetime",), "", _OUTPUT),
    Example(("Expectedtohavefinishedreduction",), "", _OUTPUT),
    Example(("Errorwhenverifyingshapetensors",), "", _OUTPUT),
    Example(("RuntimeError:Rank1failedtopassmonitoredBarrier",), "", _OUTPUT),
    Example(("group_gloo",), "test_example_programs.test_monitored_barrier"),
    Example(("torch.randn(10ifrank==0else20)",), "test_example_programs.test_shapes_that_differ"),
    Example(("demo_basic",), "test_example_programs.test_overview"),
    Example(("--nproc-per-node", "nnodes"), "test_example_programs.test_launcher_on_two_nodes"),
    Example(("--nproc-per-node",), "test_launch.test_the_launcher_under_torchs_arguments"),
    Example(("--help",), "test_example_programs.test_help_of_the_launcher"),
    Example(("argparse", "--local-rank"), "test_example_programs.test_launcher_on_two_nodes"),
    Example(("init_method='env://'",), "test_example_programs.test_launcher_on_two_nodes"),
    Example(("tcp://",), "test_examples.run"),
    Example(("file:///mnt",), "test_examples.run"),
    Example(("torch.randn(20,10)",), "test_examples.profiled"),
    Example(("async_op=True",), "test_examples.asynchronous"),
    Example(("all_reduce_multigpu(",), "test_examples.all_reduce_multigpu"),
    Example(("_coalescing_manager(",), "test_examples.coalescing"),
    Example(("mesh_shape=",), "test_example_programs.test_meshes"),
    Example(("DeviceMesh(",), "test_example_programs.test_meshes"),
    Example(("send_object_list(",), "test_examples.send_object_list"),
    Example(("batch_isend_irecv(",), "test_examples.batch_isend_irecv"),
    Example(("broadcast_object_list(",), "test_examples.objects"),
    Example(("scatter_object_list(",), "test_examples.objects"),
    Example(("all_gather_object(",), "test_examples.objects"),
    Example(("gather_object(",), "test_examples.objects"),
    Example(("all_gather_into_tensor(",), "test_examples.all_gather_into_tensor"),
    Example(("reduce_scatter_tensor(",), "test_examples.reduce_scatter_tensor"),
    Example(("all_to_all_single(",), "test_examples.all_to_all_single"),
    Example(("all_to_all(",), "test_examples.all_to_all"),
    Example(("scatter_list=list(input.chunk(",), "test_examples.all_to_all_single"),
    Example(("scatter_list=input",), "test_examples.all_to_all"),
    Example(("all_gather(tensor_list",), "test_examples.all_gather"),
    Example(("all_reduce(tensor,op=ReduceOp",), "test_examples.all_reduce"),
    Example(("gather(tensor,gather_list",), "test_examples.gather"),
    Example(("scatter(output_tensor,scatter_list",), "test_examples.scatter"),
    Example(("monitored_barrier(wait_all_ranks=True",), "test_examples.monitored_barrier_of_all"),
    Example(("monitored_barrier(",), "test_examples.monitored_barrier"),
    Example(("FileStore(",), "test_store_examples.test_files_and_threads"),
    Example(("HashStore(",), "test_store_examples.test_files_and_threads"),
    Example(("client_store",), "test_store_examples.test_server_and_client"),
    Example(("compare_set(",), "test_store_examples.test_compare_set"),
    Example(("append(",), "test_store_examples.test_counters_and_text"),
    Example(("store.add(",), "test_store_examples.test_counters_and_text"),
    Example(("delete_key(",), "test_store_examples.test_deleting_and_counting"),
    Example(("num_keys(",), "test_store_examples.test_deleting_and_counting"),
    Example(("multi_set(",), "test_store_examples.test_several_at_once"),
    Example(("multi_get(",), "test_store_examples.test_several_at_once"),
    Example(("set_timeout(",), "test_store_examples.test_timeouts"),
    Example(("store.wait(",), "test_store_examples.test_timeouts"),
    Example(("store.get(",), "test_store_examples.test_several_at_once"),
    Example(("['foo',12,{1:2}]",), "", _OUTPUT),
)
_GAP = 8  # lines
_CODE = re.compile(r"import torch|python -m torch|dist\.\w+ ?\(|torch\.distributed ?\.|Error:|^[IE]\d{4} ", re.M)
_BEGINS = re.compile(r"\s*(import (torch|argparse)|from torch|# Note: Process|# All tensors|# Essentially|# Another)")


def is_run(name: str) -> bool:
    """Whether a row's function is there, and pytest or test_examples runs it."""
    module, _, function = name.partition(".")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return bool(found) and (function.startswith("test_") or function == "run" or "of(" in ast.unparse(found[0]).split("def ")[0])


def blocks(text: str) -> Iterator[str]:
    """Fenced code, runs of prompts, and indented runs that look like code or its output."""
    for part in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S):
        if not re.match(r"(\.\. |:)", part) and _CODE.search(part):
            yield part
    text = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.M | re.S)
    yield from _runs((line.partition(">>>")[2] if ">>>" in line else None) for line in text.splitlines())
    plain = (line if re.match(r" {4}|$", line) and ">>>" not in line else None for line in text.splitlines())
    yield from (run for run in _runs(plain) if _CODE.search(run))


def _runs(lines: Iterator[str | None]) -> Iterator[str]:
    """Lines that belong together; None: no line of a block. A few may lie between them: what an example prints."""
    run: list[str] = []
    gap = 0
    for line in lines:
        gap = gap + 1 if line is None else 0
        new = line is not None and _BEGINS.match(line) and not all(_BEGINS.match(had) or "#" in had for had in run)
        if run and (gap > _GAP or new):
            yield "\n".join(run)
            run = []
        if line is not None and (run or line.strip()):
            run.append(line)
    if run:
        yield "\n".join(run)


def example_of(block: str) -> Example | None:
    bare = re.sub(r"\s+", "", block).replace('"', "'")
    return next((row for row in EXAMPLES if all(mark in bare for mark in row.marks)), None)


def main() -> int:
    unknown = 0
    for path in sys.argv[1:]:
        for block in blocks(Path(path).read_text(errors="replace")):
            row = example_of(block)
            unknown += row is None
            first = next((line.strip() for line in block.splitlines() if line.strip() and "import" not in line), "")
            print(f"{(row.test or row.why) if row else 'NO TEST':60} {first[:60]}")
    print(f"{unknown} blocks without a test")
    return unknown != 0


if __name__ == "__main__":
    sys.exit(main())
