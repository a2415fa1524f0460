"""The options of ``ortolan serve`` that make its ServerSettings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from ortolan_server.keys import default_key_file
from ortolan_server.settings import ServerSettings

_FIELDS = frozenset(ServerSettings.__struct_fields__)
_LIMITS = (
    ("usage_log_bytes", int, "BYTES", "the usage log is rotated beyond it"),
    ("usage_log_files", int, "N", "rotated usage logs that are kept"),
    ("max_choices_per_request", int, "N", "bound on prompts times best_of"),
    ("max_output_tokens", int, "N", "length of a completion that leaves it open"),
    ("max_body_bytes", int, "BYTES", "a larger body is a 413"),
    ("max_header_bytes", int, "BYTES", "a larger header is a 431"),
    ("max_connections", int, "N", "one more is a 503"),
    ("header_timeout_s", float, "SECONDS", "time for a request's header"),
    ("body_timeout_s", float, "SECONDS", "time for a request's body"),
    ("idle_timeout_s", float, "SECONDS", "a connection without requests is closed after it"),
    (
        "stalled_reader_timeout_s",
        float,
        "SECONDS",
        "a client that reads nothing is dropped after it",
    ),
    ("heartbeat_s", float, "SECONDS", "a stream that has nothing to say says so after it"),
    ("grace_s", float, "SECONDS", "time for running requests after SIGTERM"),
)


def settings_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServerSettings:
    """Return the settings that were asked for; every option is named as its field is.

    Raises InvalidParameter.
    """
    given = {name: value for name, value in vars(arguments).items() if name in _FIELDS}
    given |= {name: tuple(given[name]) for name in ("allowed_hosts", "cors_origins")}
    return ServerSettings(**given, api_key=environment.get("ORTOLAN_API_KEY") or None)


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options; their defaults are those of ServerSettings."""
    defaults = ServerSettings()
    add = parser.add_argument
    add("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=defaults.port, help="0 takes a free one (default: %(default)s)")
    add("--unix-socket", metavar="PATH", help="listen on this socket instead of a port")
    add("--model-name", help="the name clients see (default: the bundle's)")
    add(
        "--v1-dialect",
        choices=("openai", "tokensmind"),
        default=defaults.v1_dialect,
        help="the dialect of /v1/completions (default: %(default)s)",
    )
    add("--strict", action="store_true", help="refuse unknown fields with 400")
    add(
        "--no-page",
        dest="page",
        action="store_false",
        help="serve no page at / (default: the page is there, without a key)",
    )
    _add_access_flags(parser)
    add("--usage-log", metavar="FILE", help="append one line of JSON a completion (default: none)")
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how the log on stderr is written (default: %(default)s)",
    )
    for name, kind, metavar, meaning in _LIMITS:
        add(
            f"--{name.removesuffix('_s').replace('_', '-')}",
            dest=name,
            type=kind,
            metavar=metavar,
            default=getattr(defaults, name),
            help=f"{meaning} (default: %(default)s)",
        )


def _add_access_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--keys",
        dest="keys_file",
        metavar="FILE",
        default=str(default_key_file(os.environ)),
        help="keys of `ortolan keys` (default: %(default)s); ORTOLAN_API_KEY is one more",
    )
    add("--no-auth", action="store_true", help="let everybody in, from other machines too")
    add(
        "--allowed-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="a name of this server, for requests without keys; repeats (default: this machine's)",
    )
    add(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of this origin may ask, as https://example.org; repeats (default: none)",
    )
    add("--tls-certificate", metavar="FILE", help="serve HTTPS with this chain (PEM)")
    add("--tls-key", metavar="FILE", help="the certificate's private key (PEM)")
