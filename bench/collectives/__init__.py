"""One short file per operation; to add one, write its file and its line here."""

from __future__ import annotations

from .all_gather import AllGather
from .all_reduce import AllReduce
from .all_to_all import AllToAll
from .barrier import Barrier
from .base import Call, Case, Collective, Shared
from .broadcast import Broadcast
from .gather import Gather
from .reduce import Reduce
from .reduce_scatter import ReduceScatter
from .scan import Exscan, Scan
from .scatter import Scatter
from .sendrecv import SendRecv

COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        AllReduce(),
        Reduce(),
        Broadcast(),
        AllGather(),
        Gather(),
        Scatter(),
        ReduceScatter(),
        Scan(),
        Exscan(),
        AllToAll(),
        SendRecv(),
        Barrier(),
    )
}

__all__ = ["COLLECTIVES", "Call", "Case", "Collective", "Shared"]
