"""The launcher as a user meets it: commands, output, exit codes, and nobody left behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arraycomm
from tests.present import present

LAUNCH = [sys.executable, "-m", "arraycomm.launch"]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "ranks.py"
        path.write_text("import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n"
                        + textwrap.dedent(body))
        return str(path)

    return write


def clean_environ(**more: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items()
               if not name.startswith("ARRAYCOMM_") and name not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}
    return {**environ, **more}


def launch(*arguments: str, timeout: float = 100, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCH, *arguments], capture_output=True, text=True, timeout=timeout,
                          env=environ or clean_environ())


def start(*arguments: str, environ: dict[str, str] | None = None, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([*LAUNCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environ or clean_environ(), **settings)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between the open and the read
        return False


def gone(pids: list[int], seconds: float = 2.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def read_pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """From lines 'pid N' on its output."""
    pids: list[int] = []
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        while len(pids) < count:
            line = present(process.stdout).readline()
            assert line, present(process.stderr).read()
            pids += [int(number) for number in re.findall(r"pid (\d+)", line)]
    finally:
        limit.cancel()
    return pids


def test_environment_of_the_ranks(script: Callable[[str], str]) -> None:
    names = ("WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR ARRAYCOMM_STORE OMP_NUM_THREADS")
    shown = f"[os.environ[n].partition('@')[0] for n in {names.split()!r}]"
    done = launch("-n", "3", script(f"print({shown}, sys.argv[1:])"), "--a", "b")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[rank {r}] ['3', '{r}', '3', '0', '0', '127.0.0.1', 'launcher', '1'] ['--a', 'b']" for r in range(3)]
    assert "OMP_NUM_THREADS=1" in done.stderr


def test_omp_setting_of_the_user_stays(script: Callable[[str], str]) -> None:
    body = script("print(os.environ['OMP_NUM_THREADS'])")
    done = launch("--nproc_per_node=2", body, environ=clean_environ(OMP_NUM_THREADS="7"))
    assert done.stdout.count("7") == 2 and "OMP" not in done.stderr


def test_module_and_underscores(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys, os; print(os.environ['RANK'], sys.argv[1])")
    done = launch("--nproc_per_node", "2", "--no-prefix", "-m", "some_module", "x",
                  environ=clean_environ(PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"))
    assert sorted(done.stdout.splitlines()) == ["0 x", "1 x"]


def test_other_programs() -> None:
    done = launch("--no-python", "sh", "-c", "echo $RANK; exit 4")
    assert (done.stdout, done.returncode) == ("[rank 0] 0\n", 4)


def test_secret_is_in_a_sealed_descriptor_and_nowhere_else(script: Callable[[str], str]) -> None:
    done = launch("--nproc-per-node", "2", "--no-prefix", script("""
        import fcntl
        descriptor = int(os.environ['ARRAYCOMM_SECRET_FD'])
        secret = os.pread(descriptor, 1000, 0)
        assert len(secret) >= 32 and os.pread(descriptor, 1000, 0) == secret
        assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        for name in ('environ', 'cmdline'):
            text = open('/proc/self/' + name, 'rb').read()
            assert secret not in text and secret.hex().encode() not in text
        assert 'ARRAYCOMM_SECRET' not in os.environ
        print(secret.hex())
        """), environ=clean_environ(ARRAYCOMM_SECRET="ab" * 32))
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1


def test_lines_are_whole_prefixed_and_kept_in_order(script: Callable[[str], str]) -> None:
    done = launch("--nproc-per-node", "4", script("""
        for i in range(200):
            sys.stdout.write('line ')
            sys.stdout.write(f'{i} of {rank}\\n')
        print('no end', end='', file=sys.stderr)
        """))
    lines = done.stdout.splitlines()
    for rank in range(4):
        mine = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert mine == [f"[rank {rank}] line {i} of {rank}" for i in range(200)]
        assert f"[rank {rank}] no end\n" in done.stderr


def test_log_dir(script: Callable[[str], str], tmp_path: Path) -> None:
    done = launch("--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), script("print('hello', rank)"))
    assert done.returncode == 0
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "hello 1\n"


def test_logs_of_earlier_runs_and_what_links_lead_to_stay(script: Callable[[str], str], tmp_path: Path) -> None:
    body, victim = script("print(sys.argv[1], rank)"), tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "logs{}").mkdir()
    (tmp_path / "logs{}" / "rank-0.3.log").symlink_to(victim)
    (tmp_path / "logs{}" / "rank-1.4.log").symlink_to(tmp_path / "nowhere")
    for turn, number in ((1, ""), (2, ".2"), (3, ".5")):
        done = launch("-n", "2", "--log-dir", str(tmp_path / "logs{}"), body, str(turn))
        assert done.returncode == 0 and (turn == 1 or f"this run writes {tmp_path}/logs{{}}/rank-R{number}.log" in done.stderr)
    for turn, number in ((1, ""), (2, ".2"), (3, ".5")):
        assert (tmp_path / "logs{}" / f"rank-1{number}.log").read_text() == f"{turn} 1\n"
    assert victim.read_text() == "mine" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("module", ["arraycomm.launch", "arraycomm.info", "arraycomm.trace", "arraycomm.bench",
                                    "arraycomm.distributed.launch"])
def test_every_command_tells_its_version(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, f"arraycomm {arraycomm.__version__}\n"), done.stderr


@pytest.mark.parametrize("options", [["-np", "2"], ["-n2"], ["-n=2"], ["--nproc_per_node=2", "--standalone"], ["-n", "auto"],
                                     ["-n", "cpu"]])
def test_spellings_of_other_launchers(script: Callable[[str], str], options: list[str]) -> None:
    wanted = len(os.sched_getaffinity(0)) if options[1:] and options[1] in ("auto", "cpu") else 2
    done = launch(*options, "--no-prefix", script("print(os.environ['WORLD_SIZE'])"))
    assert done.stdout.split() == [str(wanted)] * wanted, done.stderr


def test_a_log_that_cannot_be_written_ends_alone(script: Callable[[str], str], tmp_path: Path) -> None:
    process = start("--log-dir", str(tmp_path), script("for i in range(40): print('line', i)"),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and out.splitlines()[-1] == "[rank 0] line 39"
    assert err.splitlines() == [f"arraycomm-run: the log {tmp_path}/rank-0.log ends here: File too large"]
    assert (tmp_path / "rank-0.log").read_text() == "".join(f"line {i}\n" for i in range(40))[:100]


def test_a_log_of_both_streams_ends_once(script: Callable[[str], str], tmp_path: Path) -> None:
    body = script("for i in range(40): print('line', i), print('line', i, file=sys.stderr)")
    process = start("--log-dir", str(tmp_path), body, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err.count("ends here") == 1 and err.count("line") == 40, err


def test_descriptors_run_out(script: Callable[[str], str]) -> None:
    process = start("--nproc-per-node", "16", script("time.sleep(60)"),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.splitlines()[-1] == ("arraycomm-run: [Errno 24] Too many open files; the limit is 40, and each rank takes "
                                    "several: raise `ulimit -n`")


def test_more_ranks_than_descriptors(script: Callable[[str], str]) -> None:
    """Said before anything is started."""
    process = start("-n", str(10**9), script(""))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "1000000000 ranks take more than 2000000000 descriptors here; the limit is" in err
    with pytest.raises(arraycomm.ResourceError, match="start fewer, or raise `ulimit -n`"):
        arraycomm.spawn(print, nprocs=10**9)


def test_stdin_is_empty(script: Callable[[str], str]) -> None:
    done = subprocess.run([*LAUNCH, script("print(repr(sys.stdin.read()))")], input="text", capture_output=True,
                          text=True, timeout=30, env=clean_environ())
    assert done.stdout == "[rank 0] ''\n"


def test_first_failure_is_shown_last_and_passed_on(script: Callable[[str], str]) -> None:
    done = launch("--nproc-per-node", "3", script("""
        if rank == 1:
            print('noise', file=sys.stderr)
            def boom(): raise SystemExit(int(bytes(b'33')))
            try:
                raise KeyError('the reason')
            except KeyError:
                import traceback; traceback.print_exc()
            boom()
        time.sleep(1000)  # longer than launch() waits
        """))
    assert done.returncode == 33
    headline, _, rest = done.stderr.partition("arraycomm-run: rank 1 (pid ")[2].partition("\n")
    assert re.fullmatch(r"\d+ on \S+\) exited with code 33; its last output:", headline)
    assert rest.splitlines()[-1] == "KeyError: 'the reason'" and "noise" in rest


def test_a_killed_rank(script: Callable[[str], str]) -> None:
    done = launch("--nproc-per-node", "2", script("""
        if rank == 0: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """))
    assert done.returncode == 128 + 9
    assert re.search(r"arraycomm-run: rank 0 \(pid \d+ on \S+\) was killed by SIGKILL$", done.stderr.strip())


def test_survivors_keep_going(script: Callable[[str], str]) -> None:
    # The kill comes long before the others' end, which SIGTERM would bring 0.3 s after it without the option.
    survive = script("""
        if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        if rank == int(sys.argv[1]): sys.exit(6)
        print('survived')
        """)
    done = launch("--keep-going", "--nproc-per-node", "3", survive, "2")
    assert done.returncode == 0 and done.stdout == "[rank 0] survived\n"
    told = [line.partition(" (pid")[0] for line in done.stderr.splitlines() if "(pid" in line]
    assert told == ["arraycomm-run: rank 1", "arraycomm-run: rank 2"]
    assert "was killed by SIGKILL; the other ranks continue\n" in done.stderr

    done = launch("--keep-going", "--nproc-per-node", "2", script("sys.exit(3 + rank)"))
    assert done.returncode in (3, 4)  # nobody has ended well


@pytest.mark.parametrize(("end", "how"), [("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
                                          ("sys.exit(0)", "exited with code 0")])
def test_a_rank_that_ended_before_it_came_is_not_waited_for(script: Callable[[str], str], end: str, how: str) -> None:
    done = launch("--keep-going", "--nproc-per-node", "3", "--no-prefix", script(f"""
        if rank == 1: {end}
        import arraycomm
        try:
            arraycomm.init(timeout=20)
        except arraycomm.PeerLost as lost:
            print(lost.ranks, str(lost).partition('set up: ')[2])
        """))
    assert done.stdout.splitlines() == [f"(1,) {how} before it joined"] * 2, done.stderr


def test_the_cause_is_blamed_and_not_those_it_took_along(script: Callable[[str], str]) -> None:
    done = launch("--nproc-per-node", "3", script("""
        if rank == 2:
            time.sleep(0.15)
            sys.exit('the cause')
        print('arraycomm.core.base.errors.PeerLost: rank 2 of 3 is gone', file=sys.stderr)
        sys.exit(7)
        """))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [done.stderr.splitlines()[-2], "the cause"]
    assert "arraycomm-run: rank 2 " in done.stderr.splitlines()[-2]


def test_the_cause_is_blamed_where_it_takes_its_time_to_end(script: Callable[[str], str]) -> None:
    """Longer than others are given, once one has failed that blames nobody; and those that hang are ended all the same."""
    done = launch("--nproc-per-node", "3", script("""
        if rank == 2:
            time.sleep(0.5)
            sys.exit(5)
        if rank == 1:
            time.sleep(60)
        print('arraycomm.core.base.errors.PeerLost: rank 2 of 3 is gone', file=sys.stderr)
        sys.exit(7)
        """))
    assert done.returncode == 5, done.stderr
    assert "arraycomm-run: rank 2 " in done.stderr


def test_others_are_ended_even_when_they_ignore_sigterm(script: Callable[[str], str], tmp_path: Path) -> None:
    process = start("--nproc-per-node", "2", script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(['sleep', '100'])
        print('pid', os.getpid(), 'pid', child.pid)
        if rank == 0:
            while not os.path.exists(sys.argv[1]): time.sleep(0.02)
            sys.exit(5)
        time.sleep(100)
        """), str(tmp_path / "go"))
    pids = read_pids(process, 4)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 5 and gone(pids, 30)


def test_kill_of_the_launcher_leaves_no_orphans(script: Callable[[str], str]) -> None:
    process = start("--nproc-per-node", "3", script("""
        child = subprocess.Popen(['sleep', '100'])
        print('pid', os.getpid(), 'pid', child.pid)
        time.sleep(60)
        """))
    pids = read_pids(process, 6)
    process.kill()
    process.wait()
    assert gone(pids)
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(script: Callable[[str], str], number: signal.Signals) -> None:
    process = start("--nproc-per-node", "2", script("""
        def saved(number, frame):
            print('saved', number)
            sys.exit(0)
        signal.signal(signal.SIGINT, saved)
        signal.signal(signal.SIGTERM, saved)
        print('pid', os.getpid())
        time.sleep(60)
        """))
    pids = read_pids(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert out.count(f"saved {int(number)}") == 2 and f"ended by {number.name}" in err
    assert gone(pids, 0.5)


def test_a_second_signal_kills(script: Callable[[str], str]) -> None:
    process = start("--nproc-per-node", "2", script("""
        signal.signal(signal.SIGINT, lambda *_: print('pid', os.getpid()))
        print('pid', os.getpid())
        while True: time.sleep(60)
        """))
    pids = read_pids(process, 2)
    process.send_signal(signal.SIGINT)
    read_pids(process, 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130 and gone(pids, 0.5)


def test_nobody_reads_the_output(script: Callable[[str], str]) -> None:
    process = start("--nproc-per-node", "2", script("""
        print('pid', os.getpid())
        while True: print('x' * 1000)
        """))
    pids = read_pids(process, 2)
    present(process.stdout).close()
    process.wait(timeout=20)
    assert process.returncode == 128 + signal.SIGPIPE and gone(pids, 0.5)
    present(process.stderr).close()


def test_two_launches_at_once(script: Callable[[str], str]) -> None:
    body = script("print(os.environ['MASTER_PORT']); time.sleep(1)")
    both = [start("--nproc-per-node", "2", "--no-prefix", body) for _ in range(2)]
    ports = [set(process.communicate(timeout=30)[0].split()) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(len(p) == 1 for p in ports) and ports[0] != ports[1]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--nproc-per-node", "0", "x.py"], "whole number of at least 1"),
    (["--nproc-per-node", "1:4", "x.py"], "whole number of at least 1, nor auto, cpu or gpu"),
    (["--master-port", "65536", "x.py"], "not a port from 0 to 65535"),
    (["--log-dir", "/dev/null/logs", __file__], "--log-dir /dev/null/logs: Not a directory"),
    (["--nproc-per-node", "²", "x.py"], "whole number of at least 1"),
    (["--nnodes", "2", "x.py"], "--master-addr"),
    (["--node-rank", "1", "x.py"], "not below --nnodes"),
    (["--standalone", "--nnodes", "2", "--master-addr", "x", "x.py"], "--standalone is for one node"),
    (["missing.py"], "there is no script 'missing.py'"),
    ([sys.executable, "missing.py"], "is not a Python script; --no-python starts it directly"),
    (["--no-python", "no-such-program"], "there is no program"),
    (["--nnodes", "2", "--master-addr", "127.0.0.1", __file__], "ARRAYCOMM_SECRET_FILE"),
])
def test_wrong_use(arguments: list[str], message: str) -> None:
    done = launch(*arguments)
    assert done.returncode in (1, 2) and message in done.stderr, done.stderr


@pytest.mark.skipif(subprocess.run(["unshare", "-rn", "ip", "link"], capture_output=True, check=False).returncode != 0,
                    reason="needs network namespaces and iproute2")
@pytest.mark.parametrize("addresses", ["::1", "none"])
def test_a_host_without_127_0_0_1(script: Callable[[str], str], addresses: str) -> None:
    """Ranks meet on ::1 where there is only that; where loopback has no address at all, the error says so."""
    path = script("""
        import arraycomm, numpy
        with arraycomm.init() as group:
            print(group.all_reduce(numpy.ones(2)).tolist())
        """)
    prepare = "ip link set lo up; ip address " + ("del 127.0.0.1/8 dev lo" if addresses == "::1" else "flush dev lo")
    command = f"{prepare}; exec {' '.join(LAUNCH)} --nproc-per-node 2 {path}"
    done = subprocess.run(["unshare", "-rn", "sh", "-c", command], capture_output=True, text=True, timeout=30,
                          env=clean_environ())
    if addresses == "::1":
        assert done.returncode == 0 and done.stdout.count("[2.0, 2.0]") == 2, done
    else:
        assert done.returncode == 1, done
        assert "cannot listen on 127.0.0.1" in done.stderr and "loopback does not have the address" in done.stderr, done
