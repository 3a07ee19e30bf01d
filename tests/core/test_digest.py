from __future__ import annotations

import hashlib
import hmac
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arraycomm.core.base import digest


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_as_the_library_that_takes_long_to_load(key: bytes, message: bytes) -> None:
    assert digest.hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
    assert digest.sha256(message).digest() == hashlib.sha256(message).digest()


def test_without_the_interpreters_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_sha2", "_sha256"):
        monkeypatch.setitem(sys.modules, name, None)
    assert digest._sha256()(b"abc").hexdigest().startswith("ba7816bf")
