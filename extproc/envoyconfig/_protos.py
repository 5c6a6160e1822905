"""The message classes of envoy-data-plane that the builders use, imported in one place.

One place, because their import raises deprecation warnings of pydantic (they come from generated
code, nothing of ours can answer them) and takes about a second: only what renders a configuration
pays that. Every class refuses fields that it does not know, so a misspelt one never reaches Envoy.
"""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from betterproto2 import Casing, Message
    from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
    from envoy_data_plane.envoy.config.cluster import v3 as cluster
    from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
    from envoy_data_plane.envoy.config.listener import v3 as listener
    from envoy_data_plane.envoy.config.route import v3 as route
    from envoy_data_plane.envoy.extensions.access_loggers.file import v3 as file_log
    from envoy_data_plane.envoy.extensions.access_loggers.grpc import v3 as grpc_log
    from envoy_data_plane.envoy.extensions.content_parsers.json import v3 as json_parser
    from envoy_data_plane.envoy.extensions.filters.http.api_key_auth import v3 as api_key_auth
    from envoy_data_plane.envoy.extensions.filters.http.buffer import v3 as buffer
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.extensions.filters.http.header_mutation import (
        v3 as header_mutation,
    )
    from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata import (
        v3 as json_to_metadata,
    )
    from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
    from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata import (
        v3 as sse_to_metadata,
    )
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import (
        v3 as http_connection_manager,
    )
    from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
    from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstream_http
    from envoy_data_plane.envoy.type import v3 as envoy_type
    from envoy_data_plane.envoy.type.matcher import v3 as matcher
    from envoy_data_plane.google.protobuf import Any, Struct

__all__ = [
    "Any",
    "Casing",
    "Message",
    "Struct",
    "accesslog",
    "api_key_auth",
    "bootstrap",
    "buffer",
    "cluster",
    "core",
    "endpoint",
    "envoy_type",
    "ext_proc",
    "file_log",
    "grpc_log",
    "header_mutation",
    "http_connection_manager",
    "json_parser",
    "json_to_metadata",
    "listener",
    "matcher",
    "mutation_rules",
    "route",
    "router",
    "sse_to_metadata",
    "tls",
    "upstream_http",
]
