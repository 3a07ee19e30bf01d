"""torch: arraycomm as a backend of torch.distributed. `import arraycomm.frameworks.torch` registers it; docs/torch.md.

    torch.distributed.init_process_group("arraycomm")

Where the package is installed, `import torch` does so by itself (pyproject.toml, entry point "torch.backends").
"""

from __future__ import annotations

import torch.distributed

__all__ = ["register"]


def register() -> None:
    """Makes "arraycomm" a backend of torch.distributed for tensors in host memory. Idempotent.

    Without effect in a torch that was built without torch.distributed.
    """
    if not torch.distributed.is_available() or "ARRAYCOMM" in torch.distributed.Backend._plugins:
        return
    torch.distributed.Backend.register_backend("arraycomm", _create, extended_api=True, devices=["cpu"])


def _create(options, pg_options):  # type: ignore[no-untyped-def]
    from .create import create  # with the first group: `import torch` stays as it was

    return create(options, pg_options)


register()
