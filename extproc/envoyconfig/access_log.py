"""Access logs: the one that tells tokenweir how a request ended, and a readable one."""

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.messages import METADATA_NAMESPACE, grpc_service, seconds
from extproc.envoyconfig.options import RenderOptions

_Op = p.accesslog.ComparisonFilterOp
_BUFFER_BYTES = 16 * 1024
_FLUSH_SECONDS = 0.2
# No answer at all (0), upgrades (101), successes and redirects.
_LAST_UNREFUSED = 399
_UPGRADE_REFUSED = 403


def ending_log(options: RenderOptions) -> p.accesslog.AccessLog:
    """One entry for each request that holds a reservation; for one that may hold one that Envoy
    never heard of, because it gave the request up in that moment (0, 5xx); and for one that went
    on without being asked about, or tried to (successes, upgrades, paths without a route).
    Refusals, other 4xx and what Envoy's health check filter marks are left out. Of a long stream
    also periodic ones (see ``bootstrap.heartbeats``)."""
    config = p.grpc_log.HttpGrpcAccessLogConfig(
        common_config=p.grpc_log.CommonGrpcAccessLogConfig(
            log_name="tokenweir",
            transport_api_version=p.core.ApiVersion.V3,
            grpc_service=grpc_service("ending"),
            buffer_size_bytes=_BUFFER_BYTES,
            buffer_flush_interval=seconds(_FLUSH_SECONDS),
        ),
        additional_request_headers_to_log=["x-request-id", options.identity_header],
        # Usage that Envoy could not read is estimated by size and kind of the answer.
        additional_response_headers_to_log=["content-type"] if options.is_native else [],
    )
    has_reservation = p.matcher.MetadataMatcher(
        filter=METADATA_NAMESPACE,
        path=[p.matcher.MetadataMatcherPathSegment(key="rid")],
        value=p.matcher.ValueMatcher(present_match=True),
    )
    reserved = p.accesslog.AccessLogFilter(
        metadata_filter=p.accesslog.MetadataFilter(
            matcher=has_reservation, match_if_key_not_found=False
        )
    )
    no_route = p.accesslog.AccessLogFilter(
        response_flag_filter=p.accesslog.ResponseFlagFilter(flags=["NR"])
    )
    wanted = p.accesslog.AccessLogFilter(
        or_filter=p.accesslog.OrFilter(
            filters=[
                reserved,
                _code(_Op.LE, _LAST_UNREFUSED),
                _code(_Op.GE, 500),
                _code(_Op.EQ, _UPGRADE_REFUSED),
                no_route,
            ]
        )
    )
    no_health_check = p.accesslog.AccessLogFilter(
        not_health_check_filter=p.accesslog.NotHealthCheckFilter()
    )
    return p.accesslog.AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=p.accesslog.AccessLogFilter(
            and_filter=p.accesslog.AndFilter(filters=[no_health_check, wanted])
        ),
        typed_config=p.Any.pack(config),
    )


def _code(op: p.accesslog.ComparisonFilterOp, value: int) -> p.accesslog.AccessLogFilter:
    """Entries by response code; 0 is that of a client that got no answer."""
    return p.accesslog.AccessLogFilter(
        status_code_filter=p.accesslog.StatusCodeFilter(
            comparison=p.accesslog.ComparisonFilter(
                op=op,
                value=p.core.RuntimeUInt32(
                    default_value=value, runtime_key=f"tokenweir.log_code_{value}"
                ),
            )
        )
    )


def file_log(path: str, *, identity_header: str) -> p.accesslog.AccessLog:
    """One JSON object a line, with the reservation that a request held.

    A refused request has none, nor what admission says with it; of that one ``identity`` tells who
    asked. Of one that was forwarded it does not: the route has removed the header by then."""
    line = {
        "time": "%START_TIME%",
        # DownstreamPeriodic for a stream that still runs, DownstreamEnd for its last line.
        "type": "%ACCESS_LOG_TYPE%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "code": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "duration_ms": "%DURATION%",
        "reservation": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:rid)%",
        "identity": f"%REQ({identity_header})%",
        "service": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:root)%",
        "model": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:model)%",
    }
    config = p.file_log.FileAccessLog(
        path=path,
        log_format=p.core.SubstitutionFormatString(json_format=p.Struct.from_dict(line)),
    )
    return p.accesslog.AccessLog(name="envoy.access_loggers.file", typed_config=p.Any.pack(config))
