"""The provider behind every system: an Envoy that answers JSON by itself, which costs next to
nothing, and passes requests for streams on to ``stream_provider``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.demo.processes import free_ports
from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.envoyconfig import RenderOptions, render_bootstrap
from tests.bench.running import running, running_envoy
from tests.bench.systems import connection_manager, without_tokenweir
from tests.bench.traffic import answer_body


@contextmanager
def upstream(directory: Path) -> Iterator[str]:
    """Gives its URL. A request that has a header ``x-fake`` gets the stream, any other the JSON."""
    port, listen_port, admin_port = free_ports(3)
    options = RenderOptions(
        upstream_url=f"http://127.0.0.1:{port}",
        listen_port=listen_port,
        admin_port=admin_port,
        tokenweir_addresses=("127.0.0.1:1",),
    )
    config = without_tokenweir(render_bootstrap(options))
    host = connection_manager(config)["route_config"]["virtual_hosts"][0]
    (streams,) = host["routes"]
    streams["match"]["headers"] = [{"name": SCRIPT_HEADER, "present_match": True}]
    json_type = {"header": {"key": "content-type", "value": "application/json"}}
    at_once = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": answer_body().decode()}},
        "response_headers_to_add": [{**json_type, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    host["routes"] = [streams, at_once]
    command = [sys.executable, "-m", "tests.bench.stream_provider", "--port", str(port)]
    with (
        running("provider", command, directory),
        running_envoy("upstream", config, directory),
    ):
        yield f"http://127.0.0.1:{listen_port}"
