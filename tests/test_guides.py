"""The blocks of Python in docs/guide that are no whole programs: each runs with what the text around it supposes."""

from __future__ import annotations

import doctest
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import arraycomm

from .test_readme import ENVIRON, LAUNCH, LIMIT, blocks, run


class Block(NamedTuple):
    """before and after surround the text; each of two ranks then prints `told`."""

    page: str
    number: int  # of the page's blocks
    before: str
    after: str
    told: str
    needs: str = "numpy"


BLOCKS = [
    Block("debug.md", 0, "import arraycomm; group = arraycomm.init()\n",
          "print('page', (server.url is None) == bool(group.rank))", "page True"),
    Block("jax.md", 0, "", "print(float(step(1.0, 2.0, 3.0 + group.rank)[1]))\ngroup.close()", "-6.0", "jax"),
    Block("torch.md", 0, "", "print('size', dist.get_world_size())\ndist.destroy_process_group()", "size 2", "torch"),
]
LOSS = "def loss_of(params, x, y): return (params * x - y) ** 2\n"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}-{block.number}")
def test_a_block(block: Block, tmp_path: Path) -> None:
    pytest.importorskip(block.needs)
    text = block.before + (LOSS if block.needs == "jax" else "") + blocks(f"docs/guide/{block.page}")[block.number] + block.after
    out = run(tmp_path / "program.py", text, *LAUNCH, "-n", "2")
    assert sorted(out.splitlines()) == [f"[rank {rank}] {block.told}" for rank in range(2)]


# Two ranks with a half of the rows each: each function's gradient is that of one process with all rows.
REPLICATE = (
    """
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, arraycomm
from flax import nnx
from arraycomm.frameworks import jax as comm
group = arraycomm.init()
all_x, all_y = jnp.arange(12.0).reshape(4, 3) / 10, jnp.array([0, 1, 1, 0])
mine = slice(2 * group.rank, 2 * group.rank + 2)
my_x, my_y, theta = all_x[mine], all_y[mine], jnp.array([0.5, -1.0, 2.0])
my_data, prior = my_x, lambda theta: -(theta ** 2).sum()
likelihood = lambda theta, rows: jnp.sin(rows @ theta).sum()
energy_of_pairs = lambda some, every: jnp.sin(some[:, None] * every).sum()
def loss_of(params, x=my_x, y=my_y):
    weights = params.kernel[...][:, 0] if isinstance(params, nnx.Module) else params
    return ((x @ weights - y) ** 2).mean()
""",
    """
def check(ours, whole, at):
    assert jnp.allclose(jax.grad(ours)(at), jax.grad(whole)(at), atol=1e-5), (ours, jax.grad(ours)(at), jax.grad(whole)(at))
check(logdensity, lambda theta: likelihood(theta, all_x) + prior(theta), theta)
log = lambda x, y, of: lambda theta: numpyro.infer.util.log_density(of, (x, y), {}, {"theta": theta})[0]
def plain(x, y):
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.factor("likelihood", dist.Bernoulli(logits=x @ theta).log_prob(y).sum())
check(log(my_x, my_y, model_of_numpyro), log(all_x, all_y, plain), theta)
check(energy, lambda position: energy_of_pairs(position, position), jnp.arange(4.0))
check(loss, lambda theta: loss_of(theta, all_x, all_y), theta)
assert jnp.allclose(model.kernel[...][:, 0], theta - 0.1 * jax.grad(lambda theta: loss_of(theta, all_x, all_y))(theta), atol=1e-5)
print("the gradients are right")
group.close()
""")


def test_replicate(tmp_path: Path) -> None:
    for package in ("numpyro", "flax", "optax"):
        pytest.importorskip(package)
    shown = next(block for block in blocks("docs/guide/jax.md") if "def logdensity" in block)
    functions, step = shown.replace("def model(", "def model_of_numpyro(").split("loss, grads = nnx")
    linear = """
import optax
model = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0))
model.kernel[...] = theta[:, None]
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
"""
    before, after = REPLICATE
    text = before + functions + linear + "value, grads = nnx" + step.replace("loss, grads", "value, grads") + after
    out = run(tmp_path / "program.py", text, *LAUNCH, "-n", "2")
    assert sorted(out.splitlines()) == [f"[rank {rank}] the gradients are right" for rank in range(2)]


@pytest.mark.parametrize("page", ["notebooks.md", "launch.md"])
def test_a_session(page: str) -> None:
    examples = doctest.DocTestParser().get_doctest(blocks(f"docs/guide/{page}")[0], {}, page, None, None)
    assert doctest.DocTestRunner().run(examples) == (0, 2)


def test_spawn(tmp_path: Path) -> None:
    shown = blocks("docs/guide/launch.md")[1].replace("        ...", "        return name, group.size")
    function, _, call = shown.partition("\narraycomm.spawn")
    text = f"import arraycomm\n{function}\nif __name__ == '__main__':\n    print(arraycomm.spawn{call.strip()})"
    assert run(tmp_path / "program.py", text) == f"{[('run 1', 4)] * 4}\n"


def test_when_a_rank_dies() -> None:
    """By threads: rank 1 has left, and the block gives the others a group of their own."""
    shown = compile(blocks("docs/guide/failures.md")[0], "failures.md", "exec")

    def work(group: arraycomm.Group) -> tuple[int, ...] | None:
        if group.rank == 1:
            return None
        names = {"group": group, "x": np.ones(2), "arraycomm": arraycomm}
        exec(shown, names)
        return names["group"].ranks  # type: ignore[attr-defined, no-any-return]

    assert arraycomm.run(work, 3) == [(0, 2), None, (0, 2)]


def test_all_ranks_recover_from_a_timeout() -> None:
    """As the page says: the late one too, by shrink()."""
    given_up = threading.Barrier(3)  # both others: else the late one may find all contributions, and succeed

    def work(group: arraycomm.Group) -> list[float]:
        if group.rank == 1:
            given_up.wait(LIMIT)
        with pytest.raises(arraycomm.CollectiveTimeout) as late:
            group.all_reduce(np.ones(1), timeout=0.2)
        if group.rank != 1:
            given_up.wait(LIMIT)
        assert late.value.ranks == (1,)
        return group.shrink().all_reduce(np.ones(1)).tolist()  # type: ignore[no-any-return]

    assert arraycomm.run(work, 3) == [[3.0]] * 3


def test_ray(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    path = tmp_path / "program.py"
    path.write_text(blocks("docs/guide/ray.md")[0])
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT, env=ENVIRON)
    assert done.returncode == 0 and done.stdout.count("array([2., 2., 2., 2.])") == 2, done.stdout + done.stderr
