"""Where several server processes of one host listen, made from the address of the first.

An address each: Envoy keeps one HTTP/2 connection for each endpoint and thread, so processes that
share a port would not share the load.
"""

from extproc.core.errors import SettingsError

MOST_WORKERS = 64
_MOST_PORT = 65535


def worker_addresses(key: str, listen: str, count: int) -> tuple[str, ...]:
    """``HOST:PORT`` and the ports after it, or ``unix:/x.sock``, ``unix:/x-2.sock`` and so on.

    Raises SettingsError that names ``key`` when the address leaves no room for so many.
    """
    if not 1 <= count <= MOST_WORKERS:
        raise SettingsError("server.workers", f"expected 1 to {MOST_WORKERS}")
    if count == 1:
        return (listen,)
    if listen.startswith("unix:"):
        stem, dot, suffix = listen.rpartition(".")
        if not dot or "/" in suffix:
            stem, suffix = listen, ""
        more = (f"{stem}-{number}{dot if suffix else ''}{suffix}" for number in range(2, count + 1))
        return (listen, *more)
    host, _, port_text = listen.rpartition(":")
    first = int(port_text)
    if first == 0:
        raise SettingsError(key, f"{count} workers need a port that Envoy knows, not 0")
    if first + count - 1 > _MOST_PORT:
        raise SettingsError(key, f"{count} workers need the ports from {first} on: too high")
    return tuple(f"{host}:{first + number}" for number in range(count))
