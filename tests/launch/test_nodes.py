"""Several launchers, one job: as on several nodes, here over loopback."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from arraycomm.core.base.errors import DistError
from arraycomm.core.bootstrap import secret
from arraycomm.core.bootstrap.store import TCPStore
from arraycomm.launch import nodes
from tests.present import present

from .test_run import LAUNCH, clean_environ, start

SECRET = {"ARRAYCOMM_SECRET": "0123456789abcdef" * 4}


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "ranks.py"
    path.write_text("""if True:
        import os, sys, time
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"
        print(*(os.environ[name] for name in names), sys.argv[1])
        assert "ARRAYCOMM_SECRET" not in os.environ and "ARRAYCOMM_SECRET_FD" in os.environ
        """)
    return str(path)


def node(rank: int, port: int, *rest: str, nproc: int = 2, environ: dict[str, str] = SECRET) -> subprocess.Popen[str]:
    return start("--nnodes", "2", "--node_rank", str(rank), "--nproc_per_node", str(nproc), "--master_addr", "127.0.0.1",
                 "--master_port", str(port), "--no-prefix", *rest, environ=clean_environ(**environ))


def ends(*processes: subprocess.Popen[str]) -> tuple[list[int], list[tuple[str, str]]]:
    outputs = [process.communicate(timeout=60) for process in processes]
    return [process.returncode for process in processes], outputs


def test_two_nodes(script: str, port: int) -> None:
    second = node(1, port, script, "x")
    codes, outputs = ends(node(0, port, script, "x"), second)
    assert codes == [0, 0], outputs
    assert sorted((outputs[0][0] + outputs[1][0]).splitlines()) == [
        f"{rank} 4 {rank % 2} 2 {rank // 2} 127.0.0.1 x" for rank in range(4)]


def test_secret_from_a_file(script: str, port: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET["ARRAYCOMM_SECRET"])
    file.chmod(0o600)
    environ = {"ARRAYCOMM_SECRET_FILE": str(file)}
    codes, outputs = ends(node(0, port, script, "x", environ=environ), node(1, port, script, "x"))
    assert codes == [0, 0], outputs


@pytest.mark.parametrize(("options", "told"), [(("--nproc-per-node", "3"), "--nnodes 2 --nproc-per-node 3"),
                                               (("--nnodes", "3"), "--nnodes 3 --nproc-per-node 2"),
                                               (("--keep-going",), "--nnodes 2 --nproc-per-node 2 --keep-going")])
def test_nodes_that_disagree(script: str, port: int, options: tuple[str, ...], told: str) -> None:
    """The one that is refused ends, and so does the one that waits for its ranks."""
    first = node(0, port, "-m", "timeit", "-n1", "-r1", "import arraycomm; arraycomm.init()")
    codes, outputs = ends(first, node(1, port, *options, script, "x"))
    assert codes == [1, 1] and f"{told}, node 0 with --nnodes 2 --nproc-per-node 2\n" in outputs[1][1]
    assert f"node 1 (host {socket.gethostname()}) was refused: it was started with {told}, node 0 with " in outputs[0][1]


SURVIVE = """if True:
    import os, sys
    import arraycomm, numpy as np
    from arraycomm.core.bootstrap.store import TCPStore
    group = arraycomm.init(timeout=60)
    if group.rank < 2:
        sys.exit(3)
    try:
        while True:
            group.all_reduce(np.ones(1))
    except arraycomm.PeerLost:
        pass
    print("alone", flush=True)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store.get("go on")
    with arraycomm.init(store=store, rank=group.rank - 2, world_size=2, name="rest") as rest:
        print(rest.all_reduce(np.ones(1)))
    """


@pytest.fixture
def survivors(tmp_path: Path, port: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two launchers that keep going, of which node 0 has no rank any more."""
    path = tmp_path / "survive.py"
    path.write_text(SURVIVE)
    nodes = [node(rank, port, "--keep-going", str(path)) for rank in range(2)]
    try:
        assert [present(nodes[1].stdout).readline() for _ in range(2)] == ["alone\n"] * 2
        while "the launcher continues" not in (line := present(nodes[0].stderr).readline()):
            assert line
        yield nodes
    finally:
        for process in nodes:
            process.kill()
            process.communicate()


def test_node_0_without_ranks_keeps_the_store_for_the_others(survivors: list[subprocess.Popen[str]], port: int) -> None:
    TCPStore("127.0.0.1", port, secret=secret.find(SECRET)).set("go on", "")
    codes, outputs = ends(*survivors)
    assert codes == [3, 0] and outputs[1][0] == "[2.]\n[2.]\n", outputs
    assert "the other nodes did not report" not in outputs[1][1]


def test_node_0_without_ranks_does_not_wait_for_a_launcher_that_was_killed(survivors: list[subprocess.Popen[str]]) -> None:
    survivors[1].kill()
    codes, outputs = ends(*survivors)
    assert codes == [3, -signal.SIGKILL] and "the launcher of node 1 was lost" in outputs[0][1], outputs


def test_node_0_without_ranks_ends_by_a_signal(survivors: list[subprocess.Popen[str]]) -> None:
    survivors[0].send_signal(signal.SIGINT)
    codes, outputs = ends(survivors[0])
    assert codes == [128 + signal.SIGINT] and "Traceback" not in outputs[0][1], outputs


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*next(iter(SECRET.items())))
    monkeypatch.setattr(nodes, "_LEAVE", timedelta(seconds=0.2))
    monkeypatch.setattr(nodes, "_FOR_GOOD", timedelta(seconds=20))


@pytest.mark.parametrize("nnodes", [2, 3])
def test_node_0_does_not_wait_for_a_launcher_that_never_came(impatient: None, capsys: pytest.CaptureFixture[str],
                                                             nnodes: int) -> None:
    """Its own ranks have failed, as the others' have not come."""
    with closing(nodes.meet(nnodes, 0, 1, "127.0.0.1", keep_going=True)) as first:
        for last in range(2, nnodes):
            with closing(nodes.meet(nnodes, last, 1, "127.0.0.1", first.port, keep_going=True)) as other:
                other.leave(0, True)
        first.leave(0, True)  # which complains where it waits until the timeout
    assert capsys.readouterr().err == "arraycomm-run: the launcher of node 1 has not joined, and this node does not wait for it\n"


def test_node_0_does_not_wait_for_a_launcher_that_was_refused(impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(nodes.meet(2, 0, 1, "127.0.0.1", keep_going=True)) as first:
        with pytest.raises(DistError, match="this node was started with"):
            nodes.meet(2, 1, 5, "127.0.0.1", first.port, keep_going=True)
        first.leave(3, True)
    assert "the launcher of node 1 was lost\n" in capsys.readouterr().err


def test_an_end_is_noted_as_long_as_there_is_a_store(impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    """When the first launcher has gone, all know it: in every job that failed the others said who had not been told."""
    with closing(nodes.meet(2, 0, 1, "127.0.0.1")) as first, closing(nodes.meet(2, 1, 1, "127.0.0.1", first.port)) as other:
        other.ended(2, 1, 7, "exited with code 0")
        assert b", pid 7\0exited with code 0" in first.store.get("arraycomm-launch/ended/1")
        first.close()
        other.ended(2, 1, 7, "exited with code 0")
    assert capsys.readouterr() == ("", "")


def test_another_secret_is_not_let_in(script: str, port: int) -> None:
    first = node(0, port, "-m", "timeit", "-n1", "-r1", "import time; time.sleep(60)")
    codes, outputs = ends(node(1, port, script, "x", environ={"ARRAYCOMM_SECRET": "another" * 4}))
    first.terminate()
    ends(first)
    assert codes == [1] and "secret" in outputs[0][1] and "Traceback" not in outputs[0][1]


def test_a_forgotten_node_rank_is_guessed_at(script: str, port: int) -> None:
    first = node(0, port, "-m", "timeit", "-n1", "-r1", "import time; time.sleep(60)")
    TCPStore("127.0.0.1", port, secret=secret.find(SECRET)).close()  # when it listens
    codes, outputs = ends(node(0, port, script, "x"))
    first.terminate()
    ends(first)
    assert codes == [1] and f"port {port}" in outputs[0][1] and "give its --node-rank" in outputs[0][1]


def test_an_address_of_another_host_as_well(script: str, port: int) -> None:
    process = start("--nnodes", "2", "--master-addr", "203.0.113.1", script, environ=clean_environ(**SECRET))
    codes, outputs = ends(process)
    assert codes == [1] and "give its --node-rank" in outputs[0][1]


LINK = """
set -e
ip link add near type veth peer name far
unshare -n sleep 100 & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set far netns $other
add='ip link set lo up; ip link set $1 addrgenmode none; ip link set $1 up; ip address add $2/64 dev $1 nodad'
sh -ec "$add" sh near fe80::1
nsenter -t $other -n sh -ec "$add" sh far fe80::2
nsenter -t $other -n "$@" --node-rank 1 --master-addr fe80::1%far "$PROGRAM" & second=$!
"$@" --node-rank 0 --master-addr fe80::1%near "$PROGRAM"
wait $second
kill $other
"""


@pytest.mark.skipif(subprocess.run(["unshare", "-rn", "ip", "link"], capture_output=True, check=False).returncode != 0,
                    reason="needs network namespaces and iproute2")
def test_link_local_addresses(tmp_path: Path) -> None:
    """Two hosts on one link, which each calls otherwise."""
    (tmp_path / "ranks.py").write_text("""if True:
        import arraycomm, numpy
        with arraycomm.init(timeout=60) as group:
            print(group.all_reduce(numpy.ones(2)).tolist())
        """)
    environ = clean_environ(**SECRET, PROGRAM=str(tmp_path / "ranks.py"))
    done = subprocess.run(["unshare", "-rn", "bash", "-c", LINK, "link", *LAUNCH, "--nnodes", "2", "-n", "2", "--no-prefix"],
                          capture_output=True, text=True, timeout=90, env=environ)
    assert (done.returncode, done.stdout) == (0, "[4.0, 4.0]\n" * 4), done.stderr
