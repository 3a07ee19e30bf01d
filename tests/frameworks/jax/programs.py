"""What the ranks run. Every function is a task of conformance/worlds.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec

import arraycomm
import arraycomm.frameworks.jax as comm

from ...conformance.worlds import Context

ROWS, COLUMNS = 6, 5  # rows: a multiple of every size that is tested


def contribution(rank: int, dtype: str = "float32") -> np.ndarray:
    """What a rank gives; any rank can make every other's."""
    values = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) * (rank + 1) % 11 + rank
    return values.astype(jnp.dtype(dtype))


def _everyone(context: Context, dtype: str = "float32") -> list[np.ndarray]:
    return [contribution(rank, dtype) for rank in range(context.size)]


def _expected(context: Context) -> dict[str, np.ndarray]:
    """By NumPy, from all ranks' contributions."""
    rank, size, all_x = context.rank, context.size, _everyone(context)
    part = ROWS // size
    total: np.ndarray = reduce(np.add, all_x)
    return {
        "all_reduce": total,
        "all_reduce max": np.max(all_x, axis=0),
        "all_reduce avg": total / np.float32(size),
        "scan": reduce(np.add, all_x[: rank + 1]),
        "exscan max": np.max(all_x[:rank], axis=0) if rank else np.full_like(total, -np.inf),
        "all_gather": np.concatenate(all_x),
        "all_gather stack": np.stack(all_x),
        "reduce_scatter": total[rank * part:(rank + 1) * part],
        "all_to_all": np.concatenate([x[rank * part:(rank + 1) * part] for x in all_x]),
        "broadcast": all_x[size - 1],
        "reduce": total if rank == 1 else np.zeros_like(total),
        "permute": all_x[(rank - 1) % size],
        "permute some": all_x[0] if rank == 1 else np.zeros_like(total),
        "recv": all_x[0] if rank == 1 else all_x[rank],
    }


def _all_operations(context: Context, x: Any) -> dict[str, Any]:
    group, size = context.group, context.size
    pairs: Any = zip(range(size), [*range(1, size), 0], strict=True)
    found = {
        "all_reduce": comm.all_reduce(x, group=group),
        "all_reduce max": comm.all_reduce(x, "max", group=group),
        "all_reduce avg": comm.all_reduce(x, "avg", group=group),
        "scan": comm.scan(x, group=group),
        "exscan max": comm.exscan(x, "max", group=group),
        "all_gather": comm.all_gather(x, group=group),
        "all_gather stack": comm.all_gather(x, form="stack", group=group),
        "reduce_scatter": comm.reduce_scatter(x, group=group),
        "all_to_all": comm.all_to_all(x, group=group),
        "broadcast": comm.broadcast(x, size - 1, group=group),
        "reduce": comm.reduce(x, 1, group=group),
        "permute": comm.permute(x, pairs, group=group),
        "permute some": comm.permute(x, [(0, 1)], group=group),
        "recv": comm.recv(0, tag=3, group=group, like=x) if context.rank == 1 else x,
    }
    if context.rank == 0:
        comm.send(x, 1, tag=3, group=group)
    comm.barrier(group=group)
    return found


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda f: f, "jax.jit": jax.jit, "jit": comm.jit,
}


def operations(context: Context) -> None:
    expected = _expected(context)
    for way, wrap in WAYS.items():
        program = wrap(lambda x: _all_operations(context, x))
        for turn in range(2):
            found = program(jnp.asarray(contribution(context.rank)))
            for name, value in expected.items():
                context.check(isinstance(found[name], jax.Array), f"{way} {name}: {type(found[name])}")
                context.check(np.array_equal(found[name], value), f"{way} {name}, call {turn}: {found[name]}, not {value}")


def mixed_ways(context: Context) -> None:
    """Some ranks call it in a program, others outside, others with NumPy: the engine cannot tell."""
    group, way = context.group, list(WAYS.values())[context.rank % 3]
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        method, x = getattr(comm, name), contribution(context.rank)
        mine = getattr(group, name)(x) if context.rank == context.size - 1 else way(lambda x: method(x, group=group))(x)  # noqa: B023
        other = np.asarray(getattr(group, name)(x))
        context.check(np.array_equal(mine, other), f"{name}: {mine}, not {other}")


def dtypes(context: Context) -> None:
    """The bits of programs are those of Group."""
    names = ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn")
    for name in names:
        x = jnp.asarray(contribution(context.rank, name))
        op = "max" if name == "bool" else "sum"
        inside = comm.jit(lambda x: comm.all_reduce(x, op, group=context.group))(x)  # noqa: B023
        outside = context.group.all_reduce(np.asarray(x), op)
        context.check(inside.dtype == x.dtype, f"{name}: {inside.dtype}")
        context.check(np.asarray(inside).tobytes() == outside.tobytes(), f"{name}: {inside}, not {outside}")
    for shape in ((), (0,), (0, 3), (1, 1, 1)):
        x = jnp.full(shape, context.rank + 1.0)
        total = comm.jit(lambda x: comm.all_reduce(x, group=context.group))(x)
        gathered = comm.jit(lambda x: comm.all_gather(x, group=context.group))(x)
        n = context.size
        context.check(np.array_equal(total, np.full(shape, n * (n + 1) / 2)), f"all_reduce of {shape}")
        context.check(gathered.shape == ((n * shape[0], *shape[1:]) if shape else (n,)), f"all_gather of {shape}")


def order(context: Context) -> None:
    """Calls without any data between them, of one shape: another order would give other results, or a mismatch."""
    group, size = context.group, context.size
    ops = ["sum", "max", "min", "sum", "product"] * 4

    def program(xs: list[Any]) -> list[Any]:
        results = []
        for turn, (op, x) in enumerate(zip(ops, xs, strict=True)):
            results.append(comm.all_reduce(x, op, group=group))
            if turn % 3 == 0:
                comm.barrier(group=group)
            results.append(comm.broadcast(x, turn % size, group=group))
        return results

    xs = [jnp.full(3, float(turn + context.rank)) for turn in range(len(ops))]
    want = [np.asarray(y) for y in program(xs)]
    for way in ("jax.jit", "jit"):
        for found, expected in zip(WAYS[way](program)(xs), want, strict=True):
            context.check(np.array_equal(found, expected), f"{way}: {found}, not {expected}")


def order_of_programs(context: Context) -> None:
    """Programs that are started one after the other and not waited for, with eager calls between them."""
    group = context.group
    long = jax.jit(lambda x: comm.all_reduce(jax.lax.fori_loop(0, 40, lambda i, a: jnp.sin(a @ a), x), group=group))
    short = jax.jit(lambda x: comm.all_reduce(x[:2, :2], "max", group=group))
    other = comm.jit(lambda x: comm.all_reduce(x[:3, :3], "min", group=group))
    x = jnp.eye(300) * (context.rank + 1)
    for _ in range(3):
        first, second = long(x), short(x)
        third = comm.all_reduce(x[:2, :2], "sum", group=group)
        fourth = long(x)
        fifth = other(x)
        n = context.size
        for label, found, want in (("second", second, n), ("third", third, n * (n + 1) / 2), ("fifth", fifth, 1)):
            context.check(np.array_equal(found, want * np.eye(len(found), dtype=np.float32)), f"{label}: {found}")
        context.check(np.array_equal(first, fourth), "a program's result changed")


def control_flow(context: Context) -> None:
    group, size = context.group, context.size

    def scanned(x: Any) -> Any:
        def body(carry: Any, i: Any) -> tuple[Any, Any]:
            return comm.all_reduce(carry, group=group) / size + i, comm.broadcast(carry, 0, group=group)
        return jax.lax.scan(body, x, jnp.arange(3.0))

    def chosen(x: Any, which: Any) -> Any:
        return jax.lax.cond(which, lambda x: comm.all_reduce(x, group=group), lambda x: comm.all_reduce(x, "max", group=group), x)

    def repeated(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x[0] < 100, lambda x: comm.all_reduce(x, group=group), x)

    x = jnp.arange(4.0) + context.rank
    middle = np.arange(4) + (size - 1) / 2
    for way in ("jax.jit", "jit"):
        last, seen = WAYS[way](scanned)(x)
        context.check(np.allclose(last, middle + 3), f"{way} scan: {last}")
        context.check(np.allclose(seen, [np.arange(4), middle, middle + 1]), f"{way} scan: {seen}")
        context.check(np.array_equal(WAYS[way](chosen)(x, True), middle * size), f"{way} cond")
        context.check(np.array_equal(WAYS[way](chosen)(x, False), np.arange(4) + size - 1), f"{way} cond")
        found = WAYS[way](repeated)(jnp.ones(2))
        context.check(found[0] == next(size**k for k in range(9) if size**k >= 100), f"{way} while: {found}")


def mapped(context: Context) -> None:
    """vmap over every dimension is the operation on each slice."""
    group, size = context.group, context.size
    pairs = [(r, (r + 1) % size) for r in range(size)]
    functions: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: comm.all_reduce(x, group=group),
        "scan": lambda x: comm.scan(x, group=group),
        "all_gather": lambda x: comm.all_gather(x, group=group),
        "reduce_scatter": lambda x: comm.reduce_scatter(x, group=group),
        "all_to_all": lambda x: comm.all_to_all(x, group=group),
        "broadcast": lambda x: comm.broadcast(x, size - 1, group=group),
        "permute": lambda x: comm.permute(x, pairs, group=group),
    }
    x = jnp.asarray(np.arange(ROWS * ROWS * 2).reshape(ROWS, ROWS, 2) * (context.rank + 1), jnp.float32)
    for name, function in functions.items():
        for dim in range(3):
            want = np.stack([np.asarray(function(part)) for part in jnp.moveaxis(x, dim, 0)])
            found = jax.vmap(function, in_axes=dim)(x)
            context.check(np.array_equal(found, want), f"vmap of {name} over {dim}")
        found = comm.jit(jax.vmap(jax.vmap(function)))(x[:2])
        rows_of_rows = [[np.asarray(function(row)) for row in rows] for rows in x[:2]]
        context.check(np.array_equal(found, rows_of_rows), f"twice, in jit: {name}")
    rows = jnp.asarray(contribution(context.rank))
    if context.rank == 0:
        jax.vmap(lambda row: comm.send(row, 1, group=group), in_axes=1)(rows)
    elif context.rank == 1:
        got = jax.vmap(lambda row: comm.recv(0, group=group, like=row), in_axes=1)(rows)
        context.check(np.array_equal(got, contribution(0).T), "vmap of a message")


def sharded(context: Context) -> None:
    """Every operation, a tree, and its gradient inside shard_map, whose arrays say over which axes they vary."""
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    spec = PartitionSpec("devices")

    def mapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        program: Callable[[Any], Any] = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
        return program

    def reduced(x: Any) -> Any:
        return comm.all_reduce_tree({"a": x, "b": [2 * x]}, "avg", group=context.group, bucket_bytes=64)

    x, trees = jnp.asarray(contribution(context.rank)), mapped(reduced)
    mean = sum(_everyone(context)) / context.size
    operations = comm.jit(mapped(lambda x: _all_operations(context, x)))(x)
    for name, want in _expected(context).items():
        context.check(np.array_equal(operations[name], want), f"{name} in shard_map: {operations[name]}")
    gradient = comm.jit(jax.grad(lambda x: (trees(x)["a"] * x + trees(x)["b"][0]).sum()))(x)
    context.check(np.allclose(gradient, 2 * mean + 2), f"gradient in shard_map: {gradient}, not {2 * mean + 2}")
    for way in (lambda function: function, jax.jit, functools.partial(comm.jit, donate_argnums=0)):
        found = way(trees)(jnp.array(x))
        context.check(np.allclose(found["a"], mean) and np.allclose(found["b"][0], 2 * mean), f"{way}: {found}")


def jit_options(context: Context) -> None:
    group = context.group

    def function(x: Any, op: str, *, scale: int, extra: dict[str, Any]) -> Any:
        return {"y": comm.all_reduce(x, op, group=group) * scale + extra["a"]}

    program = comm.jit(function, static_argnums=1, static_argnames="scale", donate_argnums=0)
    for op, scale in (("sum", 2), ("max", 3), ("sum", 2)):
        x = jnp.full(300, context.rank + 1.0)
        found = program(x, op, scale=scale, extra={"a": jnp.ones(300)})["y"]
        reduced = context.size if op == "max" else context.size * (context.size + 1) / 2
        context.check(np.array_equal(found, np.full(300, reduced * scale + 1)), f"{op}: {found}")
        context.check(x.is_deleted(), "a donated argument is still there")
    context.check(comm.jit(lambda: comm.barrier(group=group))() is None, "a program of a barrier")
    decorated = comm.jit(donate_argnums=0)(lambda x: comm.all_reduce(x, group=group))
    context.check(np.array_equal(decorated(jnp.ones(2)), np.full(2, context.size)), "jit with options only")
    with jax.disable_jit():
        context.check(np.array_equal(decorated(jnp.ones(2)), np.full(2, context.size)), "jit where it is disabled")
    nested = comm.jit(lambda x: comm.jit(lambda x: comm.all_reduce(x, group=group))(x) + 1)
    context.check(np.array_equal(nested(jnp.ones(2)), np.full(2, context.size + 1)), "jit in jit")
    where = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    several = comm.jit(lambda x: (x, comm.all_reduce(x, group=group), x + 2), out_shardings=(where, None, where))
    context.check([float(result) for result in several(1.0)] == [1, context.size, 3], "shardings of results")


def ahead_of_time(context: Context) -> None:
    """A compiled program may be called again and again; JAX would have its second call lack a token."""
    group = context.group
    ways: tuple[Callable[..., Any], ...] = (jax.jit, comm.jit)
    for way in ways:
        program = way(lambda x: comm.all_reduce(x, group=group))
        x = jnp.ones(5)
        compiled = program.lower(x).compile()
        for turn in range(4):
            context.check(np.array_equal(compiled(x + turn), np.full(5, context.size * (1.0 + turn))), f"{way}, call {turn}")
        context.check(program.eval_shape(x).shape == (5,) and "all_reduce" in str(program.trace(x).jaxpr), "other ways ahead")
        program(x)
        program.clear_cache()
        context.check(np.array_equal(program(x), np.full(5, context.size)), "after clear_cache()")


def other_effects(context: Context) -> None:
    """In one program with others that are ordered, which keep their order."""
    group, seen = context.group, []

    def function(x: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, x[0], ordered=True)
        y = comm.all_reduce(x, group=group)
        io_callback(lambda v: seen.append(float(v)), None, y[0], ordered=True)
        return y

    program = comm.jit(function)
    for turn in range(3):
        program(jnp.full(2, turn + 1.0))
    jax.effects_barrier()
    expected = [value for turn in range(3) for value in (turn + 1.0, context.size * (turn + 1.0))]
    context.check(seen == expected, f"{seen} instead of {expected}")


def invalid_values(context: Context) -> None:
    """No collective runs a second time, as the other ranks are not in it."""
    group = context.group
    program = comm.jit(lambda x: (comm.all_reduce(x, group=group), jnp.log(x[0] - group.rank)))
    with jax.debug_nans(True):
        if context.rank == 0:
            context.check(float(program(jnp.ones(2))[1]) == 0, "nothing invalid")
        else:
            context.raises("a NaN", FloatingPointError, "would run the collectives again", lambda: program(jnp.zeros(2)))
    context.check(np.array_equal(program(jnp.full(2, 9.0))[0], np.full(2, 9 * context.size)), "the next program")


def donated(context: Context) -> None:
    """The result of a donated argument lies in its memory; one that is kept keeps its values."""
    group, n = context.group, context.size
    for way in (jax.jit, comm.jit):
        for operation, want in ((lambda x: comm.all_reduce(x, group=group), n), (lambda x: comm.broadcast(x, 0, group=group), 1)):
            x = jnp.ones(1000) + 0
            place = x.unsafe_buffer_pointer()
            y = way(operation, donate_argnums=0)(x)
            context.check(x.is_deleted() and y.unsafe_buffer_pointer() == place, f"{way}: the result lies elsewhere")
            kept = way(operation)(y)
            context.check(bool((y == want).all() and (kept == want * want).all()), f"{way}: {y[:2]}, {kept[:2]}")

        def again(x: Any) -> Any:
            made = x * 3
            total = comm.all_reduce(made, group=group)
            return made, total, comm.broadcast(total, 0, group=group) + made

        made, total, last = way(again)(jnp.ones(5))
        context.check(bool((made == 3).all() and (total == 3 * n).all() and (last == 3 * n + 3).all()), f"{way}: used twice")


@jax.tree_util.register_pytree_node_class
class Pair:
    """A tree of a program's own."""

    def __init__(self, first: Any, second: Any) -> None:
        self.parts = (first, second)

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> Pair:
        return cls(*parts)


def trees_and_keys(context: Context) -> None:
    """One array a call; keys are moved, and not reduced."""
    group, rank, x = context.group, context.rank, jnp.ones(2)
    keys = [jax.random.split(jax.random.key(r, impl=impl), 2) for impl in ("threefry2x32", "rbg") for r in range(2)]
    reductions: tuple[Any, ...] = (comm.all_reduce, comm.reduce, comm.reduce_scatter, comm.scan, comm.exscan)
    for way, wrap in WAYS.items():
        for tree in ([x, x], (x,), {"a": x}, [[1.0, 2.0], [1.0]], [1.0, 2.0], Pair(x, x), [keys[0]]):
            for function in (*reductions, comm.all_gather, comm.all_to_all, comm.broadcast):
                context.raises(f"{way} {function.__name__} of {type(tree).__name__}", TypeError, "one array.*all_reduce_tree",
                               partial(wrap(partial(function, group=group)), tree))
        for function in (*reductions, comm.all_reduce_tree):
            context.raises(f"{way} {function.__name__} of keys", TypeError, "random keys can be moved",
                           partial(wrap(partial(function, group=group)), keys[0]))
        for first, second in (keys[:2], keys[2:]):
            for name, found, want in _moved_keys(context, wrap, first if rank == 0 else second, first, second):
                alike = found.dtype == want.dtype and np.array_equal(jax.random.key_data(found), jax.random.key_data(want))
                context.check(alike, f"{way} {name}: {found}, not {want}")
    for tree in ([x, x], {"a": x}, Pair(x, x)):
        method: Callable[[Any], Any]
        for method in (group.all_reduce, group.broadcast, lambda t: group.send(t, 0)):
            context.raises("a tree for a method", TypeError, "all_reduce_tree", partial(method, tree))
    context.raises("None", TypeError, "one array", lambda: comm.all_reduce(None, group=group))
    arrived = group.broadcast_object({"keys": [keys[rank], keys[2]]})["keys"]
    context.check(all(np.array_equal(jax.random.key_data(a), jax.random.key_data(b))
                      for a, b in zip(arrived, (keys[0], keys[2]), strict=True)), f"keys in an object: {arrived}")


def _moved_keys(context: Context, wrap: Any, mine: Any, first: Any, second: Any) -> Iterator[tuple[str, Any, Any]]:
    """By ranks 0 and 1, which give `first` and `second`."""
    group, rank = context.group, context.rank

    def program(k: Any) -> dict[str, Any]:
        found = {"all_gather": comm.all_gather(k, group=group), "all_gather 0-d": comm.all_gather(k[0], group=group),
                 "all_to_all": comm.all_to_all(k, group=group), "broadcast": comm.broadcast(k, 1, group=group),
                 "permute": comm.permute(k, [(0, 1), (1, 0)], group=group),
                 "vmap": jax.vmap(lambda one: comm.broadcast(one, 1, group=group))(k),
                 "scan": jax.lax.scan(lambda state, one: (state, comm.broadcast(one, 1, group=group)), 0, k)[1]}
        if rank == 0:
            comm.send(k, 1, group=group)
        else:
            found["recv"] = comm.recv(0, group=group, like=k)
        return found

    wanted = {"all_gather": jnp.concatenate([first, second]), "all_gather 0-d": jnp.stack([first[0], second[0]]),
              "all_to_all": jnp.stack([first[rank], second[rank]]), "permute": second if rank == 0 else first, "recv": first}
    for name, found in wrap(program)(mine).items():
        yield name, found, wanted.get(name, second)


def aborted(context: Context) -> None:
    """A peer ends a program's operation: an exception of ours, and the memory that it was given may be used again."""
    group = context.group.split(0)
    assert group is not None
    program = comm.jit(lambda x: comm.all_reduce(x * 1, group=group))
    x = jnp.ones(70_000)
    context.check(bool((program(x) == context.size).all()), "before")
    context.group.barrier()  # nobody is still in what comes before
    if context.rank:
        group.abort("of the test")
    for call in ("under way", "afterwards") if context.rank == 0 else ():
        try:
            program(x)
            context.check(False, f"{call}: no error")
        except (arraycomm.Aborted, arraycomm.PeerLost) as error:
            context.check(f"rank {context.rank} of" in str(error) or "of the test" in str(error), f"{call}: {error}")
    others = [x + i for i in range(20)]
    context.check(all(bool((y == 1 + i).all()) for i, y in enumerate(others)), "other arrays were written")
    group.close("Test")
    again = comm.jit(lambda x: comm.all_reduce(x, group=context.group))(x)
    context.check(bool((again == context.size).all()), "another group")
