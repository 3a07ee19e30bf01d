"""JAX's own collectives on CPUs over arraycomm, in programs that do not say so: only where ARRAYCOMM_JAX is set.

JAX imports this in every process, when it makes its backend, and calls initialize() (entry point "jax_plugins" in
pyproject.toml). So it is installed as a package of its own, arraycomm_jax, and imports arraycomm only where it is asked to.
"""

from __future__ import annotations

import os

_OFF = ("", "0", "false", "no", "off")


def initialize() -> None:
    """Called by JAX, which logs what is raised here and goes on without: over gloo, which nobody asked for. So making the backend
    fails instead."""
    if os.environ.get("ARRAYCOMM_JAX", "").lower() in _OFF:
        return
    try:
        from arraycomm.frameworks.jax import cpu_collectives

        cpu_collectives.plug()
    except Exception as error:
        from jax._src import xla_bridge

        failure = error

        def fail() -> None:
            raise failure

        xla_bridge.register_backend_factory("cpu", fail, priority=0, fail_quietly=False)
