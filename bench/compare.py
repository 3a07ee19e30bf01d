"""arraycomm-bench compare: compares arraycomm with other libraries, interleaved in one run.

All contenders run at the same time and take turns (A B C, C B A); idle contenders sleep. A disturbance of the machine therefore
affects all of them. A ratio counts if its range over the rounds does not contain 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from arraycomm.core.interface import tuning
from arraycomm.launch.process import OWN_GROUP

from .arguments import at_least, numbers, parse_sizes, plot_file, some_of
from .drive import Contender, ContenderFailed, Start, peer_class, probe
from .options import require_writable
from .page import write_html
from .peers import GROUPS, LIBRARIES
from .peers.ours import VARIANTS
from .peers.protocol import ITEM_BYTES, OPERATIONS, Missing
from .plot import RATIO_TITLE, compare_panels, ratio_panels, require, write_plot
from .results import OURS, Cell, summaries
from .spaces import Spaces, obstacle
from .table import Table, percentiles, read_json, summary_line, transport, write_json
from .turns import Task, Turns

Cells = dict[tuple[int, Task], Cell]  # by number of ranks and task
PEERS = tuple(name for name in LIBRARIES if name.partition("/")[0] != "ours")
SIZES = "8,1K,64K,1M,16M,256M"
_LOAD = "import os\nwhile os.getppid() == {}: sum(range(100_000))"  # ends with its parent however that ends
_EPILOG = """peers (docs/guide/benchmark.md) and their requirements:
{}
  mpi4py    openmpi, mpich and impi: mpi4py over each of these libraries; openmpi-tcp, mpich-tcp and impi-tcp: without their
            shared memory

A peer may be in another environment: --python openmpi=/path/of/venv --python mlx=/path/of/venv/bin/python. The environment of
mlx is also used for mlx-mpi, that of openmpi for openmpi-tcp. MPI programs are started by the mpirun beside their interpreter,
or by the one on PATH. Peers that are not installed are skipped with a notice.

Exit code: 1 if data was wrong or a contender failed. A slower time is not a failure.
"""


def _pair(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path


def parser() -> argparse.ArgumentParser:
    needs = "\n".join(f"  {name:8}  {peer_class(name).remedy(name)}" for name in PEERS if not name.endswith("-tcp"))
    made = argparse.ArgumentParser(prog="arraycomm-bench compare", description=__doc__, epilog=_EPILOG.format(needs),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--against", default="gloo", metavar="PEER,...",
        help=f"some of {', '.join([*PEERS, *GROUPS])} (gloo)")
    add("--np", type=numbers(1), default=(2, 4), metavar="N,...",
        help="numbers of ranks, one table for each (2,4)")
    add("--ops", type=some_of(OPERATIONS, "operation"), default=OPERATIONS, metavar="OP,...",
        help=f"some of {', '.join(OPERATIONS)} (all)")
    add("--sizes", type=parse_sizes, default=SIZES, metavar="SIZE,...",
        help=f"sizes in bytes ({SIZES})")
    add("--dtype", choices=tuple(ITEM_BYTES), default="float32", help="dtype of the arrays; mpi4py has no bfloat16 (float32)")
    add("--ours", type=some_of(VARIANTS, "variant of ours"), default=("shm", "tcp"),
        metavar="VARIANT,...", help=f"some of {', '.join(VARIANTS)}, one contender for each (shm,tcp)")
    add("--hosts", type=at_least(1), default=1, metavar="N",
        help="network namespaces among which the ranks are divided; needs root (1)")
    add("--rate", metavar="RATE", help="with --hosts: each host's send rate, in tc's syntax, e.g. 1gbit (no limit)")
    add("--rounds", type=at_least(1), default=5, help="rounds, each forward and back through all contenders (5)")
    add("--launches", type=at_least(1), default=1, metavar="N",
        help="restarts all contenders N times, because the placement of cores and memory differs between starts (1)")
    add("--beside-load", type=at_least(0), default=0, metavar="N",
        help="busy processes that compete for the CPUs during the measurement (0)")
    add("--write", action="store_true",
        help="each rank writes its input before each call, as programs do; the time includes that")
    add("--python", type=_pair, action="append", default=[], metavar="PEER=PATH",
        help="interpreter or environment of a contender")
    add("--peer", type=_pair, action="append", default=[], metavar="NAME=FILE",
        help="a contender of your own, see docs/guide/benchmark.md")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="limit for one batch or one start (120)")
    add("--percentiles", action="store_true", help="show p50, p95, p99 of single calls; the JSON file always has them")
    add("--json", metavar="FILE", help="write all measurements as JSON")
    add("--plot", metavar="FILE", type=plot_file, help="plot time over size, .svg or .png, one panel for each operation")
    add("--ratio-plot", metavar="FILE", type=plot_file, help="plot the ratios in the same form")
    add("--html", metavar="FILE", help="write a self-contained page: machine, method, summary, plots and every cell")
    add("--read", metavar="FILE", action="append", help="read results of --json instead of measuring; may be given several times")
    return made


class Field:
    """The contenders and their interpreters; the skipped contenders, with the reason."""

    def __init__(self, given: argparse.Namespace, scratch: Path, tell: Callable[[str], None], spaces: Spaces | None) -> None:
        self.given, self.scratch, self.tell, self.spaces = given, scratch, tell, spaces
        self.files = dict(given.peer)
        self.pythons = {name: _interpreter(path) for name, path in given.python}
        self.versions: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.failed: list[dict[str, Any]] = []
        for name in [*(OURS + way for way in given.ours), *given.against]:
            try:
                if spaces:
                    peer_class(name, self.files.get(name)).spread(name, spaces.names, "eth0", str(scratch))
                self.versions[name] = probe(self.start(name, 1))
            except Missing as error:
                self.skipped[name] = str(error)
                tell(f"{name} is skipped: {error}")

    @property
    def network(self) -> list[str]:
        if self.spaces:
            return list(self.versions)
        return [name for name in self.versions if peer_class(name, self.files.get(name)).network(name)]

    def start(self, name: str, size: int) -> Start:
        others = (name, name.removesuffix("-tcp"), LIBRARIES.get(name.partition("/")[0], ""), name.partition("/")[2])
        python = next((self.pythons[other] for other in others if other in self.pythons), sys.executable)
        return Start(name, size, self.scratch, python, self.files.get(name), self.given.timeout,
                     self.spaces if size > 1 else None)

    @contextlib.contextmanager
    def contenders(self, size: int) -> Iterator[list[Contender]]:
        """All contenders that start, in the order of the table, except those that failed in an earlier launch."""
        out = {entry["contender"] for entry in self.failed if entry["ranks"] == size}
        with contextlib.ExitStack() as stack:
            started = []
            for name in [name for name in self.versions if name not in out]:
                try:
                    started.append(stack.enter_context(contextlib.closing(Contender(self.start(name, size)))))
                except ContenderFailed as error:
                    self.note(name, size, error)
            yield started

    def fail(self, contender: Contender, error: ContenderFailed) -> None:
        contender.close()
        self.note(contender.name, contender.size, error)

    def note(self, name: str, size: int, error: ContenderFailed) -> None:
        self.failed.append({"contender": name, "ranks": size, "error": str(error)})
        self.tell(f"{error}\n{name} takes no further part with {size} ranks")

    def about(self) -> dict[str, Any]:
        given = self.given
        return {"end_time": datetime.now().isoformat(timespec="seconds"), "machine": platform.platform(),
                "host": socket.gethostname(), "cpu": tuning.machine()["cpu"],
                "cpus": len(os.sched_getaffinity(0)), "dtype": given.dtype, "rounds": given.rounds,
                "launches": given.launches, "beside_load": given.beside_load, "write": given.write,
                "contenders": {name: {"version": version, "python": self.start(name, 1).python,
                                      "transport": transport(name, self.network)} for name, version in self.versions.items()},
                "skipped": self.skipped, "failed": self.failed}


def _interpreter(path: str) -> str:
    inside = os.path.join(path, "bin", "python")
    return inside if os.path.isdir(path) else path


def main(arguments: list[str]) -> int:
    """The exit code, see _EPILOG."""
    made = parser()
    given = made.parse_args(arguments)
    own = [name for name, _ in given.peer]
    try:
        given.against = some_of([*PEERS, *own], "peer", GROUPS)(given.against)
    except argparse.ArgumentTypeError as error:
        made.error(str(error))
    _check_files(given, made)
    if given.read:
        return _again(given)
    if reason := obstacle(given.hosts, given.np):
        made.error(reason)
    hosts = Spaces(given.hosts, rate=given.rate) if given.hosts > 1 else contextlib.nullcontext()
    with _ended_in_order(), hosts as spaces, tempfile.TemporaryDirectory(prefix="arraycomm-bench-") as scratch:
        field = Field(given, Path(scratch), lambda text: print(f"arraycomm-bench compare: {text}", file=sys.stderr), spaces)
        cells: Cells = {}
        try:
            for ranks in given.np:
                _world(ranks, given, field, cells)
        finally:
            _write(list(cells.values()), field.network, field.about(), given)
        for summary in summaries(cells.values(), field.network) if len(given.np) > 1 else []:
            print(f"{summary_line(summary)}, over all numbers of ranks")
    wrong = sum(timing.wrong for cell in cells.values() for timing in cell.timings.values())
    print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    return 1 if wrong or field.failed else 0


def _world(ranks: int, given: argparse.Namespace, field: Field, cells: Cells) -> None:
    """The table of one number of ranks, printed in its last launch."""
    table = Table(list(field.versions), field.network)
    place = f" on {given.hosts} hosts, links of {given.rate or 'any rate'}" if given.hosts > 1 else ""
    place += f" beside {given.beside_load} busy processes" if given.beside_load else ""
    place += ", inputs written before each call" if given.write else ""
    rounds = given.launches * given.rounds
    print(f"# {ranks} ranks{place}, {given.dtype}: us per call of the slowest rank, median of {2 * rounds} batches; "
          f"ratio: the best peer's time over ours; low, high: its range over {rounds} rounds")
    for line in [*table.notes(), table.header()]:
        print(line, flush=True)
    for launch in range(1, given.launches + 1):
        if given.launches > 1:
            field.tell(f"launch {launch} of {given.launches}, {ranks} ranks")
        for cell in _launch(ranks, given, field, cells):
            for line in table.lines(cell) if launch == given.launches else []:
                print(line, flush=True)
    found = [cell for cell in cells.values() if cell.ranks == ranks]
    for line in percentiles(found) if given.percentiles else []:
        print(line)
    for summary in summaries(found, field.network):
        print(summary_line(summary), flush=True)


def _launch(ranks: int, given: argparse.Namespace, field: Field, cells: Cells) -> Iterator[Cell]:
    """Each cell including this launch's rounds; also stored in `cells`."""
    with field.contenders(ranks) as contenders, busy(given.beside_load, field.scratch):
        turns = Turns(contenders, given.rounds, field.fail)
        for task in tasks(given.ops, given.sizes, given.dtype, given.write):
            if not contenders:
                break
            try:
                timings = turns.cell(task, _available())
            except MemoryError as error:
                field.tell(f"{task.operation} of {task.size} bytes among {ranks} ranks is left out: {error}")
                continue
            cell = Cell(task.operation, ranks, task.size, task.dtype, timings)
            earlier = cells.get((ranks, task))
            cells[ranks, task] = earlier.joined(cell) if earlier else cell
            yield cells[ranks, task]


@contextlib.contextmanager
def busy(count: int, scratch: Path) -> Iterator[None]:
    """So many processes that compute meanwhile; scratch is on their command lines."""
    command = [sys.executable, "-c", _LOAD.format(os.getpid()), str(scratch)]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, **OWN_GROUP) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tasks(operations: Sequence[str], sizes: Sequence[int], dtype: str, writes: bool) -> Iterator[Task]:
    """Every cell; a barrier has no size."""
    for operation in operations:
        for size in [0] if operation == "barrier" else dict.fromkeys(sizes):
            yield Task(operation, size, dtype, writes)


def _check_files(given: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    """What would end an hour of measuring without its files."""
    for option in ("--json", "--plot", "--ratio-plot", "--html"):
        if path := getattr(given, option[2:].replace("-", "_")):
            try:
                require_writable(path)
            except ValueError as error:
                made.error(str(error))
            if option != "--json":
                require(option)


def _again(given: argparse.Namespace) -> int:
    """Summaries and files of earlier results."""
    cells, network, about = read_json(given.read)
    for ranks in dict.fromkeys(cell.ranks for cell in cells):
        for summary in summaries([cell for cell in cells if cell.ranks == ranks], network):
            print(f"# {ranks} ranks: {summary_line(summary).removeprefix('# ')}")
    _write(cells, network, about, given)
    return 0


def _write(cells: list[Cell], network: Sequence[str], about: Mapping[str, Any], given: argparse.Namespace) -> None:
    where = f"{about['cpu']}, {about['cpus']} processors, {about['dtype']}"
    if given.json:
        write_json(given.json, cells, network, about)
    if given.plot and cells:
        write_plot(given.plot, compare_panels(cells), f"time of a call: {where}")
    if given.ratio_plot and cells:
        write_plot(given.ratio_plot, ratio_panels(cells, network), f"{where}\n{RATIO_TITLE}")
    if given.html and cells:
        write_html(given.html, cells, network, about)


def _available() -> int:
    """Bytes of memory available without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that contenders and files are cleaned up as after Ctrl-C."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
