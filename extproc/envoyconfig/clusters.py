"""Where Envoy connects to: the tokenweir server, and the provider."""

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.messages import (
    TOKENWEIR_CLUSTER,
    UPSTREAM_CLUSTER,
    address,
    seconds,
)
from extproc.envoyconfig.options import Endpoint, RenderOptions, Upstream

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# Envoy's own default, 1024, would be reached by as many answers that stream at the same time.
_CIRCUIT_BREAKER_LIMIT = 65_536


def _endpoints(name: str, *endpoints: Endpoint) -> p.endpoint.ClusterLoadAssignment:
    targets = [p.endpoint.Endpoint(address=address(endpoint)) for endpoint in endpoints]
    return p.endpoint.ClusterLoadAssignment(
        cluster_name=name,
        endpoints=[
            p.endpoint.LocalityLbEndpoints(
                lb_endpoints=[p.endpoint.LbEndpoint(endpoint=target) for target in targets]
            )
        ],
    )


def _circuit_breakers() -> p.cluster.CircuitBreakers:
    return p.cluster.CircuitBreakers(
        thresholds=[
            p.cluster.CircuitBreakersThresholds(
                max_connections=_CIRCUIT_BREAKER_LIMIT,
                max_pending_requests=_CIRCUIT_BREAKER_LIMIT,
                max_requests=_CIRCUIT_BREAKER_LIMIT,
            )
        ]
    )


def _health_check() -> p.core.HealthCheck:
    return p.core.HealthCheck(
        timeout=seconds(1),
        # Below the setting `server.drain_seconds`: a server that stops is left before it refuses.
        interval=seconds(1),
        # Envoy waits a minute between checks while a cluster has had no traffic yet: too long for
        # a server that starts a moment after it.
        no_traffic_interval=seconds(1),
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=p.core.HealthCheckGrpcHealthCheck(),
    )


def tokenweir_cluster(options: RenderOptions) -> p.cluster.Cluster:
    """The servers in turn, over HTTP/2. A DNS name stands for all of its addresses."""
    discovery = p.cluster.ClusterDiscoveryType
    servers = options.tokenweir
    is_named = any(server.is_name for server in servers)
    http2 = p.upstream_http.HttpProtocolOptions(
        explicit_http_config=p.upstream_http.HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=p.core.Http2ProtocolOptions()
        )
    )
    return p.cluster.Cluster(
        name=TOKENWEIR_CLUSTER,
        type=discovery.STRICT_DNS if is_named else discovery.STATIC,
        dns_lookup_family=p.cluster.ClusterDnsLookupFamily.V4_PREFERRED,
        connect_timeout=seconds(1),
        load_assignment=_endpoints(TOKENWEIR_CLUSTER, *servers),
        circuit_breakers=_circuit_breakers(),
        health_checks=[_health_check()] if options.tokenweir_health_check else [],
        typed_extension_protocol_options={_HTTP_OPTIONS: p.Any.pack(http2)},
    )


def _tls(upstream: Upstream, ca_file: str) -> p.core.TransportSocket:
    """TLS with the certificate checked against the host of the URL."""
    host = upstream.endpoint.host
    san_types = p.tls.SubjectAltNameMatcherSanType
    named = upstream.endpoint.is_name
    context = p.tls.UpstreamTlsContext(
        # A server name indication is a name, never an address (RFC 6066, section 3).
        sni=host if named else "",
        common_tls_context=p.tls.CommonTlsContext(
            validation_context=p.tls.CertificateValidationContext(
                trusted_ca=p.core.DataSource(filename=ca_file),
                match_typed_subject_alt_names=[
                    p.tls.SubjectAltNameMatcher(
                        san_type=san_types.DNS if named else san_types.IP_ADDRESS,
                        matcher=p.matcher.StringMatcher(exact=host),
                    )
                ],
            )
        ),
    )
    return p.core.TransportSocket(
        name="envoy.transport_sockets.tls", typed_config=p.Any.pack(context)
    )


def _upstream_protocol(upstream: Upstream) -> p.upstream_http.HttpProtocolOptions:
    """HTTP/2 where TLS negotiates it, HTTP/1.1 otherwise."""
    http = p.upstream_http
    if upstream.tls:
        return http.HttpProtocolOptions(
            auto_config=http.HttpProtocolOptionsAutoHttpConfig(
                http_protocol_options=p.core.Http1ProtocolOptions(),
                http2_protocol_options=p.core.Http2ProtocolOptions(),
            )
        )
    return http.HttpProtocolOptions(
        explicit_http_config=http.HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=p.core.Http1ProtocolOptions()
        )
    )


def upstream_cluster(options: RenderOptions) -> p.cluster.Cluster:
    """The provider. Its routes send the URL's host as ``Host`` (see ``routes``)."""
    discovery = p.cluster.ClusterDiscoveryType
    upstream = options.upstream
    return p.cluster.Cluster(
        name=UPSTREAM_CLUSTER,
        type=discovery.LOGICAL_DNS if upstream.endpoint.is_name else discovery.STATIC,
        dns_lookup_family=p.cluster.ClusterDnsLookupFamily.V4_PREFERRED,
        connect_timeout=seconds(5),
        load_assignment=_endpoints(UPSTREAM_CLUSTER, upstream.endpoint),
        circuit_breakers=_circuit_breakers(),
        typed_extension_protocol_options={_HTTP_OPTIONS: p.Any.pack(_upstream_protocol(upstream))},
        transport_socket=_tls(upstream, options.upstream_ca_file) if upstream.tls else None,
    )
