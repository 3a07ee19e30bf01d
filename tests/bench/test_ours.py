"""Our contenders do what they are named for."""

from __future__ import annotations

import pytest

from arraycomm.bench.peers.ours import VARIANTS, Contender
from arraycomm.core.base import settings
from arraycomm.core.interface import tuning


@pytest.mark.parametrize("way", VARIANTS)
def test_its_settings_exist(way: str) -> None:
    if way in ("openmpi", "mpich", "impi"):
        names = set(VARIANTS[way])  # the rest is for the library
    else:
        names = set(Contender.environ(f"ours/{way}", "", 8, ""))
    assert names <= set(settings.TABLE)


def test_flat_runs_what_does_not_know_of_hosts() -> None:
    told = Contender.environ("ours/flat", "", 8, "")["ARRAYCOMM_ALGORITHM"].split(",")
    for kind in tuning.operations():
        chosen = [item.partition("=")[2].partition(":")[0] for item in told if item.startswith(f"{kind}=")]
        assert chosen and set(chosen) <= set(tuning.names("tcp")[kind])
        assert not {"leader", "leaders", "records"} & set(chosen)
        assert ":" not in [item for item in told if item.startswith(f"{kind}=")][-1], "the last one has no limit"
