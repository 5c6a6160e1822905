"""Envoy's own filters that read usage out of answers, for profile ``native``.

Each number is written under its dotted path in the JSON into the namespace ``llm.usage``, which the
access log entry carries. The server builds the JSON again and reads it as it reads any answer.
"""

from collections.abc import Iterator

from extproc.core.handles import USAGE_NAMESPACE
from extproc.envoyconfig import _protos as p
from extproc.envoyconfig.options import RenderOptions
from extproc.envoyconfig.typed_struct import typed_struct

SSE_FILTER = "tokenweir.usage_of_streams"
JSON_FILTER = "tokenweir.usage_of_json"
BEDROCK_FILTER = "tokenweir.usage_of_event_streams"

# Envoy's limits for what it may hold of one event, and of one JSON answer.
_MAX_EVENT_BYTES = 1024 * 1024
_MAX_JSON_BYTES = 10 * 1024 * 1024

_CHAT = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details.cached_tokens",
    "completion_tokens_details.reasoning_tokens",
    "prompt_cache_hit_tokens",
)
_RESPONSES = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "input_tokens_details.cached_tokens",
    "output_tokens_details.reasoning_tokens",
)
_ANTHROPIC = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_GEMINI = (
    "promptTokenCount",
    "candidatesTokenCount",
    "totalTokenCount",
    "cachedContentTokenCount",
    "thoughtsTokenCount",
    "toolUsePromptTokenCount",
)
_COHERE = (
    "billed_units.input_tokens",
    "billed_units.output_tokens",
    "tokens.input_tokens",
    "tokens.output_tokens",
)
_BEDROCK = (
    "inputTokens",
    "outputTokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
)


def _below(outer: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{outer}.{name}" for name in names)


_OF_STREAMS = (
    *_below("usage", _CHAT),
    *_below("x_groq.usage", _CHAT[:3]),
    *_below("response.usage", _RESPONSES),
    *_below("message.usage", _ANTHROPIC),
    *_below("usage", (*_ANTHROPIC, "output_tokens")),
    *_below("usageMetadata", _GEMINI),
    *_below("delta.usage", _COHERE),
)
_OF_JSON = (
    *_below("usage", (*_CHAT, *_RESPONSES[:2], *_RESPONSES[3:], *_ANTHROPIC[1:])),
    *_below("usageMetadata", _GEMINI),
    *_below("usage", (*_COHERE, *_BEDROCK)),
    *_below("meta", _COHERE),
    "prompt_eval_count",  # Ollama, where it does not stream
    "eval_count",
)


def native_filters(options: RenderOptions) -> list[p.http_connection_manager.HttpFilter]:
    """Streams by rules; JSON by rules too before Envoy 1.40, by its own knowledge from then on."""
    if options.profile == "native-1.38":
        return [_streams(), _json_by_rules()]
    return [_streams(), _json_by_protocol(), _event_streams()]


def chat_usage() -> p.Any:
    """For a route whose answers do not tell their protocol, but report usage as chat does."""
    return typed_struct(
        "envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManagerPerRoute",
        {"response": {"llm_protocol": "OPENAI_CHAT_COMPLETIONS"}},
    )


def _rules(paths: tuple[str, ...]) -> Iterator[p.json_to_metadata.JsonToMetadataRule]:
    json = p.json_to_metadata
    for path in paths:
        yield json.JsonToMetadataRule(
            selectors=[json.JsonToMetadataSelector(key=key) for key in path.split(".")],
            on_present=json.JsonToMetadataKeyValuePair(
                metadata_namespace=USAGE_NAMESPACE,
                key=path,
                type=json.JsonToMetadataValueType.NUMBER,
            ),
        )


def _parser(paths: tuple[str, ...]) -> p.core.TypedExtensionConfig:
    rules = [p.json_parser.JsonContentParserRuleConfig(rule=rule) for rule in _rules(paths)]
    return p.core.TypedExtensionConfig(
        name="envoy.content_parsers.json",
        typed_config=p.Any.pack(p.json_parser.JsonContentParser(rules=rules)),
    )


def _filter(name: str, config: p.Any) -> p.http_connection_manager.HttpFilter:
    return p.http_connection_manager.HttpFilter(name=name, typed_config=config)


def _streams() -> p.http_connection_manager.HttpFilter:
    """Never holds an answer back. An event larger than the limit passes unread."""
    rules = p.sse_to_metadata.SseToMetadataProcessingRules(
        content_parser=_parser(_OF_STREAMS), max_event_size=_MAX_EVENT_BYTES
    )
    return _filter(SSE_FILTER, p.Any.pack(p.sse_to_metadata.SseToMetadata(response_rules=rules)))


def _json_by_rules() -> p.http_connection_manager.HttpFilter:
    """Holds a JSON answer back until it is whole, as large as Envoy's buffers are."""
    config = p.json_to_metadata.JsonToMetadata(
        response_rules=p.json_to_metadata.JsonToMetadataMatchRules(rules=[*_rules(_OF_JSON)])
    )
    return _filter(JSON_FILTER, p.Any.pack(config))


def _json_by_protocol() -> p.http_connection_manager.HttpFilter:
    limits = {"max_json_body_size": _MAX_JSON_BYTES}
    # No default protocol: Envoy would take it for every answer, also for those that it can tell.
    usage = {"include_unconfigured_routes": True, "limits": limits}
    return _filter(
        JSON_FILTER,
        typed_struct(
            "envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager",
            {"response_handling": {"token_usage": usage}},
        ),
    )


def _event_streams() -> p.http_connection_manager.HttpFilter:
    """Bedrock's ConverseStream; the events of InvokeModel are base64 inside."""
    parser = _parser(_below("usage", _BEDROCK)).to_dict(casing=p.Casing.SNAKE)
    return _filter(
        BEDROCK_FILTER,
        typed_struct(
            "envoy.extensions.filters.http.aws_eventstream_parser.v3.AwsEventstreamParser",
            {"response_rules": {"content_parser": parser}},
        ),
    )
