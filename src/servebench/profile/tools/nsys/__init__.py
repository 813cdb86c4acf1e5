"""NVIDIA Nsight Systems: found, launched around a server, started and stopped for a window, its report exported."""

from servebench.profile.tools.nsys.installation import Installation, find_nsys
from servebench.profile.tools.nsys.tool import NsysTool

__all__ = ["Installation", "NsysTool", "find_nsys"]
