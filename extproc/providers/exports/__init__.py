"""Exports of providers: bytes of a file to rows that can be compared with the ledger.

Nothing is rounded before it is added up: amounts are exact decimals, and the sum of a day, model,
key and request is rounded once to the nearest micro-dollar (half to even). Reads raise ExportError
and nothing else, whatever the bytes.
"""

from collections.abc import Callable, Mapping, Sequence

from extproc.core.exports import Export
from extproc.providers.exports import anthropic, aws, azure, openai, plain

READERS: Mapping[str, Callable[[bytes, str], Export]] = {
    openai.NAME: openai.read_openai,
    anthropic.NAME: anthropic.read_anthropic,
    azure.NAME: azure.read_azure,
    aws.NAME: aws.read_aws,
    plain.NAME: plain.read_plain,
}


def read_export(data: bytes, file: str, provider: str) -> Export:
    """What is in a file of ``provider`` (a key of READERS). Raises ExportError."""
    return READERS[provider](data, file)


def together(exports: Sequence[Export]) -> Export:
    """Several files of one provider as one export, such as the pages of a report.

    What is compared is what one of them tells, so usage and costs can be given together.
    """
    return Export(
        provider=exports[0].provider,
        rows=tuple(row for export in exports for row in export.rows),
        classes=frozenset(name for export in exports for name in export.classes),
        tells_cost=any(export.tells_cost for export in exports),
        tells_requests=any(export.tells_requests for export in exports),
        warnings=tuple(text for export in exports for text in export.warnings),
    )
