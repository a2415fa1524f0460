"""Builds bundles from checkpoints, without torch on the native route."""
