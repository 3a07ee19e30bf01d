"""Times init() and close() of some ranks of this host, on the slowest rank: python startup.py 64"""

import multiprocessing
import statistics
import sys
import time

import arraycomm

WORLDS = 5


def work(rank, together):
    times = []
    for _ in range(WORLDS):
        together.wait()  # all ranks begin at once
        begin = time.perf_counter()
        group = arraycomm.init()
        opened = time.perf_counter()
        together.wait()
        end = time.perf_counter()
        group.close()
        times.append((opened - begin, time.perf_counter() - end))
    return times


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    together = multiprocessing.get_context("spawn").Barrier(ranks)
    worlds = zip(*arraycomm.spawn(work, (together,), ranks), strict=True)
    (first, _), *later = [[1e3 * max(times) for times in zip(*world, strict=True)] for world in worlds]
    init, close = (statistics.median(times) for times in zip(*later, strict=True))
    print(f"{ranks} ranks: the first init(), with its imports, {first:.1f} ms; later ones {init:.1f} ms; close() {close:.1f} ms")
