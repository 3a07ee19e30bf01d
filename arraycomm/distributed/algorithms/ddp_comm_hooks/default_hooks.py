"""Averaging hooks, uncompressed or in a narrower dtype."""

from importlib import import_module

__all__ = ["allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper"]

_theirs = import_module("arraycomm.frameworks.torch.comm_hooks")
allreduce_hook = _theirs.allreduce_hook
bf16_compress_hook = _theirs.bf16_compress_hook
bf16_compress_wrapper = _theirs.bf16_compress_wrapper
fp16_compress_hook = _theirs.fp16_compress_hook
fp16_compress_wrapper = _theirs.fp16_compress_wrapper
