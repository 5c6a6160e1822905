"""A whole configuration: one listener, the filters, the routes, two clusters."""

from typing import Any

import yaml

from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.access_log import ending_log, file_log
from extproc.envoyconfig.clusters import tokenweir_cluster, upstream_cluster
from extproc.envoyconfig.filters import http_filters
from extproc.envoyconfig.messages import address, seconds
from extproc.envoyconfig.options import Endpoint, RenderOptions
from extproc.envoyconfig.routes import route_configuration


def heartbeats(
    options: RenderOptions,
) -> p.http_connection_manager.HttpConnectionManagerHcmAccessLogOptions:
    """An entry from time to time for each stream that is open; it keeps what the stream holds."""
    return p.http_connection_manager.HttpConnectionManagerHcmAccessLogOptions(
        access_log_flush_interval=seconds(options.access_log_flush_seconds)
    )


def connection_manager(options: RenderOptions) -> p.http_connection_manager.HttpConnectionManager:
    """HTTP as an edge receives it: clients are not trusted with anything."""
    logs = [ending_log(options)]
    if options.access_log_path is not None:
        logs.append(file_log(options.access_log_path, identity_header=options.identity_header))
    return p.http_connection_manager.HttpConnectionManager(
        stat_prefix="llm",
        route_config=route_configuration(options),
        http_filters=http_filters(options),
        access_log=logs,
        access_log_options=heartbeats(options),
        use_remote_address=True,
        # No internal_address_config: since Envoy 1.33 that means that no client is internal. An
        # internal one may ask for retries by header, which the provider would bill, and choose its
        # own request id. (An empty one would make every private address internal.)
        generate_request_id=True,
        # Two spellings of one path must not differ in whether they are metered.
        normalize_path=True,
        merge_slashes=True,
    )


def bootstrap(options: RenderOptions) -> p.bootstrap.Bootstrap:
    """The configuration as a message of envoy-data-plane."""
    manager = p.listener.Filter(
        name="envoy.filters.network.http_connection_manager",
        typed_config=p.Any.pack(connection_manager(options)),
    )
    listener = p.listener.Listener(
        name="llm",
        address=address(Endpoint(options.listen_host, options.listen_port)),
        filter_chains=[p.listener.FilterChain(filters=[manager])],
    )
    admin = None
    if options.admin_port is not None:
        admin = p.bootstrap.Admin(address=address(Endpoint(options.admin_host, options.admin_port)))
    return p.bootstrap.Bootstrap(
        # Nothing here needs it; it names this Envoy in what it sends.
        node=p.core.Node(id="tokenweir-envoy", cluster="tokenweir-envoy"),
        admin=admin,
        static_resources=p.bootstrap.BootstrapStaticResources(
            listeners=[listener],
            clusters=[tokenweir_cluster(options), upstream_cluster(options)],
        ),
    )


def plain(message: p.Message) -> dict[str, Any]:
    """A message as Envoy's YAML spells it: snake_case names, ``@type`` inside every Any."""
    return message.to_dict(casing=p.Casing.SNAKE)


def dump(value: object) -> str:
    """YAML text in the order of the value, the same for the same value."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=False, width=1000)


def render_bootstrap(options: RenderOptions) -> dict[str, Any]:
    """The whole configuration as plain data."""
    return plain(bootstrap(options))


def to_yaml(options: RenderOptions) -> str:
    """The whole configuration as YAML that ``envoy -c`` reads."""
    return dump(render_bootstrap(options))
