"""The debug page: `from arraycomm.debug import start_debug_server`. See docs/guide/debug.md."""

from .monitor.page import DebugServer, start_debug_server

__all__ = ["DebugServer", "start_debug_server"]
