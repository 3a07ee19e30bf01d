"""What a rank's process tells the server, and the keys of the store under which."""

from __future__ import annotations

from arraycomm.core.base.typed import Any
from arraycomm.core.interface.kinds import RECORDED

from .board import ERROR_SHIFT, FAILED, OPERATION_SHIFT

Report = dict[str, Any]

INTERVAL = 0.5  # s between reports
FIELDS = {"rank", "count", "time", "host", "pid", "ended", "process", "groups", "open", "last", "counts", "links", "connections"}
STACKS, WATCHED = "ask/stacks", "ask/records"  # counters that the server raises when somebody wants them


def no_stacks(ended: str) -> str:
    """Of a rank that has ended so, as a report says it."""
    return "No stacks: the rank " + ("is no longer recorded." if ended == "unrecorded" else f"has {ended}.")


def describe(record: tuple[int, ...], texts: list[dict[str, Any]], groups: dict[int, dict[str, Any]], now: int) -> dict[str, Any]:
    """What a record says, for the report. now: nanoseconds on the rank's clock."""
    number, begun, ended, kind, row, sequence, nbytes, what = record
    state = what & 0xFF
    about = {"number": number, "name": RECORDED[what >> OPERATION_SHIFT & 0xFF], "group": groups[row]["group"], "bytes": nbytes,
             "state": ("running", "asynchronous", "done", "failed")[state], "age": (now - begun) / 1e9, **texts[kind]}
    if sequence:
        about["sequence"] = sequence
    if ended:
        about["seconds"], about["ended"] = (ended - begun) / 1e9, (now - ended) / 1e9
    if state == FAILED:
        about["error"] = texts[what >> ERROR_SHIFT].get("error", "an error whose text found no room")
    return about
