from __future__ import annotations

import json

import pytest

from arraycomm import info
from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistNetworkError
from arraycomm.core.bootstrap import address
from arraycomm.core.interface import registry


def test_prints_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main([]) == 0
    text = capsys.readouterr().out
    for title in ("Versions", "Backends", "GPUs", "Operations", "Network", "Settings"):
        assert title in text
    assert "socket       available" in text
    assert all(name in text for name in settings.TABLE)
    assert "lo " in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"]["socket"] is None
    assert found["versions"]["kernels"] in ("avx512bf16", "avx512", "avx2", "neon", "portable")
    assert found["operations"]["all_reduce"]["cpu"][0] == "socket"
    assert found["operations"]["all_reduce"]["cuda"] == []
    assert set(found["operations"]) >= {"all_reduce", "broadcast", "send", "recv", "barrier", "all_to_all"}


def test_an_unavailable_backend_has_its_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "why_unavailable", lambda name: "its library is not here; install it")
    assert info.main([]) == 1
    text = capsys.readouterr().out
    assert "socket       its library is not here; install it" in text
    assert "all_reduce     -" in text


def test_a_secret_is_never_printed() -> None:
    rows = {row["name"]: row for row in info.settings_in_use({"ARRAYCOMM_SECRET": "hunter2"})}
    assert rows["ARRAYCOMM_SECRET"]["value"] == "(set)"
    assert rows["ARRAYCOMM_SECRET"]["from"] == "ARRAYCOMM_SECRET"


def test_settings_name_their_source() -> None:
    rows = {row["name"]: row for row in info.settings_in_use({"GLOO_SOCKET_IFNAME": "eth7"})}
    assert (rows["ARRAYCOMM_SOCKET_IFNAME"]["value"], rows["ARRAYCOMM_SOCKET_IFNAME"]["from"]) == (
        "eth7", "GLOO_SOCKET_IFNAME")
    assert rows["ARRAYCOMM_TRANSPORT"]["from"] == "default"


def test_the_address_for_a_local_store_is_loopback() -> None:
    assert info.network({})["publish"] == ["127.0.0.1"]
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert info.network(world)["publish"] == ["127.0.0.1"]


def test_a_network_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(host: str, port: int) -> None:
        raise DistNetworkError(f"no route to {host}")

    monkeypatch.setattr(address, "publish_addresses", fail)
    assert info.network({})["errors"][0] == "no route to 127.0.0.1"


def test_unknown_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        info.main(["--yaml"])


def test_half_an_environment_is_told() -> None:
    assert "RANK is set but WORLD_SIZE is not" in info.network({"RANK": "0"})["errors"][0]


def test_without_a_gpu_there_are_no_columns_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(info, "gpus", lambda: {"driver": "none"})
    assert info.main([]) == 0 and "cuda" not in capsys.readouterr().out.partition("Operations")[2].partition("Network")[0]
    monkeypatch.setattr(info, "gpus", lambda: {"driver": "570.1", "GPU 0": "NVIDIA X"})
    assert info.main([]) == 0 and "cuda_host" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "value", "told"), [
    ("ARRAYCOMM_TIMEOUT", "soon", "ARRAYCOMM_TIMEOUT must be a number"),
    ("ARRAYCOMM_TRANSPORT", "rdma", "must be shm, tcp or auto"),
    ("ARRAYCOMM_CHECK", "perhaps", "ARRAYCOMM_CHECK must be 0 or 1"), ("ARRAYCOMM_PORT_RANGE", "9-1", "ARRAYCOMM_PORT_RANGE"),
    ("ARRAYCOMM_BACKEND", "carrier pigeon", "carrier pigeon"), ("ARRAYCOMM_ALGORITHM", "all_reduce=no", "names no algorithm"),
    ("ARRAYCOMM_SECRET_FILE", "/none", "/none"), ("ARRAYCOMM_TUNING", "/none", "/none"), ("RANK", "0", "WORLD_SIZE is not"),
    ("ARRAYCOMM_SOCKET_IFNAME", "eth77", "no interface fits")])
def test_a_wrong_setting_is_told_and_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str,
                                                 value: str, told: str) -> None:
    monkeypatch.setenv(name, value)
    assert info.main([]) == 1 and told in capsys.readouterr().out


def test_unknown_variables_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORTS", "tcp")
    for _ in range(2):
        assert info.main([]) == 0
        told = capsys.readouterr().out
        assert "ARRAYCOMM_TRANSPORTS          is no setting and changes nothing; is ARRAYCOMM_TRANSPORT meant?" in told
