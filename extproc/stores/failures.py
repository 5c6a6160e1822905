"""What a failure of Redis means: may it have run, and may another moment be better."""

from collections.abc import Iterable
from typing import Protocol

from redis import exceptions as redis_errors

from extproc.core.errors import StoreUnavailableError

# Error replies that say that the command did not run, and that another moment may be better.
_NOT_RUN_TRANSIENT = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.MasterDownError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
    redis_errors.AskError,  # MOVED too
    redis_errors.OutOfMemoryError,
    redis_errors.MaxConnectionsError,
)
_NOT_RUN_FINAL = (
    redis_errors.NoPermissionError,
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.NoScriptError,
    redis_errors.ClusterCrossSlotError,
)
_UNAUTHENTICATED = "a password is missing in redis.url ({})"
_NOT_RUN_WORDS = ("BUSY ", "NOREPLICAS ")


class Waiting(Protocol):
    """A call whose caller waits."""

    def fail(self, error: StoreUnavailableError) -> None: ...


def refused(error: redis_errors.RedisError) -> StoreUnavailableError:
    """What an error reply means."""
    text = str(error) or type(error).__name__
    if isinstance(error, redis_errors.AskError):
        text = f"slot and owner: {text} (is redis.cluster = true missing?)"
    if "unauthenticated" in text:  # a call too long for somebody who gave no password
        return StoreUnavailableError("redis", _UNAUTHENTICATED.format(text), transient=False)
    if isinstance(error, _NOT_RUN_TRANSIENT) or text.startswith(_NOT_RUN_WORDS):
        return StoreUnavailableError("redis", text, transient=True)
    if isinstance(error, _NOT_RUN_FINAL):
        return StoreUnavailableError("redis", text, transient=False)
    # A script may fail half-way, for example on a key of another type.
    return StoreUnavailableError("redis", text, transient=False, maybe_applied=True)


def lost(cause: Exception, *, was_sent: bool) -> StoreUnavailableError:
    """What a broken exchange means for the calls that it did not answer."""
    if isinstance(cause, redis_errors.RedisError) and not isinstance(
        cause, (redis_errors.ConnectionError, redis_errors.TimeoutError)
    ):
        error = refused(cause)
    elif isinstance(cause, _NOT_RUN_FINAL):
        error = StoreUnavailableError("redis", str(cause), transient=False)
    else:
        text = str(cause) or "no reply in time"
        if not isinstance(cause, (OSError, redis_errors.RedisError)):
            # Such as a reply, or the name of a server, that cannot be read.
            text = f"{type(cause).__name__}: {text}"
        error = StoreUnavailableError("redis", text, transient=True)
    error.maybe_applied = was_sent and not isinstance(cause, redis_errors.BusyLoadingError)
    error.__cause__ = cause
    return error


def is_node_away(error: StoreUnavailableError) -> bool:
    """Whether the node did not answer, or is not what it was: somebody else may do its work now."""
    return isinstance(
        error.__cause__,
        (
            TimeoutError,
            OSError,
            redis_errors.ConnectionError,
            redis_errors.TimeoutError,
            redis_errors.ReadOnlyError,
            redis_errors.ClusterDownError,  # MASTERDOWN too
        ),
    )


def fail_all(
    calls: Iterable[Waiting], error: StoreUnavailableError, cause: Exception | None = None
) -> None:
    """Give every caller the error, each an object of its own: each adds its own traceback."""
    for call in calls:
        own = StoreUnavailableError(
            error.store,
            str(error).removeprefix("redis: "),
            transient=error.transient,
            maybe_applied=error.maybe_applied,
        )
        own.__cause__ = cause or error.__cause__
        call.fail(own)
