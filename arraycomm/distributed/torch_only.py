"""Parts of torch.distributed that work only on torch's own groups: they can be imported, and their use raises an error."""

from __future__ import annotations

import sys
from typing import Any

# Modules of torch.distributed that are not supported.
MODULES = frozenset(("algorithms", "autograd", "checkpoint", "elastic", "flight_recorder", "fsdp", "launcher",
                     "pipelining", "rpc", "run", "tensor", "utils"))


def advice(name: str) -> str:
    return (f"torch.distributed.{name} works on torch's own groups, which arraycomm.distributed does not make: call "
            "torch.distributed.init_process_group(\"arraycomm\"), which runs on the same engine, and import it from "
            "torch.distributed (docs/guide/torch.md)")


class _Finder:
    """The last import finder, after all others have failed: importing one of these modules raises an error with advice."""

    @staticmethod
    def find_spec(name: str, *where: Any) -> None:
        package, _, module = name.partition(".distributed.")
        if package == "arraycomm" and module in MODULES:
            raise ModuleNotFoundError(advice(module))


sys.meta_path.append(_Finder)


def stand_in(name: str) -> Any:
    """A class of this name (its path under torch.distributed) that can be imported, and not be used: RuntimeError."""
    def refuse(self: Any, *args: Any, **named: Any) -> None:
        raise RuntimeError(advice(name))

    return type(name.rpartition(".")[2], (), {"__init__": refuse, "__doc__": advice(name)})
