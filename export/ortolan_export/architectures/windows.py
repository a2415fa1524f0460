"""Which layers attend to a sliding window alone, as the families' configurations say it."""

from __future__ import annotations

from collections.abc import Callable

from ortolan_export.config import Config
from ortolan_export.errors import UnsupportedModel
from ortolan_export.rope import FULL, SLIDING


def every_layer(config: Config) -> tuple[int, ...]:
    """Return ``sliding_window``, where it is set, for every layer."""
    return (_width(config),) * config.count("num_hidden_layers")


def all_but_each(period: int) -> Callable[[Config], tuple[int, ...]]:
    """Return windows by ``layer_types``; without them each ``period``-th layer has none.

    A ``sliding_window_pattern`` in the file is that period.
    """

    def windows(config: Config) -> tuple[int, ...]:
        every = config.count("sliding_window_pattern", otherwise=period)
        return by_layer_types(config, lambda layer: (layer + 1) % every != 0)

    return windows


def when_used(config: Config) -> tuple[int, ...]:
    """Return windows by ``layer_types``, if ``use_sliding_window`` says that there are any.

    Older files have ``max_window_layers``: the layers from there on have windows.
    """
    if not config.flag("use_sliding_window"):
        # A list of kinds is still read, for it may hold one that is not supported.
        return (0,) * len(by_layer_types(config, lambda layer: False))
    first = int(config.number("max_window_layers", otherwise=0))
    return by_layer_types(config, lambda layer: layer >= first)


def by_layer_types(config: Config, otherwise: Callable[[int], bool]) -> tuple[int, ...]:
    """Return windows by ``layer_types``, or, where the file has none, by ``otherwise``."""
    layers, width = config.count("num_hidden_layers"), _width(config)
    if not config.has("layer_types"):
        return tuple(width if otherwise(layer) else 0 for layer in range(layers))
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.wrong("layer_types", f"must be a list of {layers}", kinds)
    return tuple(width if _is_sliding(config, kind) else 0 for kind in kinds)


def _width(config: Config) -> int:
    return config.count("sliding_window") if config.has("sliding_window") else 0


def _is_sliding(config: Config, kind: object) -> bool:
    if kind not in (FULL, SLIDING):
        raise UnsupportedModel(
            f"{config.origin}: layer_types must hold {FULL} or {SLIDING}, "
            f"got {kind!r}; this kind of layer is not supported"
        )
    return kind == SLIDING
