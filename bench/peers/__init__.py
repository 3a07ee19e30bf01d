"""The contenders of `arraycomm-bench compare`: one rank program each, over one protocol.

Nothing here imports the rest of the benchmark or, but for ours.py, arraycomm: a contender runs under the interpreter
that has its library, and imports that only when it is made.
To add one, write its file with a class `Contender(Peer)` and a line below; or keep the file, and give it by --peer.
"""

# Name on the command line: the file here that drives it.
LIBRARIES = {
    "ours": "ours",
    "ours/jit": "ours_jax",
    "ours/jax.jit": "ours_jax",
    "ours/jax": "jax",
    "gloo": "gloo",
    "openmpi": "mpi4py",
    "mpich": "mpi4py",
    "impi": "mpi4py",
    "mlx": "mlx",
    "mlx-mpi": "mlx",
    "jax": "jax",
    "mpi4jax": "mpi4jax",
}
GROUPS = {"mpi4py": ("openmpi", "mpich", "impi")}
