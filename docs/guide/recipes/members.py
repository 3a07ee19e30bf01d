"""Members that come and go: three workers take steps together, one is killed, the others go on, and a new one joins them.

    python3 -m venv .venv && .venv/bin/pip install -q '.[numpy]'
    .venv/bin/python docs/guide/recipes/members.py

The store is served by the process that starts the workers, which stays. Every change of members is one reconfigure() of the
same group, with a number of its own.
"""

import json
import multiprocessing
import os
import signal
from datetime import timedelta

import numpy as np

import arraycomm
from arraycomm import dist2

TIMEOUT = timedelta(seconds=30)
STEPS_TOGETHER = 5  # of the last members, before they end


def say(text):
    print(f"{text}\n", end="", flush=True)  # in one piece: several processes write


def worker(number, port):
    store = dist2.TCPStore("127.0.0.1", port, timeout=TIMEOUT)
    group = dist2.new_group("gloo", TIMEOUT, "cpu", store=store, enable_reconfigure=True)
    mine = group.get_reconfigure_handle()
    store.queue_push("applicants", mine)
    plan = json.loads(store.get(f"plan for {mine}"))  # waits to be let in
    state = np.zeros(2)  # steps so far, and the sum of what they gave: what training would have in its weights
    while True:
        enter(group, plan, state)
        if group.rank() == 0:
            say(f"change {plan['change']}: {group.size()} members, after {int(state[0])} steps")
        members, plan = plan["members"], steps(number, group, plan, state, store)
        if plan is None:
            break
        assert plan["members"] != members
    say(f"worker {number} has ended as rank {group.rank()} of {group.size()}")
    group.shutdown()


def enter(group, plan, state):
    """Become the plan's members. Some may have ended one step more than others: rank 0's state counts."""
    group.reconfigure(dist2.ReconfigureOptions(plan["change"], plan["members"], TIMEOUT)).wait()
    group.broadcast(state, 0).wait()


def steps(number, group, plan, state, store):
    """Steps until the members change: who they are to be then. None at the end."""
    members, change = plan["members"], plan["change"] + 1
    together = 0
    while plan["change"] < 3 or together < STEPS_TOGETHER:
        try:
            if number == 1 and together == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            x = np.ones(1)
            group.allreduce(x).wait()
            state += [1, x[0]]
            together += 1
            applicant = group.core.broadcast_object(next_applicant(store) if group.rank() == 0 else None, 0)
        except arraycomm.PeerLost as error:
            return {"change": change, "members": [handle for rank, handle in enumerate(members) if rank not in error.ranks]}
        if applicant is not None:
            plan = {"change": change, "members": [*members, applicant]}
            if group.rank() == 0:
                store.set(f"plan for {applicant}", json.dumps(plan))
            return plan
    return None


def next_applicant(store):
    return store.queue_pop("applicants", block=False).decode() if store.queue_len("applicants") else None


def main():
    context = multiprocessing.get_context("spawn")
    store = dist2.TCPStore("127.0.0.1", 0, is_master=True, timeout=TIMEOUT)

    def start(number):
        process = context.Process(target=worker, args=(number, store.port))
        process.start()
        return process

    workers = [start(number) for number in range(3)]
    members = [store.queue_pop("applicants").decode() for _ in workers]
    for handle in members:
        store.set(f"plan for {handle}", json.dumps({"change": 1, "members": members}))
    workers[1].join()
    say(f"worker 1 was ended by signal {-workers[1].exitcode}")
    workers[1] = start(3)
    for process in workers:
        process.join()
    say(f"exit codes: {[process.exitcode for process in workers]}")


if __name__ == "__main__":
    main()
