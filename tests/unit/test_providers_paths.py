"""Paths: which are metered, however they are spelled."""

import pytest

from extproc.providers.registry import read_request, wire_format_of
from extproc.providers.requests import Unmetered
from tests.unit.test_providers_requests import CHAT, LIMITS, read, refused


@pytest.mark.parametrize(
    ("path", "wire_format"),
    [
        ("/v1/chat/completions;a=b", "openai_chat"),
        ("/v1/chat;x/completions", "openai_chat"),
        ("/v1/chat/completions%3Bx", "openai_chat"),
        ("/v1/chat/completions%20", "openai_chat"),
        ("/v1/chat/completions%23x", "openai_chat"),
        ("/v1/chat%252Fcompletions", "openai_chat"),
        ("/v1/messages;x", "anthropic_messages"),
        (CHAT, "openai_chat"),
        ("/openai/v1/chat/completions/?api-version=1", "openai_chat"),
        ("/v1//chat/./x/../completions", "openai_chat"),
        ("/V1/Chat/Completions", "openai_chat"),
        ("/v1/chat%2Fc%6fmpletions#a", "openai_chat"),
        ("/chat/completions", "openai_chat"),
        ("/openai/deployments/gpt/chat/completions?x=/v1/messages", "openai_chat"),
        ("/v1/completions", "openai_completions"),
        ("/openai/deployments/gpt/completions", "openai_completions"),
        ("/v1/embeddings", "openai_embeddings"),
        ("/openai/deployments/e/embeddings", "openai_embeddings"),
        ("/anthropic/v1/messages", "anthropic_messages"),
        ("/v1/messages/count_tokens", None),
        ("/v1/threads/t1/messages", None),
        ("/v1/models", None),
        ("/v1/responses", "openai_responses"),
        ("/openai/responses?api-version=preview", "openai_responses"),
        ("/openai/v1/responses", "openai_responses"),
        ("/v1/responses/compact", "openai_responses"),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/files/compact", None),
        ("/openai/v1/embeddings", "openai_embeddings"),
        ("/v1/images/generations", "openai_images"),
        ("/openai/deployments/i/images/edits", "openai_images"),
        ("/v1/images/variations", "openai_images"),
        ("/v1/videos/generations", None),
        ("/v1/audio/transcriptions", "openai_transcription"),
        ("/openai/deployments/w/audio/translations", "openai_transcription"),
        ("/v1/audio/speech", "openai_speech"),
        ("/v1/moderations", "openai_moderations"),
        ("/rerank", "rerank"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "cohere_rerank"),
        ("/v2/chat", "cohere_v2"),
        ("/cohere/v1/chat", "cohere_v1"),
        ("/v3/chat", None),
        ("/v2/embed", "cohere_embed"),
        ("/v1/embed", "cohere_embed"),
        ("/api/chat", "ollama_chat"),
        ("/ollama/api/generate", "ollama_generate"),
        ("/api/embed", "ollama_embed"),
        ("/api/embeddings", "ollama_embed"),
        ("/api/chat/completions", "openai_chat"),
        ("/api/tags", None),
        ("/generate", None),
        ("/v1/realtime", None),
        ("/v1/batches", None),
        ("/v1/messages/batches", None),
        ("/v1/chat/completions/abc", None),
        ("/v1/jobs/completions", None),
        ("/..", None),
        ("", None),
    ],
)
def test_paths(path: str, wire_format: str | None) -> None:
    assert wire_format_of(path) == wire_format


def test_an_unknown_path_is_unmetered_unread() -> None:
    unknown = read_request(
        "/v1/nowhere", b"\xff", content_type=None, content_encoding="br", limits=LIMITS
    )
    assert unknown == Unmetered("unknown_path")


def test_azures_deployment_stands_for_a_missing_model() -> None:
    body = {"messages": [{"role": "user", "content": "Say hi"}]}
    path = "/openai/deployments/My-GPT/chat/completions?api-version=2024-10-21"
    assert read(path, body).model == "My-GPT"
    assert refused(CHAT, body).param == "model"
