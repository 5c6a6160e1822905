"""The paths of each provider's API reference: what is metered, what is free, what is neither."""

import pytest

from extproc.providers.registry import provider_of, route_at
from extproc.providers.wire_formats import KnownPath, WireFormat

PROJECT = "/v1/projects/p/locations/us-central1"
GOOGLE = PROJECT + "/publishers/google/models"
ANTHROPIC = PROJECT + "/publishers/anthropic/models"
GUARDRAIL = "arn:aws:bedrock:us-east-1:123456789012:guardrail%2Fabc"
ARN = "arn:aws:bedrock:us-east-1:123456789012:inference-profile%2Fus.anthropic.claude-opus-4-8"

# Whose server it is -> path -> what is spoken there.
METERED: dict[str, dict[str, str]] = {
    "openai": {
        "/v1/chat/completions": "openai_chat",
        "/v1/completions": "openai_completions",
        "/v1/responses": "openai_responses",
        "/v1/responses/compact": "openai_responses",
        "/v1/embeddings": "openai_embeddings",
        "/v1/images/generations": "openai_images",
        "/v1/images/edits": "openai_images",
        "/v1/images/variations": "openai_images",
        "/v1/audio/transcriptions": "openai_transcription",
        "/v1/audio/translations": "openai_transcription",
        "/v1/audio/speech": "openai_speech",
        "/v1/moderations": "openai_moderations",
    },
    "azure": {
        "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21": "openai_chat",
        "/openai/deployments/model-router/chat/completions?api-version=1": "openai_chat",
        "/openai/deployments/d/extensions/chat/completions": "openai_chat",
        "/openai/deployments/d/completions": "openai_completions",
        "/openai/deployments/d/embeddings": "openai_embeddings",
        "/openai/deployments/d/images/generations": "openai_images",
        "/openai/deployments/d/audio/transcriptions": "openai_transcription",
        "/openai/deployments/d/audio/speech": "openai_speech",
        "/openai/v1/chat/completions": "openai_chat",
        "/openai/v1/responses?api-version=preview": "openai_responses",
        "/openai/v1/embeddings": "openai_embeddings",
        "/openai/responses": "openai_responses",
        "/models/chat/completions?api-version=2024-05-01-preview": "openai_chat",
        "/models/embeddings?api-version=2024-05-01-preview": "openai_embeddings",
        "/anthropic/v1/messages": "anthropic_messages",
    },
    "anthropic": {
        "/v1/messages": "anthropic_messages",
        "/v1/messages?beta=true": "anthropic_messages",
    },
    "gemini": {
        "/v1beta/models/gemini-3-pro-preview:generateContent": "gemini",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse": "gemini",
        "/v1beta/tunedModels/t-1:generateContent": "gemini",
        "/v1beta/models/gemini-embedding-001:embedContent": "gemini_embeddings",
        "/v1beta/models/gemini-embedding-001:batchEmbedContents": "gemini_embeddings",
        "/v1beta/openai/chat/completions": "gemini_openai_chat",
        "/v1beta/openai/embeddings": "gemini_openai_embeddings",
        "/v1beta/openai/images/generations": "gemini_openai_images",
    },
    "vertex": {
        GOOGLE + "/gemini-2.5-pro:generateContent": "vertex_gemini",
        GOOGLE + "/gemini-2.5-pro:streamGenerateContent": "vertex_gemini",
        "/v1/publishers/google/models/gemini-2.5-flash:generateContent": "vertex_gemini",
        PROJECT + "/endpoints/12345:generateContent": "vertex_gemini",
        GOOGLE + "/gemini-embedding-2:embedContent": "vertex_embeddings",
        GOOGLE + "/text-embedding-005:predict": "vertex_embeddings_predict",
        ANTHROPIC + "/claude-opus-4-8:rawPredict": "vertex_anthropic_messages",
        ANTHROPIC + "/claude-opus-4-8:streamRawPredict": "vertex_anthropic_messages",
        PROJECT + "/endpoints/openapi/chat/completions": "vertex_openai_chat",
        PROJECT + "/endpoints/openapi/embeddings": "vertex_openai_embeddings",
    },
    "bedrock": {
        "/model/amazon.nova-pro-v1:0/converse": "bedrock_converse",
        "/model/us.anthropic.claude-opus-4-8-v1%3A0/converse-stream": "bedrock_converse_stream",
        f"/model/{ARN}/invoke": "bedrock_invoke",
        "/model/meta.llama4/invoke-with-response-stream": "bedrock_invoke_stream",
        "/model/cohere.embed-v4:0/invoke": "bedrock_embeddings",
        "/openai/v1/chat/completions": "openai_chat",
    },
    "cohere": {
        "/v2/chat": "cohere_v2",
        "/v1/chat": "cohere_v1",
        "/v2/embed": "cohere_embed",
        "/v1/embed": "cohere_embed",
        "/v2/rerank": "cohere_rerank",
        "/compatibility/v1/chat/completions": "openai_chat",
        "/compatibility/v1/embeddings": "openai_embeddings",
        "/v2/audio/transcriptions": "openai_transcription",
    },
    "mistral": {
        "/v1/chat/completions": "openai_chat",
        "/v1/fim/completions": "mistral_fim",
        "/v1/agents/completions": "mistral_agents",
        "/v1/embeddings": "openai_embeddings",
        "/v1/moderations": "openai_moderations",
        "/v1/audio/transcriptions": "openai_transcription",
    },
    "deepseek": {
        "/chat/completions": "openai_chat",
        "/v1/chat/completions": "openai_chat",
        "/beta/chat/completions": "openai_chat",
        "/beta/completions": "openai_completions",
        "/anthropic/v1/messages": "anthropic_messages",
    },
    "groq": {
        "/openai/v1/chat/completions": "openai_chat",
        "/openai/v1/responses": "openai_responses",
        "/openai/v1/audio/transcriptions": "openai_transcription",
        "/openai/v1/audio/speech": "openai_speech",
    },
    "xai": {
        "/v1/chat/completions": "openai_chat",
        "/v1/responses": "openai_responses",
        "/v1/messages": "anthropic_messages",
        "/v1/images/generations": "openai_images",
    },
    "moonshot": {
        "/v1/chat/completions": "openai_chat",
        "/anthropic/v1/messages": "anthropic_messages",
    },
    "openrouter": {
        "/api/v1/chat/completions": "openai_chat",
        "/api/v1/completions": "openai_completions",
        "/api/v1/responses": "openai_responses",
        "/api/v1/messages": "anthropic_messages",
        "/api/v1/embeddings": "openai_embeddings",
    },
    "vllm": {
        "/v1/chat/completions": "openai_chat",
        "/v1/completions": "openai_completions",
        "/v1/embeddings": "openai_embeddings",
        "/v1/responses": "openai_responses",
        "/v1/messages": "anthropic_messages",
        "/v1/audio/transcriptions": "openai_transcription",
        "/rerank": "rerank",
        "/v1/rerank": "rerank",
        "/v2/rerank": "cohere_rerank",
    },
    "sglang": {
        "/v1/chat/completions": "openai_chat",
        "/v1/completions": "openai_completions",
        "/v1/embeddings": "openai_embeddings",
        "/v1/rerank": "rerank",
        "/api/chat": "ollama_chat",
    },
    "ollama": {
        "/api/chat": "ollama_chat",
        "/api/generate": "ollama_generate",
        "/api/embed": "ollama_embed",
        "/api/embeddings": "ollama_embed",
        "/v1/chat/completions": "openai_chat",
        "/v1/completions": "openai_completions",
        "/v1/embeddings": "openai_embeddings",
        "/v1/responses": "openai_responses",
        "/v1/messages": "anthropic_messages",
    },
}
FREE = {
    "/v1/messages/count_tokens?beta=true": "anthropic_count_tokens",
    "/anthropic/v1/messages/count_tokens": "anthropic_count_tokens",
    "/v1beta/models/gemini-2.5-pro:countTokens": "gemini_count_tokens",
    GOOGLE + "/gemini-2.5-pro:countTokens": "vertex_count_tokens",
    GOOGLE + "/gemini-2.5-pro:computeTokens": "vertex_count_tokens",
    PROJECT + "/endpoints/1:countTokens": "vertex_count_tokens",
    ANTHROPIC + "/count-tokens:rawPredict": "vertex_anthropic_count_tokens",
    "/model/anthropic.claude-opus-4-8/count-tokens": "bedrock_count_tokens",
    "/v1/responses/input_tokens": "openai_input_tokens",
    "/v1/tokenize": "tokenize",
    "/tokenize": "tokenize",
    "/detokenize": "tokenize",
    "/v1/tokenize-text": "tokenize",
    "/v1/tokenizers/estimate-token-count": "tokenize",
    "/v1/chat/completions/render": "tokenize",
    "/api/show": "ollama_show",
    "/api/tags": "ollama_show",
}
BY_THE_SETTING = {
    "/v1/files": "openai_files",
    "/v1beta/files": "gemini_files",
    "/v1beta/files/abc-123": "gemini_files",
    "/upload/v1beta/files": "gemini_files",
    "/upload/v1/files": "gemini_files",
    "/v1/files/file-abc": "openai_files",
    "/openai/v1/files": "openai_files",
    "/openai/files?api-version=2024-10-21": "openai_files",
    "/v1/uploads": "openai_files",
    "/v1/uploads/up_1/parts": "openai_files",
    "/v1/uploads/up_1/complete": "openai_files",
    "/v1/responses/resp_1/cancel": "openai_cancel",
    "/v1/batches/batch_1/cancel": "openai_cancel",
    "/v1/messages/batches/msgbatch_1/cancel": "openai_cancel",
    "/v1/fine_tuning/jobs/ft-1/cancel": "openai_cancel",
    "/v1/threads/t/runs/r/cancel": "openai_cancel",
    "/v1/assistants": "openai_assistants",
    "/v1/threads": "openai_assistants",
    "/openai/threads/t/messages": "openai_assistants",
    GOOGLE + "/veo-3:fetchPredictOperation": "vertex_operations",
    "/v1beta/batches/b:cancel": "gemini_operations",
    "/v1/datasets": "cohere_data",
    "/v1/check-api-key": "cohere_data",
    "/v1/batches": "openai_batches",
    "/openai/v1/batches": "openai_batches",
    "/v1/fine_tuning/jobs": "openai_fine_tuning",
    "/v1/realtime?model=gpt-realtime": "openai_realtime",
    "/openai/v1/realtime/client_secrets": "openai_realtime",
    "/v1/realtime/calls": "openai_realtime",
    "/v1/threads/t/runs": "openai_runs",
    "/v1/threads/runs": "openai_runs",
    "/v1/threads/t/runs/r/submit_tool_outputs": "openai_runs",
    "/v1/vector_stores": "openai_vector_stores",
    "/v1/vector_stores/vs/search": "openai_vector_stores",
    "/v1/vector_stores/vs/files": "openai_vector_stores",
    "/v1/videos": "openai_videos",
    "/v1/videos/v/remix": "openai_videos",
    "/v1/videos/generations": "openai_videos",
    "/openai/v1/video/generations/jobs": "openai_videos",
    "/v1/evals/e/runs": "openai_evals",
    "/v1/containers": "openai_containers",
    "/v1/conversations": "openai_conversations",
    "/v1/conversations/c/items": "openai_conversations",
    "/v1/messages/batches": "anthropic_batches",
    "/v1/complete": "anthropic_complete",
    "/v1beta/models/gemini-2.5-flash:batchGenerateContent": "gemini_batches",
    "/v1beta/models/gemini-embedding-001:asyncBatchEmbedContent": "gemini_batches",
    PROJECT + "/batchPredictionJobs": "vertex_batches",
    "/v1beta/cachedContents": "gemini_caches",
    "/v1beta/cachedContents/c": "gemini_caches",
    PROJECT + "/cachedContents": "vertex_caches",
    PROJECT + "/cachedContents/1": "vertex_caches",
    "/v1beta/models/imagen-4:predict": "gemini_predict",
    GOOGLE + "/imagen-4:predict": "vertex_predict",
    GOOGLE + "/veo-3:predictLongRunning": "vertex_predict",
    "/v1beta/interactions": "gemini_interactions",
    "/v1beta/models/aqa:generateAnswer": "gemini_others",
    PROJECT + "/tuningJobs": "vertex_others",
    PROJECT + "/publishers/mistralai/models/m:rawPredict": "vertex_raw_predict",
    PROJECT + "/endpoints/1:rawPredict": "vertex_raw_predict",
    "/guardrail/abc123/version/1/apply": "bedrock_guardrail",
    f"/guardrail/{GUARDRAIL}/version/DRAFT/apply": "bedrock_guardrail",
    "/async-invoke": "bedrock_async_invoke",
    "/model/amazon.nova-sonic-v1:0/invoke-with-bidirectional-stream": "bedrock_bidirectional",
    "/model-invocation-job": "bedrock_jobs",
    "/agents/A/agentAliases/B/sessions/S/text": "bedrock_agents",
    "/flows/F/aliases/A": "bedrock_agents",
    "/knowledgebases/K/retrieve": "bedrock_agents",
    "/retrieveAndGenerate": "bedrock_agents",
    "/v1/classify": "cohere_unmetered",
    "/v1/generate": "cohere_unmetered",
    "/v1/embed-jobs": "cohere_unmetered",
    "/v1/ocr": "mistral_ocr",
    "/v1/chat/moderations": "mistral_classifiers",
    "/v1/batch/jobs": "mistral_batches",
    "/v1/documents/search": "xai_search",
    "/pooling": "server_pooling",
    "/v1/score": "server_pooling",
    "/classify": "server_pooling",
    "/generate": "server_generate",
    "/invocations": "server_generate",
    "/api/pull": "ollama_manage",
    "/api/delete": "ollama_manage",
    "/api/web_search": "ollama_web",
}
# Nothing is known of these: a free path must be exactly that.
UNKNOWN = (
    "/v1/files/a/b/c",
    "/v1/threads/t/runs/r",
    "/v1/files/models/gemini-2.5-pro:generateVideos",
    "/v1/assistants/a:run",
    "/v1beta/models/m:newVerb",
    "/x/show",
    "/v1/projects/p/locations/l:generateContent",
    "/v1/admin/keys",
)


@pytest.mark.parametrize(
    ("server", "path", "name"),
    [(server, path, name) for server, paths in METERED.items() for path, name in paths.items()],
)
def test_a_path_that_is_metered(server: str, path: str, name: str) -> None:
    route = route_at(path)
    assert isinstance(route, WireFormat)
    assert route.name == name
    if server in ("gemini", "vertex", "bedrock", "cohere") and route.provider != "openai":
        assert provider_of(name) == server


@pytest.mark.parametrize(("path", "name"), FREE.items())
def test_a_path_that_is_free(path: str, name: str) -> None:
    route = route_at(path)
    assert isinstance(route, KnownPath)
    assert (route.name, route.is_free) == (name, True)


@pytest.mark.parametrize(("path", "name"), BY_THE_SETTING.items())
def test_a_path_that_may_cost_and_follows_the_setting(path: str, name: str) -> None:
    route = route_at(path)
    assert isinstance(route, KnownPath)
    assert (route.name, route.is_free) == (name, False)


@pytest.mark.parametrize("path", UNKNOWN)
def test_a_path_of_which_nothing_is_known(path: str) -> None:
    assert route_at(path) is None


def test_googles_paths_have_the_provider_whose_they_are() -> None:
    assert provider_of("vertex_count_tokens") == provider_of("vertex_caches") == "vertex"
    assert provider_of("gemini_count_tokens") == provider_of("gemini_caches") == "gemini"
