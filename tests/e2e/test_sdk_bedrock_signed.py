"""A request that AWS's client signed reaches the provider as it was signed.

Its client is known by a header of a proxy in front: ``Authorization`` holds the signature.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import boto3
import pytest
import redis
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from extproc.demo.stack import Stack
from tests.support.client import StackClient

SERVICE, FRONT = "signed", "x-from-front"
KEY_ID, SECRET, REGION = "AKIADUMMY", "dummy", "eu-central-1"
CLAUDE = "anthropic.claude-sonnet-4-20250514-v1:0"
PROFILE = f"arn:aws:bedrock:{REGION}:123456789012:inference-profile/eu.{CLAUDE}"
SAID: Any = {"role": "assistant", "content": [{"text": "Hello"}]}
USAGE = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}
ANSWER = {"output": {"message": SAID}, "stopReason": "end_turn", "usage": USAGE}


class Received(NamedTuple):
    """``path`` as it stood in the request's line; names of headers in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def provider() -> Iterator[tuple[str, list[Received]]]:
    """Where a provider listens, and what it was sent."""
    received: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            received.append(Received(self.path, headers, body))
            answer = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def signature(request: Received, *, base_url: str, body: bytes) -> str:
    """What AWS would compute for this request with ``body``."""
    _, _, named = request.headers["authorization"].partition("SignedHeaders=")
    names = named.partition(",")[0].split(";")
    signed = AWSRequest(
        method="POST",
        url=base_url + request.path,
        data=body,
        headers={name: request.headers[name] for name in names},
    )
    signed.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(Credentials(KEY_ID, SECRET), "bedrock", REGION)
    text = signer.string_to_sign(signed, signer.canonical_request(signed))
    found: str = signer.signature(text, signed)
    return found


def test_a_signed_request_passes_unchanged(provider: tuple[str, list[Received]]) -> None:
    base_url, received = provider
    source = json.dumps([{"kind": "header", "name": FRONT}])
    with (
        Stack(
            services=(SERVICE,),
            upstream_url=base_url,
            envoy_options={"api_keys": None, "front_headers": (FRONT,)},
            serve_env={"TOKENWEIR_IDENTITY__SOURCES": source},
            with_work=False,
        ) as stack,
        redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection,
    ):
        stack.set_limits(SERVICE, rpm=10, tpm=100_000)
        # Signed for the provider's host, sent to Envoy, which writes that host again.
        bedrock = boto3.Session(region_name=REGION).client(
            "bedrock-runtime",
            endpoint_url=base_url,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}),
        )

        def send_to_envoy(request: Any, **_: Any) -> None:
            request.url = request.url.replace(base_url, stack.base_url)
            request.headers[FRONT] = SERVICE

        bedrock.meta.events.register("before-send.bedrock-runtime", send_to_envoy)
        for model in (CLAUDE, PROFILE):
            answer = bedrock.converse(
                modelId=model,
                messages=[{"role": "user", "content": [{"text": "Grüße, say hi"}]}],
                system=[{"text": "Be brief."}],
            )
            assert answer["output"]["message"] == SAID
        bedrock.close()
        records = StackClient(stack, SERVICE, connection).settled(2)
    assert [int(record["charged"]) for record in records] == [18, 18]
    for request in received:
        assert FRONT not in request.headers
        signed = f"Signature={signature(request, base_url=base_url, body=request.body)}"
        assert request.headers["authorization"].endswith(signed)
        changed = signature(request, base_url=base_url, body=request.body + b" ")
        assert changed not in request.headers["authorization"]
