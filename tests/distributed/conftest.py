"""start_method="forkserver" gives ranks that have torch and the facade: else each takes seconds to import torch itself."""

from __future__ import annotations

import multiprocessing

multiprocessing.set_forkserver_preload(["torch.distributed", "arraycomm.distributed", "arraycomm.backends.socket"])
