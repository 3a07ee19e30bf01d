"""`arraycomm-bench tune --hosts`: a world over network namespaces, each of which has a launcher of its own, as hosts have."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .spaces import Spaces, inside
from .tune_choose import Cell, from_samples
from .tune_measure import Plan

_PORT = 29500  # the namespaces have no other listeners
_LOOK_S = 0.5
_END_S = 10.0


def measure(hosts: int, rate: str | None, ranks: int, plan: Plan) -> list[Cell] | None:
    """The cells of a world of `ranks`. None when a launcher failed, which has been reported."""
    with ExitStack() as stack:
        spaces = stack.enter_context(Spaces(hosts, rate=rate))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arraycomm-bench-")))
        secret, samples = folder / "secret", folder / "samples"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        environ = {**os.environ, "ARRAYCOMM_SECRET_FILE": str(secret), "OMP_NUM_THREADS": "1"}
        launchers = [subprocess.Popen(inside(spaces.names[host]) + _command(host, spaces, ranks // hosts, plan, samples),
                                      env=environ, stdout=subprocess.DEVNULL) for host in range(hosts)]
        stack.callback(_end, launchers)
        return from_samples(json.loads(samples.read_text())["cells"]) if _wait(launchers) else None


def _command(host: int, spaces: Spaces, local: int, plan: Plan, samples: Path) -> list[str]:
    return [sys.executable, "-m", "arraycomm.launch", f"--nnodes={len(spaces.names)}", f"--node-rank={host}",
            f"--nproc-per-node={local}", f"--master-addr={spaces.address(0)}", f"--master-port={_PORT}", "--no-prefix",
            "-m", "arraycomm.bench", "tune", f"--ops={','.join(plan.operations)}", f"--transport={','.join(plan.transports)}",
            f"--sizes={','.join(map(str, plan.sizes))}", f"--rounds={plan.rounds}", f"--samples={samples}"]


def _wait(launchers: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether all ended well; does not wait for others once one has not."""
    waiting = list(launchers)
    while waiting:
        try:
            if waiting[0].wait(_LOOK_S):
                break
            waiting.pop(0)
        except subprocess.TimeoutExpired:
            waiting = waiting[1:] + waiting[:1]
    if waiting:
        print(f"arraycomm-bench tune: the launcher of a host ended with exit code {waiting[0].returncode}", file=sys.stderr)
    return not waiting


def _end(launchers: Sequence[subprocess.Popen[bytes]]) -> None:
    for launcher in launchers:
        launcher.terminate()  # it ends its ranks; nothing where it has ended
    for launcher in launchers:
        try:
            launcher.wait(_END_S)
        except subprocess.TimeoutExpired:
            launcher.kill()  # the kernel ends its ranks
            launcher.wait()
