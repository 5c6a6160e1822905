"""All APIs that the fake provider has; one file for each family."""

from extproc.demo.fake_apis import (
    anthropic_free,
    bedrock,
    cohere,
    gemini,
    ollama,
    openai_audio,
    openai_images,
    openai_responses,
    openai_small,
    vertex,
    wires,
)
from extproc.demo.fake_apis.api import Api

APIS: tuple[Api, ...] = (
    *wires.APIS,
    *anthropic_free.APIS,
    *openai_responses.APIS,
    *openai_images.APIS,
    *openai_audio.APIS,
    *openai_small.APIS,
    *gemini.APIS,
    *bedrock.APIS,
    *cohere.APIS,
    *ollama.APIS,
    *vertex.APIS,
)
