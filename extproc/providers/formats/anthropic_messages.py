"""Anthropic's messages, and the paths beside them that are not metered."""

from extproc.providers.anthropic_answers import AnthropicAnswer
from extproc.providers.anthropic_requests import FACTOR_PERCENT, read_messages
from extproc.providers.error_bodies import anthropic_error
from extproc.providers.wire_formats import KnownPath, Target, WireFormat


def _is_messages(target: Target) -> bool:
    # Assistants' /v1/threads/ID/messages is another API.
    return target.before == "v1"


def _is_below_messages(target: Target) -> bool:
    return target.lowered[-3:-1] == ("v1", "messages")


ANTHROPIC_MESSAGES = WireFormat(
    name="anthropic_messages",
    provider="anthropic",
    ends=("messages",),
    matches=_is_messages,
    error_shape=anthropic_error,
    read=read_messages,
    answer=AnthropicAnswer,
    factor_percent=FACTOR_PERCENT,
)
# "Token counting is free to use but subject to requests per minute rate limits" (Anthropic's page
# on token counting): it passes, whatever the setting on unmetered requests says.
ANTHROPIC_COUNT_TOKENS = KnownPath(
    name="anthropic_count_tokens",
    provider="anthropic",
    ends=("count_tokens",),
    matches=_is_below_messages,
    error_shape=anthropic_error,
    is_free=True,
)
# A batch holds up to 100,000 requests whose usage is known a day later and never passes here: what
# it costs cannot be metered, so it follows the setting.
ANTHROPIC_BATCHES = KnownPath(
    name="anthropic_batches",
    provider="anthropic",
    ends=("batches",),
    matches=_is_below_messages,
    error_shape=anthropic_error,
    is_free=False,
)
