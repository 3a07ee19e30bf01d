"""Launchers under what they may inherit: ignored and blocked signals, standard streams of all kinds, a job around them."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arraycomm.launch.process import OWN_GROUP
from tests.present import present

from .test_run import LAUNCH, clean_environ, gone, read_pids, start

LAUNCHERS = {"ours": LAUNCH, "torch's": [sys.executable, "-m", "arraycomm.distributed.launch", "--use-env"]}
ENDS = {"sys.exit(3)": 3, "1 / 0": 1, "os.kill(os.getpid(), signal.SIGKILL)": 128 + signal.SIGKILL, "pass": 0}

RANK = """
import os, signal, sys, time
assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
if os.environ["RANK"] == "1":
    {}
elif {}:
    time.sleep(60)
"""


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def ignore_and_block() -> None:
    ignore_children()
    block()


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("command", LAUNCHERS.values(), ids=LAUNCHERS)
@pytest.mark.parametrize("end", ENDS)
def test_a_failure_is_one_where_sigchld_is_ignored_and_signals_are_blocked(command: list[str], end: str,
                                                                           program: Callable[[str], str]) -> None:
    """And the other ranks are ended: they would sleep for a minute."""
    done = subprocess.run([*command, "--nproc-per-node", "2", program(RANK.format(end, end != "pass"))], capture_output=True,
                          text=True, timeout=50, env=clean_environ(), preexec_fn=ignore_and_block)
    assert done.returncode == ENDS[end], done.stderr


def test_a_blocked_signal_ends_the_job(program: Callable[[str], str]) -> None:
    process = start("-n", "2", program("import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)"),
                    preexec_fn=block)
    pids = read_pids(process, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=50)
    assert process.returncode == 128 + signal.SIGTERM and gone(pids)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_nohup_and_background_jobs_ignore_stays_ignored(number: signal.Signals, program: Callable[[str], str],
                                                             tmp_path: Path) -> None:
    process = start("-n", "2", program(f"""if True:
        import os, signal, sys, time
        assert signal.getsignal({int(number)}) == signal.SIG_IGN
        print('pid', os.getpid(), flush=True)
        while not os.path.exists(sys.argv[1]): time.sleep(0.02)
        """), str(tmp_path / "go"), preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    read_pids(process, 2)
    process.send_signal(number)
    (tmp_path / "go").touch()
    process.communicate(timeout=50)
    assert process.returncode == 0


SPAWN = """
import os, signal, sys, time
import arraycomm

def work(rank, how, method):
    if rank == 0 and how != "return":
        time.sleep(60)
    if how == "exit": sys.exit(3)
    if how == "raise": raise ValueError("the reason")
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    return how, rank

def reap(*_):
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]: return
        except ChildProcessError:
            return

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[1] == "ignores" else reap)
    before = signal.getsignal(signal.SIGCHLD)
    for method in "fork", "spawn":
        assert arraycomm.spawn(work, ("return", method), 2, start_method=method) == [("return", 0), ("return", 1)]
        for how in "exit", "raise", "kill":
            try:
                arraycomm.spawn(work, (how, method), 2, start_method=method)
            except arraycomm.DistError as error:
                print(type(error).__name__, error.rank, getattr(error, "exit_code", None))
    assert signal.getsignal(signal.SIGCHLD) == before
"""


@pytest.mark.parametrize("parent", ["ignores", "waits for all"])
def test_spawn_knows_failures_where_the_parent_loses_exit_codes(parent: str, program: Callable[[str], str]) -> None:
    done = subprocess.run([sys.executable, program(SPAWN), parent], capture_output=True, text=True, timeout=100,
                          env=clean_environ())
    told = done.stdout.splitlines()
    assert done.returncode == 0 and len(told) == 6, done.stderr
    assert told[:2] == told[3:5] == ["ProcessExitedException 1 3", "ProcessRaisedException 1 None"]
    assert {told[2], told[5]} <= {"ProcessExitedException 1 255", "ProcessExitedException 1 -9"}  # a handler may come too late


def test_output_that_does_not_block_and_is_read_slowly(program: Callable[[str], str]) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    process = subprocess.Popen([*LAUNCH, "-n", "2", "--no-prefix", program("for i in range(5000): print('line', i)")],
                               stdout=writer, stderr=writer, env=clean_environ(OMP_NUM_THREADS="1"))
    os.close(writer)
    with open(reader) as file:
        lines = file.readlines()
    assert process.wait(50) == 0 and sorted(lines) == sorted([f"line {i}\n" for i in range(5000)] * 2)


def test_help_on_a_pipe_that_does_not_block_and_is_full() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    filled = os.write(writer, bytes(1 << 20))
    process = subprocess.Popen([*LAUNCH, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, env=clean_environ())
    os.close(writer)
    with open(reader, "rb") as file:
        told = file.read()[filled:]
    assert (process.wait(50), present(process.stderr).read()) == (0, "") and told.startswith(b"usage: arraycomm-run")
    present(process.stderr).close()


@pytest.mark.parametrize("program_text", ["sys.exit(5)", "time.sleep(60)"])
def test_a_full_pipe_keeps_from_no_signal_and_no_end(program_text: str, program: Callable[[str], str], tmp_path: Path) -> None:
    """Nobody reads: the first ends by itself, and its peer, which would print for ever, with it; the second by the signal."""
    os.mkfifo(tmp_path / "both")  # rank 1 goes on when both have written who they are
    process = start("-n", "2", program(f"""if True:
        import os, sys, time
        print('pid', os.getpid(), flush=True)
        open({str(tmp_path / "both")!r}, 'rw'[int(os.environ['RANK']) == 0])
        if os.environ['RANK'] == '1': {program_text}
        while True: print('x' * 1000)
        """))
    pids = read_pids(process, 2)
    if "exit" in program_text:
        assert gone(pids, 50)
    process.send_signal(signal.SIGTERM)
    process.wait(50)
    assert process.returncode == 128 + signal.SIGTERM and gone(pids, 50)
    present(process.stdout).close()
    present(process.stderr).close()


MEETS = """
import arraycomm
with arraycomm.init(timeout=60) as group:
    print(group.rank, group.size, flush=True)
"""


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, program: Callable[[str], str]) -> None:
    """What the launcher opens next would have their numbers, and be overwritten by the ranks' streams."""
    done = subprocess.run(f"{' '.join(LAUNCH)} -n 2 {program(MEETS)} {closed}", shell=True, capture_output=True, text=True,
                          timeout=60, env=clean_environ(OMP_NUM_THREADS="1"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ([] if ">&-" in closed.split() else ["[rank 0] 0 2", "[rank 1] 1 2"])


def test_output_that_cannot_be_written(program: Callable[[str], str]) -> None:
    done = subprocess.run(f"{' '.join(LAUNCH)} -n 2 {program(MEETS)} >/dev/full", shell=True, capture_output=True, text=True,
                          timeout=60, env=clean_environ(OMP_NUM_THREADS="1"))
    assert done.returncode == 1
    assert "No space left on device: the ranks' output cannot be written to stdout" in done.stderr


NESTED = """
import os, subprocess, sys
import arraycomm

def work(rank):
    assert not [name for name in os.environ if name.startswith("TORCHELASTIC_")]
    with arraycomm.init(timeout=60) as group:
        return group.size

if __name__ == "__main__":
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "-n", "3", "--no-prefix", sys.argv[1]], capture_output=True,
                          text=True)
    print(sorted(done.stdout.splitlines()), done.returncode, arraycomm.spawn(work, nprocs=3))
    with arraycomm.init(timeout=60) as group:
        assert group.size == 2
"""


def test_launchers_in_a_rank(program: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(MEETS)
    process = start("-n", "2", "--no-prefix", program(NESTED), str(tmp_path / "inner.py"))
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and out.splitlines() == ["['0 3', '1 3', '2 3'] 0 [3, 3, 3]"] * 2, err


@pytest.mark.parametrize("around", [
    {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": "/nowhere", "RANK": "5",
     "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1"},
    {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "9", "PMIX_NAMESPACE": "job"},
    {"PMI_RANK": "5", "PMI_SIZE": "9", "PMI_FD": "77", "MPI_LOCALNRANKS": "9"},
    {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "9", "SLURM_STEP_NODELIST": "n[1-9]", "SLURM_JOB_ID": "1"},
])
def test_other_launchers_variables(around: dict[str, str], program: Callable[[str], str]) -> None:
    process = start("-n", "2", "--no-prefix", program(MEETS), environ=clean_environ(**around))
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and sorted(out.splitlines()) == ["0 2", "1 2"], err


def test_a_launcher_in_a_thread(program: Callable[[str], str], tmp_path: Path) -> None:
    """As a notebook or a test runner may have it: Python has signals in the main thread alone."""
    (tmp_path / "rank.py").write_text("import os, sys; sys.exit(3 * int(os.environ['RANK']))")
    done = subprocess.run([sys.executable, program("""if True:
        import signal, sys, threading
        from arraycomm.distributed.launch import main
        def run():
            try:
                main(["--nproc-per-node", "2", "--use-env", sys.argv[1]])
            except SystemExit as ended:
                print(ended.code)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        """), str(tmp_path / "rank.py")], capture_output=True, text=True, timeout=60, env=clean_environ(),
        preexec_fn=ignore_children)
    assert done.stdout == "3\n" and done.returncode == 0, done.stderr


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_ctrl_z_stops_the_job_and_fg_continues_it(program: Callable[[str], str], tmp_path: Path) -> None:
    process = start("-n", "2", program("""if True:
        import os, sys, time
        print('pid', os.getpid(), flush=True)
        while not os.path.exists(sys.argv[1]): time.sleep(0.02)
        """), str(tmp_path / "go"), **OWN_GROUP)  # as a shell does; its group is no orphan then, and can be stopped
    pids = read_pids(process, 2)
    for _ in range(2):
        process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        end = time.monotonic() + 50
        while [_state(pid) for pid in pids] != ["T", "T"]:  # each stops when it next comes to run
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        while "T" in [_state(pid) for pid in pids]:
            assert time.monotonic() < end
            time.sleep(0.01)
    (tmp_path / "go").touch()
    process.communicate(timeout=50)
    assert process.returncode == 0


@pytest.mark.parametrize("text", ["\\x1b[31mred \\x1b[?1049h\\x1b[?25l", "\\x1b]0;title that does not end", "plain"])
def test_a_terminal_is_as_before_at_the_end(text: str, program: Callable[[str], str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*LAUNCH, program(f"print('{text}')")], stdout=theirs, stderr=subprocess.DEVNULL,
                               env=clean_environ())
    os.close(theirs)
    told = b""
    while b"plain" not in told and b"\x1b[?25h" not in told:
        told += os.read(ours, 4096)
    assert process.wait(50) == 0
    os.close(ours)
    restored = told.partition(b"\n")[2]
    for sequence in (b"\x1b\\", b"\x1b[?1047l", b"\x1b[!p", b"\x1b[0m", b"\x1b[?25h"):
        assert (sequence in restored) == (text != "plain")
