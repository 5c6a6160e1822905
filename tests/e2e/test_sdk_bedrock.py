"""AWS's own client of Bedrock's runtime, through the real stack."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from extproc.demo.fake_tokens import words
from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.drift import drift_of, journal_of, script, settled_as_produced
from tests.support.sdk_calls import text

SESSION = boto3.Session(region_name="eu-central-1")
NO_RETRIES = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=20)
CLAUDE = "anthropic.claude-sonnet-4-20250514-v1:0"
PROFILE = f"arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.{CLAUDE}"
NOVA = "eu.amazon.nova-lite-v1:0"
PROMPT = "Tell me about the river and the old stone bridge."
MESSAGES: Any = [{"role": "user", "content": [{"text": PROMPT}]}]
# What each family's body is, and where its answer's text stands.
BODIES: dict[str, dict[str, Any]] = {
    CLAUDE: {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": PROMPT}],
    },
    NOVA: {"messages": MESSAGES, "inferenceConfig": {"maxTokens": 200}},
    "amazon.titan-text-express-v1": {
        "inputText": PROMPT,
        "textGenerationConfig": {"maxTokenCount": 200},
    },
    "meta.llama3-1-8b-instruct-v1:0": {"prompt": PROMPT, "max_gen_len": 200},
}


class Bedrock:
    """A client of the runtime that signs with credentials of nobody, and the script of its next
    requests. ``Authorization`` holds the signature, so its key stands in ``x-api-key``."""

    def __init__(self, client: StackClient) -> None:
        self._client = client
        self._script = ""
        self.api: Any = SESSION.client(
            "bedrock-runtime",
            endpoint_url=client.stack.base_url,
            config=NO_RETRIES,
            aws_access_key_id="AKIADUMMY",
            aws_secret_access_key="dummy",
        )
        self.api.meta.events.register("before-sign.bedrock-runtime", self._mark)

    def _mark(self, request: Any, **_: Any) -> None:
        key = {"x-api-key": demo_key(self._client.service)}
        for name, value in (key | script(self._client, self._script)).items():
            request.headers[name] = value

    def scripted(self, more: str) -> Any:
        self._script = more
        return self.api


@pytest.fixture
def bedrock(client: StackClient) -> Iterator[Bedrock]:
    client.limit()
    made = Bedrock(client)
    yield made
    made.api.close()


@pytest.mark.parametrize("model", [CLAUDE, PROFILE])
def test_converse(client: StackClient, bedrock: Bedrock, model: str) -> None:
    answer = bedrock.scripted("output=37;cached=5;written=3;reasoning=7").converse(
        modelId=model, messages=MESSAGES, system=[{"text": "Be brief."}]
    )
    thought, said = answer["output"]["message"]["content"]
    assert thought["reasoningContent"]["reasoningText"]["text"] == text(7, start=1)
    assert said["text"] == text(30)
    (entry,) = settled_as_produced(client)
    assert entry.model == model
    assert answer["usage"]["totalTokens"] == entry.input_tokens + 37
    assert answer["usage"]["cacheReadInputTokens"] == 5
    assert not entry.streamed
    (record,) = client.records()
    assert record["wire_format"] == "bedrock_converse"


@pytest.mark.parametrize("cut", ["", ";chunk=1", ";chunk=7,13,2"])
def test_converse_stream(client: StackClient, bedrock: Bedrock, cut: str) -> None:
    api = bedrock.scripted(f"output=29;cached=5;reasoning=4{cut}")
    answer = api.converse_stream(
        modelId=CLAUDE, messages=MESSAGES, inferenceConfig={"maxTokens": 20}
    )
    events = list(answer["stream"])
    deltas = [
        event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event
    ]
    assert "".join(delta.get("text", "") for delta in deltas) == text(16)
    assert events[-2]["messageStop"]["stopReason"] == "max_tokens"
    (entry,) = settled_as_produced(client)
    assert entry.streamed
    assert entry.output_tokens_produced == 20
    assert events[-1]["metadata"]["usage"]["totalTokens"] == entry.input_tokens + 20


@pytest.mark.parametrize("model", BODIES)
def test_invoke_model(client: StackClient, bedrock: Bedrock, model: str) -> None:
    answer = bedrock.scripted("output=21;cached=2").invoke_model(
        modelId=model, body=json.dumps(BODIES[model])
    )
    assert text(21) in json.dumps(json.load(answer["body"]))
    (entry,) = settled_as_produced(client)
    assert entry.output_tokens_produced == 21


@pytest.mark.parametrize("model", BODIES)
def test_invoke_model_with_a_stream(client: StackClient, bedrock: Bedrock, model: str) -> None:
    answer = bedrock.scripted("output=21;cached=2").invoke_model_with_response_stream(
        modelId=model, body=json.dumps(BODIES[model])
    )
    events = [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]
    assert all(word in json.dumps(events) for word in words(21))
    assert "amazon-bedrock-invocationMetrics" in events[-1]
    (entry,) = settled_as_produced(client)
    assert entry.streamed
    assert entry.output_tokens_produced == 21


def test_embeddings(client: StackClient, bedrock: Bedrock) -> None:
    titan = bedrock.scripted("").invoke_model(
        modelId="amazon.titan-embed-text-v2:0", body=json.dumps({"inputText": PROMPT})
    )
    assert json.load(titan["body"])["embedding"] == [0.25, -0.5, 0.125]
    settled_as_produced(client)


def test_vectors_without_usage_are_charged_by_awss_headers(
    client: StackClient, bedrock: Bedrock
) -> None:
    """The body of Cohere's tells nothing."""
    cohere = bedrock.scripted("").invoke_model(
        modelId="cohere.embed-english-v3",
        body=json.dumps({"texts": [PROMPT], "input_type": "search_document"}),
    )
    assert json.load(cohere["body"])["embeddings"] == [[0.25, -0.5]]
    settled_as_produced(client)


def test_counting_is_free(client: StackClient, bedrock: Bedrock) -> None:
    counted = bedrock.scripted("").count_tokens(
        modelId=CLAUDE, input={"converse": {"messages": MESSAGES}}
    )
    assert counted["inputTokens"]
    assert [entry.status for entry in journal_of(client)] == [200]
    assert client.records() == []
    assert drift_of(client) == 0


def test_refusals_are_awss_exceptions(client: StackClient, bedrock: Bedrock) -> None:
    api = bedrock.scripted("")
    with pytest.raises(api.exceptions.ValidationException) as bad:
        api.invoke_model(modelId=NOVA, body=json.dumps({"messages": "none"}))
    assert "messages" in bad.value.response["Error"]["Message"]
    client.limit(rpm=0)
    body = json.dumps(BODIES[CLAUDE])
    for call, arguments in (
        (api.converse, {"messages": MESSAGES}),
        (api.converse_stream, {"messages": MESSAGES}),
        (api.invoke_model, {"body": body}),
        (api.invoke_model_with_response_stream, {"body": body}),
    ):
        with pytest.raises(ClientError) as ours:
            call(modelId=CLAUDE, **arguments)
        assert isinstance(ours.value, api.exceptions.ThrottlingException)
        assert ours.value.response["Error"]["Code"] == "ThrottlingException"
        assert "requests per minute" in ours.value.response["Error"]["Message"]
        headers = ours.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert headers["x-amzn-errortype"] == "ThrottlingException"
    assert journal_of(client) == []


def test_the_providers_own_errors_release(client: StackClient, bedrock: Bedrock) -> None:
    for number, (status, name) in enumerate(
        ((400, "ValidationException"), (429, "ThrottlingException")), start=1
    ):
        api = bedrock.scripted(f"status={status}")
        with pytest.raises(ClientError) as theirs:
            api.converse(modelId=CLAUDE, messages=MESSAGES)
        assert theirs.value.response["Error"]["Code"] == name
        records = client.settled(number)
        assert {record["state"] for record in records} == {"RELEASED"}
    assert drift_of(client) == 0


def test_an_exception_in_a_stream_is_charged_as_far_as_it_came(
    client: StackClient, bedrock: Bedrock
) -> None:
    """By our own count, scaled as Claude's tokens are: no usage comes any more."""
    api = bedrock.scripted("output=50;error_event_after=20;input=11")
    answer = api.converse_stream(modelId=CLAUDE, messages=MESSAGES)
    seen: list[Any] = []
    with closing(answer["stream"]) as stream, pytest.raises(EventStreamError) as caught:
        seen.extend(stream)
    assert caught.value.response["Error"]["Code"] == "throttlingException"
    assert sum("contentBlockDelta" in event for event in seen) == 20
    (record,) = client.settled(1)
    (entry,) = journal_of(client)
    assert entry.output_tokens_produced == 20
    assert record["state"] == "RECONCILING"
    assert int(record["charged"]) - int(record["input"]) == 23
