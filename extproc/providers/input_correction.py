"""The learned factor on its way: into a request's estimate, and back from the answer's usage."""

from extproc.core.handles import Handle
from extproc.core.learned_factors import PLAIN, LearnedFactors
from extproc.core.usage import Usage
from extproc.providers.registry import provider_of
from extproc.providers.requests import RequestFacts


def corrected_input(
    learned: LearnedFactors | None, facts: RequestFacts, *, never_less: bool = False
) -> tuple[int, int]:
    """Input tokens by what earlier answers taught, and the factor in them for the handle.

    The factor is 0 where the answer will teach nothing: pictures and sound have rules of their own,
    and of what the provider remembers nothing was counted. ``never_less``: strict mode counts on it
    that an estimate is not too small, and others may have taught the factor.
    """
    if learned is None:
        return facts.input_tokens, 0
    permille = learned.permille(provider_of(facts.wire_format), facts.model)
    if never_less:
        permille = max(PLAIN, permille)
    media = facts.media_tokens
    tokens = -(-(facts.input_tokens - media) * permille // PLAIN) + media
    return tokens, 0 if media or facts.hidden_input else permille


def learn_from(learned: LearnedFactors, handle: Handle, usage: Usage) -> None:
    """Compare a complete answer's report with the estimate, where they are of the same tokens.

    Tools that the provider runs add input of their own, and so do other models.
    """
    if handle.learned_permille == 0 or usage.input_tokens is None:
        return
    if usage.server_tool_calls or usage.other_input_tokens:
        return
    learned.learn(
        provider_of(handle.wire_format),
        handle.model,
        estimated=handle.input_tokens * PLAIN / handle.learned_permille,
        actual=usage.input_tokens,
    )
