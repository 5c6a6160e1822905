"""Routes: what is metered, what is not, and what a provider gets to see."""

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.filters import ADMISSION_FILTER, BUFFER_FILTER, METERING_FILTER
from extproc.envoyconfig.messages import UPSTREAM_CLUSTER, seconds, set_header
from extproc.envoyconfig.native import JSON_FILTER, chat_usage
from extproc.envoyconfig.options import RenderOptions


def _action(options: RenderOptions, prefix: str) -> p.route.RouteAction:
    upstream = options.upstream
    host = upstream.endpoint.host
    if ":" in host:
        host = f"[{host}]"
    if upstream.endpoint.port != (443 if upstream.tls else 80):
        host = f"{host}:{upstream.endpoint.port}"
    return p.route.RouteAction(
        cluster=UPSTREAM_CLUSTER,
        host_rewrite_literal=host,
        prefix_rewrite=f"{upstream.prefix}{prefix}" if upstream.prefix else "",
        timeout=seconds(options.request_timeout_seconds),
        idle_timeout=seconds(options.idle_timeout_seconds),
        # What passes after an upgrade is no request that could be counted. The connection manager
        # may offer upgrades to other routes; this one refuses them.
        upgrade_configs=[p.route.RouteActionUpgradeConfig(upgrade_type="websocket", enabled=False)],
    )


def metered_route(options: RenderOptions, prefix: str = "/") -> p.route.Route:
    """Requests that are admitted, metered and settled."""
    return _metered(options, prefix, "metered", p.route.RouteMatch(prefix=prefix), {})


def silent_route(options: RenderOptions) -> p.route.Route:
    """The same for completions and embeddings, whose answers Envoy 1.40 does not know by sight."""
    regex = p.matcher.RegexMatcher(regex=r".*/(completions|embeddings)(\?.*)?")
    by_path = p.route.HeaderMatcher(
        name=":path", string_match=p.matcher.StringMatcher(safe_regex=regex)
    )
    match = p.route.RouteMatch(prefix="/", headers=[by_path])
    return _metered(options, "/", "metered by path", match, {JSON_FILTER: chat_usage()})


def _metered(
    options: RenderOptions,
    prefix: str,
    name: str,
    match: p.route.RouteMatch,
    filters: dict[str, p.Any],
) -> p.route.Route:
    return p.route.Route(
        name=name,
        match=match,
        typed_per_filter_config=filters,
        route=_action(options, prefix),
        request_headers_to_add=_upstream_headers(options),
        # Metering reads the answer, so the provider must not compress it. Nor is it told whom the
        # request belongs to.
        request_headers_to_remove=["accept-encoding", *options.private_headers],
    )


def unmetered_route(options: RenderOptions, prefix: str) -> p.route.Route:
    """Requests that tokenweir neither sees nor limits; authentication stays in force.

    ``prefix`` ends at a slash: ``/v1/models`` is not ``/v1/models-other``. A path with any per cent
    sign stays metered, because ``/v1/models/..%2Fchat`` may be another path for the provider.
    """
    unescaped = p.route.HeaderMatcher(
        name=":path", string_match=p.matcher.StringMatcher(contains="%"), invert_match=True
    )
    off = p.Any.pack(p.ext_proc.ExtProcPerRoute(disabled=True))
    return p.route.Route(
        name=f"unmetered {prefix}",
        match=p.route.RouteMatch(path_separated_prefix=prefix, headers=[unescaped]),
        route=_action(options, prefix),
        request_headers_to_add=_upstream_headers(options),
        request_headers_to_remove=[*options.private_headers],
        typed_per_filter_config={
            ADMISSION_FILTER: off,
            **({} if options.is_native else {METERING_FILTER: off}),
            BUFFER_FILTER: p.Any.pack(p.buffer.BufferPerRoute(disabled=True)),
        },
    )


def _upstream_headers(options: RenderOptions) -> list[p.core.HeaderValueOption]:
    return [set_header(name, value) for name, value in options.upstream_headers.items()]


def routes(options: RenderOptions) -> list[p.route.Route]:
    """Unmetered prefixes first: Envoy takes the first route that matches."""
    unmetered = [unmetered_route(options, prefix) for prefix in options.unmetered_prefixes]
    silent = [silent_route(options)] if options.profile == "native" else []
    return [*unmetered, *silent, metered_route(options)]


def route_configuration(options: RenderOptions) -> p.route.RouteConfiguration:
    """One virtual host for every name."""
    host = p.route.VirtualHost(name="llm", domains=["*"], routes=routes(options))
    return p.route.RouteConfiguration(name="llm", virtual_hosts=[host])
