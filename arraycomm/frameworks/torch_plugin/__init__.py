"""What `import torch` calls (entry point "torch.backends" in pyproject.toml).

Installed as a package of its own, arraycomm_torch: `import torch` must not fail where arraycomm does, as in a source tree whose
engine is not built and that hides the installed one.
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
