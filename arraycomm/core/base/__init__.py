"""What every part of the core uses: errors, settings, the log, threads, calls of the kernel."""
