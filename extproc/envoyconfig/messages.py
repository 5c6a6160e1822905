"""Small pieces that several builders share."""

from datetime import timedelta

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.options import Endpoint, RenderOptions

TOKENWEIR_CLUSTER = "tokenweir"
UPSTREAM_CLUSTER = "llm_upstream"
METADATA_NAMESPACE = "llm"
# The server tells by this initial metadata which of its conversations a stream belongs to.
CONVERSATION_HEADER = "x-tokenweir-conversation"


def seconds(value: float) -> timedelta:
    """A protobuf Duration."""
    return timedelta(seconds=value)


def address(endpoint: Endpoint) -> p.core.Address:
    """A socket address or a pipe."""
    if endpoint.socket_path is not None:
        return p.core.Address(pipe=p.core.Pipe(path=endpoint.socket_path))
    return p.core.Address(
        socket_address=p.core.SocketAddress(address=endpoint.host, port_value=endpoint.port)
    )


def conversation_of(name: str, options: RenderOptions) -> str:
    """``admission`` or ``metering`` in the words of the profile."""
    profile = "native" if options.is_native else options.profile
    return name if profile == "inline" else f"{name}/{profile}"


def grpc_service(conversation: str) -> p.core.GrpcService:
    """The tokenweir cluster, with the conversation named.

    No time-out here: it would bound the whole stream, and a metering stream lives as long as the
    answer. Each message has its own time-out in the filter.
    """
    return p.core.GrpcService(
        envoy_grpc=p.core.GrpcServiceEnvoyGrpc(cluster_name=TOKENWEIR_CLUSTER),
        initial_metadata=[p.core.HeaderValue(key=CONVERSATION_HEADER, value=conversation)],
    )


def set_header(name: str, value: str) -> p.core.HeaderValueOption:
    """Set a header whatever stood there. A value that comes out empty sets nothing."""
    return p.core.HeaderValueOption(
        header=p.core.HeaderValue(key=name, value=value),
        append_action=p.core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
