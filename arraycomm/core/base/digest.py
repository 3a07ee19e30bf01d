"""SHA-256 and HMAC-SHA256 without OpenSSL, which takes as long to load as all of init(): for a few short messages the
interpreter's own SHA-256 is as good.
"""

from __future__ import annotations

import importlib
from _operator import _compare_digest as same  # in constant time; hmac.compare_digest without OpenSSL
from collections.abc import Callable

from .typed import Any

__all__ = ["SHA256_BYTES", "hmac_sha256", "same", "sha256"]

SHA256_BYTES = 32
_BLOCK = 64  # bytes
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))  # for bytes.translate


def _sha256() -> Callable[[bytes], Any]:
    for name in ("_sha2", "_sha256"):  # Python 3.12 and later; earlier versions
        try:
            return importlib.import_module(name).sha256  # type: ignore[no-any-return]
        except ImportError:
            continue  # this interpreter may be built without it
    return importlib.import_module("hashlib").sha256  # type: ignore[no-any-return]


sha256 = _sha256()


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """RFC 2104 over FIPS 180-4's SHA-256; as hmac.digest(key, message, "sha256")."""
    if len(key) > _BLOCK:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    return bytes(sha256(key.translate(_OUTER) + sha256(key.translate(_INNER) + message).digest()).digest())
