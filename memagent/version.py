"""The version, by itself: what needs no more than it does not load the package's names."""

__version__ = "0.1.0"
