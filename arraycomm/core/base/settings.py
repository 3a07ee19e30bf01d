"""Every ARRAYCOMM_* variable in one table.

A setting is read when it is needed, never at import: a launcher or a test may set it in between. To add one, add a row, and run
`python -m tests.core.settings_page`, which writes docs/reference/settings.md; `arraycomm-info` prints the table. Foreign
variables that we honour stand in `fallbacks`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

OWN = "each its own"
_SHORTEST, _LONGEST = 0.001, 1e6  # seconds
EQUAL = "equal; compared when a world is opened"  # with different values ranks would deadlock or misread messages
MECHANISMS = ("exchange", "share", "ahead", "probe")  # what ARRAYCOMM_WITHOUT names; as the engine's acomm_without
CONNECTIONS = 64  # maximum per pair of ranks; as the engine's


class Setting(NamedTuple):
    name: str
    default: str
    help: str
    fallbacks: tuple[str, ...] = ()
    ranks: str = OWN  # whether ranks may have different values
    least: float = 0  # of a number, and
    most: float = math.inf
    whole: bool = False
    flag: bool = False


TABLE: dict[str, Setting] = {
    row.name: row
    for row in (
        Setting("ARRAYCOMM_TRANSPORT", "auto", "shm, tcp or auto (shared memory inside a host, TCP between hosts)", ranks=EQUAL),
        Setting("ARRAYCOMM_TUNING", "", "a selection file that `arraycomm-bench tune` wrote, equal on all ranks; read by init()",
                ranks=EQUAL),
        Setting("ARRAYCOMM_ALGORITHM", "", "overrides that file and the engine's table: all_reduce=whole:4096,barrier=shared",
                ranks=EQUAL),
        Setting("ARRAYCOMM_WITHOUT", "", f"mechanisms of the engine that are switched off: some of {','.join(MECHANISMS)} "
                "(docs/lab/mechanisms.md)", ranks=EQUAL),
        Setting("ARRAYCOMM_PIECE_BYTES", "0", "size of a shared-memory staging piece, a power of two (other sizes are rounded "
                "down), up to 1073741824; 0: automatic", ranks=EQUAL, most=1 << 30, whole=True),
        Setting("ARRAYCOMM_SOCKET_IFNAME", "", "interfaces: eth0,eth1, a prefix, =exact names or ^excluded ones",
                ("GLOO_SOCKET_IFNAME",)),
        Setting("ARRAYCOMM_SOCKET_CONNECTIONS", "0", "TCP connections per pair of ranks, up to 64; 0: one per interface",
                ranks="the largest value of all ranks counts", most=CONNECTIONS, whole=True),
        Setting("ARRAYCOMM_PORT_RANGE", "", "first-last: every listening socket takes its port from here"),
        Setting("ARRAYCOMM_HOSTID", "", "replaces the machine's identity in the test whether ranks are on one host",
                ranks="equal on a host"),
        Setting("ARRAYCOMM_CHECK", "1", "0: the ranks do not compare their operations", ranks=EQUAL,
                flag=True),
        Setting("ARRAYCOMM_TIMEOUT", "1800", "default timeout of operations, seconds", least=_SHORTEST),
        Setting("ARRAYCOMM_WAIT_NOTICE", "10", "seconds of waiting for other ranks before a line in the log names them, "
                "and again after six times as long; 0: never", most=_LONGEST),
        Setting("ARRAYCOMM_HEARTBEAT", "1", "seconds between heartbeats of the control connections", ranks=EQUAL, least=_SHORTEST,
                most=_LONGEST),
        Setting("ARRAYCOMM_SILENCE", "5", "seconds of silence after which a peer counts as lost", ranks=EQUAL, least=_SHORTEST,
                most=_LONGEST),
        Setting("ARRAYCOMM_BIND", "1", "0: arraycomm-run and spawn() do not bind ranks that share CPUs, see docs/guide/launch.md",
                flag=True),
        Setting("ARRAYCOMM_SECRET", "", "the job's secret, 64 hex digits or a text of 16 bytes or more",
                ranks="one secret: a rank with another is refused"),
        Setting("ARRAYCOMM_SECRET_FILE", "", "a file (mode 0600) that holds the job's secret", ranks="as above"),
        Setting("ARRAYCOMM_SECRET_FD", "", "an inherited descriptor to read the secret from; set by our launcher",
                ranks="as above"),
        Setting("ARRAYCOMM_INSECURE", "0", "1: run without a secret on addresses other than loopback too", flag=True),
        Setting("ARRAYCOMM_ALLOW_PICKLE", "0", "1: object collectives of arraycomm.distributed may pickle; set it on all ranks "
                "or on none, and only if every rank may run code in every other",
                ranks="equal; compared by object collectives", flag=True),
        Setting("ARRAYCOMM_DEBUG_ADDRESS", "", "the numeric address of rank 0's host at which the debug page is served; empty: "
                "loopback. Others than loopback need the token below; see docs/guide/debug.md"),
        Setting("ARRAYCOMM_DEBUG_TOKEN", "", "the debug page's token, 16 characters or more; empty: a new random one"),
        Setting("ARRAYCOMM_TRACE", "", "a folder to which ranks write their operations; `python -m arraycomm.trace` merges them",
                ranks="set on all, to any folder, or on none; compared when a world is opened"),
        Setting("ARRAYCOMM_STORE", "", "launcher@ADDRESS:PORT: the launcher serves the store there; set by our launcher",
                ranks="equal"),
        Setting("ARRAYCOMM_TORCH_STORE", "0", "1: the stores of the launchers and of arraycomm.distributed speak torch's "
                "protocol, which has no secret, between hosts too", flag=True),
        Setting("ARRAYCOMM_TORCH_AS", "", "gloo: requests of torch.distributed for gloo get arraycomm, see docs/guide/torch.md; "
                "set by arraycomm-run --as-gloo", ranks="set on all or on none"),
        Setting("ARRAYCOMM_MPI_LIBRARY", "", "path or name of the MPI library; else it is searched for, see docs/guide/mpi.md",
                ranks="the same library"),
        Setting("ARRAYCOMM_MPI_GPU", "", "1: arrays on GPUs are given to the MPI library, even if it does not say that it takes "
                "them; 0: they are staged; empty: the library is asked, see docs/guide/mpi.md",
                ranks="arrays are given to it if all ranks would", flag=True),
        Setting("ARRAYCOMM_NCCL_LIBRARY", "", "path of libnccl.so.2; else the loaded one, a package's or the system's"),
        Setting("ARRAYCOMM_NCCL_SYMMETRIC", "0", "1: group.empty() registers memory on GPUs with NCCL, which does not compare "
                "how ranks use it, see docs/guide/gpu.md", ranks="on if all ranks have it on", flag=True),
        Setting("ARRAYCOMM_BACKEND", "", "the backend, if init() names none",
                ranks="equal; compared at the rendezvous, except for ranks over MPI on several hosts"),
        Setting("ARRAYCOMM_JAX", "0", "1: JAX's own collectives between processes on CPUs run over arraycomm, see "
                "docs/guide/jax.md; set by `arraycomm-run --jax`", ranks="equal", flag=True),
        Setting("ARRAYCOMM_CUDART_LIBRARY", "", "path of libcudart.so, for arrays on GPUs; empty: it is searched for"),
    )
}


_PREFIX = "ARRAYCOMM_"
_OTHERS = ("BUILD_", "TEST_")  # prefixes of variables for builds and for our tests
_told: set[str] = set()


def check() -> None:
    """Validates every number and switch that is set, before a world is opened, whether init() needs it or not.

    Raises ValueError that names the variable.
    """
    for text in wrong():
        raise ValueError(text)


def wrong() -> Iterator[str]:
    """Error texts of the settings with invalid values."""
    for name in os.environ:
        row = TABLE.get(name) if name.startswith(_PREFIX) else None
        try:
            if row and row.flag:
                get_flag(name)
            elif name == "ARRAYCOMM_WITHOUT":
                without()
            elif row and (row.least or row.most < math.inf):
                get_number(name)
        except ValueError as error:
            yield str(error)


def unknown(told: set[str] = _told) -> dict[str, str]:
    """Variables with our prefix that are in no table, mostly misspelt, each with the most similar setting or "". Each is
    returned once and then added to `told`."""
    names = [name for name in os.environ if name.startswith(_PREFIX) and name not in TABLE and name not in told]
    names = [name for name in names if not name.removeprefix(_PREFIX).startswith(_OTHERS)]
    if not names:
        return {}
    from difflib import get_close_matches  # lazy: only needed here

    told.update(names)
    return {name: "".join(get_close_matches(name, TABLE, 1)) for name in names}


def get(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The value of a setting: its variable, else a fallback variable, else the default."""
    row = TABLE[name]
    env = os.environ if environ is None else environ
    for variable in (name, *row.fallbacks):
        if variable in env:  # faster than get(), which raises and catches KeyError for an unset variable
            value = env[variable]
            if value != "":
                return value
    return row.default


def get_transport() -> str:
    """ARRAYCOMM_TRANSPORT. Raises ValueError for an unknown value."""
    transport = get("ARRAYCOMM_TRANSPORT")
    if transport not in ("auto", "shm", "tcp"):
        raise ValueError(f"ARRAYCOMM_TRANSPORT must be shm, tcp or auto, got {transport!r}")
    return transport


def without() -> int:
    """ARRAYCOMM_WITHOUT, as the engine's number. Raises ValueError that names the variable."""
    names = get("ARRAYCOMM_WITHOUT").split(",")
    for name in names:
        if name and name not in MECHANISMS:
            raise ValueError(f"ARRAYCOMM_WITHOUT must be some of {','.join(MECHANISMS)}, got {name!r}")
    return sum(1 << bit for bit, name in enumerate(MECHANISMS) if name in names)


def get_number(name: str) -> float:
    """A numeric setting. Raises ValueError that names the variable and its range."""
    row, text = TABLE[name], get(name)
    try:
        value = int(text) if row.whole else float(text)
    except ValueError:
        value = math.nan
    if row.least <= value <= row.most:  # false for nan
        return value
    what, last = "a whole number" if row.whole else "a number", f" to {row.most:.12g}" if row.most < math.inf else " on"
    raise ValueError(f"{row.name} must be {what} from {row.least:g}{last}, got {text!r}")


def get_flag(name: str) -> bool:
    """A switch: 1, true, yes, on or 0, false, no, off. Raises ValueError that names the variable."""
    text = get(name).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{name} must be 0 or 1, got {text!r}")
