"""Frequent words of counters' names as single signs: a small record of each open reservation.

Keys and names of policies hold none of the signs. The other half, which only reads, is in
lua/include/correct.lua.
"""

from extproc.core.policies import Dimension, Scope

_DIMENSIONS = {
    Dimension.RPM: "/",
    Dimension.INPUT_TPM: "(",
    Dimension.OUTPUT_TPM: ")",
    Dimension.TOTAL_TPM: "+",
    Dimension.CONCURRENT: "=",
    Dimension.TOKENS_PER_DAY: "<",
    Dimension.TOKENS_PER_MONTH: ">",
    Dimension.COST_MICROS_PER_DAY: "[",
    Dimension.COST_MICROS_PER_MONTH: "]",
    Dimension.COST_MICROS_PER_CYCLE: "@",
}
_SCOPES = {
    Scope.ORGANIZATION: "#",
    Scope.TENANT: "!",
    Scope.DEPARTMENT: "$",
    Scope.PROJECT: "&",
    Scope.APPLICATION: "*",
    Scope.AGENT: "?",
    Scope.USER: "~",
    Scope.API_KEY: "^",
    Scope.MODEL: ",",
    Scope.PROVIDER: "'",
    Scope.SERVICE: "%",
}
# As they stand in keys: "policy.dimension.scope:value".
SIGNS = {
    **{f".{dimension}.": sign for dimension, sign in _DIMENSIONS.items()},
    **{f"{scope}:": sign for scope, sign in _SCOPES.items()},
}
_FORBIDDEN = frozenset(SIGNS.values())


def shorten(text: str) -> str:
    """Raises ValueError when a sign stands in ``text`` already."""
    if not _FORBIDDEN.isdisjoint(text):
        raise ValueError(f"no name of a counter has such a character: {text}")
    for word, sign in SIGNS.items():
        text = text.replace(word, sign)
    return text


def lengthen(text: str) -> str:
    """The reverse; a text that was never shortened stays as it is."""
    for word, sign in SIGNS.items():
        text = text.replace(sign, word)
    return text
