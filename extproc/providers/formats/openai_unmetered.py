"""OpenAI's paths that are not metered, which its many copies have too.

Of some the usage is reported over a socket, or a day later in a file; some are billed by other
things than tokens; some by nothing at all, but they keep or change something at the provider, whose
key all services may share. So all follow the setting on unmetered requests, each group under a
reason of its own. A WebSocket has no body and never reaches admission at all: routes refuse
upgrades.
"""

from extproc.providers.known_paths import known
from extproc.providers.wire_formats import KnownPath, Route, Target


def _is_realtime(target: Target) -> bool:
    return target.lowered[-1] == "realtime" or "realtime" in target.lowered[-3:-1]


def _is_batches(target: Target) -> bool:
    return target.before in ("v1", "openai")


OPENAI_REALTIME = KnownPath(
    name="openai_realtime",
    provider="openai",
    ends=("realtime", "sessions", "transcription_sessions", "client_secrets", "calls", "accept"),
    matches=_is_realtime,
    is_free=False,
)
OPENAI_BATCHES = KnownPath(
    name="openai_batches",
    provider="openai",
    ends=("batches",),
    matches=_is_batches,
    is_free=False,
)
# Keeping a file costs no tokens; what reads it does. Anthropic, Groq, Mistral and Moonshot have the
# same paths.
OPENAI_FILES = known(
    "openai_files",
    "openai",
    *("files", "files/*", "files/*/content"),
    *("uploads", "uploads/*/parts", "uploads/*/complete", "uploads/*/cancel"),
)
# Ends work that goes on, or makes what costs nothing until it is run.
OPENAI_CANCEL = known(
    "openai_cancel",
    "openai",
    *("responses/*/cancel", "batches/*/cancel", "messages/batches/*/cancel"),
    *("threads/*/runs/*/cancel", "evals/*/runs/*/cancel"),
    *(f"fine_tuning/jobs/*/{verb}" for verb in ("cancel", "pause", "resume")),
)
OPENAI_ASSISTANTS = known(
    "openai_assistants",
    "openai",
    *("assistants", "assistants/*", "threads", "threads/*"),
    *("threads/*/messages", "threads/*/messages/*"),
)
# A run is polled, or streamed with events of its own.
OPENAI_RUNS = known(
    "openai_runs",
    "openai",
    *("threads/runs", "threads/*/runs", "threads/*/runs/*/submit_tool_outputs"),
)
# By gigabytes and days, and by searches.
OPENAI_VECTOR_STORES = known(
    "openai_vector_stores",
    "openai",
    *("vector_stores", "vector_stores/*", "vector_stores/*/search"),
    *("vector_stores/*/files", "vector_stores/*/files/*"),
    *("vector_stores/*/file_batches", "vector_stores/*/file_batches/*/cancel"),
)
OPENAI_FINE_TUNING = known(
    "openai_fine_tuning",
    "openai",
    *("fine_tuning/jobs", "fine_tuning/alpha/graders/run", "fine_tuning/alpha/graders/validate"),
)
# By the second of film.
OPENAI_VIDEOS = known(
    "openai_videos",
    "openai",
    *("videos", "videos/*/remix", "videos/generations", "videos/edits", "videos/extensions"),
    *("video/generations/jobs", "video/generations"),
)
OPENAI_EVALS = known("openai_evals", "openai", "evals", "evals/*", "evals/*/runs")
OPENAI_CONTAINERS = known("openai_containers", "openai", "containers", "containers/*/files")
# Nothing is run at OpenAI; Mistral runs an agent at the same path.
OPENAI_CONVERSATIONS = known(
    "openai_conversations",
    "openai",
    *("conversations", "conversations/*", "conversations/*/items", "conversations/*/restart"),
)
# Counts and runs nothing. OpenAI's page does not say what it costs; its forum says nothing.
OPENAI_INPUT_TOKENS = known("openai_input_tokens", "openai", "responses/input_tokens", is_free=True)

OPENAI_UNMETERED: tuple[Route, ...] = (
    OPENAI_REALTIME,
    OPENAI_BATCHES,
    OPENAI_FILES,
    OPENAI_CANCEL,
    OPENAI_ASSISTANTS,
    OPENAI_RUNS,
    OPENAI_VECTOR_STORES,
    OPENAI_FINE_TUNING,
    OPENAI_VIDEOS,
    OPENAI_EVALS,
    OPENAI_CONTAINERS,
    OPENAI_CONVERSATIONS,
    OPENAI_INPUT_TOKENS,
)
