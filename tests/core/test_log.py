"""The logger, and what stands in for it where no module can be loaded any more."""

from __future__ import annotations

import logging
import sys

import pytest

from arraycomm.core.base.log import log


def test_it_is_a_logger() -> None:
    assert log() is logging.getLogger("arraycomm")


def test_without_logging(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As `logging` without a configuration: warnings and worse are printed."""
    monkeypatch.setitem(sys.modules, "logging", None)
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log(), level)("%s of %d", level, 5)
    log().log(logging.INFO, "too low")
    log().log(logging.ERROR, "%s", "by number")
    assert capsys.readouterr().err.splitlines() == ["warning of 5", "error of 5", "critical of 5", "by number"]
    try:
        raise OSError(24, "too many open files")
    except OSError:
        log().exception("lost")
    assert "lost" in (told := capsys.readouterr().err) and "too many open files" in told
