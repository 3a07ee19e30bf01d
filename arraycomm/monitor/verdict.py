"""The ranks that wait and the ranks that they wait for, from the reports of all ranks: one line for the user of a hung job.

A rank waits when it has been in an operation for a second that other ranks of the group have not begun (collectives), or whose
other side is missing (messages). A rank for which others wait, and which itself waits for no rank, is the cause; where all
wait, it is a deadlock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .board import Report

WAITING = 1.0  # s in an operation before it counts as waiting
SILENCE = 10.0  # s without a report before a rank counts as lost
_SENTENCES = 12  # the most waits that are listed


class Wait(NamedTuple):
    """rank has been in `what` for `seconds` and waits for the ranks in `missing`. blocked: the operation is synchronous."""

    rank: int
    what: str
    seconds: float
    missing: tuple[int, ...]
    blocked: bool


class Verdict(NamedTuple):
    """headline; details, a sentence each; waits; the lost ranks, and the ranks that others wait for."""

    level: str  # "good", "late", "bad"
    headline: str
    details: tuple[str, ...]
    waits: tuple[Wait, ...]
    lost: tuple[int, ...]
    late: tuple[int, ...]


def judge(reports: dict[int, Report], size: int) -> Verdict:
    """reports: by rank, each with `heard`, the seconds since its arrival; only ranks that have reported."""
    members = _members(reports)
    waits = _patient([wait for report in reports.values() for wait in _waits(report, reports, members)])
    lost = tuple(rank for rank in range(size) if rank not in reports or _lost(reports[rank]))
    blocked = {wait.rank for wait in waits if wait.blocked and wait.missing}
    wanted = {rank for wait in waits for rank in wait.missing}
    late = tuple(sorted(wanted - blocked - set(lost)))
    if lost:
        return Verdict("bad", *_tell_lost(lost, reports, waits), waits, lost, late)
    if late:
        return Verdict("late", *_tell_late(late, reports, waits), waits, lost, late)
    if blocked:
        return Verdict("bad", *_tell_circle(blocked, waits), waits, lost, late)
    if waits:
        wait = waits[0]
        text = f"All ranks have reached {wait.what}, which has been running for {seconds(wait.seconds)}"
        return Verdict("late", text, tuple(_tell(waits)), waits, lost, late)
    return Verdict("good", *_tell_good(reports, size), waits, lost, late)


def _members(reports: dict[int, Report]) -> dict[str, dict[int, int]]:
    """For each group: global rank by group rank."""
    found: dict[str, dict[int, int]] = {}
    for rank, report in reports.items():
        for group in report["groups"]:
            found.setdefault(group["group"], {})[group["rank"]] = rank
    return found


def _lost(report: Report) -> bool:
    return report["ended"] in ("died", "exited") or (not report["ended"] and report["heard"] > SILENCE)


def _waits(report: Report, reports: dict[int, Report], members: dict[str, dict[int, int]]) -> list[Wait]:
    if report["ended"]:
        return []
    found = []
    for record in report["open"]:
        missing = _missing(record, reports, members)
        blocked = record["state"] == "running"
        if blocked or (missing and "sequence" in record):  # for a message the peer's progress is unknown
            age = record["age"] + report["heard"]
            found.append(Wait(report["rank"], operation(record, members), age, missing, blocked))
    return found


def _patient(waits: list[Wait]) -> tuple[Wait, ...]:
    """The waits for operations in which some rank has waited for at least WAITING seconds, the longest first."""
    long = {wait.what for wait in waits if wait.seconds >= WAITING}
    return tuple(sorted((wait for wait in waits if wait.what in long), key=lambda wait: -wait.seconds))


def _missing(record: dict[str, Any], reports: dict[int, Report], members: dict[str, dict[int, int]]) -> tuple[int, ...]:
    """The global ranks that the operation needs and that have not entered it."""
    there = members.get(record["group"], {})
    peer = record.get("dest", record.get("source"))
    if "sequence" not in record:
        return (there[peer],) if peer in there else ()
    begun = {rank: next(group["begun"] for group in reports[rank]["groups"] if group["group"] == record["group"])
             for rank in sorted(there.values())}
    return tuple(rank for rank, number in begun.items() if number < record["sequence"])


# ---- in words ----

def operation(record: dict[str, Any], members: dict[str, dict[int, int]]) -> str:
    group = record["group"]
    there = members.get(group, {})
    if "sequence" in record:
        return f"{record['name']} number {record['sequence']} of group {group!r}"
    if "dest" in record:
        return f"{record['name']} to rank {there.get(record['dest'], record['dest'])} in group {group!r}"
    source = record.get("source")
    return f"{record['name']} from {'any rank' if source is None else f'rank {there.get(source, source)}'} in group {group!r}"


def seconds(value: float) -> str:
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ranks(numbers: tuple[int, ...] | set[int]) -> str:
    """"rank 3", "ranks 0 to 2 and 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    text = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return f"rank{'s' if len(numbers) > 1 else ''} {text}"


def _place(report: Report) -> str:
    return f"{report['host']}, process {report['pid']}"


def _tell(waits: tuple[Wait, ...]) -> list[str]:
    """One sentence for all waits with the same cause, the longest wait first."""
    alike: dict[tuple[str, tuple[int, ...], bool], list[Wait]] = {}
    for wait in waits:
        alike.setdefault((wait.what, wait.missing, wait.blocked), []).append(wait)
    told = []
    for (what, missing, blocked), its in list(alike.items())[:_SENTENCES]:
        who = {wait.rank for wait in its}
        verb = ("waits" if len(who) == 1 else "wait") if blocked else ("has begun" if len(who) == 1 else "have begun")
        others = f", and {ranks(missing)} {'has' if len(missing) == 1 else 'have'} not reached it" if missing else ""
        told.append(f"{ranks(who).capitalize()} {verb} {'in ' if blocked else ''}{what}, for {seconds(its[0].seconds)}{others}.")
    return [*told, f"There are {len(alike) - _SENTENCES} more such waits."] if len(alike) > _SENTENCES else told


def _doing(report: Report, members: dict[str, dict[int, int]]) -> str:
    running = [record for record in report["open"] if record["state"] == "running"]
    process = report["process"].get("state", "")
    state = f" Its process is {process}." if process.startswith(("stopped", "waiting")) else ""
    if running:
        return f"It has been in {operation(running[0], members)} for {seconds(running[0]['age'] + report['heard'])}.{state}"
    last = report["last"]
    if last is None:
        return f"It has not ended any operation yet.{state}"
    ago = seconds(last["ended"] + report["heard"])
    return f"It is in no operation; its last, {operation(last, members)}, ended {ago} ago.{state}"


def _tell_lost(lost: tuple[int, ...], reports: dict[int, Report], waits: tuple[Wait, ...]) -> tuple[str, tuple[str, ...]]:
    members, details = _members(reports), []
    for rank in lost:
        report = reports.get(rank)
        if report is None:
            details.append(f"Rank {rank} has not reported yet.")
            continue
        how = {"died": "has died", "exited": "has exited without closing its group"}.get(report["ended"], "has sent no report")
        when = f"{seconds(report['heard'])} ago" if report["ended"] else f"for {seconds(report['heard'])}"
        details.append(f"Rank {rank} ({_place(report)}) {how}, {when}. {_doing(report, members)}")
    died = [rank for rank in lost if rank in reports]
    first = max((reports[rank]["heard"] for rank in died), default=0.0)
    if died:
        text = f"{ranks(tuple(died)).capitalize()} {'has' if len(died) == 1 else 'have'} been lost for {seconds(first)}"
    else:
        text = f"{ranks(lost).capitalize()} {'has' if len(lost) == 1 else 'have'} not reported yet"
    return text, (*details, *_tell(waits))


def _tell_late(late: tuple[int, ...], reports: dict[int, Report], waits: tuple[Wait, ...]) -> tuple[str, tuple[str, ...]]:
    members = _members(reports)
    since = max(wait.seconds for wait in waits if set(wait.missing) & set(late))
    gone = {"closed": "It has closed its group and will not call it.",
            "unrecorded": "It is no longer recorded: whether it has called the operation is not known here."}
    details = [f"Rank {rank} ({_place(reports[rank])}): " + (gone.get(reports[rank]["ended"]) or _doing(reports[rank], members))
               for rank in late]
    waiting = tuple(sorted({wait.rank for wait in waits if set(wait.missing) & set(late)}))
    text = f"{ranks(late).capitalize()} {'has' if len(late) == 1 else 'have'} been late for {seconds(since)}: {ranks(waiting)}"
    return f"{text} wait{'s' if len(waiting) == 1 else ''}", (*details, *_tell(waits))


def _tell_circle(blocked: set[int], waits: tuple[Wait, ...]) -> tuple[str, tuple[str, ...]]:
    since = min(wait.seconds for wait in waits if wait.blocked)
    text = f"Deadlock: {ranks(blocked)} have waited for each other for {seconds(since)}"
    return text, tuple(_tell(waits))


def _tell_good(reports: dict[int, Report], size: int) -> tuple[str, tuple[str, ...]]:
    ends = [report["ended"] for report in reports.values() if report["ended"]]
    if len(ends) == size:
        return "All ranks have closed their groups" if "unrecorded" not in ends else "No rank is recorded any more", ()
    ago = [report["last"]["ended"] + report["heard"] for report in reports.values() if report["last"]]
    if not ago:
        return f"No rank waits for another; none of the {size} has ended an operation yet", ()
    return f"No rank waits for another; the last operation of the {size} ranks ended {seconds(min(ago))} ago", ()
