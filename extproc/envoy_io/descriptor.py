"""The descriptor of a request: who and what it is, for the policies that apply to it."""

import hashlib
from collections.abc import Mapping, Sequence

from envoy.config.core.v3.base_pb2 import Metadata

from extproc.core.policies import MAX_VALUE_LENGTH, Descriptor, Scope
from extproc.envoy_io.identity import Headers, IdentitySource
from extproc.providers.registry import provider_of

# A scope's value may be any text (it is hashed where it would not fit a key), but not of any size.
_MAX_VALUE = MAX_VALUE_LENGTH
_DIGEST_BYTES = 16


def describe(
    scopes: Mapping[Scope, Sequence[IdentitySource]],
    *,
    root: str,
    model: str,
    wire_format: str,
    header: Headers,
    metadata: Metadata,
) -> Descriptor:
    """The values of all scopes that are configured and present; the service is the root itself."""
    values = {
        Scope.SERVICE: root,
        # Until a route or a header says otherwise, the wire format tells whose API it is.
        Scope.PROVIDER: provider_of(wire_format),
    }
    for scope, sources in scopes.items():
        for source in sources:
            value = source.read(header, metadata)
            if value:
                values[scope] = _bounded(value)
                break
    return Descriptor(root=root, values=values, requested_model=model)


def _bounded(value: str) -> str:
    """A long value by its beginning and a digest of all of it, so that no two share a counter.

    One character longer than what is taken as it is: so it cannot be spelt, nor named in a policy.
    """
    if len(value) <= _MAX_VALUE:
        return value
    data = value.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2s(data, digest_size=_DIGEST_BYTES).hexdigest()
    return f"{value[: _MAX_VALUE - len(digest)]}~{digest}"
