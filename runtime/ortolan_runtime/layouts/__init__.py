"""How graphs keep their KV cache: one module a layout, each a ``Layout``."""
