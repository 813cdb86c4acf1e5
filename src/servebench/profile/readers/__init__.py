"""Files of profilers, each format read into a `Timeline` or into `Stacks`."""

from servebench.profile.readers.opening import find_capture, open_file, open_files

__all__ = ["find_capture", "open_file", "open_files"]
