"""torch: arraycomm as a backend of torch.distributed. `import arraycomm.frameworks.torch` registers it; docs/guide/torch.md.

    torch.distributed.init_process_group("arraycomm")

Where the package is installed, `import torch` does so by itself (torch_plugin).
Its module autograd works over arraycomm.distributed, without torch.distributed.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["register"]


def register() -> None:
    """Makes "arraycomm" a backend of torch.distributed for tensors in host memory. Idempotent.

    Where ARRAYCOMM_TORCH_AS is "gloo", what asks for gloo gets it too. Without effect in a torch that was built without
    torch.distributed.

    - Blocks: never; the backend itself is loaded with the first group.
    - Errors: ValueError for another value of ARRAYCOMM_TORCH_AS than "gloo".

    Examples:
        >>> import torch.distributed, arraycomm.frameworks.torch
        >>> arraycomm.frameworks.torch.register()
        >>> torch.distributed.is_backend_available("arraycomm")
        True
    """
    import torch.distributed  # here: it calls this function, and may be imported by the line at the end of this file

    if not torch.distributed.is_available():
        return
    if "ARRAYCOMM" not in torch.distributed.Backend._plugins:
        torch.distributed.Backend.register_backend("arraycomm", _create, extended_api=True, devices=["cpu"])
    # Since 2.15 torch's flight recorder hooks into each other backend's groups, but cannot into those of a class of their own.
    recording: set[str] = getattr(torch.distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("arraycomm")
    name = os.environ.get("ARRAYCOMM_TORCH_AS")
    if name:
        if name != "gloo":
            raise ValueError(f"ARRAYCOMM_TORCH_AS must be gloo or not set, got {name!r}")
        from .as_gloo import install

        install()


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})


def _create(options: Any, pg_options: Any) -> Any:
    from .create import create  # with the first group: `import torch` stays as it was

    return create(options, pg_options)


register()
