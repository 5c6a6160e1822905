"""OpenAI's decisions: answers to many questions about one input, as probabilities.

After the types of OpenAI's client (3.57). Usage is that of Responses and always reported; there is
neither a stream nor a cap, and what an answer says is no text to be counted.
"""

from extproc.providers.counting import PER_ANSWER, Counter
from extproc.providers.fields import model_of, objects
from extproc.providers.formats.openai_responses import count_input
from extproc.providers.media_rules import image_rule_by_name
from extproc.providers.openai_answers import OpenAiAnswer
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat


def read_decisions(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/decisions``."""
    del limits  # there are neither choices nor a cap
    model = model_of(body)
    encoding = encoding_for(model)
    counter = Counter(encoding, images=image_rule_by_name(model))
    input_tokens = PER_ANSWER + count_input(body.get("input"), counter)
    input_tokens += counter.json(objects(body, "questions"))
    return RequestFacts(
        wire_format="openai_decisions",
        model=model,
        stream=False,
        input_tokens=input_tokens,
        output_cap_tokens=None,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


class DecisionsAnswer(OpenAiAnswer):
    """Answers without text."""

    text_markers = None

    @property
    def unread(self) -> bool:
        return self.saw_output and not self._usage.is_known

    def take_json(self, value: JsonObject) -> None:
        if value.get("answers"):
            self.saw_output = True
        super().take_json(value)


OPENAI_DECISIONS = WireFormat(
    name="openai_decisions",
    provider="openai",
    ends=("decisions",),
    matches=has_api_prefix,
    read=read_decisions,
    answer=DecisionsAnswer,
    has_text_output=False,
)
