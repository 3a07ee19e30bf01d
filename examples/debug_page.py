"""A job that hangs for a moment, and the page that says why.

    python3 -m venv .venv && .venv/bin/pip install -q '.[numpy]'
    .venv/bin/arraycomm-run --nproc-per-node 4 examples/debug_page.py

Rank 2 comes late to the third step, as if its data did not arrive. Open the address that is printed in a browser on this
machine (`ssh -L 25999:127.0.0.1:PORT host` brings it elsewhere). The same state is JSON for a program: rank 0 prints the
page's first line. Needs NumPy. `--seconds 600` leaves time to look around.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request

import numpy as np

import arraycomm
from arraycomm.debug import start_debug_server


def watch(url: str, done: threading.Event) -> None:
    """Prints the page's first line whenever who is late changes."""
    state_url, told = url.replace("/?", "/state?"), None
    while not done.wait(0.3):
        with urllib.request.urlopen(state_url) as answer:
            verdict = json.load(answer)["verdict"]
        if verdict["late"] != told:
            told = verdict["late"]
            print(verdict["headline"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0, help="how long rank 2 is late")
    seconds = parser.parse_args().seconds
    with arraycomm.init() as group, start_debug_server(group) as server:
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(server.url, done))
        if server.url is not None:  # rank 0
            print("open", server.url, flush=True)
            watcher.start()
        gradients = np.ones(1 << 16, np.float32)
        for step in range(5):
            if group.rank == 2 and step == 2:
                time.sleep(seconds)  # the data that does not arrive
            group.all_reduce(gradients, op="avg", out=gradients)
        group.barrier()
        done.set()
        if server.url is not None:
            watcher.join()
        group.barrier()


if __name__ == "__main__":
    main()
