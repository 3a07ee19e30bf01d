"""Training in JAX goes on when a rank dies: the others form a group of those who are left, and a new rank joins them later.

    python3 -m venv .venv && .venv/bin/pip install -q '.[jax]'
    .venv/bin/python examples/jax_elastic.py 3 20   # three ranks; 20 are killed, one after the other, and replaced
    .venv/bin/python examples/jax_elastic.py 1 0    # the same losses, but for rounding: a step's batch is the same for any ranks
The process that starts the ranks serves the store in which new ones ask to be let in. No compiled program contains the group."""
import json
import multiprocessing
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import arraycomm
import arraycomm.frameworks.jax as comm
from arraycomm import dist2

ROWS, STEPS, optimizer = 60, 200, optax.adam(1e-3)
PARAMS = {"w1": np.random.default_rng(1).normal(size=(16, 32)) / 4, "w2": np.random.default_rng(2).normal(size=(32, 1)) / 6}
LOSS_AND_PARAMS = ravel_pytree((0.0, PARAMS))[1]  # from one vector

@jax.jit
def gradients(params, x, y):  # and the loss: this rank's part, in one vector
    return ravel_pytree(jax.value_and_grad(lambda p: jnp.sum((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2) / ROWS)(params))[0]

@jax.jit
def update(params, state, vector):
    changes, state = optimizer.update(LOSS_AND_PARAMS(vector)[1], state)
    return optax.apply_updates(params, changes), state

def work(port):
    store, params, state, step = dist2.TCPStore("127.0.0.1", port), PARAMS, jax.jit(optimizer.init)(PARAMS), 0
    group = meet(store, 0, 0, 1) if store.add("started", 1) == 1 else join(store)
    while True:
        try:
            first = int(np.argmax(group.all_gather(np.array([step]))))  # when a rank died, some had ended one step more
            leaves, form = jax.tree.flatten((params, state, step))
            leaves = [comm.broadcast(jnp.asarray(leaf), first, group=group) for leaf in leaves]
            params, state, step = jax.tree.unflatten(form, [*leaves[:-1], int(leaves[-1])])
            while not (plan := group.broadcast_object(look(store, group.size, step) if group.rank == 0 else None)):
                x = np.random.default_rng(step).normal(size=(ROWS, 16)).astype("f")
                y, mine = np.tanh(x.sum(axis=1, keepdims=True) / 4), slice(group.rank, None, group.size)
                vector = comm.all_reduce(gradients(params, x[mine], y[mine]), group=group)
                (params, state), step = update(params, state, vector), step + 1
                if group.rank == 0 and step % 10 == 0:
                    print(f"step {step}, {group.size} ranks, loss {float(np.asarray(vector)[0]):.6f}", flush=True)
            if plan == "end":
                return group.close()
            if larger := meet(store, plan[0], group.rank, plan[1]):
                group.close()
                group = larger
        except (arraycomm.PeerLost, arraycomm.Aborted):
            group = group.shrink()

def look(store, size, step):  # of rank 0: "end", or the number and size of the next era, when somebody is to be let in
    store.set("progress", json.dumps([size, step]))
    if step >= STEPS and store.check(["end"]):
        return "end"
    new = [store.queue_pop("applicants").decode() for _ in range(store.queue_len("applicants"))]
    if not new:
        return None
    era, larger = store.add("eras", 1), size + len(new)
    for rank, applicant in enumerate(new, size):
        store.set(f"plan for {applicant}", json.dumps([era, rank, larger]))
    return era, larger

def join(store):
    me = str(store.add("applications", 1))
    store.queue_push("applicants", me)
    return meet(store, *json.loads(store.get(f"plan for {me}"))) or join(store)

def meet(store, era, rank, size):  # None if a rank fails before all have met: the store keeps one verdict for all of them
    group, verdict = None, "met"
    try:
        group = arraycomm.init(store=store, rank=rank, world_size=size, name=f"era {era}")
        group.barrier()
    except arraycomm.DistError as error:
        verdict = str(error)
    if store.compare_set(f"era {era}", "", verdict) == b"met":
        return group
    if group:
        group.close()

def main(ranks, kills):
    context, store = multiprocessing.get_context("forkserver"), dist2.TCPStore("127.0.0.1", 0, is_master=True)
    workers: list[multiprocessing.process.BaseProcess] = []
    context.set_forkserver_preload(["optax", "arraycomm.frameworks.jax", "arraycomm.dist2"])  # imported once for all ranks
    for step in [*sorted(random.choices(range(STEPS), k=kills)), STEPS]:
        while len(workers) < ranks:
            workers.append(context.Process(target=work, args=(store.port,)))
            workers[-1].start()
        while (now := json.loads(store.get("progress"))) < [ranks, step] or now[0] < ranks:
            time.sleep(0.001)
        if step < STEPS:
            workers.pop(random.randrange(ranks)).kill()
            while json.loads(store.get("progress"))[0] != len(workers):  # the others have noticed, and nobody is on the way in
                time.sleep(0.001)
    store.set("end", "")
    for worker in workers:
        worker.join()
    print("exit codes", [worker.exitcode for worker in workers])

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
