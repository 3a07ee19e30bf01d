"""What arraycomm-bench does beside measuring collectives: each is the module of its name, with options of its own."""

from __future__ import annotations

SUBCOMMANDS = {
    "compare": "beside MPI, gloo, MLX, JAX and others, in turns: one table of ratios",
    "limits": "what this machine can do: copies, reductions, pings, and a model of collectives",
    "tune": "which algorithm is fastest here from how many bytes on, as a file for ARRAYCOMM_TUNING",
    "cliffs": "sizes between the usual ones: where a neighbour costs far more",
    "arrays": "what arrays of JAX and torch cost beside NumPy's",
    "safety": "what comparing calls and watching the ranks cost",
    "startup": "how long ranks take to meet",
    "store": "requests per second, beside torch's TCPStore",
}
