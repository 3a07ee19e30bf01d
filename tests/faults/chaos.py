"""Random faults in running jobs, counted: one table of fault x transport x ranks.

A round starts a job, lets its ranks work, inflicts a fault at a random moment on random ranks and looks at the others:
which error they get and when, that their results were right until then, that the group is poisoned, that it can be closed
and that nothing is left afterwards. The seed of a round repeats its choices; the moment within an operation is the
machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .job import Answer, Job

TRANSPORTS = ("shm", "tcp", "both")  # both: ranks that believe to be on two hosts
SIZES = (2, 3, 4)
HANG = 15.0  # s after which a survivor counts as hanging
ANSWER = 0.2  # s from Ctrl-C to KeyboardInterrupt
WORK = ("collectives", "messages", "mixed")
SIZES_OF_WORK = ((1,), (5000,), (200_000,), (1, 64, 5000), (2_000_000,))  # elements of 8 bytes


class Fault(NamedTuple):
    """inflict(job, victims, rng): when it began. errors: what the others get; none when they are not to notice."""

    inflict: Callable[[Job, Sequence[int], random.Random], float]
    errors: dict[str, tuple[str, ...]]  # type: one of these is in its text
    victims: int = 1
    silence: float = 5.0  # s
    within: float = 1.0  # s, the promise
    own: str = ""  # what the victim itself gets, within ANSWER


def _kill(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    return [job.kill(rank) for rank in victims][0]


def _kill_one_after_another(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    first = job.kill(victims[0])
    time.sleep(rng.uniform(0, 0.02))
    job.kill(victims[1])
    return first


def _stop(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    return job.signal(victims[0], signal.SIGSTOP)


def _stop_shortly(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    moment = job.signal(victims[0], signal.SIGSTOP)
    time.sleep(rng.uniform(0.1, 0.5))
    job.signal(victims[0], signal.SIGCONT)
    return moment


def _interrupt(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    return job.signal(victims[0], signal.SIGINT)


def _terminate(job: Job, victims: Sequence[int], rng: random.Random) -> float:
    return job.signal(victims[0], signal.SIGTERM)


FAULTS = {
    "kill": Fault(_kill, {"PeerLost": ("process died",)}),
    "terminate": Fault(_terminate, {"PeerLost": ("process died",)}),
    "kill two": Fault(_kill_one_after_another, {"PeerLost": ("process died",)}, victims=2),
    "stop": Fault(_stop, {"PeerLost": ("unresponsive",)}, silence=1.0, within=1.2),
    "stop shortly": Fault(_stop_shortly, {}, silence=2.0),
    # Inside an operation, or between two: then the group is left as a `with` does.
    "interrupt": Fault(_interrupt, {"Aborted": ("interrupted by a signal",),
                                    "PeerLost": ("left with KeyboardInterrupt",)}, own="KeyboardInterrupt"),
}


@dataclass
class Tally:
    """Outcomes of rounds of one kind."""

    rounds: int = 0
    seconds: list[float] = field(default_factory=list)  # from the fault to each survivor's error
    own: list[float] = field(default_factory=list)  # to the victim's own
    wrong: list[str] = field(default_factory=list)  # results or errors that are not right
    hangs: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.wrong, *self.hangs, *self.leaks]

    def late(self, promise: float) -> int:
        return sum(seconds > promise for seconds in self.seconds) + sum(seconds > ANSWER for seconds in self.own)


def play(fault: Fault, transport: str, size: int, seed: int, tally: Tally) -> None:
    """One round."""
    rng = random.Random(seed)
    victims = rng.sample(range(size), fault.victims)
    tally.rounds += 1
    environ = {"ARRAYCOMM_SILENCE": str(fault.silence), "ARRAYCOMM_HEARTBEAT": str(fault.silence / 5)}
    with _job(size, transport, environ) as job, _noting_hangs(tally, seed):
        job.begin("cycle_forever", what=rng.choice(WORK), counts=rng.choice(SIZES_OF_WORK))
        job.answers()
        time.sleep(rng.uniform(0, 0.05))
        began = fault.inflict(job, victims, rng)
        survivors = [rank for rank in range(size) if rank not in victims]
        if fault.errors:
            _judge(job, fault, victims, job.answers(survivors, HANG), began, tally, seed)
            if fault.own:
                _judge_own(job, fault, victims, began, tally, seed)
        else:
            _judge_calm(job, tally, seed)
            survivors = list(range(size))
        _end(job, survivors, tally, seed)


def _job(size: int, transport: str, environ: dict[str, str]) -> Job:
    if transport != "both":
        return Job(size, transport, environ)
    return Job(size, "auto", environ, of_rank=lambda rank: {"ARRAYCOMM_HOSTID": f"host {rank % 2}"})


@contextlib.contextmanager
def _noting_hangs(tally: Tally, seed: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        tally.hangs.append(f"seed {seed}: {error}")


def _judge(job: Job, fault: Fault, victims: Sequence[int], answers: dict[int, Answer], began: float, tally: Tally,
           seed: int) -> None:
    named = [f"rank {rank} (host " for rank in victims]
    pids = [f"pid {job.pid(rank)})" for rank in victims]
    for rank, answer in answers.items():
        tally.seconds.append(answer.at - began)
        right = (answer.error in fault.errors and any(words in answer.text for words in fault.errors[answer.error])
                 and answer.ranks and set(answer.ranks) <= set(victims) and any(name in answer.text for name in named)
                 and any(pid in answer.text for pid in pids))
        if not right:
            tally.wrong.append(f"seed {seed}: rank {rank}, victims {list(victims)}: {answer} {answer.ranks}")


def _judge_own(job: Job, fault: Fault, victims: Sequence[int], began: float, tally: Tally, seed: int) -> None:
    for rank, answer in job.answers(victims, HANG).items():
        tally.own.append(answer.at - began)
        if answer.error != fault.own:
            tally.wrong.append(f"seed {seed}: victim {rank}: {answer}")


def _judge_calm(job: Job, tally: Tally, seed: int) -> None:
    """Nobody may have noticed: all still work until one of them is told to stop."""
    time.sleep(0.2)
    began = job.signal(0, signal.SIGINT)
    for rank, answer in job.answers(limit=HANG).items():
        if answer.error not in (FAULTS["interrupt"].errors if rank else ("KeyboardInterrupt",)):
            tally.wrong.append(f"seed {seed}: rank {rank}: {answer}")
        tally.seconds.append(answer.at - began)


def _end(job: Job, survivors: Sequence[int], tally: Tally, seed: int) -> None:
    for rank, answer in _all(job, "try_again", survivors).items():
        if answer.error:
            tally.wrong.append(f"seed {seed}: rank {rank}, after the failure: {answer}")
    for rank, answer in _all(job, "close_group", survivors).items():
        if answer.error:
            tally.wrong.append(f"seed {seed}: rank {rank} could not close: {answer}")
        elif answer.value[0] != answer.value[1]:
            tally.leaks.append(f"seed {seed}: rank {rank}: before {answer.value[0]}, after {answer.value[1]}")


def _all(job: Job, task: str, ranks: Sequence[int]) -> dict[int, Answer]:
    job.begin(task, ranks)
    return job.answers(ranks, HANG)


# ---- the command ----


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run_chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of every fault x transport x ranks (default 10)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after these, after a whole sweep (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="of the first round (default: of the clock)")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="this one only; may be repeated")
    options = parser.parse_args(argv)
    seed = time.time_ns() % 1_000_000 if options.seed is None else options.seed
    tallies = sweep(options.fault or list(FAULTS), options.rounds, seed, options.minutes * 60)
    print(f"first seed {seed}\n{table(tallies)}")
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def sweep(faults: Sequence[str], rounds: int, seed: int, seconds: float) -> dict[tuple[str, str, int], Tally]:
    end = time.monotonic() + seconds
    tallies = {(fault, transport, size): Tally() for fault in faults for transport in TRANSPORTS for size in SIZES
               if size > FAULTS[fault].victims and (size > 2 or transport != "both")}
    for number in range(rounds):
        for (fault, transport, size), tally in tallies.items():
            play(FAULTS[fault], transport, size, seed + number, tally)
        if time.monotonic() > end:
            break
    return tallies


def table(tallies: dict[tuple[str, str, int], Tally]) -> str:
    rows = [f"{'fault':14}{'transport':>10}{'ranks':>6}{'rounds':>7}{'median ms':>11}{'worst ms':>10}{'late':>6}"
            f"{'wrong':>7}{'hangs':>7}{'leaks':>7}{'own ms':>8}"]
    for (fault, transport, size), tally in tallies.items():
        median = 1000 * statistics.median(tally.seconds or [0.0])
        worst = 1000 * max(tally.seconds, default=0.0)
        rows.append(f"{fault:14}{transport:>10}{size:>6}{tally.rounds:>7}{median:>11.1f}{worst:>10.1f}"
                    f"{tally.late(FAULTS[fault].within):>6}{len(tally.wrong):>7}{len(tally.hangs):>7}{len(tally.leaks):>7}"
                    + (f"{1000 * max(tally.own):>8.1f}" if tally.own else ""))
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
