"""The page's server: collects the ranks' reports and serves them to clients with the token.

Any other page in the user's browser could send requests here, so: one address (ARRAYCOMM_DEBUG_ADDRESS, else 127.0.0.1, or ::1 on
a host that has only IPv6), the token in every request (compared in constant time), a check that Host names this address (against
DNS rebinding), no CORS permission for other origins, and a Content-Security-Policy by which the page loads from, and sends to,
this server only.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from arraycomm.core.base.errors import DistError
from arraycomm.core.bootstrap.address import means_loopback
from arraycomm.core.bootstrap.store import TCPStore

from .board import FIELDS, INTERVAL, STACKS, WATCHED, Report, no_stacks
from .dumps import Dumps
from .metrics import CONTENT_TYPE, exposition
from .verdict import SILENCE, judge

_Kind = TypeVar("_Kind")

_PAGE = Path(__file__).with_name("page.html")
_HOSTS = ("127.0.0.1", "localhost", "::1")  # any port: an ssh tunnel has its own at this end
_LONGEST = 4 << 20  # characters; the longest report of a rank
_TOKEN = 16  # characters
_POLL = 0.05
_SILENT = 3 * SILENCE  # s without a report, after which this process stops waiting for a rank's end
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"}


class Server:
    """In rank 0's agent. Port 0 takes a free one, which `port` then tells. Raises OSError when the port is taken."""

    def __init__(self, store: TCPStore, orders: dict[str, Any]) -> None:
        self.size: int = orders["size"]
        self.world, self.token, self._timeout = orders["world"], orders["token"], orders["timeout"]
        self._store, self._lock = store, threading.Lock()
        self._reports: dict[int, tuple[Report, float]] = {}
        self._unreadable: set[int] = set()  # ranks whose last report was malformed
        self._since = time.monotonic()
        if len(self.token) < _TOKEN or not (orders["chosen"] or means_loopback(orders["address"])):
            raise ValueError(f"a debug page at {orders['address']} needs ARRAYCOMM_DEBUG_TOKEN, of {_TOKEN} characters or more")
        self.address = orders["address"]
        self._http = _http(self.address, orders["port"], type("Handler", (_Handler,), {"job": self}))
        self.port = self._http.server_address[1]
        self._ended = threading.Event()
        if orders.get("dumps"):
            Dumps(self, orders["dumps"], self._timeout)
        for work in (self._http.serve_forever, self._collect):
            threading.Thread(target=work, daemon=True).start()

    # ---- collecting ----

    def _collect(self) -> None:
        while not self._ended.wait(INTERVAL / 2):
            try:
                self.collect()
            except DistError:  # the store is closed: this process is ending
                return

    def collect(self) -> None:
        """Reads the new reports."""
        for rank in range(self.size):
            text = self._read(f"report/{rank}")
            report = None if text is None else _report(rank, text, self.size)
            with self._lock:
                self._unreadable.discard(rank)
                if report is None and text is not None:
                    self._unreadable.add(rank)
                if report is None:
                    continue
                known = self._reports.get(rank)
                if known is None or known[0]["count"] != report["count"]:
                    self._reports[rank] = (report, time.monotonic())

    def _read(self, key: str) -> str | None:
        return self._store.multi_get([key])[0].decode(errors="replace") if self._store.check([key]) else None

    def reports(self) -> dict[int, Report]:
        now = time.monotonic()
        with self._lock:
            return {rank: {**report, "heard": now - came} for rank, (report, came) in self._reports.items()}

    def linger(self) -> None:
        """Serves until all ranks have ended; a rank without reports for _SILENT seconds counts as ended."""
        while True:
            self.collect()
            reports = self.reports()
            all_told = len(reports) == self.size or time.monotonic() - self._since > _SILENT
            if all_told and all(report["ended"] or report["heard"] > _SILENT for report in reports.values()):
                break
            time.sleep(INTERVAL)
        self._ended.wait(2 * INTERVAL)  # an open page polls once more and shows how the job ended
        self._http.shutdown()

    # ---- what the page asks for ----

    def state(self) -> dict[str, Any]:
        self._store.add(WATCHED, 1)
        reports = self.reports()
        records = {rank: self._read(f"records/{rank}") for rank in reports}
        verdict = judge(reports, self.size)
        with self._lock:
            bad = [f"Rank {rank} sent an invalid report: its agent has another version, or another program writes in its place."
                   for rank in sorted(self._unreadable)]
        return {"world": self.world, "size": self.size,
                "verdict": {**verdict._asdict(), "details": [*verdict.details, *bad],
                            "waits": [wait._asdict() for wait in verdict.waits]},
                "ranks": [{**report, "records": _parsed(records[rank], list) or []} for rank, report in sorted(reports.items())]}

    def stacks(self) -> dict[str, str]:
        """The stacks of all ranks, by rank; a message for a rank that does not answer in time."""
        wanted, until = self._store.add(STACKS, 1), time.monotonic() + self._timeout
        found: dict[str, str] = {}
        reports = self.reports()
        while len(found) < len(reports) and time.monotonic() < until:
            for rank, report in reports.items():
                text = self._read(f"stacks/{rank}")
                answer = _parsed(text, dict) or {}
                request, words = answer.get("request"), answer.get("text")
                if isinstance(request, int) and isinstance(words, str) and request >= wanted:
                    found[str(rank)] = words
                elif report["ended"]:
                    found[str(rank)] = no_stacks(report["ended"])
            time.sleep(_POLL)
        return {str(rank): found.get(str(rank), f"No answer within {self._timeout:g} s.") for rank in range(self.size)}

    def metrics(self) -> str:
        reports = self.reports()
        return exposition(reports, self.size, judge(reports, self.size))


def _parsed(text: str | None, kind: type[_Kind]) -> _Kind | None:
    """A rank's report, if it is JSON of this kind and not too long; a rank may be broken or hostile."""
    if text is None or len(text) > _LONGEST:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, kind) else None


def _report(rank: int, text: str, size: int) -> Report | None:
    """The report; None if it is malformed. Its fields are validated by judging it alone."""
    report = _parsed(text, dict)
    if report is None or not report.keys() >= FIELDS or report["rank"] != rank:
        return None
    alone = {rank: {**report, "heard": 0.0}}
    try:
        exposition(alone, size, judge(alone, size))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return report


def _http(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Http(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        return Http((host, port), handler)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: port {port} of {host}; 0 takes a free one") from error


class _Handler(BaseHTTPRequestHandler):
    job: Server
    server_version, sys_version = "arraycomm", ""
    timeout = 30

    def do_GET(self) -> None:
        path = self._permitted()
        if path == "/":
            nonce = secrets.token_urlsafe(16)
            page = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
            self._send(page, "text/html; charset=utf-8", nonce)
        elif path == "/state":
            self._send(json.dumps(self.job.state()), "application/json")
        elif path == "/metrics":
            self._send(self.job.metrics(), CONTENT_TYPE)
        elif path is not None:
            self.send_error(HTTPStatus.NOT_FOUND, "there are /, /state, /metrics and, to POST to, /stacks")

    def do_POST(self) -> None:
        path = self._permitted()
        if path == "/stacks":
            self._send(json.dumps(self.job.stacks()), "application/json")
        elif path is not None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is /stacks to POST to")

    def _permitted(self) -> str | None:
        """The requested path; None if the request was refused."""
        address = urlsplit(self.path)
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host.strip("[]") not in (*_HOSTS, self.job.address):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"this server is called localhost or {self.job.address}")
            return None
        given = parse_qs(address.query).get("token", [""])[0] or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.job.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "the address needs ?token=, which start_debug_server() gave")
            return None
        return address.path

    def _send(self, text: str, kind: str, nonce: str = "") -> None:
        body = text.encode()
        inside = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; " if nonce else ""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"default-src 'none'; {inside}base-uri 'none'; form-action 'none'; "
                                                    "frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because requests contain the token."""
