"""JAX's own collectives on CPUs over arraycomm, in programs that do not say so: only where ARRAYCOMM_JAX is set.

JAX imports this in every process, when it makes its backend, and calls initialize() (entry point "jax_plugins" in
pyproject.toml). So it is installed as a package of its own, arraycomm_jax, and imports arraycomm only where it is asked to.
"""

from __future__ import annotations

import os

_OFF = ("", "0", "false", "no", "off")


def initialize() -> None:
    """Called by JAX."""
    if os.environ.get("ARRAYCOMM_JAX", "").lower() not in _OFF:
        from arraycomm.frameworks.jax import cpu_collectives

        cpu_collectives.plug()
