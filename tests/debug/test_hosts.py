"""The page of a job on two hosts: what the other host's ranks report comes over the network, authenticated."""

from __future__ import annotations

import pytest

from ..faults.job import Job
from ..hosts.hosts import Hosts, missing
from . import host_tasks
from .jobs import sent

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.parametrize("secret", ["54" * 32, ""])
def test_ranks_of_two_hosts_are_on_the_page(secret: str) -> None:
    """Without a secret, where the job has said that it runs without one."""
    with Hosts(2) as hosts:
        environ = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29400", "LOCAL_WORLD_SIZE": "1",
                   **({"ARRAYCOMM_SECRET": secret} if secret else {"ARRAYCOMM_INSECURE": "1"})}
        job = Job(2, environ=environ, spaces=hosts.names, tasks=host_tasks)
        try:
            state, stacks = job.call("page")[0]
        finally:
            job.close()
        assert [rank["rank"] for rank in state["ranks"]] == [0, 1] and state["verdict"]["level"] == "good"
        assert sent(state["ranks"])[1, 0] > 10 * 8 * 100_000 / 2, "links between the hosts are measured"
        assert "all_reduce" in stacks["0"] or "_look" in stacks["0"]
        assert "group.barrier()" in stacks["1"]
