"""The reference pages of docs/reference that list calls. `python -m tests.reference_pages` writes them.

Each has a table of the calls, which a code host shows, and a line for each call in whose place mkdocs puts its docstring.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_NOTE = "On a code host this page shows the tables only. The site, and `help()` in Python, have the whole text.\n"
# Its members have sections of their own, and its constructor is not for users.
_NO_MEMBERS = "    options: {members: false, inherited_members: false, show_signature: false, merge_init_into_class: false}\n"
COMMANDS = {"arraycomm-run": "arraycomm.launch.__main__", "arraycomm-bench": "arraycomm.bench.__main__",
            **{f"arraycomm-bench {name}": "arraycomm.bench.__main__" for name in ("compare", "tune")},
            "arraycomm-info": "arraycomm.info", "arraycomm-trace": "arraycomm.monitor.trace"}


class Section(NamedTuple):
    """Calls of one subject: names below `owner`, which is a module or a class in one."""

    title: str
    owner: str
    names: str


class Page(NamedTuple):
    title: str
    text: str
    sections: tuple[Section, ...]


PAGES = {
    "group.md": Page(
        "Group",
        "A `Group` is one rank's end of a group of ranks. `arraycomm.init()` makes the first one, `split()` and `subgroup()`\n"
        "make others. What an operation computes, to the bit, is in [what the operations mean](semantics.md).\n"
        "`ANY_TAG` is the tag of a receive or a probe that takes a message with any tag.\n", (
            Section("The class", "arraycomm", "Group"),
            Section("Reductions", "arraycomm.Group", "all_reduce reduce reduce_scatter scan exscan"),
            Section("Moving arrays", "arraycomm.Group", "broadcast all_gather gather scatter all_to_all barrier"),
            Section("Messages", "arraycomm.Group", "send recv isend irecv sendrecv probe batch"),
            Section("Objects", "arraycomm.Group", "all_gather_object gather_object broadcast_object scatter_objects send_object "
                    "recv_object isend_object irecv_object"),
            Section("Other groups", "arraycomm.Group", "split subgroup shrink cart"),
            Section("Memory", "arraycomm.Group", "empty"),
            Section("Its life", "arraycomm.Group", "close closed abort check_peers handle"),
            Section("Grids of ranks", "arraycomm.core.group.cart.Cart", "coords_of rank_of shift sub halo_exchange"))),
    "work.md": Page(
        "Work",
        "An operation with `async_op=True`, `isend()` and `irecv()` give a `Work`.\n", (
            Section("The class", "arraycomm", "Work"),
            Section("Its methods", "arraycomm.Work", "wait result done source"),
            Section("Several at once", "arraycomm", "wait_all wait_any"),
            Section("What receives and probes give", "arraycomm", "Received Message"))),
    "start.md": Page(
        "Starting ranks and other functions",
        "The functions of the package itself. [Launchers](../guide/launch.md) start processes; `init()` makes them ranks.\n", (
            Section("Ranks", "arraycomm", "init run spawn from_mpi4py"),
            Section("Gradients", "arraycomm", "GradientReducer"),
            Section("Arrays and objects", "arraycomm", "writable register_type"),
            Section("For code in C", "arraycomm", "get_include get_library"))),
    "types.md": Page(
        "Dtypes and reductions",
        "[Which reduction is defined for which dtype](reductions.md#dtypes-and-reductions). A reduction is a name, as\n"
        "`op=\"sum\"`; one of these; or a function of two arrays.\n", (
            Section("Types", "arraycomm", "DType ReduceOp premul_sum reduction"),)),
    "errors.md": Page(
        "Errors",
        "Wrong arguments are `ValueError` or `TypeError`, before anything is sent. What goes wrong between ranks is a\n"
        "`DistError`, which is a `RuntimeError`.\n", (
            Section("A group has failed", "arraycomm", "GroupError PeerLost CollectiveTimeout CollectiveMismatch Aborted"),
            Section("Other errors between ranks", "arraycomm", "DistError DistBackendError DistNetworkError DistStoreError "
                    "QueueEmptyError AuthFailed ResourceError RemoteError"),
            Section("Errors of arguments", "arraycomm", "DeviceError"))),
    "distributed-calls.md": Page(
        "arraycomm.distributed, call by call",
        "The names, parameters and results are torch.distributed's: [the guide to the interface](distributed.md) says what\n"
        "differs. `default_pg_timeout` is a timedelta of 30 minutes.\n\n"
        "The examples need `import numpy as np`, `import arraycomm.distributed as dist`, `from datetime import timedelta`. \n"
        "Those \"on each of two ranks\" run in two processes after `dist.init_process_group()`.\n", (
            Section("Begin and end", "arraycomm.distributed", "init_process_group destroy_process_group is_initialized "
                    "is_available is_backend_available is_gloo_available is_mpi_available is_nccl_available is_ucc_available "
                    "is_xccl_available is_torchelastic_launched rendezvous register_rendezvous_handler spawn "
                    "ProcessExitedException ProcessRaisedException"),
            Section("Groups", "arraycomm.distributed", "new_group new_subgroups new_subgroups_by_enumeration split_group "
                    "shrink_group get_rank get_world_size get_group_rank get_global_rank get_process_group_ranks get_backend "
                    "get_backend_config get_default_backend_for_device get_node_local_rank get_pg_count GroupMember group "
                    "GroupName init_device_mesh DeviceMesh ProcessGroup Backend BackendConfig ProcessGroupNCCL"),
            Section("Collectives", "arraycomm.distributed", "all_reduce reduce broadcast all_gather all_gather_single gather "
                    "scatter reduce_scatter reduce_scatter_single all_to_all all_to_all_single barrier monitored_barrier "
                    "ReduceOp supports_complex"),
            Section("Older names", "arraycomm.distributed", "all_gather_into_tensor reduce_scatter_tensor all_reduce_coalesced "
                    "all_gather_coalesced reduce_op all_reduce_multigpu reduce_multigpu broadcast_multigpu all_gather_multigpu "
                    "reduce_scatter_multigpu"),
            Section("Objects", "arraycomm.distributed", "all_gather_object broadcast_object_list gather_object "
                    "scatter_object_list send_object_list recv_object_list"),
            Section("Messages", "arraycomm.distributed", "send recv isend irecv batch_isend_irecv P2POp"),
            Section("Works", "arraycomm.distributed", "Work"),
            Section("Stores", "arraycomm.distributed", "Store TCPStore FileStore HashStore PrefixStore"),
            Section("Options of ProcessGroup's methods", "arraycomm.distributed", "AllreduceOptions AllreduceCoalescedOptions "
                    "BroadcastOptions ReduceOptions ReduceScatterOptions AllToAllOptions GatherOptions ScatterOptions "
                    "BarrierOptions"),
            Section("Errors", "arraycomm.distributed", "DistError DistBackendError DistNetworkError DistStoreError "
                    "QueueEmptyError"),
            Section("Other", "arraycomm.distributed", "DistributedSampler breakpoint record_comm DebugLevel get_debug_level "
                    "set_debug_level set_debug_level_from_env"))),
    "dist2-calls.md": Page(
        "arraycomm.dist2, call by call",
        "Groups as objects: [the guide to the interface](dist2.md). `ReduceOp`, `Store` and its subclasses, `Work` and\n"
        "the other options are [arraycomm.distributed's](distributed-calls.md).\n", (
            Section("Groups", "arraycomm.dist2", "new_group process_group current_process_group register_backend "
                    "ProcessGroupFactory ProcessGroup AllgatherOptions ReconfigureOptions"),
            Section("Windows", "arraycomm.dist2", "Window WindowAccessType WindowAttr"),
            Section("Hooks", "arraycomm.dist2", "HookOpName PreHookArgs PostHookArgs"))),
    "jax.md": Page(
        "arraycomm.frameworks.jax",
        "Collectives of JAX arrays, inside `jit` too: [the guide](../guide/jax.md).\n", (
            Section("Start", "arraycomm.frameworks.jax", "initialize errors jit"),
            Section("Operations", "arraycomm.frameworks.jax", "all_reduce reduce reduce_scatter scan exscan broadcast all_gather "
                    "all_to_all permute send recv barrier"),
            Section("Trees", "arraycomm.frameworks.jax", "all_reduce_tree replicate"))),
    "torch.md": Page(
        "arraycomm.frameworks.torch",
        "The backend \"arraycomm\" of torch.distributed, and what works without it: [the guide](../guide/torch.md).\n", (
            Section("The module", "arraycomm.frameworks.torch", "register"),)),
    "ray.md": Page(
        "arraycomm.frameworks.ray",
        "The backend \"arraycomm\" of ray.util.collective. Importing the module registers it: [Ray](../guide/ray.md).\n", (
            Section("The class", "arraycomm.frameworks.ray", "Group"),)),
}


def first_sentence(text: str) -> str:
    """Of a docstring's first paragraph, in one line, for a cell of a table."""
    line = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", line)[0].replace("|", "\\|").rstrip(":")


def found(owner: str, name: str) -> Any:
    path = owner.split(".")
    at = next(n for n in range(len(path), 0, -1) if ".".join(path[:n]) in _LOADED or _loads(".".join(path[:n])))
    return attrgetter(".".join([*path[at:], name]))(importlib.import_module(".".join(path[:at])))


_LOADED: set[str] = set()


def _loads(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    _LOADED.add(module)
    return True


def _section(section: Section) -> str:
    rows, calls = [], []
    for name in section.names.split():
        rows.append(f"| `{name}` | {first_sentence(inspect.getdoc(found(section.owner, name)) or '')} |\n")
        calls.append(f"\n::: {section.owner}.{name}\n" + _NO_MEMBERS * (name in ("Group", "Work")))
    return f"\n## {section.title}\n\n| name | what it is |\n|---|---|\n" + "".join(rows) + "".join(calls)


def page(name: str) -> str:
    title, text, sections = PAGES[name]
    return f"# {title}\n\n{text}" + (f"\n{_NOTE}" if sections else "") + "".join(map(_section, sections))


def commands() -> str:
    """What each command says to --help."""
    environ = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    texts = ["# Commands\n\nWhat each command prints for `--help`.\n"]
    for command, module in COMMANDS.items():
        said = subprocess.run([sys.executable, "-m", module, *command.split()[1:], "--help"], capture_output=True, text=True,
                              check=True, env=environ)
        texts.append(f"\n## {command}\n\n```text\n{said.stdout.rstrip()}\n```\n")
    return "".join(texts)


def written() -> dict[str, Callable[[], str]]:
    return {**{name: partial(page, name) for name in PAGES}, "commands.md": commands}


if __name__ == "__main__":
    for file, text in written().items():
        (FOLDER / file).write_text(text(), encoding="utf-8")
