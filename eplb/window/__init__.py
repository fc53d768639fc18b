"""The sliding window of one pool."""

from eplb.window.size import WindowSize, check_size
from eplb.window.view import WindowView
from eplb.window.window import Window

__all__ = ["Window", "WindowSize", "WindowView", "check_size"]
