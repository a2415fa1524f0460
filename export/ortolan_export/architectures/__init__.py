"""The families of models that the native exporter knows, each a piece of data."""
