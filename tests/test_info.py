from __future__ import annotations

import json

import pytest

from arraycomm import info
from arraycomm.core import registry, settings
from arraycomm.core.errors import DistNetworkError


def test_prints_everything(capsys):
    assert info.main([]) == 0
    text = capsys.readouterr().out
    for title in ("Versions", "Backends", "GPUs", "Operations", "Network", "Settings"):
        assert title in text
    assert "socket       available" in text
    assert all(name in text for name in settings.TABLE)
    assert "lo " in text


def test_json(capsys):
    assert info.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"]["socket"] is None
    assert found["versions"]["kernels"] in ("avx512bf16", "avx512", "avx2", "neon", "portable")
    assert found["operations"]["all_reduce"]["cpu"][0] == "socket"
    assert found["operations"]["all_reduce"]["cuda"] == []
    assert set(found["operations"]) >= {"all_reduce", "broadcast", "send", "recv", "barrier", "all_to_all"}


def test_an_unavailable_backend_has_its_reason(monkeypatch, capsys):
    monkeypatch.setattr(registry, "why_unavailable", lambda name: "its library is not here; install it")
    assert info.main([]) == 1
    text = capsys.readouterr().out
    assert "socket       its library is not here; install it" in text
    assert "all_reduce     -" in text


def test_a_secret_is_never_printed():
    rows = {row["name"]: row for row in info.settings_in_use({"ARRAYCOMM_SECRET": "hunter2"})}
    assert rows["ARRAYCOMM_SECRET"]["value"] == "(set)"
    assert rows["ARRAYCOMM_SECRET"]["from"] == "ARRAYCOMM_SECRET"


def test_settings_name_their_source():
    rows = {row["name"]: row for row in info.settings_in_use({"GLOO_SOCKET_IFNAME": "eth7"})}
    assert (rows["ARRAYCOMM_SOCKET_IFNAME"]["value"], rows["ARRAYCOMM_SOCKET_IFNAME"]["from"]) == (
        "eth7", "GLOO_SOCKET_IFNAME")
    assert rows["ARRAYCOMM_TRANSPORT"]["from"] == "default"


def test_the_address_for_a_local_store_is_loopback():
    assert info.network({})["publish"] == ["127.0.0.1"]
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert info.network(world)["publish"] == ["127.0.0.1"]


def test_a_network_that_cannot_be_used_is_told(monkeypatch):
    def fail(host, port):
        raise DistNetworkError(f"no route to {host}")

    monkeypatch.setattr(info.address, "publish_addresses", fail)
    assert info.network({})["errors"][0] == "no route to 127.0.0.1"


def test_unknown_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        info.main(["--yaml"])


def test_half_an_environment_is_told():
    assert "RANK is set but WORLD_SIZE is not" in info.network({"RANK": "0"})["errors"][0]
