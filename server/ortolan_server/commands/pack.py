"""``ortolan pack``: an archive for machines that have no network."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ortolan_server.terminal import say

EXAMPLES = """\
  ortolan pack ./my-bundle my-model.tar.gz
  ortolan pack ./my-bundle edge.tar.gz --machine aarch64 --python 3.11 --python 3.13
  tar xf my-model.tar.gz && ./ortolan-*/install ~/ortolan     (there, without a network)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    add = parser.add_argument
    add("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    add("out", type=Path, metavar="OUT", help="the archive to write, as my-model.tar.gz")
    add(
        "--machine",
        choices=("x86_64", "aarch64"),
        default=os.uname().machine,
        help="the processor there, as `uname -m` tells it (default: %(default)s)",
    )
    add(
        "--python",
        dest="pythons",
        action="append",
        metavar="VERSION",
        help=f"the Python there; repeats (default: {here}, as here)",
    )
    add(
        "--glibc",
        default="2.28",
        metavar="VERSION",
        help="the oldest glibc there; 2.28 is that of Debian 10 and RHEL 8 (default: %(default)s)",
    )
    add("--wheel", type=Path, metavar="FILE", help="Ortolan's wheel (default: the one that runs)")
    add(
        "--newest",
        action="store_true",
        help="take the newest packages instead of the versions that are installed here",
    )
    parser.set_defaults(default_python=here)


def run(arguments: argparse.Namespace) -> int:
    """Write the archive, its digest to stdout, and return the exit code. Raises OrtolanError."""
    from ortolan_server.packing.pack import pack, report
    from ortolan_server.packing.wheels import Target

    target = Target(
        machine=arguments.machine,
        glibc=arguments.glibc,
        pythons=tuple(arguments.pythons or [arguments.default_python]),
    )
    packed = pack(
        arguments.bundle,
        arguments.out,
        target,
        own_wheel=arguments.wheel,
        is_pinned=not arguments.newest,
        say=say,
    )
    for line in report(packed, target):
        say(line)
    sys.stdout.write(f"{packed.sha256}  {packed.path.name}\n")
    return 0
