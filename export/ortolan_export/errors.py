"""What can go wrong in an export, as one tree.

    OrtolanError (of the runtime)
    └── ExportError              the export cannot be done; nothing is left behind
        ├── SourceError          the source is missing, damaged or incomplete
        ├── UnsupportedModel     the source asks for something that the exporter does not know
        └── VerificationError    the graph was written, but does not compute what it must

Each message is one line: what is wrong, where, what was found, and the way out.
"""

from __future__ import annotations

from ortolan_runtime.errors import OrtolanError


class ExportError(OrtolanError):
    """The export cannot be done; the old bundle, if any, is intact."""


class SourceError(ExportError):
    """The source is missing, damaged or incomplete."""


class UnsupportedModel(ExportError):
    """The source has an architecture or an option that the exporter does not know."""


class VerificationError(ExportError):
    """The exported graph failed a check of its own output."""
