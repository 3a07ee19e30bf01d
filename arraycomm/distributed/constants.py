"""Timeouts of groups, under torch's names."""

from datetime import timedelta

from .process_groups.world import default_pg_timeout

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]

default_pg_nccl_timeout = timedelta(minutes=10)  # torch's number
