"""The HTTP filters, in the order in which a request meets them."""

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.messages import (
    METADATA_NAMESPACE,
    conversation_of,
    grpc_service,
    seconds,
    set_header,
)
from extproc.envoyconfig.native import native_filters
from extproc.envoyconfig.options import RenderOptions

STRIP_FILTER = "tokenweir.strip_identity"
AUTH_FILTER = "envoy.filters.http.api_key_auth"
ADMISSION_FILTER = "tokenweir.admission"
METERING_FILTER = "tokenweir.metering"
BUFFER_FILTER = "tokenweir.buffer"

# OpenAI's names (https://platform.openai.com/docs/guides/rate-limits), each from the metadata key
# under which admission wrote the value.
_RATE_LIMIT_HEADERS = tuple(
    (f"x-ratelimit-{part}-{unit}", f"{part}_{unit}")
    for unit in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
)

_COPIES_KEPT_SECONDS = 1.0

_Send = p.ext_proc.ProcessingModeHeaderSendMode
_Body = p.ext_proc.ProcessingModeBodySendMode


def _filter(name: str, config: p.Message) -> p.http_connection_manager.HttpFilter:
    return p.http_connection_manager.HttpFilter(name=name, typed_config=p.Any.pack(config))


def _namespaces(*untyped: str) -> p.ext_proc.MetadataOptionsMetadataNamespaces:
    return p.ext_proc.MetadataOptionsMetadataNamespaces(untyped=list(untyped))


def rate_limit_headers() -> list[p.mutation_rules.HeaderMutation]:
    """The six headers on successes. Where admission wrote nothing, none is set."""
    return [
        p.mutation_rules.HeaderMutation(
            append=set_header(name, f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{key})%")
        )
        for name, key in _RATE_LIMIT_HEADERS
    ]


def strip_identity(options: RenderOptions) -> p.http_connection_manager.HttpFilter:
    """Remove from what the client sent the headers that say who it is: only a filter of ours may
    set them.

    Answers pass it last, so here they get the six headers of our limits: on the route Envoy would
    put them in place of the provider's own before metering has read those.
    """
    removals = [
        p.mutation_rules.HeaderMutation(remove=name)
        for name in (options.identity_header, *options.trusted_headers)
    ]
    mutations = p.header_mutation.Mutations(
        request_mutations=removals, response_mutations=rate_limit_headers()
    )
    return _filter(STRIP_FILTER, p.header_mutation.HeaderMutation(mutations=mutations))


def api_key_auth(options: RenderOptions) -> p.http_connection_manager.HttpFilter:
    """Know clients by their key and put the service id into the identity header.

    ``Authorization: Bearer KEY`` is what OpenAI's clients send, ``x-api-key: KEY`` Anthropic's,
    ``x-goog-api-key: KEY`` Google's, ``api-key: KEY`` Azure's. The first that is there decides:
    ``Authorization`` comes last, because AWS's clients have a signature in it and their key in
    ``x-api-key``. The key itself goes no further, and nor does any of these headers.
    """
    auth = p.api_key_auth
    keys = options.api_keys or {}
    return _filter(
        AUTH_FILTER,
        auth.ApiKeyAuth(
            credentials=[auth.Credential(key=key, client=keys[key]) for key in sorted(keys)],
            key_sources=[
                auth.KeySource(header=name)
                for name in ("x-api-key", "x-goog-api-key", "api-key", "authorization")
            ],
            forwarding=auth.Forwarding(header=options.identity_header, hide_credentials=True),
        ),
    )


def admission(options: RenderOptions) -> p.http_connection_manager.HttpFilter:
    """Ask before the request is forwarded: one message with the whole body and these attributes."""
    return _filter(
        ADMISSION_FILTER,
        p.ext_proc.ExternalProcessor(
            grpc_service=grpc_service(conversation_of("admission", options)),
            stat_prefix="tokenweir_admission",
            message_timeout=seconds(options.admission_timeout_ms / 1000),
            processing_mode=p.ext_proc.ProcessingMode(
                request_header_mode=_Send.SKIP,
                request_body_mode=_Body.BUFFERED,
                request_trailer_mode=_Send.SKIP,
                response_header_mode=_Send.SKIP,
                response_body_mode=_Body.NONE,
                response_trailer_mode=_Send.SKIP,
            ),
            request_attributes=[
                "request.path",
                "request.host",
                "request.method",
                "request.id",
                "request.time",
                "request.headers['content-type']",
                "request.headers['content-encoding']",
                *(f"request.headers['{name}']" for name in _seen_headers(options)),
                "source.address",
            ],
            metadata_options=p.ext_proc.MetadataOptions(
                forwarding_namespaces=_namespaces(*options.identity_namespaces),
                receiving_namespaces=_namespaces(METADATA_NAMESPACE),
            ),
            failure_mode_allow=options.failure_mode == "open",
            status_on_error=p.envoy_type.HttpStatus(
                code=p.envoy_type.StatusCode.ServiceUnavailable
            ),
        ),
    )


def _seen_headers(options: RenderOptions) -> list[str]:
    key = options.idempotency_header
    return [*options.private_headers, *([key] if key is not None else [])]


def metering(options: RenderOptions) -> p.http_connection_manager.HttpFilter:
    """Show the answer as it passes (inline), or copies of it that nobody waits for (observe).
    Whatever happens to the server, the answer goes on."""
    observes = options.profile == "observe"
    return _filter(
        METERING_FILTER,
        p.ext_proc.ExternalProcessor(
            grpc_service=grpc_service(conversation_of("metering", options)),
            observability_mode=observes,
            # Of an answer that breaks we hear nothing before Envoy lets go of the copies.
            deferred_close_timeout=seconds(_COPIES_KEPT_SECONDS) if observes else None,
            stat_prefix="tokenweir_metering",
            message_timeout=seconds(options.metering_timeout_ms / 1000),
            processing_mode=p.ext_proc.ProcessingMode(
                request_header_mode=_Send.SKIP,
                request_body_mode=_Body.NONE,
                request_trailer_mode=_Send.SKIP,
                response_header_mode=_Send.SEND,
                response_body_mode=_Body.STREAMED,
                # Without trailers the last body message says that it is the last; with them,
                # only the trailers do.
                response_trailer_mode=_Send.SEND,
            ),
            response_attributes=["response.code", "response.code_details"],
            metadata_options=p.ext_proc.MetadataOptions(
                forwarding_namespaces=_namespaces(METADATA_NAMESPACE),
                receiving_namespaces=None if observes else _namespaces(METADATA_NAMESPACE),
            ),
            failure_mode_allow=True,
            allow_mode_override=not observes,
            # An answer that has begun cannot be replaced by another.
            disable_immediate_response=not observes,
        ),
    )


def request_buffer(options: RenderOptions) -> p.http_connection_manager.HttpFilter:
    """Hold the request until it is admitted.

    Admission does not see the headers as a message of their own, so without a buffer behind it
    Envoy would send them to the provider before the decision. The limit here is also what admits
    bodies above Envoy's own 1 MiB.
    """
    return _filter(BUFFER_FILTER, p.buffer.Buffer(max_request_bytes=options.max_body_bytes))


def tokenweir_filters(options: RenderOptions) -> list[p.http_connection_manager.HttpFilter]:
    """What an existing Envoy needs between its authentication and its router."""
    meters = native_filters(options) if options.is_native else [metering(options)]
    return [admission(options), *meters, request_buffer(options)]


def http_filters(options: RenderOptions) -> list[p.http_connection_manager.HttpFilter]:
    """The whole chain: strip, authenticate if keys are given, admit, meter, buffer, route."""
    auth = [api_key_auth(options)] if options.api_keys else []
    return [
        strip_identity(options),
        *auth,
        *tokenweir_filters(options),
        _filter("envoy.filters.http.router", p.router.Router()),
    ]
