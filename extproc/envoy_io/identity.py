"""Who is asking: the service id from sources that the client cannot forge.

Either dynamic metadata written by Envoy's own authentication filters, or a header that the include
removes from every client's request before a trusted filter sets it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envoy.config.core.v3.base_pb2 import Metadata

from extproc.core.errors import RequestError
from extproc.core.ids import ACROSS_PREFIX, is_valid_id
from extproc.envoy_io.attributes import metadata_text

Headers = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class FromMetadata:
    """Namespace and path of a string in dynamic metadata."""

    namespace: str
    path: tuple[str, ...]

    def read(self, header: Headers, metadata: Metadata) -> str | None:
        return metadata_text(metadata, namespace=self.namespace, path=self.path)


@dataclass(frozen=True, slots=True)
class FromHeader:
    """Name of a request header, in lower case."""

    name: str

    def read(self, header: Headers, metadata: Metadata) -> str | None:
        return header(self.name)


IdentitySource = FromMetadata | FromHeader


def identify(sources: Sequence[IdentitySource], *, header: Headers, metadata: Metadata) -> str:
    """The service id of a request: the first source that is present decides.

    ``header`` gives a request header by its name in lower case, None when it is absent.
    Raises RequestError: 401 when no source is present, 400 when the one that is holds no valid id.
    A malformed id is not echoed: it may be a credential in the wrong place.
    """
    for source in sources:
        value = source.read(header, metadata)
        if value is None:
            continue
        if not is_valid_id(value) or value.startswith(ACROSS_PREFIX):
            raise RequestError(
                400,
                "invalid_service_id",
                "The service id of this request is malformed: expected 1 to 128 letters, digits, "
                "'.', '_', ':' or '-'.",
            )
        return value
    raise RequestError(
        401,
        "missing_service_id",
        "This request is not authenticated: no service id was found for it.",
    )
