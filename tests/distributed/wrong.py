"""Wrong calls, the same for torch.distributed and for us: what each raises, side by side.

The modules wrong_*.py have tables of Cases, CASES, for so many RANKS. Every case is one call on every rank, with a group
of its own that gives up after a few seconds: what the one refuses and the other waits for has another message.

    python -m tests.distributed.wrong [MODULE]      both messages of each case, of rank 0
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MODULES = ("wrong_collectives", "wrong_messages", "wrong_groups", "wrong_methods")
PATIENCE = timedelta(seconds=4)  # of a group's operations
LEAST = 12  # characters of a message
LIMIT = 240  # s for a whole table
THEIRS = "torch.distributed"
KINDS = ("torch.distributed with torch", "arraycomm.distributed with torch", "arraycomm.distributed with numpy")


@dataclass
class Site:
    """Where a case is run: the module, the library of the arrays, this rank of how many, a group of all ranks, one of the
    first two and a closed one."""

    dist: Any
    library: str
    rank: int
    size: int
    group: Any = None
    pair: Any = None
    closed: Any = None
    a: Any = field(init=False)  # two elements
    b: Any = field(init=False)  # three

    def __post_init__(self) -> None:
        self.a, self.b = self.zeros(2), self.zeros(3)

    @property
    def next(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def mesh(self) -> Any:
        return importlib.import_module(f"{self.dist.__name__}.device_mesh")

    @property
    def strided(self) -> Any:
        return self.zeros(6)[::2]

    def array(self, values: Any, dtype: str = "float32") -> Any:
        if self.library == "numpy":
            return np.array(values, dtype)
        torch = importlib.import_module("torch")
        return torch.tensor(np.asarray(values).tolist(), dtype=getattr(torch, dtype))

    def zeros(self, *shape: int, dtype: str = "float32") -> Any:
        if self.library == "numpy":
            return np.zeros(shape, dtype)
        torch = importlib.import_module("torch")
        return torch.zeros(*shape, dtype=getattr(torch, dtype))


@dataclass(frozen=True)
class Case:
    """expected: what torch raises (None: nothing), by its class's name. says: a part of our message.

    ours: where ours raises something else (None: nothing), with the reason in `why`. only: "torch" or "numpy", where the call
    makes sense with this library's arrays only. fatal: what it does to a process with torch, where it is not tried. alone: run
    after the world's end, by each rank alone.
    """

    name: str
    expected: type[Exception] | None
    says: str
    call: Callable[[Site], Any]
    ours: type[Exception] | None | str = "as torch"
    why: str = ""
    only: str = ""
    fatal: str = ""
    alone: bool = False

    @property
    def wanted(self) -> type[Exception] | None:
        return self.expected if isinstance(self.ours, str) else self.ours


class Outcome(NamedTuple):
    """The class's name ("" where nothing was raised), its bases and the message."""

    kind: str
    bases: list[str]
    text: str


def cases(module: str) -> list[Case]:
    return list(importlib.import_module(f"tests.distributed.{module}").CASES)


def ranks(module: str) -> int:
    return int(importlib.import_module(f"tests.distributed.{module}").RANKS)


def serve(rank: int, module: str, kind: str, folder: str) -> None:
    """One rank: each case, and what came of it as a file."""
    name, library = kind.split(" with ")
    if library == "numpy":
        sys.modules["torch"] = None  # type: ignore[assignment]
    dist = importlib.import_module(name)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks(module),
                            timeout=timedelta(seconds=60))
    site = Site(dist, library, rank, ranks(module), closed=dist.new_group())
    dist.barrier(site.closed)
    dist.destroy_process_group(site.closed)
    table = [case for case in cases(module) if case.only in ("", library) and not (case.fatal and name == THEIRS)]
    found: dict[str, Outcome] = {}
    for case in sorted(table, key=lambda case: case.alone):
        if case.alone and dist.is_initialized():
            _end(site)
        Path(folder, f"{rank}.json").write_text(json.dumps(found | {case.name: Outcome("not ended", [], "it hangs or kills")}))
        found[case.name] = _called(case, site) if case.alone else _in_groups(case, site)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        _end(site)


def _end(site: Site) -> None:
    """After a look whether the world has suffered."""
    site.dist.all_reduce(total := site.zeros(3) + site.rank)
    assert total.tolist() == [sum(range(site.size))] * 3
    site.dist.barrier()
    site.dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ARRAYCOMM_STORE", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)


def _in_groups(case: Case, site: Site) -> Outcome:
    dist = site.dist
    group, pair = dist.new_group(timeout=PATIENCE), dist.new_group([0, 1], timeout=PATIENCE)
    dist.barrier()  # gloo's connections break where one rank closes a group that another one still opens
    try:
        return _called(case, replace(site, group=group, pair=pair))
    finally:
        dist.barrier()
        for made in (group, pair):
            if made != dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(made)


def _called(case: Case, site: Site) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.call(site)
    except Exception as error:
        return Outcome(type(error).__name__, [base.__name__ for base in type(error).__mro__],
                       str(error) or traceback.format_exc(limit=-1))
    return Outcome("", [], "")


def run(module: str, kind: str) -> list[dict[str, Outcome]]:
    """What every rank found, by case. TimeoutError with the last cases when a rank hangs."""
    from arraycomm.launch.spawn import spawn

    method = "forkserver" if kind.endswith("torch") else "spawn"
    with tempfile.TemporaryDirectory() as folder:
        context = spawn(serve, (module, kind, folder), nprocs=ranks(module), join=False, start_method=method)
        try:
            if not context.join(LIMIT):
                raise TimeoutError("the ranks hang")
        except Exception as error:
            found = _found(folder, ranks(module))
            raise RuntimeError(f"{kind}: after {[list(mine)[-1:] for mine in found]}: {error}") from None
        finally:
            context.close()
        return _found(folder, ranks(module))


def _found(folder: str, size: int) -> list[dict[str, Outcome]]:
    files = (json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size))
    return [{name: Outcome(*outcome) for name, outcome in mine.items()} for mine in files]


def mistake(case: Case, outcome: Outcome, ours: bool) -> str:
    """What is wrong with an outcome; "" where it is as the table says."""
    wanted = case.wanted if ours else case.expected
    if wanted is None:
        return f"raised {outcome.kind}: {outcome.text}" if outcome.kind else ""
    if wanted.__name__ not in outcome.bases:
        return f"{outcome.kind or 'nothing'} instead of {wanted.__name__}: {outcome.text}"
    if ours and (case.says not in outcome.text or len(outcome.text) < LEAST):
        return f"{case.says!r} is not in the message, or it says too little: {outcome.text}"
    return ""


def main() -> None:
    modules = sys.argv[1:2] or MODULES
    for module in modules:
        tables = {}
        kinds = [k for k in KINDS if all(w in k for w in sys.argv[2:])]
        for kind in kinds:
            tables[kind] = run(module, kind)
        for case in cases(module):
            print(f"\n== {case.name}" + (f"   [{case.why}]" if case.why else ""))
            for kind, table in tables.items():
                lines = [mine[case.name] for mine in table if case.name in mine]
                different = len({line.kind for line in lines}) > 1
                for rank, line in enumerate(lines if different else lines[:1]):
                    wrong = mistake(case, line, not kind.startswith("torch"))
                    print(f"  {kind}{f', rank {rank}' if different else ''}: {line.kind or 'nothing'}: {line.text[:300]}"
                          + (f"   <-- {wrong[:60]}" if wrong else ""))


if __name__ == "__main__":
    main()
