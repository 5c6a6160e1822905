"""Google's answers: generateContent, plain and streamed, and embeddings."""

from dataclasses import replace

from extproc.core.usage import Usage
from extproc.providers.counting import compact
from extproc.providers.gemini_usage import ReportedUsage
from extproc.providers.json_answer import child, children, name_of, token_number
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally

_MAX_TRACKED_CANDIDATES = 1024
_REPORT_KEYS = ("usageMetadata", "usage_metadata")


class GeminiAnswer:
    """What one answer said so far. Same attributes as OpenAiAnswer."""

    def __init__(self, tally: TextTally) -> None:
        self._tally = tally
        self._reported = ReportedUsage()
        self._is_finished: dict[int, bool] = {}
        self._searches: dict[int, int] = {}
        self._saw_visible = False
        self._saw_media = False
        self._ended = False
        self.running_output_tokens = 0
        self.saw_output = False
        self.error = False
        self.response_id: str | None = None
        self.response_model: str | None = None

    @property
    def complete(self) -> bool:
        """The array's end, a blocked prompt, or a finish reason in every candidate's last chunk
        (Gemini 1 wrote "STOP" into each)."""
        finished = self._is_finished.values()
        return self._ended or (bool(finished) and all(finished))

    @property
    def unread(self) -> bool:
        """Pictures or sound came, and no usage for them."""
        return self._saw_media and not self.usage.is_known

    @property
    def usage(self) -> Usage:
        """What was reported. Zero for something that was visibly produced is a placeholder, and
        so is an output that is no more than the thoughts where text was seen beside them; zero
        before the end is not known yet."""
        input_tokens, output_tokens = self._reported.totals()
        if self.saw_output:
            input_tokens = input_tokens or None
        is_placeholder = not output_tokens and (self.saw_output or not self.complete)
        if is_placeholder or (self._saw_visible and self._reported.is_thoughts_only):
            output_tokens = None
        searches = sum(self._searches.values()) if self._searches else None
        return replace(
            self._reported.usage(input_tokens, output_tokens), server_tool_calls=searches
        )

    def take_event(self, event: SseEvent) -> None:
        """One element of the array, or one event of SSE."""
        if event.done:
            self._ended = True
        if event.value is not None:
            if event.name == "error":
                self.error = True
            self._take(event.value)

    def take_json(self, value: JsonObject) -> None:
        """A whole answer that is one JSON object."""
        self._take(value)
        self._ended = True

    def _take(self, value: JsonObject) -> None:
        if value.get("error"):
            self.error = True
        self.response_id = name_of(value, "responseId") or self.response_id
        self.response_model = name_of(value, "modelVersion") or self.response_model
        feedback = child(value, "promptFeedback")
        if feedback is not None and feedback.get("blockReason") and not value.get("candidates"):
            self._ended = True  # the prompt was refused: no candidate will come
        for candidate in children(value, "candidates"):
            self._take_candidate(candidate)
        for key in _REPORT_KEYS:
            report = child(value, key)
            if report is not None:
                self._take_usage(report)

    def _take_candidate(self, candidate: JsonObject) -> None:
        raw_index = candidate.get("index")
        index = raw_index if isinstance(raw_index, int) else 0  # a zero is left out
        if index in self._is_finished or len(self._is_finished) < _MAX_TRACKED_CANDIDATES:
            self._is_finished[index] = bool(candidate.get("finishReason"))
            grounding = child(candidate, "groundingMetadata")
            if grounding is not None:
                queries = grounding.get("webSearchQueries")
                count = len(queries) if isinstance(queries, list) else 0
                self._searches[index] = max(count, self._searches.get(index, 0))
        content = child(candidate, "content")
        for part in children(content, "parts") if content is not None else ():
            self._take_part(index, part)

    def _take_part(self, index: int, part: JsonObject) -> None:
        is_thought = part.get("thought") is True
        self._add((index, "thought" if is_thought else "text"), part.get("text"))
        call = child(part, "functionCall")
        if call is not None:
            self._add((index, "name"), call.get("name"))
            for key in ("args", "partialArgs"):
                if call.get(key):
                    self._add((index, "args"), compact(call[key]))
        code = child(part, "executableCode")
        if code is not None:
            self._add((index, "code"), code.get("code"))
        if part.get("inlineData"):
            self.saw_output = self._saw_media = True

    def _add(self, stream: tuple[int, str], text: object) -> None:
        if isinstance(text, str) and text:
            self.saw_output = True
            self._saw_visible = self._saw_visible or stream[1] != "thought"
            self._tally.add(stream, text)

    def _take_usage(self, report: JsonObject) -> None:
        self._reported.take(report)
        output = self._reported.totals()[1]
        if output:
            # It covers this chunk's text too, but not text beside which only thoughts are counted.
            self.running_output_tokens = output
            if not self._reported.is_thoughts_only:
                self._tally.restart()


class GeminiEmbeddingsAnswer(GeminiAnswer):
    """Embeddings: input only. Older models report no usage, Vertex's ``predict`` by instance."""

    @property
    def usage(self) -> Usage:
        input_tokens, _ = self._reported.totals()
        if input_tokens is None:
            input_tokens = self._reported.total
        if self.saw_output:
            input_tokens = input_tokens or None
        return self._reported.usage(input_tokens, None if input_tokens is None else 0)

    def _take(self, value: JsonObject) -> None:
        super()._take(value)
        if any(value.get(key) for key in ("embedding", "embeddings", "predictions")):
            self.saw_output = True
        counts = []
        for prediction in children(value, "predictions"):
            statistics = child(child(prediction, "embeddings"), "statistics") or {}
            counts.append(token_number(statistics.get("token_count")))
        known = [count for count in counts if count is not None]
        if known and len(known) == len(counts):
            self._reported.take({"promptTokenCount": sum(known)})

    def _take_usage(self, report: JsonObject) -> None:
        self._reported.take(report)
