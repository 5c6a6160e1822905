"""Anthropic's messages in the paths of Vertex AI, where the model stands in the path."""

from extproc.demo.fake_apis.wires import wire_api

_MODEL = "/{base:.+}/publishers/anthropic/models/{model}"

APIS = tuple(
    wire_api("anthropic", f"{_MODEL}:{verb}") for verb in ("rawPredict", "streamRawPredict")
)
