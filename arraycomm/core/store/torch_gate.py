"""Gate: clients of torch.distributed's TCPStore at a store of ours. Each is translated into a client of the same server.

So both kinds of clients see one table and one behaviour, and torch's protocol (torch.py) is spoken in one thread of this
process. It has no authentication: on loopback a client must run under our user, from elsewhere it is let in only where
ARRAYCOMM_TORCH_STORE=1 asks for that. It has no errors either: a request that cannot be carried out ends the connection.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence

from .. import settings, threads
from ..address import is_loopback
from ..auth import check_user
from ..errors import AuthFailed
from ..log import log
from .server import keep_alive
from .table import MAX_FRAME, MAX_KEY, OK, TIMED_OUT, Op, decode, encode, frame_size
from .torch import MAGIC, Request

_MAX_VALUE = 8 << 20  # bytes, as native/store.h
_MAX_COUNT = 1 << 20  # keys of one request
_LOG_EVERY = 60.0  # s between two complaints
_FOREVER = 2**32 - 1  # ms
_READ = 1 << 16
_READY, _MISSING, _CANCELLED = b"\0", b"\1", b"\1"
_BARRIER = b"\0barrier/"  # as request.py
_INIT = b"init/"  # torch's counter of workers; the users' keys start with a slash

Talk = Generator[None, None, None]


class Gate:
    """Takes connections that `offer` is given. `link` opens a connection to the server; the server sets it.

    A client that counts itself in, as torch's do, counts in `workers`; when `world_size` have, `complete` is set.
    """

    link: Callable[[], socket.socket]
    checked = False  # whether the server has looked at the users of its clients on loopback

    def __init__(self, workers: bytes, complete: bytes, world_size: int | None) -> None:
        self.workers, self.complete, self.world_size = workers, complete, world_size
        self._new: deque[tuple[socket.socket, bytes]] = deque()
        self._sessions: set[_Session] = set()
        self._selector: selectors.BaseSelector | None = None  # as the next ones, from the first connection on
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._complaints, self._next_complaint = 0, 0.0
        self._pid = os.getpid()
        self._closed = False

    def offer(self, sock: socket.socket, said: bytes) -> None:
        """Any one thread. Owns the socket from here on, or raises AuthFailed."""
        if is_loopback(sock.getpeername()[0]):
            if not self.checked:
                check_user(sock, None)
        elif not settings.get_flag("ARRAYCOMM_TORCH_STORE"):
            raise AuthFailed("it speaks the protocol of torch's store, which has no authentication and is served on loopback "
                             "only, unless ARRAYCOMM_TORCH_STORE=1 accepts the risk")
        keep_alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._thread is None:
            self._start()
        self._new.append((sock, said))
        os.eventfd_write(self._wake, 1)

    def _start(self) -> None:
        if self._selector is None:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._wake, selectors.EVENT_READ)
        thread = threading.Thread(target=self._run, args=(self._selector,), name="arraycomm-store-gate", daemon=True)
        threads.start(thread)
        self._thread = thread

    def close(self) -> None:
        """Ends all connections. Idempotent. The server has ended before, so that nobody offers any more."""
        if self._closed:
            return
        self._closed = True
        if self._selector is None:
            return
        if self._thread is not None and self._pid == os.getpid():
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for session in self._sessions:
            session.close()
        for sock, _ in self._new:
            sock.close()
        self._selector.close()
        os.close(self._wake)

    def _run(self, selector: selectors.BaseSelector) -> None:
        while not self._closed:
            for key, events in selector.select():
                if key.data is None:
                    os.eventfd_read(self._wake)
                    self._begin(selector)
                elif key.data in self._sessions and key.fileobj in (key.data.sock, key.data.link):
                    self._serve(selector, key.data, key.fileobj, events)

    def _begin(self, selector: selectors.BaseSelector) -> None:
        while self._new:
            sock, said = self._new.popleft()
            try:
                session = _Session(self, selector, sock, said)
            except OSError:
                sock.close()  # the server ends
                continue
            self._sessions.add(session)
            selector.register(sock, selectors.EVENT_READ, session)
            selector.register(session.link, selectors.EVENT_READ, session)
            self._serve(selector, session, None, 0)

    def _serve(self, selector: selectors.BaseSelector, session: _Session, source: object, events: int) -> None:
        try:
            session.turn(source, events)
        except (OSError, ValueError, struct.error) as error:
            if isinstance(error, ValueError):
                self._complain(error)
            self._sessions.discard(session)
            selector.unregister(session.sock)
            selector.unregister(session.link)
            session.close()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.out else 0)
        if wanted != selector.get_key(session.sock).events:
            selector.modify(session.sock, wanted, session)


    def _complain(self, error: ValueError) -> None:
        self._complaints += 1
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + _LOG_EVERY
            log().warning("a client of torch's kind is disconnected, as its protocol has no errors: %s (%d so far; this is said "
                          "once a minute)", error, self._complaints)


class _Session:
    """One client: what it said, what the server told, what is to be said to it; and `talk`, which goes on when more comes."""

    def __init__(self, gate: Gate, selector: selectors.BaseSelector, sock: socket.socket, said: bytes) -> None:
        self._gate, self._selector, self.sock = gate, selector, sock
        self._said, self._told, self.out = bytearray(said), bytearray(), bytearray()
        self.link = gate.link()
        self.link.setblocking(False)
        self._talk = self._converse()

    def close(self) -> None:
        self.sock.close()
        self.link.close()

    def turn(self, source: object, events: int) -> None:
        """Raises OSError or ValueError when the connection is over."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ:
            data = source.recv(_READ) if isinstance(source, socket.socket) else b""
            if not data:
                raise ConnectionResetError
            (self._told if source is self.link else self._said).extend(data)
        if len(self._said) > MAX_FRAME:
            raise ValueError(f"it sent {len(self._said)} bytes without waiting")
        if not self.out:
            next(self._talk)
        if self.out:
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self.out[:self.sock.send(self.out)]

    def _converse(self) -> Talk:
        if (yield from self._take(5)) != struct.pack("<BI", Request.VALIDATE, MAGIC):
            raise ValueError("it does not speak the protocol of torch's store")
        while True:
            code = (yield from self._take(1))[0]
            talk = _TALKS.get(code)
            if talk is None:
                raise ValueError(f"request {code} is not known")
            yield from talk(self)

    # ---- what comes ----

    def _take(self, size: int) -> Generator[None, None, bytes]:
        while len(self._said) < size:
            yield
        data = bytes(self._said[:size])
        del self._said[:size]
        return data

    def _number(self) -> Generator[None, None, int]:
        return int(struct.unpack("<q", (yield from self._take(8)))[0])

    def _count(self) -> Generator[None, None, int]:
        count = yield from self._number()
        if not 0 <= count <= _MAX_COUNT:
            raise ValueError(f"a list of {count}")
        return count

    def _blob(self, most: int = _MAX_VALUE) -> Generator[None, None, bytes]:
        size = yield from self._number()
        if not 0 <= size <= most:
            raise ValueError(f"a key or value of {size} bytes; up to {most} are allowed")
        return (yield from self._take(size))

    def _key(self) -> Generator[None, None, bytes]:
        key = yield from self._blob(MAX_KEY)
        if key.startswith(b"/"):
            return key[1:]
        return self._gate.workers if key == _INIT else b"\0torch/" + key

    def _keys(self) -> Generator[None, None, list[bytes]]:
        keys = []
        for _ in range((yield from self._count())):
            keys.append((yield from self._key()))
        return keys

    # ---- what is asked and answered ----

    def _send(self, frame: bytes) -> None:
        self.link.setblocking(True)  # the server never waits for this thread
        self.link.sendall(frame)
        self.link.setblocking(False)

    def _answer(self) -> tuple[int, list[bytes]] | None:
        size = frame_size(self._told)
        if not size or size > len(self._told):
            return None
        code, strings, _ = decode(bytes(self._told[:size]))
        del self._told[:size]
        return code, strings

    def _ask(self, op: int, *args: bytes) -> Generator[None, None, list[bytes] | None]:
        """The answer; None where the request would have to wait."""
        self._send(encode(op, args))
        while (answer := self._answer()) is None:
            yield
        if answer[0] not in (OK, TIMED_OUT):
            raise ValueError(answer[1][0].decode(errors="replace") if answer[1] else f"answer {answer[0]}")
        return None if answer[0] == TIMED_OUT else answer[1]

    def _now(self, op: int, *args: bytes) -> Generator[None, None, list[bytes]]:
        answer = yield from self._ask(op, *args)
        if answer is None:
            raise ValueError("it asks for a key that is not there, without having waited for it")
        return answer

    def _await(self, keys: Sequence[bytes]) -> Talk:
        """Until all keys are there, or the client has enough of it."""
        self._send(encode(Op.WAIT, keys, _FOREVER))
        while (answer := self._answer()) is None:
            if self._said[:1] == bytes([Request.CANCEL_WAIT]):
                self._give_up()
                yield from self._cancelled()
                return
            yield
        if answer[0] != OK:
            raise ValueError(f"answer {answer[0]} to a wait")
        self.out += _READY

    def _give_up(self) -> None:
        """A new link: the old one's request goes with it."""
        fresh = self._gate.link()
        self._selector.unregister(self.link)
        self.link.close()
        self.link = fresh
        self.link.setblocking(False)
        self._told.clear()
        self._selector.register(self.link, selectors.EVENT_READ, self)

    def _cancelled(self) -> Talk:
        yield from self._take(1)
        self.out += _CANCELLED

    # ---- the requests ----

    def _ping(self) -> Talk:
        self.out += yield from self._take(4)

    def _cancel(self) -> Talk:
        self.out += _CANCELLED  # of a wait that was answered meanwhile
        yield from ()

    def _set(self) -> Talk:
        key = yield from self._key()
        yield from self._now(Op.SET, key, (yield from self._blob()))

    def _compare_set(self) -> Talk:
        key = yield from self._key()
        expected = yield from self._blob()
        self._put_blobs((yield from self._now(Op.COMPARE_SET, key, expected, (yield from self._blob()))))

    def _get(self) -> Talk:
        self._put_blobs((yield from self._now(Op.GET, (yield from self._key()))))

    def _add(self) -> Talk:
        key = yield from self._key()
        amount = yield from self._number()
        total = int((yield from self._now(Op.ADD, key, b"%d" % amount))[0])
        if key == self._gate.workers and self._gate.world_size is not None and total >= self._gate.world_size:
            yield from self._now(Op.SET, self._gate.complete, b"")
        self._put_number(total)

    def _check(self) -> Talk:
        found = yield from self._now(Op.CHECK, *(yield from self._keys()))
        self.out += _READY if found[0] == b"1" else _MISSING

    def _wait(self) -> Talk:
        yield from self._await((yield from self._keys()))

    def _num_keys(self) -> Talk:
        self._put_number(int((yield from self._now(Op.NUM_KEYS))[0]) + 1)  # with the one of its own, as torch counts

    def _delete(self) -> Talk:
        self._put_number((yield from self._now(Op.DELETE, (yield from self._key())))[0] == b"1")

    def _append(self) -> Talk:
        key = yield from self._key()
        yield from self._now(Op.APPEND, key, (yield from self._blob()))

    def _multi_get(self) -> Talk:
        keys = yield from self._keys()
        if keys:
            self._put_blobs((yield from self._now(Op.GET, *keys)))

    def _multi_set(self) -> Talk:
        pairs: list[bytes] = []
        for _ in range((yield from self._count())):
            pairs.append((yield from self._key()))
            pairs.append((yield from self._blob()))
        if pairs:
            yield from self._now(Op.SET, *pairs)

    def _push(self) -> Talk:
        key = yield from self._key()
        yield from self._now(Op.PUSH, key, (yield from self._blob()))

    def _pop(self) -> Talk:
        found = yield from self._ask(Op.POP, (yield from self._key()))
        self._put_number(found is not None)
        self._put_blobs(found or [])

    def _queue_len(self) -> Talk:
        self._put_number(int((yield from self._now(Op.QUEUE_LEN, (yield from self._key())))[0]))

    def _list_keys(self) -> Talk:
        keys = yield from self._now(Op.LIST_KEYS)
        self._put_number(len(keys))
        self._put_blobs([b"/" + key for key in keys])

    def _barrier(self) -> Talk:
        key = yield from self._key()
        size = yield from self._number()
        if int((yield from self._now(Op.ADD, key, b"1"))[0]) >= size:
            yield from self._now(Op.SET, _BARRIER + key, b"")
        yield from self._await([_BARRIER + key])

    def _put_number(self, number: int) -> None:
        self.out += struct.pack("<q", number)

    def _put_blobs(self, blobs: Sequence[bytes]) -> None:
        for blob in blobs:
            self._put_number(len(blob))
            self.out += blob


_TALKS: dict[int, Callable[[_Session], Talk]] = {
    Request.SET: _Session._set,
    Request.COMPARE_SET: _Session._compare_set,
    Request.GET: _Session._get,
    Request.ADD: _Session._add,
    Request.CHECK: _Session._check,
    Request.WAIT: _Session._wait,
    Request.NUM_KEYS: _Session._num_keys,
    Request.DELETE: _Session._delete,
    Request.APPEND: _Session._append,
    Request.MULTI_GET: _Session._multi_get,
    Request.MULTI_SET: _Session._multi_set,
    Request.CANCEL_WAIT: _Session._cancel,
    Request.PING: _Session._ping,
    Request.QUEUE_PUSH: _Session._push,
    Request.QUEUE_POP: _Session._pop,
    Request.QUEUE_LEN: _Session._queue_len,
    Request.LIST_KEYS: _Session._list_keys,
    Request.BARRIER: _Session._barrier,
}
