"""start_method="forkserver" starts ranks with torch and the facade already imported; else each rank imports torch itself."""

from __future__ import annotations

import multiprocessing

multiprocessing.set_forkserver_preload(["torch.distributed", "arraycomm.distributed", "arraycomm.backends.socket"])
