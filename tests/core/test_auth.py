from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arraycomm.core.base.deadline import Deadline
from arraycomm.core.base.errors import AuthFailed
from arraycomm.core.bootstrap import auth
from arraycomm.core.bootstrap.auth import Acceptor, Hello, Purpose
from arraycomm.core.bootstrap.handshake import HELLO_BYTES, TAG_BYTES, Check, ServerHandshake, bound, tag

SECRET = bytes(range(32))
_closed = functools.partial(contextlib.suppress, ConnectionError)  # the other side ended the connection, maybe by a reset
HELLO = Hello("job", Purpose.DATA, sender=3, receiver=1, group=2**63 + 5, channel=2, stripe=7)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    yield client, server
    client.close()
    server.close()


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def answer(sock: socket.socket, secret: bytes | None, job: str = "job", check: Check | None = None) -> Hello:
    """The server's part, as the Acceptor plays it."""
    handshake = ServerHandshake(secret, job, check, auth.where(sock.getsockname()))
    while handshake.hello is None and handshake.error is None:
        sock.sendall(handshake.feed(sock.recv(handshake.wanted)))
    if handshake.hello is None:
        raise AuthFailed(handshake.error)
    return handshake.hello


def shake(pair: tuple[socket.socket, socket.socket], client_secret: bytes | None, server_secret: bytes | None,
          hello: Hello = HELLO, job: str = "job", check: Check | None = None) -> tuple[object, object]:
    """What each side got: None and a Hello when all is well, otherwise exceptions."""
    client, server = pair
    thread, outcome = in_thread(lambda: answer(server, server_secret, job, check))
    try:
        auth.client_handshake(client, client_secret, hello)
        mine: object = None
    except AuthFailed as error:
        mine = error
    thread.join(5)
    return mine, outcome[0]


@pytest.mark.parametrize("secret", [SECRET, b"text", None])
def test_both_sides_agree(pair: tuple[socket.socket, socket.socket], secret: bytes | None) -> None:
    assert shake(pair, secret, secret) == (None, HELLO)
    pair[0].sendall(b"after")
    assert pair[1].recv(16) == b"after"
    assert pair[0].gettimeout() is None


@pytest.mark.parametrize("mine, theirs", [(SECRET, b"other"), (None, SECRET), (SECRET, None)])
def test_wrong_secret_names_the_remedy(pair: tuple[socket.socket, socket.socket], mine: bytes | None,
                                       theirs: bytes | None) -> None:
    client, server = shake(pair, mine, theirs)
    assert isinstance(client, AuthFailed) and "ARRAYCOMM_SECRET" in str(client) and "127.0.0.1" in str(client)
    assert isinstance(server, AuthFailed) and "another secret" in str(server)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_other_job(pair: tuple[socket.socket, socket.socket], secret: bytes | None) -> None:
    client, server = shake(pair, secret, secret, job="another")
    assert isinstance(client, AuthFailed) and "another job" in str(client) and "MASTER_PORT" in str(client)
    assert isinstance(server, AuthFailed)


def test_unwelcome(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = shake(pair, SECRET, SECRET, check=lambda hello: f"rank {hello.sender} is here already")
    assert isinstance(client, AuthFailed) and "same rank" in str(client)
    assert isinstance(server, AuthFailed) and "rank 3 is here already" in str(server)


def test_client_refuses_a_server_without_the_secret(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    thread, outcome = in_thread(lambda: auth.client_handshake(client, SECRET, HELLO))
    server.recv(HELLO_BYTES, socket.MSG_WAITALL)
    server.sendall(bytes(32))
    server.recv(TAG_BYTES, socket.MSG_WAITALL)
    server.sendall(b"\0" + os.urandom(TAG_BYTES))  # claims "admitted"
    thread.join(5)
    assert isinstance(outcome[0], AuthFailed)


def test_reflected_tag_fails(pair: tuple[socket.socket, socket.socket]) -> None:
    """A false server that knows no secret sends the client's own proof back as its own."""
    client, server = pair
    thread, outcome = in_thread(lambda: auth.client_handshake(client, SECRET, HELLO))
    server.recv(HELLO_BYTES, socket.MSG_WAITALL)
    server.sendall(bytes(32))
    server.sendall(b"\0" + server.recv(TAG_BYTES, socket.MSG_WAITALL))
    thread.join(5)
    assert isinstance(outcome[0], AuthFailed)


def test_replayed_messages_fail() -> None:
    first = HELLO.encode() + os.urandom(32)
    good = ServerHandshake(SECRET, "job")
    proof = tag(SECRET, bound(b"client", HELLO.purpose, b""), first + good.feed(first))
    good.feed(proof)
    assert good.hello == HELLO
    again = ServerHandshake(SECRET, "job")
    again.feed(first)
    assert again.feed(proof)[0] != 0
    assert again.hello is None and again.error


@pytest.mark.parametrize("purpose", Purpose)
def test_a_relay_is_found_out(purpose: Purpose) -> None:
    """Somebody has made a rank call another address than its peer's, and passes on all that both say. Only to a store may there
    be a translated address between."""
    hello, stopped = HELLO._replace(purpose=purpose), threading.Event()
    listener, relay = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    members = Members()
    acceptor = Acceptor([listener], SECRET, "job", members)

    def pass_on() -> None:
        with relay.accept()[0] as near, socket.create_connection(listener.getsockname()) as far:
            steps = ((HELLO_BYTES, near, far), (32, far, near), (TAG_BYTES, near, far), (1 + TAG_BYTES, far, near))
            for size, source, to in steps:
                to.sendall(source.recv(size, socket.MSG_WAITALL))
            stopped.wait(10)

    thread, _ = in_thread(pass_on)
    try:
        with socket.create_connection(relay.getsockname()) as client:
            if purpose is Purpose.STORE:
                auth.client_handshake(client, SECRET, hello)
            else:
                with pytest.raises(AuthFailed, match="not the one on which it listens"):
                    auth.client_handshake(client, SECRET, hello)
    finally:
        stopped.set()
        thread.join(10)
        members.close(acceptor, relay)
    assert [met for _, met in members.socks] == ([hello] if purpose is Purpose.STORE else [])


@pytest.mark.parametrize("there, here", [(("10.0.0.1", 5), ("::ffff:10.0.0.1", 5, 0, 0)),
                                         (("fe80::1%eth0", 5, 0, 2), ("fe80::1%ens1", 5, 0, 3)), ("/run/a", "/run/a"),
                                         (b"\0name", b"\0name")])
def test_one_address_by_two_names(there: object, here: object) -> None:
    assert auth.where(there) == auth.where(here) != auth.where(("10.0.0.1", 6))


@given(position=st.integers(0, HELLO_BYTES - 1), bit=st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_every_bit_is_signed(position: int, bit: int) -> None:
    """Someone on the path changes one bit of the Hello or the nonce: the proof no longer fits."""
    first = HELLO.encode() + bytes(32)
    changed = bytearray(first)
    changed[position] ^= 1 << bit
    server = ServerHandshake(SECRET, "job")
    challenge = server.feed(bytes(changed))
    if challenge:
        server.feed(tag(SECRET, bound(b"client", HELLO.purpose, b""), first + challenge))
    assert server.hello is None and server.error


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=12))
@settings(max_examples=200, deadline=None)
def test_garbage_never_gets_in_and_little_is_read(pieces: list[bytes]) -> None:
    server = ServerHandshake(SECRET, "job")
    taken = 0
    for piece in pieces:
        if server.error or server.hello:
            break
        piece = piece[:server.wanted]
        server.feed(piece)
        taken += len(piece)
    assert server.hello is None and taken <= HELLO_BYTES + TAG_BYTES == 108


@given(job=st.text(max_size=20), purpose=st.sampled_from(Purpose), sender=st.integers(-1, 2**31 - 1),
       receiver=st.integers(-1, 2**31 - 1), group=st.integers(0, 2**64 - 1),
       channel=st.integers(0, 255), stripe=st.integers(0, 2**32 - 1), cut=st.integers(1, HELLO_BYTES - 1))
@settings(max_examples=100, deadline=None)
def test_hello_travels_whole(job: str, purpose: Purpose, sender: int, receiver: int, group: int, channel: int,
                             stripe: int, cut: int) -> None:
    hello = Hello(job, purpose, sender, receiver, group, channel, stripe)
    server, first = ServerHandshake(SECRET, job), hello.encode() + bytes(32)
    assert server.feed(first[:cut]) == b""
    challenge = server.feed(first[cut:])
    assert server.feed(tag(SECRET, bound(b"client", hello.purpose, b""), first + challenge))[0] == 0
    assert server.hello == hello


def test_hello_out_of_range() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Hello("job", Purpose.DATA, channel=256).encode()


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_stranger_that_answers_is_not_taken_for_a_rank(pair: tuple[socket.socket, socket.socket], secret: bytes | None) -> None:
    pair[1].sendall(b"HTTP/1.1 400 Bad Request\r\nServer: something that knows nothing of handshakes\r\n\r\n")
    with pytest.raises(AuthFailed, match="answered something else than a rank does.*check address and port"):
        auth.client_handshake(pair[0], secret, HELLO, deadline=5.0)


def test_an_error_tells_all_the_time_that_tries_took() -> None:
    limit = pytest.raises(AuthFailed, match="did not complete the handshake within 0.25 s")
    with socket.create_server(("127.0.0.1", 0)) as silent, limit:
        auth.connect("127.0.0.1", silent.getsockname()[1], SECRET, HELLO, deadline=0.25)


def test_silence_ends_at_the_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(AuthFailed, match="did not complete the handshake within 0.2 s"):
        auth.client_handshake(pair[0], SECRET, HELLO, deadline=0.2)


def test_a_verdict_that_came_while_the_client_was_stopped(pair: tuple[socket.socket, socket.socket],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline has passed when it goes on, and what it waits for is there."""
    client, server = pair
    stopped = threading.Event()

    def receive(sock: socket.socket, size: int, remaining: Deadline) -> bytes:
        if sock is client and size == 1 + TAG_BYTES:
            assert stopped.wait(5)
            remaining.left = 0
        return real(sock, size, remaining)

    real = auth._receive
    monkeypatch.setattr(auth, "_receive", receive)
    thread, outcome = in_thread(lambda: answer(server, SECRET))
    thread2, said = in_thread(lambda: auth.client_handshake(client, SECRET, HELLO))
    thread.join(5)
    stopped.set()
    thread2.join(5)
    assert outcome == [HELLO] and said == [None]


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unix sockets ask the kernel; loopback TCP without a secret looks the user up."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    listener = socket.create_server(("127.0.0.1", 0))
    tcp = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    auth.check_user(ours, SECRET)
    auth.check_user(server, None)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for sock, secret in ((ours, SECRET), (server, None)):
        with pytest.raises(AuthFailed, match="12345"):
            auth.check_user(sock, secret)
    auth.check_user(server, SECRET)  # a shared secret is enough
    for sock in (ours, theirs, listener, tcp, server):
        sock.close()


class Members:
    """Collects what an Acceptor admits."""

    def __init__(self) -> None:
        self.came = threading.Condition()
        self.socks: list[tuple[socket.socket, Hello]] = []

    def __call__(self, sock: socket.socket, hello: Hello) -> None:
        with self.came:
            self.socks.append((sock, hello))
            self.came.notify_all()

    def wait(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.socks) >= count, 10)

    def close(self, acceptor: Acceptor, *others: socket.socket) -> None:
        acceptor.close()
        for sock in (*others, *(sock for sock, _ in self.socks)):
            sock.close()


@pytest.mark.parametrize("said", [b"", b"A", bytes(HELLO_BYTES - 1)], ids=["nothing", "a byte", "nearly a hello"])
def test_strangers_take_no_place_of_members(tmp_path: Path, said: bytes) -> None:
    """More of them than may be half open, for as long as they like: members come over TCP and on the Unix socket."""
    tcp, unix = socket.create_server(("127.0.0.1", 0), backlog=1024), socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "socket"))
    unix.listen()
    members = Members()
    acceptor = Acceptor([tcp, unix], SECRET, "job", members)
    with contextlib.ExitStack() as opened:
        inside, outside = opened.enter_context(socket.socket(socket.AF_UNIX)), opened.enter_context(socket.socket())
        inside.connect(unix.getsockname())
        outside.connect(tcp.getsockname())
        first = HELLO.encode() + os.urandom(32)
        outside.sendall(first)
        first += outside.recv(32, socket.MSG_WAITALL)
        for _ in range(auth.MAX_HALF_OPEN + 40):  # meanwhile
            opened.enter_context(socket.create_connection(tcp.getsockname())).sendall(said)
        outside.sendall(tag(SECRET, bound(b"client", HELLO.purpose, auth.where(tcp.getsockname())), first))
        auth.client_handshake(inside, SECRET, HELLO, deadline=20)
        members.wait(2)
        auth.connect("127.0.0.1", tcp.getsockname()[1], SECRET, HELLO, deadline=20).close()
        members.wait(3)
    members.close(acceptor)


def test_acceptor_does_not_admit_who_has_given_up() -> None:
    """It will call again, and would be there twice."""
    listener = socket.create_server(("127.0.0.1", 0))
    (address, port), members = listener.getsockname(), Members()
    impatient = socket.create_connection((address, port))

    def judge(hello: Hello) -> None:
        if hello.stripe == 0:
            impatient.shutdown(socket.SHUT_RDWR)

    acceptor = Acceptor([listener], SECRET, "job", members, check=judge)
    try:
        with pytest.raises(auth.HandshakeBroken):
            auth.client_handshake(impatient, SECRET, Hello("job", Purpose.DATA, sender=3, receiver=1))
        auth.connect(address, port, SECRET, HELLO, deadline=5).close()
        members.wait(1)
    finally:
        acceptor.close()
        impatient.close()
    assert [hello for _, hello in members.socks] == [HELLO]
    members.socks[0][0].close()


@pytest.fixture
def served() -> Iterator[tuple[Acceptor, Members, tuple[str, int]]]:
    members = Members()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    address = listener.getsockname()
    acceptor = Acceptor([listener], SECRET, "job", members)
    yield acceptor, members, address
    members.close(acceptor)


def test_acceptor_admits_while_strangers_drip(served: tuple[Acceptor, Members, tuple[str, int]],
                                              caplog: pytest.LogCaptureFixture) -> None:
    _, members, address = served
    caplog.set_level(logging.WARNING, "arraycomm")
    strangers = [socket.create_connection(address) for _ in range(100)]
    for stranger in strangers:
        stranger.send(HELLO.encode()[:10])
    for rank in range(16):
        auth.connect(*address, SECRET, Hello("job", Purpose.DATA, sender=rank), deadline=5).close()
    members.wait(16)
    assert sorted(hello.sender for _, hello in members.socks) == list(range(16))
    for stranger in strangers:
        stranger.settimeout(10)
        with _closed():
            assert stranger.recv(1) == b""
        stranger.close()
    assert len([r for r in caplog.records if "was refused" in r.getMessage()]) == 1


def test_members_that_end_inside_the_handshake_are_not_complained_of(served: tuple[Acceptor, Members, tuple[str, int]],
                                                                     caplog: pytest.LogCaptureFixture) -> None:
    """As ranks that are killed, or give a group up. Strangers, who have not said this job's name, are."""
    _, members, address = served
    caplog.set_level(logging.WARNING, "arraycomm")
    other = Hello("another", Purpose.DATA)
    for count, (hello, complaints) in enumerate([(HELLO, 0), (HELLO, 0), (other, 1)], 1):
        with socket.create_connection(address) as member:
            member.sendall(hello.encode() + os.urandom(32))
            assert len(member.recv(32, socket.MSG_WAITALL)) == 32
        auth.connect(*address, SECRET, HELLO, deadline=5).close()
        members.wait(count)
        assert len([r for r in caplog.records if "was refused" in r.getMessage()]) == complaints


@pytest.mark.parametrize("ranks, room", [(1, auth.MAX_HALF_OPEN), (100, 100)])
def test_acceptor_keeps_few_strangers(ranks: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first, long before their time is up; the newest stay. As many ranks of a large world find room."""
    monkeypatch.setattr(auth, "SECONDS", 60.0)
    listener, members = socket.create_server(("127.0.0.1", 0), backlog=1024), Members()
    acceptor = Acceptor([listener], SECRET, "job", members, ranks=ranks)
    strangers = [socket.create_connection(listener.getsockname()) for _ in range(room + 6)]
    auth.connect("127.0.0.1", listener.getsockname()[1], SECRET, HELLO, deadline=10).close()
    members.wait(1)
    for stranger in strangers[:7]:
        stranger.settimeout(10)
        with _closed():
            assert stranger.recv(1) == b""
    for stranger in strangers[7:]:
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
    members.close(acceptor, *strangers)


def test_time_to_say_who_one_is_grows_with_the_world(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(auth, "SECONDS", 0.05)
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor([listener], SECRET, "job", Members(), ranks=80)
    with socket.create_connection(listener.getsockname()) as stranger, _closed():
        stranger.settimeout(20)
        assert stranger.recv(1) == b""
    acceptor.close()
    assert "it did not identify itself within 0.125 s" in caplog.text


def test_acceptor_survives_garbage(served: tuple[Acceptor, Members, tuple[str, int]]) -> None:
    _, members, address = served
    garbage = [os.urandom(size) for size in (0, 1, 43, HELLO_BYTES, HELLO_BYTES + TAG_BYTES, 5000)]
    for sent in (*garbage, HELLO.encode()[:20], b"GET / HTTP/1.1\r\n\r\n".ljust(200, b"x")):
        with socket.create_connection(address) as stranger, _closed():
            stranger.sendall(sent)
    with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET"):
        auth.connect(*address, b"wrong", HELLO, deadline=5)
    auth.connect(*address, SECRET, HELLO, deadline=5).close()
    members.wait(1)
    assert [hello for _, hello in members.socks] == [HELLO]


def test_acceptor_unix_and_callback_that_raises(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(sock: socket.socket, hello: Hello) -> None:
        raise RuntimeError("no room")

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/s")
    listener.listen()
    acceptor = Acceptor([listener], None, "job", refuse)
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{tmp_path}/s")
    auth.client_handshake(client, None, Hello("job", Purpose.SEGMENT))
    client.settimeout(5)
    assert client.recv(1) == b""
    client.close()
    acceptor.close()
    assert "no room" in caplog.text


def test_acceptor_leaves_nothing_behind() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        listener = socket.create_server(("127.0.0.1", 0))
        stranger = socket.create_connection(listener.getsockname())
        acceptor = Acceptor([listener], SECRET, "job", Members())
        acceptor.close()
        acceptor.close()
        stranger.close()
    assert descriptors() == before and threading.active_count() == threads


def test_acceptor_recovers_when_descriptors_run_out(served: tuple[Acceptor, Members, tuple[str, int]]) -> None:
    import resource

    _, members, address = served
    other = socket.create_server(("127.0.0.1", 0))
    second = Acceptor([other, socket.create_server(("127.0.0.1", 0))], SECRET, "job", members)
    client, another = socket.socket(), socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
    try:
        with pytest.raises(OSError):
            while True:
                fillers.append(os.dup(0))
        client.connect(address)
        another.connect(second._listeners[1].getsockname())
        time.sleep(0.05)  # the acceptor meets the limit meanwhile
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    auth.client_handshake(client, SECRET, HELLO)
    auth.client_handshake(another, SECRET, HELLO)
    members.wait(2)
    client.close()
    another.close()
    second.close()
