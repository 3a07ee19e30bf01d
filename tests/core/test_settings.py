"""The table of settings: complete, documented, and the values that ranks must share compared."""

from __future__ import annotations

import re

import pytest

from arraycomm.backends.socket import peers
from arraycomm.core import settings

from .settings_page import PAGE, page

ROOT = PAGE.parents[1]
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
        return peers.this_process([("127.0.0.1", 5)], "/path", tuned=value if name == "ARRAYCOMM_TUNING" else None)

    first, other = card("6"), card("7")
    cards = [peers._encode(one).encode() for one in (first, first, other)]
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
    encoded = [peers._encode(card).encode() for card in cards]
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
            peers.Peers([peers._encode(one).encode() for one in ((card, other), (other, card))[more]], mine)


def test_engine_settings_are_among_them() -> None:
    assert {"ARRAYCOMM_CHECK", "ARRAYCOMM_TRANSPORT", "ARRAYCOMM_HEARTBEAT", "ARRAYCOMM_SILENCE"} <= set(COMPARED)
