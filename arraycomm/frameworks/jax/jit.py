"""jit() for functions with collectives: fast dispatch, and arraycomm's own exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import effects
from jax._src.core import trace_ctx
from jax._src.interpreters import partial_eval as pe
from jax._src.lib.mlir.dialects import hlo
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from . import effect
from .errors import FOREIGN, check, raise_original

# A whole program: its collectives have their own tokens, so the effect ends here. JAX passes tokens of effects from one program
# to the next in Python, which takes longer than a small collective.
_region = Primitive("arraycomm_program")
_region.multiple_results = True


@_region.def_effectful_abstract_eval
def _abstract(*operands: Any, jaxpr: Any) -> tuple[Any, Any]:
    return [*jaxpr.out_avals, ShapedArray((), jnp.uint8)], jaxpr.effects - {effect.EFFECT}


@_region.def_impl
def _again(*operands: Any, jaxpr: Any) -> Any:
    """JAX executes a program again outside of jit where jax_debug_nans or jax_debug_infs has found something."""
    raise FloatingPointError("invalid value in a result of a program of arraycomm's jit. JAX's search for the operation that "
                             "produced it is off: the search would run the collectives again, on this rank alone")


def _lower(context: Any, *operands: Any, jaxpr: Any) -> Any:
    devices = getattr(context.module_context.axis_context, "num_devices", 1)
    if devices > 1 and effect.EFFECT in jaxpr.effects:
        raise ValueError(f"a program with collectives between ranks runs on one local device, this one is for {devices}, and "
                         "nothing would order their collectives: start a rank for each device")
    others = list(effects.ordered_effects.filter_in(jaxpr.effects - {effect.EFFECT}))
    own = mlir.TokenSet({effect.EFFECT: hlo.create_token(), **{other: context.tokens_in.get(other) for other in others}})
    results, tokens = mlir.jaxpr_subcomp(context.module_context, jaxpr.jaxpr, context.name_stack, own, (), *operands,
                                    dim_var_values=context.dim_var_values, const_lowering=context.const_lowering,
                                    outer_traceback=None)
    if others:
        context.set_tokens_out(mlir.TokenSet({other: tokens.get(other) for other in others}))
    return [*results, mlir.ir_constant(np.zeros((), np.uint8))]


mlir.register_lowering(_region, _lower)


def _program(fun: Callable[..., Any]) -> Callable[..., Any]:
    """fun as a region: returns (result, end); end is ready when the program has ended."""
    @functools.wraps(fun)
    def program(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]  # the others are static
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]

        def flat(*values: Any) -> Any:
            whole = list(leaves)
            for place, value in zip(places, values, strict=True):
                whole[place] = value
            args, kwargs = jax.tree.unflatten(tree, whole)
            return fun(*args, **kwargs)

        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*traced)
        jaxpr = pe.close_jaxpr(pe.convert_constvars_jaxpr(closed.jaxpr))
        *results, end = _region.bind(*closed.consts, *traced, jaxpr=jaxpr)
        return jax.tree.unflatten(jax.tree.structure(shape), results), end
    return program


def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Callable[..., Any]:
    """As jax.jit, for functions that call collectives: a call costs a few microseconds more than one without them.

    It returns when the program is through, so that errors are raised by the call, as our exceptions, and everything on
    this thread is in order with it. Inside other transformations it is jax.jit, and lower(), trace() and eval_shape() are
    jax.jit's. options: jax.jit's; with options only it gives a decorator.

    - Blocks: a call does, until the program is through.
    - Errors: those of the operations, as the package's own exceptions.

    Examples:
        >>> def work(group):
        ...     step = comm.jit(lambda x: comm.all_reduce(x, group=group) + 1)
        ...     return step(jnp.ones(1)).tolist()
        >>> arraycomm.run(work, 2)
        [[3.0], [3.0]]
    """
    if fun is None:
        return functools.partial(jit, **options)
    plain = jax.jit(fun, **options)
    if "out_shardings" in options:
        options["out_shardings"] = (options["out_shardings"], None)
    compiled = jax.jit(_program(fun), **options)

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not trace_ctx.is_top_level() or jax.config.jax_disable_jit:
            return plain(*args, **kwargs)
        try:
            effect.settle()
            result, end = compiled(*args, **kwargs)
            end.block_until_ready()
            check()
        except FOREIGN as error:
            raise_original(error)
        return result

    def clear_cache() -> None:
        plain.clear_cache()
        compiled.clear_cache()

    for name, ahead in (("lower", plain.lower), ("trace", plain.trace), ("eval_shape", plain.eval_shape),
                        ("clear_cache", clear_cache)):
        setattr(call, name, ahead)
    return call
