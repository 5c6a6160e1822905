"""The three kinds of failure, each naming whose fault it is.

A *decision* (admitted, rejected) is a value, never an exception; see ``reservations``.
"""


class TokenweirError(Exception):
    """Base of all errors that this package raises on purpose."""


class RequestError(TokenweirError):
    """The client's fault: the request cannot be admitted as it is, and nothing was taken.

    ``status`` is the HTTP status of the answer, ``code`` a stable machine-readable word,
    ``param`` the field or header that is wrong (None when the whole body is).
    """

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


class SettingsError(TokenweirError):
    """The operator's fault: a setting is missing or wrong. ``key`` names it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class UsageError(SettingsError):
    """The operator's fault too, on the command line: ``key`` is an option or a command."""


class StoreUnavailableError(TokenweirError):
    """A dependency's fault: Redis or SQL did not answer, or answered with an error.

    ``store`` is "redis" or "sql", "admission" when the whole decision took too long, or "policies"
    when what is stored cannot be decided, such as more limits for a request than one call holds.
    ``transient`` says that the same call may work a moment later.
    ``maybe_applied`` says that the command may have run although no reply was read, so its effect
    must be undone or asked for again by its id.
    """

    def __init__(
        self, store: str, message: str, *, transient: bool, maybe_applied: bool = False
    ) -> None:
        super().__init__(f"{store}: {message}")
        self.store = store
        self.transient = transient
        self.maybe_applied = maybe_applied
