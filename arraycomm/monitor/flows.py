"""The arrows (flow events) of a merged trace: through the ranks' calls of one collective in the order of their arrival, up to
the rank that the others waited for; and between a send and its receive, from the earlier call to the later one.

Flow events of the "Trace Event Format" (Google, 2016): "s", "t" and "f" of one id and one name (Perfetto drops them otherwise),
each inside a slice of a thread. An asynchronous operation has no such slice, so its call gets one, from the call to its return.

Messages of one tag between two ranks arrive in the order of sending, so calls are matched by counting. If counting is ambiguous
(a receive from any rank, a failure that may or may not have consumed a message), there is no arrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Event = dict[str, Any]
Channel = tuple[str, int, int, int]  # group, sender and receiver by their ranks in the world, tag

_SENDS, _RECEIVES = ("send", "isend"), ("recv", "irecv")
_REFUSED = ("ValueError", "TypeError")  # before anything was sent


def calls(events: Iterable[Event]) -> list[Event]:
    """One slice for each asynchronous call."""
    return [{**{key: event[key] for key in ("name", "pid", "tid", "ts", "args")}, "cat": "call", "ph": "X",
             "dur": event["args"]["called_us"]}
            for event in events if event["ph"] == "b" and "called_us" in event["args"]]


def flows(events: list[Event]) -> list[Event]:
    """The flow events for all ranks' events on one clock, and the slices of asynchronous calls."""
    slices = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
    found: list[Event] = []
    for steps in [*_collectives(slices), *_messages(slices, _members(events))]:
        found += _flow(len(found), steps)
    return found


def _flow(number: int, steps: list[Event]) -> Iterator[Event]:
    for place, step in enumerate(steps):
        kind = "s" if place == 0 else "f" if place == len(steps) - 1 else "t"
        yield {"name": steps[0]["name"], "cat": "flow", "id": number, "ph": kind, "pid": step["pid"], "tid": step["tid"],
               "ts": step["ts"], **({} if kind == "s" else {"bp": "e"})}


def _collectives(slices: list[Event]) -> Iterator[list[Event]]:
    """For each collective the calls of its ranks, if there are several."""
    together: dict[tuple[str, int], dict[int, Event]] = defaultdict(dict)
    for event in slices:
        about = event["args"]
        if about.get("sequence") and not _refused(about):
            together[about["group"], about["sequence"]].setdefault(event["pid"], event)
    yield from (list(steps.values()) for steps in together.values() if len(steps) > 1)


def _members(events: Iterable[Event]) -> dict[tuple[str, int], int]:
    """The world's rank of each rank of a group."""
    return {(event["args"]["group"], event["args"]["rank"]): event["pid"] for event in events
            if event["ph"] == "M" and event["name"] == "group"}


def _messages(slices: list[Event], members: dict[tuple[str, int], int]) -> Iterator[list[Event]]:
    sent: dict[Channel, list[Event]] = defaultdict(list)
    received: dict[Channel, list[Event]] = defaultdict(list)
    unknown: set[tuple[str, int, int]] = set()  # (group, receiver, tag) with a receive from any rank
    for event in slices:
        about, me = event["args"], event["pid"]
        if event["name"] not in (*_SENDS, *_RECEIVES) or _refused(about):
            continue
        group, tag, sends = about["group"], about.get("tag", 0), event["name"] in _SENDS
        peer = members.get((group, about.get("dest" if sends else "source", -1)))
        if peer is not None:
            (sent[group, me, peer, tag] if sends else received[group, peer, me, tag]).append(event)
        elif not sends:
            unknown.add((group, me, tag))
    for channel, given in sent.items():
        group, _, receiver, tag = channel
        if (group, receiver, tag) not in unknown:
            yield from _pairs(given, received[channel])


def _pairs(sends: list[Event], receives: list[Event]) -> Iterator[list[Event]]:
    for pair in zip(sends, receives, strict=False):
        if any("error" in event["args"] for event in pair):
            return
        yield sorted(pair, key=lambda event: float(event["ts"]))


def _refused(about: Event) -> bool:
    return str(about.get("error", "")).startswith(_REFUSED)
