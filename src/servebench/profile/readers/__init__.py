"""Files of profilers, each format read into a `Timeline`."""
