"""The benchmark command: nccl-tests' options and table for any array, and a comparison with other libraries."""
