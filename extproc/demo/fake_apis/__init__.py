"""All APIs that the fake provider has; one file for each family."""

from extproc.demo.fake_apis import bedrock, cohere, gemini, ollama, wires
from extproc.demo.fake_apis.api import Api

APIS: tuple[Api, ...] = (
    *wires.APIS,
    *gemini.APIS,
    *bedrock.APIS,
    *cohere.APIS,
    *ollama.APIS,
)
