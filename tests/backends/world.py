"""A world of real processes that are told what to do: see endpoint_rank.py."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT = 40.0  # s for one answer; only ends what hangs
PROGRAM = Path(__file__).with_name("endpoint_rank.py")
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def over(transport: str, **more: str) -> dict[str, str]:
    return {"ARRAYCOMM_TRANSPORT": transport, **more}


class Process:
    def __init__(self, config: dict[str, Any], environ: dict[str, str]) -> None:
        self.child = subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(config)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, env={**os.environ, **environ})
        self._buffer = b""

    def tell(self, *command: Any) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(command).encode() + b"\n")
        self.child.stdin.flush()

    def hear(self, limit: float = LIMIT) -> dict[str, Any]:
        assert self.child.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self.child.stdout], [], [], limit)[0]:
                raise AssertionError(f"no answer within {limit} s")
            data = os.read(self.child.stdout.fileno(), 1 << 16)
            assert data, f"the process ended with {self.child.wait(5)}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.result()

    def result(self) -> Any:
        answer = self.hear()
        assert "error" not in answer, answer
        return answer["ok"]

    def error(self) -> tuple[str, str]:
        answer = self.hear()
        assert "error" in answer, answer
        return answer["error"], answer["text"]

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe:
                    pipe.close()


class World:
    def __init__(self, path: Path, size: int, *, environ: dict[str, str] | None = None, changes: Any = None,
                 addresses: tuple[str, ...] = ("127.0.0.1",), timeout: float = 30.0) -> None:
        """`changes`: rank -> what is different in its configuration; its "environ" goes into its environment."""
        secret = secrets.token_hex(32)
        self.ranks = []
        for rank in range(size):
            config = {"rank": rank, "size": size, "path": str(path / "store"), "secret": secret, "job": "job",
                      "timeout": timeout, "addresses": addresses, **(changes or {}).get(rank, {})}
            self.ranks.append(Process(config, {**(environ or {}), **config.pop("environ", {})}))

    def opened(self) -> World:
        for rank in self.ranks:
            rank.result()
        return self

    def all(self, *command: Any, but: tuple[int, ...] = ()) -> list[Any]:
        chosen = [process for rank, process in enumerate(self.ranks) if rank not in but]
        for process in chosen:
            process.tell(*command)
        return [process.hear() for process in chosen]

    def results(self, *command: Any, but: tuple[int, ...] = ()) -> list[Any]:
        answers = self.all(*command, but=but)
        assert all("error" not in answer for answer in answers), answers
        return [answer["ok"] for answer in answers]

    def errors(self, *command: Any, but: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        answers = self.all(*command, but=but)
        assert all("error" in answer for answer in answers), answers
        return answers

    def end(self) -> None:
        for process in self.ranks:
            process.end()
