"""The policy about models that nobody expected: counted, and by the setting refused."""

import logging

from extproc.core.errors import RequestError
from extproc.core.known_models import KnownModels
from extproc.core.ports import Telemetry

log = logging.getLogger("tokenweir.admission")

# Names that one process says once each; clients can spell any number of them.
_MOST_NAMED, _MAX_NAME = 256, 128


class UnknownModels:
    """Asked about each model that has no price."""

    def __init__(self, known: KnownModels, telemetry: Telemetry) -> None:
        self._known = known
        self._telemetry = telemetry
        self._named: set[str] = set()

    def check(self, model: str, *, service_id: str, request_id: str) -> None:
        """Count a model that is not known. Raises RequestError (403) where those are refused."""
        if self._known.has(model):
            return
        allowed = not self._known.refuses_others
        self._telemetry.unknown_model(allowed=allowed)
        model = model[:_MAX_NAME].encode("utf-8", "replace").decode()
        if not allowed:
            raise RequestError(
                403,
                "unknown_model",
                f"The model '{model}' is not one of those that this gateway forwards.",
                param="model",
            )
        if model in self._named or len(self._named) >= _MOST_NAMED:
            return
        self._named.add(model)
        log.warning(
            "unknown_model",
            extra={"model": model, "service_id": service_id, "request_id": request_id},
        )
