"""The pages of OpenAI's and Anthropic's reports: buckets of time with results in each."""

from collections.abc import Iterator
from typing import Any

from extproc.providers.exports.collect import Collector
from extproc.providers.exports.documents import a_list, an_object, decoded, documents
from extproc.providers.exports.values import Place


def results(
    data: bytes, file: str, into: Collector
) -> Iterator[tuple[Place, dict[str, Any], dict[str, Any]]]:
    """(where, bucket, result) of all pages in a file: one page, a list of them, or one a line.

    Warns where the last page says that there are more.
    """
    more = False
    for name, document in documents(decoded(data, file), file):
        place = Place(file, name)
        page = an_object(document, place, "")
        if "error" in page:
            place.wrong("error", "the provider answered with an error, this is no report")
        buckets = a_list(page.get("data"), place, "data")
        more = bool(page.get("has_more"))
        prefix = f"{name}." if name else ""
        for number, one in enumerate(buckets):
            at = Place(file, f"{prefix}data[{number}]")
            bucket = an_object(one, at, "")
            for index, result in enumerate(a_list(bucket.get("results"), at, "results")):
                inner = Place(file, f"{prefix}data[{number}].results[{index}]")
                yield inner, bucket, an_object(result, inner, "")
    if more:
        into.warnings.append("has_more is true: it is a page of several, and the others are needed")


def content(bucket: dict[str, Any], result: dict[str, Any]) -> str:
    """What is the same for two results that say the same of the same time."""
    return repr((bucket.get("start_time"), bucket.get("starting_at"), sorted(result.items())))
