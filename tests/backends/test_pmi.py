"""The server of PMI-1, as a process sees it."""

from __future__ import annotations

import socket

from arraycomm.backends.mpi.pmi import PmiServer


def peer(server: PmiServer, rank: int) -> socket.socket:
    made = socket.socket(fileno=socket.dup(server.descriptors(rank)[0]))
    made.settimeout(10)
    return made


def ask(process: socket.socket, line: str) -> str:
    process.sendall(f"{line}\n".encode())
    return process.recv(4096).decode()


def test_what_processes_ask_for() -> None:
    begun: list[int] = []
    with PmiServer(2, begun.append) as server, peer(server, 0) as zero, peer(server, 1) as one:
        assert server.variables(1)["PMI_RANK"] == "1" and server.variables(1)["PMI_SIZE"] == "2"
        assert ask(zero, "cmd=init pmi_version=1 pmi_subversion=1").startswith("cmd=response_to_init pmi_version=1 ")
        assert ask(zero, "cmd=get_universe_size") == "cmd=universe_size size=2 rc=0\n"
        assert ask(one, "cmd=put kvsname=arraycomm key=card value=a b=c d") == "cmd=put_result rc=0 msg=success\n"
        zero.sendall(b"cmd=barrier_in\ncmd=get kvsname=arra")  # a line and a part of the next
        assert ask(one, "cmd=barrier_in") == zero.recv(4096).decode() == "cmd=barrier_out rc=0\n"
        assert ask(zero, "ycomm key=card") == "cmd=get_result rc=0 msg=success value=a b=c d\n"
        assert "rc=-1" in ask(zero, "cmd=get kvsname=arraycomm key=none")
        assert "(vector,(0,1,2))" in ask(one, "cmd=get kvsname=arraycomm key=PMI_process_mapping")
        assert ask(one, "cmd=publish_name service=x port=y") == "cmd=publish_name_result rc=-1 msg=not_offered\n"
        assert "rc=0" in ask(one, "cmd=put value=of no key")  # a server that ends leaves everybody waiting
        assert ask(one, "cmd=finalize") == "cmd=finalize_ack rc=0\n"
    assert begun == [0]


def test_a_process_that_ends_in_a_barrier() -> None:
    begun: list[int] = []
    with PmiServer(2, begun.append) as server:
        with peer(server, 0) as zero:
            zero.sendall(b"cmd=barrier_in\n")
            zero.shutdown(socket.SHUT_RDWR)
        with peer(server, 1) as one:
            assert ask(one, "cmd=barrier_in") == "cmd=barrier_out rc=0\n"  # its launcher ends the others
