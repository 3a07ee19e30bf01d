"""arraycomm inside JAX programs: "ours/jit" by its own jit, "ours/jax.jit" by plain jax.jit. One compiled operation a call."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import ours
from .protocol import Call, Missing


class Contender(ours.Contender):
    functional = True

    def __init__(self, name: str) -> None:
        import jax

        jax.config.update("jax_platforms", "cpu")
        import arraycomm.frameworks.jax as comm

        super().__init__(name)
        self.jax, self.comm = jax, comm
        self._jit = comm.jit if name == "ours/jit" else jax.jit

    @classmethod
    def network(cls, name: str) -> bool:
        return False

    @classmethod
    def version(cls, name: str) -> str:
        try:
            import jax
        except ImportError as error:
            raise Missing(f"{error}: pip install jax") from error
        return f"{super().version(name)}, jax {jax.__version__}"

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        return self.jax.numpy.array(values, dtype).block_until_ready()  # memory of its own, which can be donated

    def call(self, operation: str, x: Any, out: Any) -> Call:
        comm, group = self.comm, self.group
        if operation == "sendrecv":
            other = self.rank ^ 1
            send = self._compiled(lambda x: comm.send(x, other, group=group))
            receive = self._compiled(lambda x: comm.recv(other, group=group, like=x))
            return self.one_way(lambda _: send(x), lambda _: receive(x))
        if operation == "barrier":
            return self._compiled(lambda: comm.barrier(group=group))  # type: ignore[no-any-return]
        if operation == "all_reduce":
            return self.in_place(self._compiled(partial(comm.all_reduce, group=group), donate_argnums=0), x)
        return partial(self._compiled(partial(getattr(comm, operation), group=group)), x)

    def _compiled(self, function: Any, **options: Any) -> Any:
        """It returns when the program is through: comm.jit by itself."""
        program = self._jit(function, **options)
        return program if self._jit is self.comm.jit else lambda *args: self.jax.block_until_ready(program(*args))
