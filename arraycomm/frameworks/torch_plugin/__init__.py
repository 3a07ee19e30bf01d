"""The entry point for `import torch` ("torch.backends" in pyproject.toml).

It is installed as a separate package, arraycomm_torch: `import torch` must not fail if arraycomm cannot be imported, as in a
source tree without a built engine that shadows the installed package.
"""

from __future__ import annotations

import os
import warnings


def register() -> None:
    """Makes "arraycomm" a backend of torch.distributed; a warning where the package cannot be loaded, but an error where the
    environment asks for it in gloo's place."""
    try:
        from arraycomm.frameworks import torch
    except Exception as error:
        if os.environ.get("ARRAYCOMM_TORCH_AS"):
            raise
        warnings.warn(f"torch.distributed has no backend 'arraycomm': {type(error).__name__}: {error}", RuntimeWarning,
                      stacklevel=2)
    else:
        torch.register()
