"""arraycomm-info: what is installed, what can be used here, and what would be chosen."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from .core.arrays.types import DeviceType, device_name
from .core.base import settings
from .core.base.command import add_version, command
from .core.base.errors import DistBackendError, DistError
from .core.bootstrap import address, environment, secret
from .core.interface import registry, tuning
from .core.interface.kinds import KINDS

_PACKAGES = ("cffi", "numpy", "ml_dtypes", "torch", "jax", "cupy", "msgpack", "matplotlib")
_HIDDEN = ("ARRAYCOMM_SECRET",)  # the secret must not appear in a log or a bug report


def versions() -> dict[str, str | None]:
    """Versions of arraycomm and of optional packages; None for a missing package. Imports none of them."""
    package = importlib.import_module(__package__ or "arraycomm")
    found: dict[str, str | None] = {"arraycomm": package.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    engine = importlib.import_module(f"{package.__name__}._engine")
    kernels = engine.ffi.string(engine.lib.acomm_cpu()).decode()
    return found | {"os": platform.platform(), "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
                    "kernels": kernels}


def backends() -> dict[str, str | None]:
    """Backend -> None if it can be used, else the reason."""
    return {name: registry.why_unavailable(name) for name in registry.names()}


def libraries() -> dict[str, dict[str, Any]]:
    """Backend -> its description of the library under it, for usable backends over a library."""
    found = {}
    for name, reason in backends().items():
        describe = getattr(registry.load(name), "describe", None) if reason is None else None
        if describe is not None:
            found[name] = describe()
    return found


def gpus() -> dict[str, str]:
    """The libraries for arrays on CUDA devices that are present or missing."""
    from .core.gpu.facts import facts

    return facts()


def table() -> dict[str, dict[str, list[str]]]:
    """operation -> device -> usable backends, the preferred one first. Every backend has all operations."""
    devices: dict[str, list[str]] = {kind.name.lower(): [] for kind in DeviceType}
    for name, reason in backends().items():
        if reason is None:
            for number in sorted(registry.load(name).devices):
                devices.setdefault(device_name(number), []).append(name)
    return {operation: devices for operation in KINDS}


def settings_in_use(environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Every setting with its value and the variable that sets it ("default" if none does)."""
    rows = []
    for row in settings.TABLE.values():
        source = next((name for name in (row.name, *row.fallbacks) if environ.get(name)), "default")
        value = settings.get(row.name, environ)
        hidden = row.name in _HIDDEN and source != "default"
        rows.append({"name": row.name, "value": "(set)" if hidden else value, "from": source, "help": row.help})
    return rows


def wrong() -> list[str]:
    """The errors that init() would raise for the settings of this environment."""
    found = list(settings.wrong())
    checks = {"transport": settings.get_transport, "ports": address.port_range, "secret": secret.find,
              "backend": lambda: registry.choose(settings.get("ARRAYCOMM_BACKEND") or registry.DEFAULT),
              "algorithm": importlib.import_module(f"{__package__}.backends.socket.communicator").wanted_algorithms}
    for check in checks.values():
        try:
            check()
        except (DistError, ValueError) as error:
            found.append(str(error))
    return found


def selection(environ: Mapping[str, str]) -> dict[str, Any]:
    """The contents of the selection file (ARRAYCOMM_TUNING), or the reason why it is invalid. measured_here: the engine's table
    was measured on machines like this one."""
    found: dict[str, Any] = {"path": None, "machine": None, "choices": [], "error": None,
                             "measured_here": tuning.is_measured(tuning.machine())}
    try:
        tuned = tuning.current(environ)
    except ValueError as error:
        return found | {"path": settings.get(tuning.VARIABLE, environ), "error": str(error)}
    if tuned is None:
        return found
    return found | {"path": tuned.path, "machine": dict(tuned.machine), "measured": tuned.measured,
                    "choices": [choice._asdict() for choice in tuned.choices]}


def network(environ: Mapping[str, str]) -> dict[str, Any]:
    """The interfaces, and the addresses that a rank would publish here for the store of its environment."""
    found: dict[str, Any] = {"launcher": None, "store": address.loopback_address(), "publish": [], "outside": None, "errors": [],
                             "wrong": False}
    found["interfaces"] = [{"name": i.name, "address": i.address} for i in address.interfaces()]
    try:
        place = environment.detect(environ)
        if place is not None:
            found |= {"launcher": place.launcher, "store": place.host or address.loopback_address()}
        port = place.port if place is not None and place.port else 0
        found["publish"] = address.publish_addresses(found["store"], port)
    except (DistError, ValueError) as error:
        found["errors"].append(str(error))
        found["wrong"] = True
    try:
        found["outside"] = address.outside_address()
    except DistError as error:
        found["errors"].append(str(error))
    return found


def collect() -> dict[str, Any]:
    """The whole output, as JSON types."""
    return {"versions": versions(), "backends": backends(), "libraries": libraries(), "gpus": gpus(), "operations": table(),
            "settings": settings_in_use(os.environ), "selection": selection(os.environ),
            "wrong": wrong(), "unknown": settings.unknown(set()), "network": network(os.environ)}


def render(found: Mapping[str, Any]) -> str:
    """The output as text."""
    lines = ["Versions"]
    lines += [f"  {name:<12} {version or 'not installed'}" for name, version in found["versions"].items()]
    lines += ["", "Backends"]
    for name, reason in found["backends"].items():
        lines.append(f"  {name:<12} {reason or 'available'}")
        lines += [f"  {'':<12} {key}: {value}" for key, value in found["libraries"].get(name, {}).items()]
    lines += ["", "GPUs", *(f"  {key:<12} {value}" for key, value in found["gpus"].items())]
    gpus = any(name.startswith("GPU ") for name in found["gpus"])
    lines += ["", "Operations: the backends that can be used here, by device", *_grid(found["operations"], gpus)]
    lines += ["", "Network", *_network_lines(found["network"])]
    lines += ["", "Algorithms", *_selection_lines(found["selection"])]
    lines += ["", "Settings"]
    for row in found["settings"]:
        value = row["value"] or '""'
        lines.append(f"  {row['name']:<29} {value:<10} {row['from']:<18} {row['help']}")
    for name, likely in found["unknown"].items():
        lines.append(f"  {name:<29} is no setting and changes nothing{f'; is {likely} meant?' if likely else ''}")
    lines += ["", "Wrong settings", *(f"  {text}" for text in found["wrong"])] if found["wrong"] else []
    return "\n".join(lines)


def _grid(rows: Mapping[str, Mapping[str, list[str]]], gpus: bool) -> list[str]:
    columns = [name for name in next(iter(rows.values())) if gpus or name == "cpu"]
    lines = ["  " + f"{'':<15}" + "".join(f"{name:<14}" for name in columns)]
    for operation, devices in rows.items():
        cells = (",".join(devices[name]) or "-" for name in columns)
        lines.append("  " + f"{operation:<15}" + "".join(f"{cell:<14}" for cell in cells))
    return [line.rstrip() for line in lines]


def _selection_lines(found: Mapping[str, Any]) -> list[str]:
    if found["path"] is None:
        here = tuning.machine()
        known = ", ".join(f"{maker} of {cores} processors" for maker, cores in tuning.MEASURED)
        return [f"  by the engine's own table, measured on {known}",
                "  `arraycomm-bench tune -o tuning.json` measures this machine" if found["measured_here"] else
                f"  this machine ({here['cpu']}, {here['cores']} processors) is unlike any of these: measure it, "
                "`arraycomm-bench tune -o tuning.json`, and set ARRAYCOMM_TUNING=tuning.json"]
    if found["error"]:
        return [f"  {found['error']}"]
    lines = [f"  by {found['path']}, {found['measured']}; the engine's own table for the rest"]
    for choice in found["choices"]:
        where = f"{choice['operation']} over {choice['transport']}, {choice['ranks']} ranks"
        lines.append(f"  {where:<37} {tuning.described(choice['picks'])}")
    return lines


def _network_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"  {entry['name']:<12} {entry['address']}" for entry in found["interfaces"]]
    if found["launcher"]:
        lines.append(f"  this process is a rank by {found['launcher']}")
    if found["publish"]:
        lines.append(f"  store at {found['store']}: this rank would publish {', '.join(found['publish'])}")
    if found["outside"]:
        lines.append(f"  other hosts reach this machine at {found['outside']}")
    return lines + [f"  {error}" for error in found["errors"]]


@command
def main(arguments: list[str] | None = None) -> int:
    """0; 1 when no backend can be used here, or a setting is wrong."""
    parser = argparse.ArgumentParser(prog="arraycomm-info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    add_version(parser)
    given = parser.parse_args(arguments)
    try:
        found = collect()
    except DistBackendError as error:
        print(f"arraycomm-info: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1) if given.json else render(found))
    wrong = found["wrong"] or found["selection"]["error"] or found["network"]["wrong"]
    return 1 if wrong or None not in found["backends"].values() else 0


if __name__ == "__main__":
    sys.exit(main())
