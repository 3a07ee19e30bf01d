"""Basics for all parts of the core: errors, settings, the log, threads, system calls."""
