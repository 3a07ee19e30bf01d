"""A job that hangs for a moment, and the page that says why.

    python3 -m venv .venv && .venv/bin/pip install -q '.[numpy]'
    .venv/bin/arraycomm-run --nproc-per-node 4 docs/guide/recipes/debug_page.py

Rank 2 comes late to the third step, as if its data did not arrive. Open the address that is printed in a browser on this
machine (`ssh -L 25999:127.0.0.1:PORT host` brings it elsewhere). The same state is JSON for a program: rank 0 prints the
page's first line. Needs NumPy. An argument of 600 seconds leaves time to look around.
"""

import json
import sys
import threading
import time
import urllib.request

import numpy as np

import arraycomm
from arraycomm.debug import start_debug_server

LATE = float(sys.argv[1]) if sys.argv[1:] else 3.0  # s


def watch(url):
    verdict = {"late": None}
    while not verdict["late"]:
        time.sleep(0.3)
        with urllib.request.urlopen(url.replace("/?", "/state?")) as answer:
            verdict = json.load(answer)["verdict"]
    print(verdict["headline"], flush=True)


with arraycomm.init() as group, start_debug_server(group) as server:
    if group.rank == 0:
        threading.Thread(target=watch, args=[server.url], daemon=True).start()
    gradients = np.ones(1 << 16, np.float32)
    for step in range(5):
        if group.rank == 2 and step == 2:
            time.sleep(LATE)  # the data that does not arrive
        group.all_reduce(gradients, op="avg", out=gradients)
