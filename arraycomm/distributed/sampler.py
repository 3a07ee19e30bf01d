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
    """This rank's indices of a dataset, in a new order in each epoch. Every rank gets equally many. torch is not needed.

    Args:
        dataset: anything with a length.
        num_replicas: the number of ranks; None takes the default group's.
        rank: None takes the default group's.
        shuffle: True: in an order that seed and epoch give, equal on all ranks, and equal to torch's; False: ascending.
        drop_last: True omits the last indices that do not fill all ranks; False repeats the first ones.

    - Blocks: never; nothing is sent.
    - Errors: ValueError for a rank that is not below num_replicas, and without them before init_process_group().
    - Algorithm: the Mersenne Twister (Matsumoto, Nishimura 1998) and the shuffle of Fisher and Yates, as torch.randperm().

    Examples:
        >>> sampler = dist.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False)
        >>> sampler.set_epoch(1)
        >>> list(sampler), len(sampler)
        ([1, 3, 0], 3)
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
        """Sets the epoch, which the order depends on. Call it on all ranks before each epoch; otherwise the order is always the
        same.

        - Blocks: never; nothing is sent.
        - Errors: none; the order of an epoch that is no int is a TypeError later.
        """
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
