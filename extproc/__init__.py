"""tokenweir: reserve LLM tokens before Envoy forwards a request, settle to what was used."""

__version__ = "0.1.0"
