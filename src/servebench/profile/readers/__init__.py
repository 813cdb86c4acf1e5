"""Files of profilers, each format read into a `Timeline` or into `Stacks`, or told as the tool tells it."""

from servebench.profile.readers.opening import Told, find_capture, open_file, open_files

__all__ = ["Told", "find_capture", "open_file", "open_files"]
