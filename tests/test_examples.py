"""The programs in examples/ that no other test runs, each by the command that its docstring gives, and the notebook."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [ROOT / "examples" / name for name in ("data_parallel_arrays.py", "data_parallel_torch.py", "c_api.py")]


def command(path: Path) -> list[str]:
    """The indented line of the docstring, with this environment in place of the one that README.md makes."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith(".venv/bin/")]
    return shlex.split(line.replace(".venv/bin", str(Path(sys.executable).parent)))


def run(arguments: list[str], limit: float = 120.0) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=limit,
                          env={**environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    assert run(command(path)).strip()


def test_runs_with_mlx() -> None:
    told = run([*command(EXAMPLES[0]), "--library", "mlx"])
    assert len(re.findall("step 400: loss 0", told)) == 1


def test_the_page_names_the_late_rank() -> None:
    assert "Rank 2 has been late for" in run(command(ROOT / "docs" / "guide" / "recipes" / "debug_page.py"))


def test_one_rank_learns_what_four_learn() -> None:
    path = ROOT / "examples" / "data_parallel_arrays.py"  # float32: sums of a batch and of its parts are rounded differently
    told = [run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", str(n), str(path)]) for n in (1, 4)]
    losses = [[float(number) for number in re.findall(r"loss (\S+)", text)] for text in told]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0][-1] < losses[0][0] / 2


_ALONE = dict(zip(range(10, 201, 10), [  # what `jax_elastic.py 1 0` tells
    1.139047, 0.625878, 0.709330, 0.530753, 0.435742, 0.283122, 0.286817, 0.184039, 0.145242, 0.107942, 0.125180, 0.059768,
    0.065414, 0.052418, 0.041293, 0.043579, 0.030890, 0.045256, 0.037507, 0.033222], strict=True))


def test_training_goes_on_when_ranks_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of them, and as many new ones: the losses are those of one rank that nobody kills."""
    path = str(ROOT / "examples" / "jax_elastic.py")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    told = run([sys.executable, path, "3", "20"], 400)  # each kill waits until all three are in
    assert "exit codes [0, 0, 0]" in told
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+), \d ranks, loss (\S+)", told)}
    known = {step: loss for step, loss in _ALONE.items() if step in losses}  # who was to tell may have been killed before it did
    assert len(known) > len(_ALONE) / 2 and {step: losses[step] for step in known} == pytest.approx(known, rel=1e-2, abs=1e-4)


_SHOW = """import ast, json, sys
known = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        *steps, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(steps, []), "cell", "exec"), known)
        if isinstance(last, ast.Expr):  # what a notebook shows
            print(json.dumps(eval(compile(ast.Expression(last.value), "cell", "eval"), known)), flush=True)
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), known)
"""


def test_notebook() -> None:
    path = ROOT / "examples" / "collectives.ipynb"
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    shown = [json.loads(line) for line in run([sys.executable, "-c", _SHOW, str(path)]).splitlines()]
    assert shown == [[[3, 6, 9, 12]] * 3, [[[source, part] for source in range(3)] for part in range(3)],
                     [3, 2, 1, *[0] * 7], [[0, 3], [0, 1], [0, 2]]]
