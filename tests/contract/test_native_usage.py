"""What Envoy's own filters make of every recorded answer: the right number, or none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.accesslog.v3 import als_pb2

from extproc.core.usage import Usage
from extproc.envoy_io.native_usage import native_usage
from tests.support import envoy_rig
from tests.unit.provider_cases import AnswerCase, answer_cases

CASES = [case for case in answer_cases() if case.status == 200]
PATHS = {
    "anthropic_messages": "/v1/messages",
    "gemini": "/v1beta/models/gemini-2.5-pro:generateContent",
    "openai_embeddings": "/v1/embeddings",
    "openai_responses": "/v1/responses",
}
# Not read: compressed answers, labels that lie, formats and places that no rule reaches.
UNREAD_BY_BOTH = {
    "bedrock_invoke_stream_invocation_metrics_cache",
    "moonshot_sse_usage_only_in_choices0",
    "ollama_ndjson_no_final_newline",
    "ollama_ndjson_split",
    "openai_json_deflate_raw",
    "openai_json_zstd",
    "openai_sse_gzip_3byte_chunks",
    "openai_sse_gzip_multi_member_empty_first",
    "openai_sse_single_newline_between_events",
    "openai_sse_zero_usage_after_real_usage",
    "sse_body_labelled_application_json",
    "sse_body_labelled_text_plain",
}
UNREAD = {
    "native": UNREAD_BY_BOTH
    | {
        "bedrock_converse_json_cache",
        "cohere_v2_json_billed_vs_tokens",
        "gateway_json_placeholder_zero_plus_real_fields",
        "openai_json_bom",
        "openai_json_br_label_but_plain_body",
        "openai_json_gzip_label_but_plain_body",
        "openai_json_null_fields_total_only",
        "openrouter_json_fractional_tokens",
    },
    "native-1.38": UNREAD_BY_BOTH
    | {
        "bedrock_converse_stream_cut_in_prelude",
        "bedrock_converse_stream_metadata_after_stop",
        "gemini_stream_json_array_no_alt_sse",
    },
}


class Server(envoy_rig.Server):
    """Admits everything at once and keeps the entries as they came."""

    def __init__(self) -> None:
        super().__init__(metadata={"rid": "r1"})
        self.entries: asyncio.Queue[HTTPAccessLogEntry] = asyncio.Queue()

    async def process(self, _: Any, context: Any) -> None:
        await self._admit(context)

    async def end(self, messages: AsyncIterator[Any], _: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                await self.entries.put(entry)
        return als_pb2.StreamAccessLogsResponse()


class Provider(envoy_rig.Provider):
    """Answers with the case that the request names, cut as it was recorded."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        case = next(case for case in CASES if case.name == request.query["case"])
        headers = {"content-type": case.content_type or "application/octet-stream"}
        if case.content_encoding:
            headers["content-encoding"] = case.content_encoding
        answer = web.StreamResponse(status=case.status, headers=headers)
        await answer.prepare(request)
        for chunk in filter(None, case.chunks):
            await answer.write(chunk)
        return answer


async def call(rig: envoy_rig.Rig, case: AnswerCase) -> None:
    """The answer reaches the client as it was."""
    path = PATHS.get(case.wire_format, "/v1/chat/completions")
    url = f"{rig.url}{path}?case={case.name}"
    async with rig.client.post(url, data=b"{}", headers=envoy_rig.KEY) as answer:
        assert answer.status == 200
        assert await answer.content.read() == case.body


async def usages(rig: envoy_rig.Rig, server: Server) -> dict[str, Usage]:
    """Of all cases by name, as their entries come."""
    await asyncio.gather(*(call(rig, case) for case in CASES))
    found: dict[str, Usage] = {}
    formats = {case.name: case.wire_format for case in CASES}
    while len(found) < len(CASES):
        entry = await asyncio.wait_for(server.entries.get(), timeout=20)
        name = entry.request.path.rpartition("=")[2]
        found[name] = native_usage(formats[name], entry.common_properties.metadata)
    return found


def fits(usage: Usage, expect: dict[str, Any]) -> bool:
    outputs = expect.get("extra", {}).get("accept_output_tokens", [expect["output_tokens"]])
    inputs = expect.get("extra", {}).get("accept_input_tokens", [expect["input_tokens"]])
    return usage.input_tokens in inputs and usage.output_tokens in outputs


@pytest.mark.parametrize("profile", ["native", "native-1.38"])
async def test_envoy_reads_the_right_number_or_none(profile: str, tmp_path: Path) -> None:
    server = Server()
    wrong, unread = {}, set()
    async with envoy_rig.running(
        tmp_path, profile=profile, server=server, provider=Provider(), auto_decompress=False
    ) as rig:
        found = await usages(rig, server)
    for case in CASES:
        usage = found[case.name]
        if usage.is_known and not (case.expect["usage_known"] and fits(usage, case.expect)):
            wrong[case.name] = usage
        elif case.expect["usage_known"] and not usage.is_known:
            # Vectors have no output to report.
            is_input_read = usage.input_tokens == case.expect["input_tokens"]
            if not (case.expect["output_tokens"] == 0 and is_input_read):
                unread.add(case.name)
    assert wrong == {}
    assert unread == UNREAD[profile]
