"""CUDA's runtime, as far as arrays on GPUs need it. Loaded when the first such array comes, never before."""
