"""What arraycomm-bench does beside measuring collectives: each is the module of its name, with options of its own."""

SUBCOMMANDS = {
    "compare": "beside MPI, gloo, MLX, JAX and others, in turns: one table of ratios",
    "tune": "which algorithm is fastest here from how many bytes on, as a file for ARRAYCOMM_TUNING",
    "arrays": "what arrays of JAX and torch cost beside NumPy's",
    "safety": "what comparing calls and watching the ranks cost",
    "startup": "how long ranks take to meet",
    "store": "requests per second, beside torch's TCPStore",
}
