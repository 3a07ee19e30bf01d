"""The table of settings: complete, documented, and the values that ranks must share compared."""

from __future__ import annotations

import math
import os
import re
import signal
from typing import Any

import pytest

import arraycomm
from arraycomm.backends.socket import peers
from arraycomm.core.base import settings

from .settings_page import PAGE, page

ROOT = PAGE.parents[2]
_BUILDING = {"ARRAYCOMM_BUILD_SANITIZE"}  # of who builds, and what tests are told, is no setting
COMPARED = [name for name, row in settings.TABLE.items() if row.ranks == settings.EQUAL]


def named(folder: str, *endings: str) -> set[str]:
    files = [path for ending in endings for path in (ROOT / folder).rglob(f"*{ending}")]
    return {name for path in files for name in re.findall(r"ARRAYCOMM_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))}


def test_every_variable_that_is_read_is_in_the_table_and_the_other_way_round() -> None:
    used = set.union(*(named(folder, ".py", ".c", ".h") for folder in ("arraycomm", "backends", "bench")))
    assert used - _BUILDING == set(settings.TABLE)


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.core.settings_page"


def test_pages_name_no_other_variable() -> None:
    told = named("docs", ".md") | set(re.findall(r"ARRAYCOMM_[A-Z_]*[A-Z]", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {name for name in told - _BUILDING if not name.startswith("ARRAYCOMM_TEST_")} == set(settings.TABLE)


@pytest.mark.parametrize("name", COMPARED)
def test_what_must_be_equal_is_compared(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The cards of three ranks, of which the last one has another value."""
    def card(value: str) -> peers.Peer:
        monkeypatch.setenv(name, value)
        tuned: Any = value  # the contents of a file
        return peers.this_process([("127.0.0.1", 5)], "/path", tuned=tuned if name == "ARRAYCOMM_TUNING" else None)

    first, other = card("6"), card("7")
    cards = [peers.encode(one) for one in (first, first, other)]
    for mine in (first, other):
        with pytest.raises(ValueError, match=f"{name} is '6' on rank 0 and '7' on rank 2; it must be the same on all ranks"):
            peers.Peers(cards, mine)
    assert len(peers.Peers(cards[:2], first)) == 2


def test_a_trace_is_for_all_ranks_or_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with one would call collectives, at first, that the others do not."""
    cards = []
    for folder in ("", "/one", "/two"):
        monkeypatch.setenv("ARRAYCOMM_TRACE", folder)
        cards.append(peers.this_process([("127.0.0.1", 5)], "/path"))
    encoded = [peers.encode(card) for card in cards]
    for mine in cards:
        with pytest.raises(ValueError, match="ARRAYCOMM_TRACE is 'not set' on rank 0 and 'set' on rank 1"):
            peers.Peers(encoded, mine)
    assert len(peers.Peers(encoded[1:], cards[1])) == 2


@pytest.mark.parametrize("more", [0, 1])
def test_a_setting_that_one_rank_does_not_know(more: int) -> None:
    """The rank is of another version."""
    card = peers.this_process([("127.0.0.1", 5)], "/path")
    other = card._replace(alike={**card.alike, "ARRAYCOMM_NEW": "1"})
    for mine in (card, other):
        with pytest.raises(ValueError, match="ARRAYCOMM_NEW is (None|'1') on rank 0 and ('1'|None) on rank 1"):
            peers.Peers([peers.encode(one) for one in ((card, other), (other, card))[more]], mine)


NUMBERS = [name for name, row in settings.TABLE.items() if row.least or row.most < math.inf]
EXTREMES = ("-1", "-0.5", str(2**63), str(2**64), str(2**64 - 1), "-9223372036854775808", "nan", "inf", "-inf", "1e400",
            "9" * 5000, "many", "0x10", "1,5", "--1", "None")


@pytest.mark.parametrize("text", EXTREMES, ids=lambda text: text[:20])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_read_or_refused_by_name_and_range(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    row = settings.TABLE[name]
    try:
        value = settings.get_number(name)
    except ValueError as error:
        assert str(error).startswith(f"{name} must be a ") and " from " in str(error)
    else:
        assert row.least <= value <= row.most and isinstance(value, int if row.whole else float)


def test_mechanisms_that_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, bits in (("", 0), ("exchange", 1), ("probe,share", 10), (",".join(settings.MECHANISMS), 15)):
        monkeypatch.setenv("ARRAYCOMM_WITHOUT", text)
        assert settings.without() == bits and not list(settings.wrong())
    monkeypatch.setenv("ARRAYCOMM_WITHOUT", "share,luck")
    assert list(settings.wrong()) == ["ARRAYCOMM_WITHOUT must be some of exchange,share,ahead,probe, got 'luck'"]


def test_the_numbers_are_those_that_are_read() -> None:
    assert set(NUMBERS) == {"ARRAYCOMM_PIECE_BYTES", "ARRAYCOMM_SOCKET_CONNECTIONS", "ARRAYCOMM_TIMEOUT", "ARRAYCOMM_HEARTBEAT",
                            "ARRAYCOMM_SILENCE", "ARRAYCOMM_WAIT_NOTICE"}


REFUSED = [("ARRAYCOMM_PIECE_BYTES", text) for text in (str(2**63), str(2**64), str(2**30 + 1), "-1", "nan", "1e6", "4K")]
REFUSED += [("ARRAYCOMM_SOCKET_CONNECTIONS", text) for text in (str(2**63), "65", "-0.5", "1.5", "inf")]
REFUSED += [(name, text) for name in ("ARRAYCOMM_HEARTBEAT", "ARRAYCOMM_SILENCE") for text in ("0", "-1", "nan", "inf", "1e30")]
REFUSED += [("ARRAYCOMM_TIMEOUT", text) for text in ("0", "-1", "nan", "soon")]
REFUSED += [("ARRAYCOMM_WAIT_NOTICE", text) for text in ("-1", "nan", "soon")]
REFUSED += [("ARRAYCOMM_ALGORITHM", text) for text in ("all_reduce=luck", "all_reduce=ring:1K")]


def test_a_world_is_not_opened_with_what_is_out_of_range() -> None:
    """As a user meets it: the error names the variable, and nobody waits for what cannot be. Then it is opened."""
    assert arraycomm.spawn(_refused, nprocs=2) == [2, 2]


def _refused(rank: int) -> int:
    signal.alarm(60)  # ends it where it hangs
    for name, text in REFUSED:
        os.environ[name] = text
        with pytest.raises(ValueError, match=f"{name}(: .* is no|: .* names no| must be a (whole )?number from)"):
            arraycomm.init(timeout=None if name == "ARRAYCOMM_TIMEOUT" else 60)
        del os.environ[name]
    with arraycomm.init(timeout=60) as group:
        return group.size


FLAGS = [name for name, row in settings.TABLE.items() if row.flag]


def test_the_flags_are_those_that_are_read_as_such() -> None:
    read = set()
    for path in (path for folder in ("arraycomm", "backends") for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r'get_flag\("(ARRAYCOMM_\w+)"\)', text))
        read |= set(re.findall(r'^VARIABLE = "(ARRAYCOMM_\w+)"', text, re.MULTILINE) if "get_flag(VARIABLE)" in text else ())
    assert read == set(FLAGS)


@pytest.mark.parametrize("name", FLAGS)
def test_a_switch_is_read_before_a_world_is_opened(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Many are needed later or never: who mistyped one would not hear of it."""
    monkeypatch.setenv(name, "yse")
    with pytest.raises(ValueError, match=f"{name} must be 0 or 1, got 'yse'"):
        arraycomm.init()
    monkeypatch.setenv(name, "yes")
    arraycomm.init().close()


def test_mistyped_names_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(settings, "_told", set())
    for name in ("ARRAYCOMM_SILENSE", "ARRAYCOMM_COLOUR_OF_ALL_WORLDS", "ARRAYCOMM_TEST_CC", "ARRAYCOMM_TIMEOUT"):
        monkeypatch.setenv(name, "9")
    arraycomm.init().close()
    said = [record.getMessage() for record in caplog.records]
    assert "ARRAYCOMM_SILENSE is no setting of arraycomm and changes nothing; is ARRAYCOMM_SILENCE meant?" in said
    assert "ARRAYCOMM_COLOUR_OF_ALL_WORLDS is no setting of arraycomm and changes nothing" in said
    assert not any("TEST_CC" in line or "TIMEOUT" in line for line in said)


def test_engine_settings_are_among_them() -> None:
    assert {"ARRAYCOMM_CHECK", "ARRAYCOMM_TRANSPORT", "ARRAYCOMM_HEARTBEAT", "ARRAYCOMM_SILENCE"} <= set(COMPARED)
