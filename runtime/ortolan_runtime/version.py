"""The version of Ortolan, written here alone."""

__version__ = "0.1.0"
