"""One of two ranks: runs the docstrings' examples that need a default group, in the same order, and prints what failed."""

from __future__ import annotations

import json
import warnings
from typing import Any

import arraycomm.distributed as dist
from tests import docstrings


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)  # of torch's older names
    dist.init_process_group()
    names = [name for name in docstrings.names() if name.owner == "arraycomm.distributed"]
    failed = {str(name): docstrings.failure(name) for name in names if docstrings.RANKS in docstrings.text_of(name)}
    found: list[dict[str, Any]] = [{}, {}]
    dist.all_gather_object(found, failed)
    if dist.get_rank() == 0:
        print(json.dumps({name: "".join(ranks[name] for ranks in found) for name in failed}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
