"""JAX's own collectives on CPUs over arraycomm, in unchanged programs: only if ARRAYCOMM_JAX is set.

JAX imports this in every process, when it makes its backend, and calls initialize() (entry point "jax_plugins" in
pyproject.toml). So it is installed as a package of its own, arraycomm_jax, and imports arraycomm only where it is asked to.
"""

from __future__ import annotations

import os

_OFF = ("", "0", "false", "no", "off")


def initialize() -> None:
    """Called by JAX, which only logs exceptions raised here and continues over gloo, against the setting. So the error is raised
    later, when the backend is made."""
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
