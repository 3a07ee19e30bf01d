"""Several launchers, one job: as on several nodes, here over loopback."""

from __future__ import annotations

import socket

import pytest

from .test_run import clean_environ, start

SECRET = {"ARRAYCOMM_SECRET": "0123456789abcdef" * 4}


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ranks.py"
    path.write_text("""if True:
        import os, sys, time
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"
        print(*(os.environ[name] for name in names), sys.argv[1])
        assert "ARRAYCOMM_SECRET" not in os.environ and "ARRAYCOMM_SECRET_FD" in os.environ
        """)
    return str(path)


def node(rank: int, port: int, *rest: str, nproc: int = 2, environ: dict[str, str] = SECRET):
    return start("--nnodes", "2", "--node_rank", str(rank), "--nproc_per_node", str(nproc), "--master_addr", "127.0.0.1",
                 "--master_port", str(port), "--no-prefix", *rest, environ=clean_environ(**environ))


def ends(*processes):
    outputs = [process.communicate(timeout=60) for process in processes]
    return [process.returncode for process in processes], outputs


def test_two_nodes(script, port):
    second = node(1, port, script, "x")
    codes, outputs = ends(node(0, port, script, "x"), second)
    assert codes == [0, 0], outputs
    assert sorted((outputs[0][0] + outputs[1][0]).splitlines()) == [
        f"{rank} 4 {rank % 2} 2 {rank // 2} 127.0.0.1 x" for rank in range(4)]


def test_secret_from_a_file(script, port, tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET["ARRAYCOMM_SECRET"])
    file.chmod(0o600)
    environ = {"ARRAYCOMM_SECRET_FILE": str(file)}
    codes, outputs = ends(node(0, port, script, "x", environ=environ), node(1, port, script, "x"))
    assert codes == [0, 0], outputs


def test_nodes_that_disagree(script, port):
    first = node(0, port, "-m", "timeit", "-n1", "-r1", "import time; time.sleep(60)")
    codes, outputs = ends(node(1, port, script, "x", nproc=3))
    first.terminate()
    ends(first)
    assert codes == [1] and "--nproc-per-node 3, node 0 with --nnodes 2 --nproc-per-node 2" in outputs[0][1]


def test_another_secret_is_not_let_in(script, port):
    first = node(0, port, "-m", "timeit", "-n1", "-r1", "import time; time.sleep(60)")
    codes, outputs = ends(node(1, port, script, "x", environ={"ARRAYCOMM_SECRET": "another"}))
    first.terminate()
    ends(first)
    assert codes == [1] and "secret" in outputs[0][1] and "Traceback" not in outputs[0][1]
