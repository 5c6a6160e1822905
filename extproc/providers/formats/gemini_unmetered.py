"""Google's paths that are not metered, of the Gemini API and of Vertex AI.

The latter are the same words in Vertex's paths, so each comes in two: a limit of one provider must
not meet the other.
"""

from dataclasses import replace

from extproc.providers.error_bodies import gemini_error
from extproc.providers.gemini_requests import has_model, is_vertex
from extproc.providers.known_paths import known
from extproc.providers.wire_formats import KnownPath, Route, Target

_SERVICE = "google.ai.generativelanguage.{}.generativeservice.bidigeneratecontent"


def _is_versioned(target: Target) -> bool:
    return target.before.startswith("v1")


def _is_cancel(target: Target) -> bool:
    return target.before in ("batches", "operations", "batchpredictionjobs")


# Not billed, by the pages on billing (Gemini API) and on counting (Vertex AI).
GEMINI_COUNT_TOKENS = KnownPath(
    name="gemini_count_tokens",
    provider="gemini",
    ends=(":counttokens", ":computetokens"),
    matches=has_model,
    error_shape=gemini_error,
    is_free=True,
)
# Answered in a file, hours later.
GEMINI_BATCHES = KnownPath(
    name="gemini_batches",
    provider="gemini",
    ends=(":batchgeneratecontent", ":asyncbatchembedcontent", "batchpredictionjobs"),
    error_shape=gemini_error,
    is_free=False,
)
# Filling a cache bills its tokens, and its storage by the hour; so does keeping it longer.
GEMINI_CACHES = known(
    "gemini_caches",
    "gemini",
    *("cachedcontents", "cachedcontents/*"),
    anywhere=True,
    error_shape=gemini_error,
)
# Keeping a file costs no tokens; every service with the same key sees it. OpenAI's is `/v1/files`.
GEMINI_FILES = known(
    "gemini_files",
    "gemini",
    *(f"upload/{version}/files" for version in ("v1", "v1beta", "v1alpha")),
    *(f"{version}/{path}" for version in ("v1beta", "v1alpha") for path in ("files", "files/*")),
    anywhere=True,
    error_shape=gemini_error,
)
# A WebSocket, which normally never reaches admission: routes refuse upgrades.
GEMINI_LIVE = KnownPath(
    name="gemini_live",
    provider="gemini",
    ends=(
        "bidigeneratecontent",
        *(_SERVICE.format(version) for version in ("v1", "v1alpha", "v1beta")),
        _SERVICE.format("v1alpha") + "constrained",
    ),
    error_shape=gemini_error,
    is_free=False,
)
# The API that follows generateContent; in beta, with usage in words of its own.
GEMINI_INTERACTIONS = KnownPath(
    name="gemini_interactions",
    provider="gemini",
    ends=("interactions",),
    matches=_is_versioned,
    error_shape=gemini_error,
    is_free=False,
)
# Pictures and films, billed by the piece or the second.
GEMINI_PREDICT = KnownPath(
    name="gemini_predict",
    provider="gemini",
    ends=(":predict", ":predictlongrunning"),
    matches=has_model,
    error_shape=gemini_error,
    is_free=False,
)
# Asks how far a film is, or ends work, of whomever shares the key.
GEMINI_OPERATIONS = KnownPath(
    name="gemini_operations",
    provider="gemini",
    ends=(":cancel", ":fetchpredictoperation"),
    matches=lambda target: has_model(target) or _is_cancel(target),
    error_shape=gemini_error,
    is_free=False,
)
# Older ways to an answer, and stores whose filling is billed as embeddings.
GEMINI_OTHERS = KnownPath(
    name="gemini_others",
    provider="gemini",
    ends=(
        *(":generateanswer", ":generatetext", ":generatemessage"),
        *("filesearchstores", ":uploadtofilesearchstore", ":importfile"),
        *("tunedmodels", "tuningjobs"),
    ),
    error_shape=gemini_error,
    is_free=False,
)
_BOTH = (
    GEMINI_COUNT_TOKENS,
    GEMINI_BATCHES,
    GEMINI_CACHES,
    GEMINI_PREDICT,
    GEMINI_OPERATIONS,
    GEMINI_OTHERS,
)


def _of_vertex(path: KnownPath) -> KnownPath:
    return replace(
        path,
        name=path.name.replace("gemini", "vertex"),
        provider="vertex",
        matches=lambda target: is_vertex(target) and path.matches(target),
    )


# Before the Gemini API's.
GOOGLE_UNMETERED: tuple[Route, ...] = (
    *(_of_vertex(path) for path in _BOTH),
    *_BOTH,
    GEMINI_FILES,
    GEMINI_LIVE,
    GEMINI_INTERACTIONS,
)
