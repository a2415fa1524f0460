"""Serves bundles over HTTP, and holds the `ortolan` command."""
