"""Random programs: operations and JAX's transformations put into each other at random, beside what they mean.

A program is a function of this rank's x (a vector) and of k, an integer that is the same on all ranks. Beside it stands what
it does to all ranks' vectors at once, by NumPy or by JAX without a collective: that is what is expected. A task of
conformance/worlds.py; more programs: arraycomm-run --nproc-per-node 4 -m tests.frameworks.jax.nested FIRST LAST
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

from ...conformance.worlds import Context

LENGTH = 32  # of x; halved by each vmap, and cut into as many parts as ranks
DEPTH = 3


class Step(NamedTuple):
    """A function of (x, k), and the same of all ranks' x as rows, by the library xp (NumPy or JAX's)."""

    text: str
    own: Callable[[Any, Any], Any]
    together: Callable[[Any, Any, Any], Any]  # (xs, k, xp)


class Maker:
    """Makes the same program on every rank, from the same seed."""

    def __init__(self, group: arraycomm.Group, seed: int, numpy: bool) -> None:
        self.group, self.n, self.random = group, group.size, random.Random(seed)
        self.nests = [self.jit, self.cond, self.switch, self.scan, self.loop, self.whiled, self.vmap, self.checkpoint,
                      self.custom]
        if not numpy:
            self.nests.append(self.gradient)

    # ---- one operation ----

    def operation(self) -> Step:
        make = self.random.choice([self.all_reduce, self.extreme, self.all_gather, self.reduce_scatter, self.all_to_all,
                                   self.broadcast, self.reduce, self.permute, self.tree, self.barrier])
        return make()

    def all_reduce(self) -> Step:
        ways: list[tuple[str | arraycomm.ReduceOp, float]] = [
            ("sum", 1.0), ("avg", 1 / self.n), (arraycomm.premul_sum(0.25), 0.25)]
        op, factor = self.random.choice(ways)
        return Step(f"all_reduce {op}", lambda x, k: comm.all_reduce(x, op, group=self.group),
                    lambda xs, k, xp: xp.broadcast_to(xs.sum(0) * factor, xs.shape))

    def extreme(self) -> Step:
        op = self.random.choice(["min", "max"])
        return Step(op, lambda x, k: comm.all_reduce(x, op, group=self.group),
                    lambda xs, k, xp: xp.broadcast_to(getattr(xp, op)(xs, 0), xs.shape))

    def all_gather(self) -> Step:
        form, n = self.random.choice(["concat", "stack"]), self.n
        weights = np.arange(1, n + 1, dtype=np.float32) / n

        def own(x: Any, k: Any) -> Any:
            return weights @ comm.all_gather(x, form=form, group=self.group).reshape(n, -1)

        return Step(f"all_gather {form}", own, lambda xs, k, xp: xp.broadcast_to(weights @ xs, xs.shape))

    def reduce_scatter(self) -> Step:
        n, op = self.n, self.random.choice(["sum", "avg"])

        def together(xs: Any, k: Any, xp: Any) -> Any:
            return xp.tile((xs.sum(0) / (n if op == "avg" else 1)).reshape(n, -1), (1, n))

        return Step(f"reduce_scatter {op}", lambda x, k: jnp.tile(comm.reduce_scatter(x, op, group=self.group), n), together)

    def all_to_all(self) -> Step:
        n = self.n
        return Step("all_to_all", lambda x, k: comm.all_to_all(x, group=self.group),
                    lambda xs, k, xp: xp.swapaxes(xs.reshape(n, n, -1), 0, 1).reshape(xs.shape))

    def broadcast(self) -> Step:
        root = self.random.randrange(self.n)
        return Step(f"broadcast {root}", lambda x, k: comm.broadcast(x, root, group=self.group),
                    lambda xs, k, xp: xp.broadcast_to(xs[root], xs.shape))

    def reduce(self) -> Step:
        root = self.random.randrange(self.n)
        only = np.eye(self.n, dtype=np.float32)[root][:, None]
        return Step(f"reduce {root}", lambda x, k: x + comm.reduce(x, root, group=self.group),
                    lambda xs, k, xp: xs + only * xs.sum(0))

    def permute(self) -> Step:
        ranks = list(range(self.n))
        pairs = list(zip(self.random.sample(ranks, self.n), self.random.sample(ranks, self.n), strict=True))
        pairs = pairs[: self.random.randint(1, self.n)]
        moved = np.zeros((self.n, self.n), np.float32)
        for source, dest in pairs:
            moved[dest, source] = 1
        return Step(f"permute {pairs}", lambda x, k: 0.5 * x + comm.permute(x, pairs, group=self.group),
                    lambda xs, k, xp: 0.5 * xs + moved @ xs)

    def tree(self) -> Step:
        def own(x: Any, k: Any) -> Any:
            half = len(x) // 2
            found = comm.all_reduce_tree({"a": x[:half], "b": (x[half:], 2 * x)}, "avg", group=self.group, bucket_bytes=40)
            return jnp.concatenate([found["a"], found["b"][0]]) + found["b"][1]

        return Step("tree", own, lambda xs, k, xp: xp.broadcast_to(3 * xs.mean(0), xs.shape))

    def barrier(self) -> Step:
        def own(x: Any, k: Any) -> Any:
            comm.barrier(group=self.group)
            return x

        return Step("barrier", own, lambda xs, k, xp: xs)

    def local(self) -> Step:
        rank, ranks = self.group.rank, np.arange(self.n, dtype=np.float32)[:, None]
        return Step("local", lambda x, k: jnp.sin(x + 0.3 * rank + 0.1 * k),
                    lambda xs, k, xp: xp.sin(xs + 0.3 * ranks + 0.1 * k))

    # ---- programs in programs ----

    def program(self, depth: int) -> Step:
        steps = []
        for _ in range(self.random.randint(1, 3)):
            nest = depth > 0 and self.random.random() < 0.7
            steps += [self.random.choice(self.nests)(depth - 1) if nest else self.operation(), self.local()]

        def own(x: Any, k: Any) -> Any:
            for step in steps:
                x = step.own(x, k)
            return x

        def together(xs: Any, k: Any, xp: Any) -> Any:
            for step in steps:
                xs = step.together(xs, k, xp)
            return xs

        return Step("(" + "; ".join(step.text for step in steps if step.text != "local") + ")", own, together)

    def jit(self, depth: int) -> Step:
        inner, wrap = self.program(depth), self.random.choice([jax.jit, comm.jit])
        return Step(f"jit{inner.text}", wrap(inner.own), inner.together)

    def cond(self, depth: int) -> Step:
        even, odd = self.program(depth), self.program(depth)
        return Step(f"cond({even.text} or {odd.text})", lambda x, k: jax.lax.cond(k % 2 == 0, even.own, odd.own, x, k),
                    lambda xs, k, xp: (odd if k % 2 else even).together(xs, k, xp))

    def switch(self, depth: int) -> Step:
        cases = [self.program(depth - 1), self.operation(), self.local()]
        return Step(f"switch({', '.join(case.text for case in cases)})",
                    lambda x, k: jax.lax.switch(k % 3, [case.own for case in cases], x, k),
                    lambda xs, k, xp: cases[k % 3].together(xs, k, xp))

    def scan(self, depth: int) -> Step:
        inner, reverse = self.program(depth), self.random.random() < 0.5
        turns = [2, 1, 0] if reverse else [0, 1, 2]

        def own(x: Any, k: Any) -> Any:
            def body(x: Any, i: Any) -> tuple[Any, Any]:
                x = inner.own(x, k + i)
                return x, x * (i + 1)

            last, seen = jax.lax.scan(body, x, jnp.arange(3), reverse=reverse)
            return last + seen[1]

        def together(xs: Any, k: Any, xp: Any) -> Any:
            seen = []
            for i in turns:
                xs = inner.together(xs, k + i, xp)
                seen.append(2 * xs)
            return xs + seen[1]

        return Step(f"scan{inner.text}", own, together)

    def loop(self, depth: int) -> Step:
        inner = self.program(depth)
        return Step(f"fori{inner.text}", lambda x, k: jax.lax.fori_loop(0, 2, lambda i, x: inner.own(x, k + i), x),
                    lambda xs, k, xp: inner.together(inner.together(xs, k, xp), k + 1, xp))

    def whiled(self, depth: int) -> Step:
        """A loop whose number of turns only its data know; without a derivative backwards, so it is left out of gradients."""
        inner = self.program(depth)

        def own(x: Any, k: Any) -> Any:
            start = jax.lax.stop_gradient(x)
            return x + jax.lax.while_loop(lambda s: s[1] % 3 > 0, lambda s: (inner.own(s[0], s[1]), s[1] + 1), (start, k + 1))[0]

        def together(xs: Any, k: Any, xp: Any) -> Any:
            whole, k = xs, k + 1
            xs = xs if xp is np else jax.lax.stop_gradient(xs)
            while k % 3 > 0:
                xs, k = inner.together(xs, k, xp), k + 1
            return whole + xs

        return Step(f"while{inner.text}", own, together)

    def vmap(self, depth: int) -> Step:
        """Over halves of x, and over k where the halves are to differ."""
        if self.n * 2 > LENGTH >> (DEPTH - depth):
            return self.operation()
        inner, by_k = self.program(depth), self.random.random() < 0.5

        def own(x: Any, k: Any) -> Any:
            halves = x.reshape(-1, 2)
            return jax.vmap(inner.own, (1, 0 if by_k else None), 1)(halves, k + jnp.arange(2) if by_k else k).reshape(-1)

        def together(xs: Any, k: Any, xp: Any) -> Any:
            halves = [inner.together(xs.reshape(self.n, -1, 2)[:, :, i], k + i * by_k, xp) for i in range(2)]
            return xp.stack(halves, 2).reshape(xs.shape)

        return Step(f"vmap{inner.text}", own, together)

    def checkpoint(self, depth: int) -> Step:
        nests = self.nests
        self.nests = [nest for nest in nests if nest != self.whiled]  # JAX has no derivative of while_loop with effects there
        inner, self.nests = self.program(depth), nests
        return Step(f"checkpoint{inner.text}", jax.checkpoint(inner.own), inner.together)

    def custom(self, depth: int) -> Step:
        """A derivative of its own, which is the true one."""
        inner = self.program(depth)

        @jax.custom_vjp
        def own(x: Any, k: Any) -> Any:
            return inner.own(x, k)

        own.defvjp(lambda x, k: jax.vjp(lambda x: inner.own(x, k), x), lambda back, given: (*back(given), None))
        return Step(f"custom{inner.text}", own, inner.together)

    def gradient(self, depth: int) -> Step:
        """The gradient of all ranks' sums as a value."""
        inner = self.program(depth)
        return Step(f"grad{inner.text}", jax.grad(lambda x, k: inner.own(x, k).sum()),
                    lambda xs, k, xp: jax.grad(lambda xs: inner.together(xs, k, xp).sum())(xs))


def check(context: Context, seed: int) -> None:
    """Values by NumPy in float64, or by JAX where there are gradients within; the gradient; the argument, which is untouched."""
    n, rank = context.size, context.rank
    inputs = np.random.default_rng(seed).normal(size=(n, LENGTH)).astype(np.float32)
    numpy, k = seed % 2 == 0, seed % 5
    step = Maker(context.group, seed, numpy).program(DEPTH)
    label = f"seed {seed}: {step.text}"
    weights = np.arange(1, LENGTH + 1, dtype=np.float32) / LENGTH

    want = step.together(inputs.astype(np.float64), k, np) if numpy else step.together(jnp.asarray(inputs), k, jnp)
    by_all = jax.grad(lambda xs: (step.together(xs, k, jnp) @ weights).sum())(jnp.asarray(inputs))
    x, ways = jnp.asarray(inputs[rank]), [jax.jit, comm.jit]
    for way in ways if seed % 3 else [*ways, lambda f: f]:
        found = way(step.own)(x, k)
        context.check(np.allclose(found, want[rank], rtol=2e-3, atol=2e-3), f"{label}, {way}: {found}, not {want[rank]}")
        value, slope = way(jax.value_and_grad(lambda x, k: step.own(x, k) @ weights))(x, k)
        context.check(np.allclose(value, want[rank] @ weights, rtol=2e-3, atol=2e-3), f"{label}, {way}: value {value}")
        close = np.allclose(slope, by_all[rank], rtol=5e-3, atol=5e-3 * (1 + float(abs(by_all).max())))
        context.check(close, f"{label}, {way}: gradient {slope}, not {by_all[rank]}")
    context.check(np.array_equal(x, inputs[rank]), f"{label}: the argument was written")
    given = jnp.array(inputs[rank])
    found = jax.jit(step.own, donate_argnums=0)(given, k)
    context.check(np.allclose(found, want[rank], rtol=2e-3, atol=2e-3), f"{label}, donated: {found}, not {want[rank]}")


def programs(context: Context, first: int, last: int) -> None:
    for seed in range(first, last):
        check(context, seed)


if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        outcome = Context(world)
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            check(outcome, number)
            if outcome.failures:
                print(f"rank {world.rank}", *outcome.failures, sep="\n", flush=True)
                outcome.failures.clear()
        print(f"rank {world.rank}: seeds {sys.argv[1]} to {sys.argv[2]} ended", flush=True)
