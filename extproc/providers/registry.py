"""From a request's path to its wire format, and from its bytes to facts."""

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from extproc.core.errors import SettingsError
from extproc.providers.formats import BUILT_IN
from extproc.providers.json_input import read_json_object
from extproc.providers.multipart import FORM, read_form
from extproc.providers.paths import deployment_of, target_of
from extproc.providers.request_rewrite import rewritten
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts, Unmetered
from extproc.providers.wire_formats import ANY_END, KnownPath, Route, Target, WireFormat

ENTRY_POINTS = "tokenweir.wire_formats"
# The provider of a request whose path or format is not known.
DEFAULT_PROVIDER = "openai"
_DEFAULT_FORMAT = "openai_chat"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Most services use a few paths; longer ones than any real one are not kept.
_CACHED_PATHS, _CACHED_LENGTH = 1024, 512


class Routes:
    """All routes, to be found by the last segment of a path. Users' own come first."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_name: dict[str, Route] = {}
        self._by_end: dict[str, list[Route]] = {}
        for route in routes:
            if not _NAME.fullmatch(route.name):
                raise ValueError(f"the name '{route.name}' is not one of a-z, 0-9 and _")
            if route.name in self._by_name:
                raise ValueError(f"the name '{route.name}' is taken")
            self._by_name[route.name] = route
            for end in route.ends:
                self._by_end.setdefault(end, []).append(route)

    def named(self, name: str) -> Route | None:
        return self._by_name.get(name)

    def at(self, target: Target) -> Route | None:
        """The route of a target; None when it is not known."""
        if not target.lowered:
            return None
        last = target.lowered[-1]
        # Whole segments first, then verbs behind a colon, then what takes any path.
        for end in (last, ":" + last.rpartition(":")[2], ANY_END):
            for route in self._by_end.get(end, ()):
                if route.matches(target):
                    return route
        return None


_routes = Routes(BUILT_IN)


def use_routes(routes: Routes) -> None:
    """Replace what is known. Called once at start, before the first request."""
    global _routes  # noqa: PLW0603 - set once at start; a parameter of every reader otherwise
    _routes = routes
    _cached_lookup.cache_clear()


def load_extensions() -> None:
    """Add the wire formats of other packages. An entry point is a Route, or a list of them.

    Raises SettingsError that names the entry point when it cannot be loaded or used.
    """
    own: list[Route] = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        routes = _loaded(point)
        try:
            Routes([*own, *routes, *BUILT_IN])
        except ValueError as error:
            raise _broken(point, str(error)) from error
        own += routes
    use_routes(Routes([*own, *BUILT_IN]))


def _loaded(point: EntryPoint) -> list[Route]:
    try:
        found: object = point.load()
    except Exception as error:  # code of others: whatever it raises stops the start
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    routes: list[Route] = []
    for route in found if isinstance(found, list | tuple) else [found]:
        if not isinstance(route, Route):
            raise _broken(point, f"{route!r} is no WireFormat or KnownPath")
        routes.append(route)
    return routes


def _broken(point: EntryPoint, message: str) -> SettingsError:
    return SettingsError(f"{ENTRY_POINTS}:{point.name}", f"{point.value}: {message}")


def _addressed(value: JsonObject, target: Target) -> JsonObject:
    """``value`` with the deployment of Azure's path as its model: that is what Azure answers with,
    whatever the body says."""
    deployment = deployment_of(target)
    if deployment is not None:
        value["model"] = deployment
    return value


@lru_cache(maxsize=_CACHED_PATHS)
def _cached_lookup(path: str, host: str, media_type: str) -> tuple[Target, Route | None]:
    target = target_of(path, host=host, media_type=media_type)
    return target, _routes.at(target)


def _lookup(path: str, host: str, content_type: str | None) -> tuple[Target, Route | None]:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if len(path) + len(host) + len(media_type) > _CACHED_LENGTH:
        return _cached_lookup.__wrapped__(path, host, media_type)
    return _cached_lookup(path, host, media_type)


def route_at(path: str) -> Route | None:
    """What is known at ``path``, metered or not."""
    return _lookup(path, "", None)[1]


def route_named(name: str) -> Route | None:
    """The route of that name, metered or not."""
    return _routes.named(name)


def wire_format_of(path: str) -> str | None:
    """The name of the format spoken at ``path``; None when it is not metered.

    Any prefix is allowed: ``/openai/v1/chat/completions``, Azure's ``/openai/deployments/NAME/``.
    """
    route = route_at(path)
    return route.name if isinstance(route, WireFormat) else None


def format_named(name: str) -> WireFormat:
    """The format of that name. One that is not known (another release's) is read as OpenAI's."""
    route = _routes.named(name)
    if not isinstance(route, WireFormat):
        route = _routes.named(_DEFAULT_FORMAT)
        assert isinstance(route, WireFormat)
    return route


def provider_of(name: str) -> str:
    """Whose API a format or known path is, by its name."""
    route = _routes.named(name)
    return DEFAULT_PROVIDER if route is None else route.provider


def read_request(
    path: str,
    body: bytes,
    *,
    content_type: str | None,
    content_encoding: str | None,
    limits: ReadLimits,
    host: str = "",
) -> RequestFacts | Unmetered:
    """Everything that admission needs to know of a request. Pure; may take milliseconds for a
    large body (see the setting that moves it off the event loop).

    Raises RequestError with status 400, 413 or 415 that names the field, and nothing else.
    """
    target, route = _lookup(path, host, content_type)
    if isinstance(route, KnownPath):
        return Unmetered(route.name, wire_format=route.name, is_free=route.is_free)
    if not isinstance(route, WireFormat):
        return Unmetered("unknown_path")
    if route.takes_forms and target.media_type == FORM:
        form = read_form(body, content_encoding, content_type=content_type, limits=limits)
        return route.read(_addressed(form, target), limits, target)
    value, plain = read_json_object(
        body, content_encoding, content_type=content_type, limits=limits
    )
    _addressed(value, target)
    return rewritten(
        route.read(value, limits, target),
        value,
        plain,
        asks_usage=route.asks_usage,
        content_encoding=content_encoding,
        strict_cap_tokens=limits.strict_cap_tokens,
        usage_events=limits.usage_events,
    )
