"""Training in JAX goes on when a rank dies: the others form a group of those who are left, and a new rank joins them later.

    python3 -m venv .venv && .venv/bin/pip install -q '.[jax]'
    .venv/bin/python examples/jax_elastic.py 3 20   # three ranks; 20 are killed, one or two at once, and replaced
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

import arraycomm
import arraycomm.frameworks.jax as comm
from arraycomm import dist2

ROWS, STEPS = 60, 200
optimizer = optax.adam(1e-3)
gradients = jax.jit(jax.value_and_grad(lambda p, x, y: jnp.sum((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2) / ROWS))
update = jax.jit(optimizer.update)

def work(port):
    store, rng = dist2.TCPStore("127.0.0.1", port), np.random.default_rng(0)
    params = {"w1": jnp.asarray(rng.normal(size=(16, 32)) / 4, "f"), "w2": jnp.asarray(rng.normal(size=(32, 1)) / 6, "f")}
    state, step = optimizer.init(params), 0
    group = meet(store, 0, 0, 1) if store.add("started", 1) == 1 else join(store)
    while True:
        try:
            params, state, step = agree(group, (params, state, step))
            while not (plan := group.broadcast_object(look(store, group.size, step) if group.rank == 0 else None)):
                x = np.random.default_rng(step).normal(size=(ROWS, 16)).astype("f")
                y, mine = np.tanh(x.sum(axis=1, keepdims=True) / 4), slice(group.rank, None, group.size)
                loss, grads = comm.all_reduce_tree(gradients(params, x[mine], y[mine]), "sum", group=group)
                changes, state = update(grads, state)
                params, step = optax.apply_updates(params, changes), step + 1
                if group.rank == 0 and step % 10 == 0:
                    print(f"step {step}, {group.size} ranks, loss {loss:.6f}", flush=True)
            if plan == "end":
                return group.close()
            if larger := meet(store, plan[0], group.rank, plan[1]):
                group.close()
                group = larger
        except (arraycomm.PeerLost, arraycomm.Aborted):
            group = group.shrink()

def agree(group, tree):  # all take the state of a rank that has done most steps: one more than others when a rank died
    first = int(np.argmax(group.all_gather(np.array([tree[2]]))))
    params, state, step = jax.tree.map(lambda x: comm.broadcast(jnp.asarray(x), first, group=group), tree)
    return params, state, int(step)

def look(store, size, step):  # of rank 0: "end", or the number and size of the next era, when somebody is to be let in
    store.set("progress", json.dumps([size, step]))
    if step >= STEPS and store.check(["end"]):
        return "end"
    new = [store.queue_pop("applicants").decode() for _ in range(store.queue_len("applicants"))]
    plan = (store.add("eras", 1), size + len(new)) if new else None
    for rank, applicant in enumerate(new, size):
        store.set(f"plan for {applicant}", json.dumps([plan[0], rank, plan[1]]))
    return plan

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
    return group if store.compare_set(f"era {era}", "", verdict) == b"met" else group and group.close()

def main(ranks, kills):
    context, store = multiprocessing.get_context("forkserver"), dist2.TCPStore("127.0.0.1", 0, is_master=True)
    context.set_forkserver_preload(["optax", "arraycomm.frameworks.jax", "arraycomm.dist2"])  # imported once for all ranks
    workers = []
    for step in [*sorted(random.choices(range(STEPS), k=kills)), STEPS]:
        while len(workers) < ranks:
            workers.append(context.Process(target=work, args=(store.port,)))
            workers[-1].start()
        while (now := json.loads(store.get("progress"))) < [ranks, step] or now[0] < ranks:
            time.sleep(0.001)
        if step < STEPS:
            workers.pop(random.randrange(ranks)).kill()
            store.set("progress", "[0, 0]")  # rank 0 may be just about to tell once more of the old group: then two die
    store.set("end", "")
    for worker in workers:
        worker.join()
    print(f"exit codes {[worker.exitcode for worker in workers]}")

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
