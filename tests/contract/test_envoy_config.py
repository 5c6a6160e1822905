"""Rendered configurations: accepted by the real Envoy, and read back by other generated classes."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

# The classes of xds-protos: importing a module registers what may stand in an Any.
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.extensions.access_loggers.file.v3 import file_pb2  # noqa: F401
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2  # noqa: F401
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2  # noqa: F401
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from google.protobuf import json_format

from extproc.core.errors import SettingsError
from extproc.demo.envoy_binary import envoy_command
from extproc.envoyconfig import RenderOptions, render_bootstrap, to_yaml
from extproc.envoyconfig.command import add_render_arguments, options_from_args
from extproc.envoyconfig.options import SYSTEM_CA_FILE
from extproc.envoyconfig.write_includes import generated_files

HTTP = "http://127.0.0.1:18080"
HTTPS = "https://api.openai.com"
KEYS = {"key-a": "team-a", "key-b": "team-b"}
ROOT = Path(__file__).parents[2]
INCLUDES = ROOT / "envoy"

VARIATIONS: dict[str, dict[str, Any]] = {
    "tcp": {"upstream_url": HTTP},
    "dns": {
        "upstream_url": "http://provider:8000/base",
        "tokenweir_addresses": ("tokenweir:18070",),
    },
    "ipv6": {"upstream_url": "http://[::1]:8000", "tokenweir_addresses": ("[::1]:18070",)},
    "unix": {"upstream_url": HTTP, "tokenweir_addresses": ("unix:/run/a.sock", "unix:/run/b.sock")},
    "several": {"upstream_url": HTTP, "tokenweir_addresses": ("10.0.0.1:18070", "named:18070")},
    "https": {"upstream_url": HTTPS, "upstream_ca_file": certifi.where()},
    "https by address": {"upstream_url": "https://10.0.0.1", "upstream_ca_file": certifi.where()},
    "keys": {"upstream_url": HTTP, "api_keys": KEYS},
    "open": {"upstream_url": HTTP, "failure_mode": "open"},
    "all": {
        "upstream_url": HTTP,
        "api_keys": KEYS,
        "identity_header": "x-team",
        "admin_port": 19000,
        "access_log_path": "/dev/null",
        "unmetered_prefixes": ("/v1/models", "/v1/files"),
        "upstream_headers": {"authorization": "Bearer %ENVIRONMENT(KEY)%"},
        "tokenweir_health_check": False,
        "trusted_headers": ("x-user", "x-agent"),
        "front_headers": ("x-department",),
        "idempotency_header": "idempotency-key",
    },
}
each_variation = pytest.mark.parametrize("changes", VARIATIONS.values(), ids=VARIATIONS)


def second_reading(config: dict[str, Any]) -> Any:
    """The configuration as xds-protos reads it; unknown fields and types raise ParseError."""
    return json_format.ParseDict(config, bootstrap_pb2.Bootstrap())


def unpack(message: Any, packed: Any) -> Any:
    assert packed.Unpack(message), packed.type_url
    return message


def connection_manager(config: dict[str, Any]) -> Any:
    (listener,) = second_reading(config).static_resources.listeners
    manager = http_connection_manager_pb2.HttpConnectionManager()
    return unpack(manager, listener.filter_chains[0].filters[0].typed_config)


def ext_proc(config: dict[str, Any], name: str) -> Any:
    (found,) = [f for f in connection_manager(config).http_filters if f.name == name]
    return unpack(ext_proc_pb2.ExternalProcessor(), found.typed_config)


def validate(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    config = folder / "envoy.yaml"
    config.write_text(text, encoding="utf-8")
    command = envoy_command(config, validate=True)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@each_variation
def test_envoy_accepts(changes: dict[str, Any], tmp_path: Path) -> None:
    done = validate(to_yaml(RenderOptions(**changes)), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["envoy/example-inline.yaml", "compose/envoy.yaml"])
def test_envoy_accepts_the_whole_configurations_of_the_repository(
    name: str, tmp_path: Path
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    done = validate(text.replace(SYSTEM_CA_FILE, certifi.where()), tmp_path)
    assert done.returncode == 0, done.stderr


def test_envoy_refuses_a_field_it_does_not_know(tmp_path: Path) -> None:
    """The check above can fail."""
    done = validate(to_yaml(RenderOptions(upstream_url=HTTP)) + "nonsense: 1\n", tmp_path)
    assert done.returncode != 0


@each_variation
def test_the_second_implementation_reads_the_same(changes: dict[str, Any]) -> None:
    config = yaml.safe_load(to_yaml(RenderOptions(**changes)))
    assert config == render_bootstrap(RenderOptions(**changes))
    read = second_reading(config)
    assert json_format.MessageToDict(read, preserving_proto_field_name=True) == config
    assert {c.name for c in read.static_resources.clusters} == {"tokenweir", "llm_upstream"}


def test_the_filters_stand_in_the_order_that_they_need() -> None:
    config = render_bootstrap(RenderOptions(upstream_url=HTTP, api_keys=KEYS))
    assert [f.name for f in connection_manager(config).http_filters] == [
        "tokenweir.strip_identity",
        "envoy.filters.http.api_key_auth",
        "tokenweir.admission",
        "tokenweir.metering",
        "tokenweir.buffer",
        "envoy.filters.http.router",
    ]


def test_admission_is_one_message_and_fails_closed_unless_told() -> None:
    closed = ext_proc(render_bootstrap(RenderOptions(upstream_url=HTTP)), "tokenweir.admission")
    mode = processing_mode_pb2.ProcessingMode
    assert closed.processing_mode.request_header_mode == mode.SKIP
    assert closed.processing_mode.request_body_mode == mode.BUFFERED
    assert closed.processing_mode.response_header_mode == mode.SKIP
    assert closed.processing_mode.response_body_mode == mode.NONE
    assert "request.headers['x-tokenweir-service']" in closed.request_attributes
    assert list(closed.metadata_options.receiving_namespaces.untyped) == ["llm"]
    assert not closed.failure_mode_allow
    assert closed.status_on_error.code == 503
    options = RenderOptions(upstream_url=HTTP, failure_mode="open")
    assert ext_proc(render_bootstrap(options), "tokenweir.admission").failure_mode_allow


def test_metering_never_holds_an_answer_back() -> None:
    metering = ext_proc(render_bootstrap(RenderOptions(upstream_url=HTTP)), "tokenweir.metering")
    mode = processing_mode_pb2.ProcessingMode
    assert metering.failure_mode_allow
    assert metering.processing_mode.response_body_mode == mode.STREAMED
    assert metering.processing_mode.response_trailer_mode == mode.SEND
    assert not metering.grpc_service.HasField("timeout")


def test_each_conversation_is_named() -> None:
    config = render_bootstrap(RenderOptions(upstream_url=HTTP))
    services = [ext_proc(config, f"tokenweir.{name}") for name in ("admission", "metering")]
    log = unpack(
        als_pb2.HttpGrpcAccessLogConfig(), connection_manager(config).access_log[0].typed_config
    )
    named = [*(s.grpc_service for s in services), log.common_config.grpc_service]
    values = [(h.key, h.value) for service in named for h in service.initial_metadata]
    key = "x-tokenweir-conversation"
    assert values == [(key, "admission"), (key, "metering"), (key, "ending")]


def test_envoy_says_of_open_streams_that_they_run() -> None:
    default = connection_manager(render_bootstrap(RenderOptions(upstream_url=HTTP)))
    assert default.access_log_options.access_log_flush_interval.ToTimedelta().total_seconds() == 60
    options = RenderOptions(upstream_url=HTTP, access_log_flush_seconds=0.5)
    interval = connection_manager(
        render_bootstrap(options)
    ).access_log_options.access_log_flush_interval
    assert interval.ToTimedelta().total_seconds() == 0.5


def test_tls_checks_the_host_of_the_url() -> None:
    config = render_bootstrap(RenderOptions(upstream_url=HTTPS))
    upstream = second_reading(config).static_resources.clusters[1]
    context = unpack(tls_pb2.UpstreamTlsContext(), upstream.transport_socket.typed_config)
    (name,) = context.common_tls_context.validation_context.match_typed_subject_alt_names
    assert (context.sni, name.matcher.exact) == ("api.openai.com", "api.openai.com")
    assert (
        upstream.load_assignment.endpoints[0]
        .lb_endpoints[0]
        .endpoint.address.socket_address.port_value
        == 443
    )


def test_the_files_are_what_the_builders_generate() -> None:
    """After a change of a builder: make includes."""
    paths = [*INCLUDES.iterdir(), ROOT / "compose/envoy.yaml"]
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert found == generated_files()


def test_the_includes_folder_is_no_package() -> None:
    """It would hide the package ``envoy`` of the generated classes."""
    assert not list(INCLUDES.glob("*.py"))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"upstream_url": "ftp://host"}, "upstream_url"),
        ({"upstream_url": "https://user:secret@host"}, "upstream_url"),
        ({"upstream_url": "http://host:99999"}, "upstream_url"),
        ({"tokenweir_addresses": ("unix:relative",)}, "tokenweir_addresses"),
        ({"tokenweir_addresses": ("10.0.0.1:1", "nowhere")}, "tokenweir_addresses"),
        ({"tokenweir_addresses": ()}, "tokenweir_addresses"),
        ({"tokenweir_addresses": ("host:1", "host:1")}, "tokenweir_addresses"),
        ({"tokenweir_addresses": ("unix:/run/a.sock", "host:1")}, "tokenweir_addresses"),
        ({"listen_port": 0}, "listen_port"),
        ({"profile": "guess"}, "profile"),
        ({"failure_mode": "ajar"}, "failure_mode"),
        ({"identity_header": "x'] or true"}, "identity_header"),
        ({"trusted_headers": ("X-User",)}, "trusted_headers"),
        ({"trusted_headers": ("authorization",)}, "trusted_headers"),
        ({"trusted_headers": ("x-user", "x-user")}, "trusted_headers"),
        ({"trusted_headers": ("key",), "idempotency_header": "key"}, "trusted_headers"),
        ({"front_headers": ("x-tokenweir-service",)}, "front_headers"),
        ({"trusted_headers": ("x-user",), "front_headers": ("x-user",)}, "front_headers"),
        ({"idempotency_header": "authorization"}, "idempotency_header"),
        ({"api_keys": {"key": "team}{"}}, "api_keys"),
        ({"api_keys": {"": "team"}}, "api_keys"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"request_timeout_seconds": float("nan")}, "request_timeout_seconds"),
        ({"access_log_flush_seconds": 0.0}, "access_log_flush_seconds"),
        ({"access_log_flush_seconds": float("inf")}, "access_log_flush_seconds"),
        ({"access_log_flush_seconds": float("nan")}, "access_log_flush_seconds"),
        ({"unmetered_prefixes": ("/",)}, "unmetered_prefixes"),
        ({"unmetered_prefixes": ("v1/models",)}, "unmetered_prefixes"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RenderOptions(**{"upstream_url": HTTP, **changes})
    assert caught.value.key == key


def test_keys_do_not_show_in_a_printed_option() -> None:
    assert "key-a" not in repr(RenderOptions(upstream_url=HTTP, api_keys=KEYS))


def parse(arguments: Sequence[str]) -> RenderOptions:
    parser = argparse.ArgumentParser()
    add_render_arguments(parser)
    return options_from_args(parser.parse_args(arguments))


def test_the_command_line_says_the_same_as_the_options(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# whose\nkey-a team-a\n\nkey-b\tteam-b\n", encoding="utf-8")
    line = ["--profile=inline", f"--upstream={HTTP}", "--listen=0.0.0.0:80", "--admin=127.0.0.1:9"]
    line += ["--tokenweir=unix:/run/t.sock", "--tokenweir=10.0.0.1:18070"]
    line += [f"--api-keys={keys}", "--failure-mode=open"]
    line += ["--upstream-header", "Authorization: Bearer %ENVIRONMENT(KEY)%"]
    line += ["--unmetered=/v1/models", "--access-log=/dev/stdout", "--no-health-check"]
    line += ["--access-log-flush-seconds=7.5", "--trusted-header=x-user", "--trusted-header=x-app"]
    line += ["--front-header=x-department", "--idempotency-header=idempotency-key"]
    assert parse(line) == RenderOptions(
        upstream_url=HTTP,
        listen_host="0.0.0.0",
        listen_port=80,
        admin_port=9,
        tokenweir_addresses=("unix:/run/t.sock", "10.0.0.1:18070"),
        tokenweir_health_check=False,
        api_keys=KEYS,
        failure_mode="open",
        upstream_headers={"authorization": "Bearer %ENVIRONMENT(KEY)%"},
        unmetered_prefixes=("/v1/models",),
        access_log_path="/dev/stdout",
        access_log_flush_seconds=7.5,
        trusted_headers=("x-user", "x-app"),
        front_headers=("x-department",),
        idempotency_header="idempotency-key",
    )
    assert parse([f"--upstream={HTTP}"]) == RenderOptions(upstream_url=HTTP)


@pytest.mark.parametrize("text", ["", "key-a\n", "key-a team-a\nkey-a team-b\n"])
def test_a_wrong_keys_file_is_refused(text: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="api_keys"):
        parse([f"--upstream={HTTP}", f"--api-keys={keys}"])


def test_declaring_the_arguments_does_not_load_the_messages() -> None:
    """Every command declares them, the serving one too."""
    check = "import sys, extproc.envoyconfig.command; sys.exit('envoy_data_plane' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
