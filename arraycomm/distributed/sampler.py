"""DistributedSampler: which indices of a dataset are this rank's.

The order is torch's for the same seed, whether torch is installed or not: its generator (MT19937 from a 32-bit seed,
M. Matsumoto and T. Nishimura, 1998) is Python's own, and its permutation is Fisher and Yates's, which draws `word % left`
from the front on. So ranks with and without torch agree.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterator, Sized

from .process_groups.groups import get_rank, get_world_size

_WORDS = 624  # words of MT19937's state
_MASK = 0xFFFFFFFF
_LONGEST = _MASK // 20  # torch draws 64 bits for each index from here on


class DistributedSampler:
    """Indices of a dataset for one of several ranks, anew for each iteration; as long on every rank.

    dataset: anything with a length. num_replicas, rank: None takes the default group's.
    shuffle: in an order that seed and epoch give, equal on all ranks; False: ascending.
    drop_last: leave the last indices away that do not fill all ranks, instead of repeating the first ones.

    Raises ValueError for a rank that is not below num_replicas, and without them before init_process_group().
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False) -> None:
        self.num_replicas = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"Invalid rank {self.rank}, rank should be in the interval [0, {self.num_replicas - 1}]")
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self.epoch = 0
        count = len(dataset)
        self.num_samples = count // self.num_replicas if drop_last else -(-count // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        order = permutation(count, self.seed + self.epoch) if self.shuffle else range(count)
        mine = range(self.rank, self.total_size, self.num_replicas)
        return iter([order[place % count] for place in mine])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Call it before each epoch, on all ranks; otherwise every epoch has the same order."""
        self.epoch = epoch


def permutation(count: int, seed: int) -> array[int]:
    """The numbers below `count` in the order of torch.randperm() with a generator of this seed."""
    if count >= _LONGEST:
        raise ValueError(f"the order of {count} indices is not defined: the limit is {_LONGEST - 1}; use shuffle=False")
    order = array("q", range(count))
    for place, word in enumerate(_words(count - 1, seed)):
        other = place + word % (count - place)
        order[place], order[other] = order[other], order[place]
    return order


def _words(count: int, seed: int) -> array[int]:
    """The first 32-bit words of the generator."""
    state = [seed & _MASK]
    for place in range(1, _WORDS):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + place) & _MASK)
    generator = random.Random()
    generator.setstate((3, (*state, _WORDS), None))
    words = array("I")
    if count > 0:
        words.frombytes(generator.getrandbits(32 * count).to_bytes(4 * count, "little"))
        if sys.byteorder == "big":
            words.byteswap()
    return words
