"""CUDA's runtime and staging for arrays on GPUs. Loaded lazily, for the first such array."""
