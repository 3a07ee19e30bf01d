"""The metrics for Prometheus, in its text exposition format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .board import BUCKETS, Report
from .verdict import SILENCE, Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _quoted(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _line(name: str, labels: dict[str, object], value: float) -> str:
    inside = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[dict[str, object], float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield _line(name, labels, value)


def totals(report: Report) -> dict[str, dict[str, Any]]:
    """A rank's counts by operation, all sizes together."""
    found: dict[str, dict[str, Any]] = {}
    for row in report["counts"]:
        total = found.setdefault(row["name"], {"calls": 0, "bytes": 0, "failures": 0, "ns": 0, "buckets": [0] * BUCKETS})
        for key in ("calls", "bytes", "failures", "ns"):
            total[key] += row[key]
        for bucket, number in row["buckets"].items():
            total["buckets"][int(bucket)] += number
    return found


def exposition(reports: dict[int, Report], size: int, verdict: Verdict) -> str:
    """The metrics of all ranks."""
    rows = [({"rank": rank, "operation": name}, total) for rank, report in sorted(reports.items())
            for name, total in totals(report).items()]
    waiting = {rank: max((wait.seconds for wait in verdict.waits if wait.rank == rank and wait.blocked), default=0.0)
               for rank in reports}
    lines = [
        *_family("arraycomm_ranks", "gauge", "Ranks of the world.", [({}, size)]),
        *_family("arraycomm_lost_ranks", "gauge", "Ranks that have died, left without closing, or sent no report for "
                 f"{SILENCE:g} s.", [({}, len(verdict.lost))]),
        *_family("arraycomm_late_ranks", "gauge", "Ranks that others wait for and that wait for no rank.",
                 [({}, len(verdict.late))]),
        *_family("arraycomm_heartbeat_age_seconds", "gauge", "Time since a rank's last report.",
                 [({"rank": rank}, round(report["heard"], 3)) for rank, report in sorted(reports.items())]),
        *_family("arraycomm_waiting_seconds", "gauge", "How long a rank has been waiting for others, 0 when it is not.",
                 [({"rank": rank}, round(value, 3)) for rank, value in sorted(waiting.items())]),
        *_family("arraycomm_operations_total", "counter", "Operations that have ended.",
                 [(labels, total["calls"]) for labels, total in rows]),
        *_family("arraycomm_operation_bytes_total", "counter", "Bytes that the rank gave to operations that have ended.",
                 [(labels, total["bytes"]) for labels, total in rows]),
        *_family("arraycomm_operation_failures_total", "counter", "Operations that ended with an error.",
                 [(labels, total["failures"]) for labels, total in rows]),
        *_family("arraycomm_message_bytes_total", "counter", "Bytes sent by messages.",
                 [({"rank": rank, "group": link["group"], "peer": link["peer"]}, link["bytes"])
                  for rank, report in sorted(reports.items()) for link in report["links"]]),
        *_histogram(rows),
    ]
    return "\n".join(lines) + "\n"


def _histogram(rows: list[tuple[dict[str, object], dict[str, Any]]]) -> Iterator[str]:
    name = "arraycomm_operation_seconds"
    yield from _family(name, "histogram", "Duration of operations, from the call to its end as the program sees it.", ())
    for labels, total in rows:
        sum_so_far = 0
        for bucket, number in enumerate(total["buckets"][:-1]):
            sum_so_far += number
            yield _line(f"{name}_bucket", {**labels, "le": f"{2**bucket / 1e6:g}"}, sum_so_far)
        yield _line(f"{name}_bucket", {**labels, "le": "+Inf"}, total["calls"])
        yield _line(f"{name}_sum", labels, total["ns"] / 1e9)
        yield _line(f"{name}_count", labels, total["calls"])
