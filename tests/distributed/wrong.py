"""Wrong calls, the same for torch.distributed and for us: what each raises, side by side.

`wrong_collectives.py` and other modules have tables of Cases. Every case is one call on every rank, in a group of its own that
gives up after a few seconds, so that what the one refuses and the other waits for is seen too.

    python -m tests.distributed.wrong [MODULE]      both messages of each case, of rank 0
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RANKS = 3
PATIENCE = timedelta(seconds=4)  # of a group's operations
LIMIT = 240  # s for a whole table
THEIRS = "torch.distributed"
KINDS = ("torch.distributed with torch", "arraycomm.distributed with torch", "arraycomm.distributed with numpy")


@dataclass
class Site:
    """Where a case is run: the module, the library of the arrays, this rank and a group of all ranks (and one without the
    last)."""

    dist: Any
    library: str
    rank: int
    group: Any
    pair: Any
    a: Any = field(init=False)  # two elements
    b: Any = field(init=False)  # three

    def __post_init__(self) -> None:
        self.a, self.b = self.zeros(2), self.zeros(3)

    @property
    def next(self) -> int:
        return (self.rank + 1) % RANKS

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
    makes sense with this library's arrays only. fatal: what it does to a process with torch, where it is not tried.
    """

    name: str
    expected: type[Exception] | None
    says: str
    call: Callable[[Site], Any]
    ours: type[Exception] | None | str = "as torch"
    why: str = ""
    only: str = ""
    fatal: str = ""

    @property
    def wanted(self) -> type[Exception] | None:
        return self.expected if isinstance(self.ours, str) else self.ours


class Outcome(NamedTuple):
    """The class's name ("" where nothing was raised), its bases, and the message."""

    kind: str
    bases: list[str]
    text: str


def cases(module: str) -> list[Case]:
    return list(importlib.import_module(f"tests.distributed.{module}").CASES)


def serve(rank: int, module: str, kind: str, folder: str) -> None:
    """One rank: each case, and what came of it as a file."""
    name, library = kind.split(" with ")
    if library == "numpy":
        sys.modules["torch"] = None  # type: ignore[assignment]
    dist = importlib.import_module(name)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS,
                            timeout=timedelta(seconds=60))
    found: dict[str, Outcome] = {}
    for case in cases(module):
        if case.only in ("", library) and not (case.fatal and name == THEIRS):
            Path(folder, f"{rank}.json").write_text(json.dumps(found | {case.name: ("not ended", [], "it hangs or kills")}))
            found[case.name] = _outcome(case, dist, library, rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _outcome(case: Case, dist: Any, library: str, rank: int) -> Outcome:
    group, pair = dist.new_group(timeout=PATIENCE), dist.new_group([0, 1], timeout=PATIENCE)
    dist.barrier()  # gloo's connections break where one rank closes a group that another one still opens
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.call(Site(dist, library, rank, group, pair))
        outcome = Outcome("", [], "")
    except Exception as error:
        outcome = Outcome(type(error).__name__, [base.__name__ for base in type(error).__mro__],
                          str(error) or traceback.format_exc(limit=-1))
    finally:
        dist.barrier()
        for made in (group, pair):
            if made != dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(made)
    return outcome


def run(module: str, kind: str) -> list[dict[str, Outcome]]:
    """What every rank found, by case. TimeoutError with the last cases when a rank hangs."""
    from arraycomm.launch.spawn import spawn

    with tempfile.TemporaryDirectory() as folder:
        context = spawn(serve, (module, kind, folder), nprocs=RANKS, join=False)
        assert context is not None
        try:
            if not context.join(LIMIT):
                raise TimeoutError("the ranks hang")
        except Exception as error:
            found = _found(folder)
            raise RuntimeError(f"{kind}: after {[list(mine)[-1:] for mine in found]}: {error}") from None
        finally:
            context.close()
        return _found(folder)


def _found(folder: str) -> list[dict[str, Outcome]]:
    files = (json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS))
    return [{name: Outcome(*outcome) for name, outcome in mine.items()} for mine in files]


def mistake(case: Case, outcome: Outcome, ours: bool) -> str:
    """What is wrong with an outcome; "" where it is as the table says."""
    wanted = case.wanted if ours else case.expected
    if wanted is None:
        return f"raised {outcome.kind}: {outcome.text}" if outcome.kind else ""
    if wanted.__name__ not in outcome.bases:
        return f"{outcome.kind or 'nothing'} instead of {wanted.__name__}: {outcome.text}"
    return f"{case.says!r} is not in the message: {outcome.text}" if ours and case.says not in outcome.text else ""


def main() -> None:
    modules = sys.argv[1:2] or ["wrong_collectives"]
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
