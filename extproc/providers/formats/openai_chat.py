"""OpenAI's chat completions, and their many copies."""

from extproc.providers.openai_answers import OpenAiAnswer
from extproc.providers.openai_requests import read_chat
from extproc.providers.wire_formats import Target, WireFormat


def _matches(target: Target) -> bool:
    return target.before == "chat"


OPENAI_CHAT = WireFormat(
    name="openai_chat",
    provider="openai",
    ends=("completions",),
    matches=_matches,
    read=read_chat,
    answer=OpenAiAnswer,
    asks_usage=True,
)
