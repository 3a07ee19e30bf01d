"""Mutual challenge-response authentication, the first messages on every connection.

    client -> server   Hello and the client's nonce                       76 bytes
    server -> client   the server's nonce                                 32
    client -> server   HMAC(secret, "client" + both messages)             32
    server -> client   status, HMAC(secret, "server" + all of that)       33

The client proves itself first, so that a port scanner never gets a tag for an offline guess of the secret.
The roles are part of what is signed, so a reflected message fails; both nonces are, so a replayed one does. So is, between ranks,
the address that the client has called and on which the server listens: who makes a rank call another address cannot pass on what
both say. (Not with a store: there may be a translated address between, as a Kubernetes service's.) A server
reads at most 108 bytes from a stranger, into a fixed buffer, within 2 s.

This proves that both ends know the job's secret when the connection starts. It does not encrypt or sign what follows
(someone on the path needs TLS against them), and a rank may claim another's number: all ranks of a job trust each
other not to. Without a secret the key is empty and only the job's name tells two jobs apart; then, and on Unix
sockets always, peers on this machine must also run under our user id.
"""

from __future__ import annotations

import enum
import hmac
import os
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from ..base.errors import AuthFailed

_MAGIC = b"ACOM"
_VERSION = 2
_HELLO = struct.Struct("<4sHBB16siiQI")
NONCE_BYTES = 32
TAG_BYTES = 32  # of SHA-256
HELLO_BYTES = _HELLO.size + NONCE_BYTES


class Purpose(str, enum.Enum):
    """The purpose of a connection. It is signed, so a data connection cannot be replayed as a control connection."""

    STORE = "store"
    CONTROL = "control"
    DATA = "data"
    SEGMENT = "segment"
    STACKS = "stacks"


_PURPOSES = tuple(Purpose)  # the number on the wire is the index


class Status(enum.IntEnum):
    ADMITTED = 0
    WRONG_SECRET = 1
    OTHER_JOB = 2
    UNWELCOME = 3


REMEDY = {
    Status.WRONG_SECRET: "it has another secret: give all ranks of the job the same ARRAYCOMM_SECRET or "
    "ARRAYCOMM_SECRET_FILE, or, if another job holds this address, choose another port; or the called address is not the one "
    "on which it listens: ranks must reach each other without address translation",
    Status.OTHER_JOB: "it belongs to another job: choose another MASTER_PORT (or port 0 with our launcher)",
    Status.UNWELCOME: "it does not expect this rank or kind of connection: two processes may have the same "
    "rank, or this one was declared lost by the others",
}


class Hello(NamedTuple):
    """The client's first message: describes the connection. Ranks are world ranks, -1 if unknown."""

    job: str
    purpose: Purpose
    sender: int = -1
    receiver: int = -1
    group: int = 0  # u64
    channel: int = 0  # u8
    stripe: int = 0

    def encode(self) -> bytes:
        """44 bytes; the job is a digest. Raises ValueError for numbers out of range."""
        try:
            return _HELLO.pack(_MAGIC, _VERSION, _PURPOSES.index(self.purpose), self.channel, job_digest(self.job),
                               self.sender, self.receiver, self.group, self.stripe)
        except struct.error as error:
            raise ValueError(f"{self} does not fit the wire: {error}") from None


def job_digest(job: str) -> bytes:
    return bytes(sha256(b"arraycomm job " + job.encode()).digest()[:16])


def _decode(message: bytes, job: str) -> tuple[Hello, bool]:
    """The decoded Hello, and whether it is of our job."""
    magic, version, purpose, channel, digest, sender, receiver, group, stripe = _HELLO.unpack(message)
    if magic != _MAGIC:
        raise AuthFailed("it does not speak arraycomm's protocol")
    if version != _VERSION:
        raise AuthFailed(f"it speaks version {version} of the handshake, this is version {_VERSION}: "
                         "install the same arraycomm everywhere")
    if purpose >= len(_PURPOSES):
        raise AuthFailed(f"it asks for the unknown purpose {purpose}")
    hello = Hello(job, _PURPOSES[purpose], sender, receiver, group, channel, stripe)
    return hello, hmac.compare_digest(digest, job_digest(job))


def tag(secret: bytes | None, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret or b"", role + transcript, "sha256")


def bound(role: bytes, purpose: Purpose, where: bytes) -> bytes:
    """The signed role. where: the server's address of the connection (auth.where())."""
    return role if purpose is Purpose.STORE else role + b" at " + where + b"\0"


Check = Callable[[Hello], "str | None"]
"""Looks at an authenticated Hello: None when it is welcome, otherwise why not (for the log)."""


class ServerHandshake:
    """The server's state machine, without I/O. Feed it received data, at most `wanted` bytes at a time; send what it returns.

    It has ended when `hello` (authenticated) or `error` (rejected; close after sending) is set.
    """

    def __init__(self, secret: bytes | None, job: str, check: Check | None = None, where: bytes = b"") -> None:
        self._secret, self._job, self._check, self._where = secret, job, check, where
        self._received = bytearray()
        self._nonce = os.urandom(NONCE_BYTES)
        self.ours = False  # the client claims to belong to this job
        self.hello: Hello | None = None
        self.error: str | None = None

    @property
    def wanted(self) -> int:
        have = len(self._received)
        return (HELLO_BYTES if have < HELLO_BYTES else HELLO_BYTES + TAG_BYTES) - have

    @property
    def silent(self) -> bool:
        """Whether the client has not sent its Hello."""
        return len(self._received) < HELLO_BYTES

    def feed(self, data: bytes) -> bytes:
        if not data or len(data) > self.wanted or self.hello or self.error:
            raise ValueError(f"fed {len(data)} bytes, wanted 1 to {self.wanted}")
        self._received += data
        if len(self._received) == HELLO_BYTES:
            return self._challenge()
        if len(self._received) == HELLO_BYTES + TAG_BYTES:
            return self._verdict()
        return b""

    def _challenge(self) -> bytes:
        try:
            self._claimed, self.ours = _decode(bytes(self._received[:_HELLO.size]), self._job)
        except AuthFailed as error:
            self.error = str(error)
            return b""
        return self._nonce

    def _verdict(self) -> bytes:
        transcript = bytes(self._received[:HELLO_BYTES]) + self._nonce
        proof = bytes(self._received[HELLO_BYTES:])
        hello = self._claimed
        if not hmac.compare_digest(proof, tag(self._secret, bound(b"client", hello.purpose, self._where), transcript)):
            self.error = "it has another secret, or connected to another address than this one"
            return bytes([Status.WRONG_SECRET]) + bytes(TAG_BYTES)
        code = bytes([self._judge(hello)])
        return code + tag(self._secret, bound(b"server", hello.purpose, self._where), transcript + proof + code)

    def _judge(self, hello: Hello) -> Status:
        if not self.ours:
            self.error = "it belongs to another job"
            return Status.OTHER_JOB
        self.error = self._check(hello) if self._check else None
        if self.error:
            return Status.UNWELCOME
        self.hello = hello
        return Status.ADMITTED
