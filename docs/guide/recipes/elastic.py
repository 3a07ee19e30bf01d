"""Training that resumes from its last checkpoint: elastic.sh starts it, and starts it again when a rank has failed."""

import os
from pathlib import Path

import numpy as np

import arraycomm

STEPS, EVERY = 100, 10
CHECKPOINT = Path("checkpoint.npz")

with arraycomm.init() as group:
    begin, weights = 0, np.zeros(4)
    if group.rank == 0 and CHECKPOINT.exists():
        with np.load(CHECKPOINT) as file:
            begin, weights = int(file["step"]), file["weights"]
    begin, weights = group.broadcast_object((begin, weights))  # all ranks begin where the checkpoint ends
    print(f"begins at step {begin} of {STEPS}")
    for step in range(begin, STEPS):
        batch = np.random.default_rng((step, group.rank)).normal(1, 1, 4)
        weights += 0.1 * (group.all_reduce(batch, "avg") - weights)
        if group.rank == 0 and (step + 1) % EVERY == 0:
            with open("checkpoint.new", "wb") as file:
                np.savez(file, step=step + 1, weights=weights)
            os.replace("checkpoint.new", CHECKPOINT)       # whole, or not there
    print(f"has ended with {weights}")
