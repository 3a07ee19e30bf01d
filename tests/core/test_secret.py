from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arraycomm.core.base.errors import AuthFailed, ResourceError
from arraycomm.core.bootstrap import secret


def test_from_the_variable() -> None:
    assert secret.find({}) is None
    assert secret.find({"ARRAYCOMM_SECRET": "ab" * 32}) == b"\xab" * 32
    assert secret.find({"ARRAYCOMM_SECRET": " any text of 16 bytes "}) == b"any text of 16 bytes"
    assert secret.find({"ARRAYCOMM_SECRET": "zy" * 32}) == b"zy" * 32
    with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET is empty"):
        secret.find({"ARRAYCOMM_SECRET": "  "})


@pytest.mark.parametrize("weak", ["a", "password", "0123456789abcde", " 0123456789abcde\n", "a" * 20, "0" * 64, "\u00e9" * 7])
def test_weak_ones_are_refused(weak: str, tmp_path: Path) -> None:
    """Wherever they come from, with how to make one."""
    path = tmp_path / "secret"
    path.write_text(weak)
    path.chmod(0o600)
    for environ in ({"ARRAYCOMM_SECRET": weak}, {"ARRAYCOMM_SECRET_FILE": str(path)}):
        with pytest.raises(AuthFailed, match=r"ARRAYCOMM_SECRET.*at least 16 bytes.*openssl rand -hex 32") as found:
            secret.find(environ)
        assert len(weak) < 8 or weak.strip() not in str(found.value)


def test_a_weak_one_of_a_launcher() -> None:
    descriptor = secret.to_descriptor(b"short")
    with pytest.raises(AuthFailed, match="5 bytes"):
        secret.find({"ARRAYCOMM_SECRET_FD": str(descriptor)})
    os.close(descriptor)


def test_new_ones_differ() -> None:
    assert len(secret.new_secret()) == 32 and secret.new_secret() != secret.new_secret()


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("cd" * 32 + "\n")
    path.chmod(0o600)
    environ = {"ARRAYCOMM_SECRET_FILE": str(path)}
    assert secret.find(environ) == b"\xcd" * 32
    path.chmod(0o640)
    with pytest.raises(AuthFailed, match=r"mode 0640.*chmod 600"):
        secret.find(environ)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(AuthFailed, match="is empty"):
        secret.find(environ)
    path.write_text("x" * 5000)
    with pytest.raises(AuthFailed, match="5000 bytes"):
        secret.find(environ)


def test_files_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("s")
    real.chmod(0o644)
    link.symlink_to(real)
    with pytest.raises(AuthFailed, match="mode 0644.*defaultMode: 0440"):
        secret.find({"ARRAYCOMM_SECRET_FILE": str(link)})
    real.chmod(0o600)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(AuthFailed, match="not a regular file"):
        secret.find({"ARRAYCOMM_SECRET_FILE": str(tmp_path / "pipe")})
    with pytest.raises(AuthFailed, match="No such file"):
        secret.find({"ARRAYCOMM_SECRET_FILE": str(tmp_path / "none")})
    with pytest.raises(AuthFailed, match="not a regular file"):
        secret.find({"ARRAYCOMM_SECRET_FILE": str(tmp_path)})
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((stat.S_IFREG | 0o400, 0, 0, 1, 7, 0, 1, 0, 0, 0)))
    with pytest.raises(AuthFailed, match="belong to this user .*it belongs to uid 7"):
        secret.find({"ARRAYCOMM_SECRET_FILE": str(real)})


@pytest.mark.parametrize(("owner", "mode", "taken"), [
    (0, 0o440, True), (0, 0o400, True), (0, 0o640, True), (0, 0o600, True), (0, 0o444, False), (0, 0o660, False),
    (0, 0o644, False), (4242, 0o440, True), (4242, 0o640, False), (4242, 0o460, False), (4242, 0o404, False)])
def test_a_kubernetes_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, taken: bool) -> None:
    """secret -> ..data/secret, ..data -> ..2026_11_28; of root's, or of the user's that the pod runs as."""
    (tmp_path / "..2026_11_28").mkdir()
    (tmp_path / "..2026_11_28" / "secret").write_text("cd" * 32)
    (tmp_path / "..data").symlink_to("..2026_11_28")
    (tmp_path / "secret").symlink_to("..data/secret")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 9, 64, 0, 0, 0)))
    environ = {"ARRAYCOMM_SECRET_FILE": str(tmp_path / "secret")}
    if taken:
        assert secret.find(environ) == b"\xcd" * 32
    else:
        with pytest.raises(AuthFailed, match=f"mode {mode:04o}"):
            secret.find(environ)


def test_no_room_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "write", too_large)
    with pytest.raises(ResourceError, match="the secret, into a memory file: File too large; see `ulimit -f`"):
        secret.to_descriptor(secret.new_secret())


def test_through_a_descriptor() -> None:
    value = secret.new_secret()
    descriptor = secret.to_descriptor(value)
    environ = {"ARRAYCOMM_SECRET_FD": str(descriptor)}
    assert secret.find(environ) == value == secret.find(environ)
    with pytest.raises(OSError):
        os.write(descriptor, b"changed")
    program = "from arraycomm.core.bootstrap import secret; print(secret.find().hex())"
    child = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environ}, pass_fds=[descriptor],
                           capture_output=True, text=True, timeout=20, check=True)
    assert child.stdout.strip() == value.hex()
    os.close(descriptor)


def test_descriptors_that_are_refused() -> None:
    for number in ("x", "-1", "987654", "99999999999999999999"):
        with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET_FD"):
            secret.find({"ARRAYCOMM_SECRET_FD": number})
    with tempfile.TemporaryFile() as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(secret._UNSEALED + b"others may read it")
        file.flush()
        with pytest.raises(AuthFailed, match="it is not sealed"):
            secret.find({"ARRAYCOMM_SECRET_FD": str(file.fileno())})
    with tempfile.TemporaryFile() as file:  # what else may have got the number after the launcher's was closed
        file.write(b"not a secret")
        file.flush()
        with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET_FD"):
            secret.find({"ARRAYCOMM_SECRET_FD": str(file.fileno())})


def test_required_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYCOMM_INSECURE", raising=False)
    secret.require(None, "127.0.0.1")
    secret.require(None, "::1")
    secret.require(b"s", "10.0.0.1")
    with pytest.raises(AuthFailed, match=r"10.0.0.1.*ARRAYCOMM_SECRET.*ARRAYCOMM_SECRET_FILE.*ARRAYCOMM_INSECURE=1"):
        secret.require(None, "10.0.0.1")
    monkeypatch.setenv("ARRAYCOMM_INSECURE", "1")
    secret.require(None, "10.0.0.1")
