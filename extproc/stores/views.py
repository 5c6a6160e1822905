"""Compiled views of policies: what lets a worker decide in one round trip.

A view is only a guess until the reserve script has compared its version with the one in Redis, so
an old one here is harmless: the script answers with the newer view, which then replaces it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from extproc.core.buckets import BucketKind
from extproc.core.errors import StoreUnavailableError
from extproc.core.policies import Descriptor, PolicySet
from extproc.core.resolve import SERVICE_RPM, SERVICE_TPM, PolicyIndex, Resolved
from extproc.core.views import from_json, to_json, version_of
from extproc.stores import keys

_BUILDERS = {
    BucketKind.MINUTE: keys.minute_prefix,
    BucketKind.SLIDING: keys.window,
    BucketKind.BUCKET: keys.bucket,
    BucketKind.SLOTS: keys.slots,
    BucketKind.QUOTA: keys.quota_prefix,
}
# The names that these counters have for a simple root too: a root that gets its first policy goes
# on counting where it was.
_SERVICE_BUILDERS = {SERVICE_RPM: keys.rpm_prefix, SERVICE_TPM: keys.tpm_prefix}


def bucket_key(kind: BucketKind, root: str, suffix: str) -> str:
    """The key of one counter, without its minute or period (a ``core.resolve.KeyBuilder``)."""
    service = _SERVICE_BUILDERS.get(suffix)
    return _BUILDERS[kind](root, suffix) if service is None else service(root)


@dataclass(frozen=True, slots=True)
class CompiledView:
    """The policies of one root, ready to be resolved."""

    version: str
    index: PolicyIndex

    def resolve(self, descriptor: Descriptor, now: datetime) -> Resolved:
        """The buckets of one request by this view."""
        return self.index.resolve(descriptor, now)


def compile_view(policies: PolicySet) -> CompiledView:
    """A view of policies that were read from SQL."""
    return CompiledView(version_of(to_json(policies)), PolicyIndex(policies, key=bucket_key))


class Views:
    """The newest known view of each root, for ``max_roots`` roots that were asked for last."""

    def __init__(self, *, max_roots: int = 1024) -> None:
        self._max_roots = max_roots
        self._views: OrderedDict[str, CompiledView] = OrderedDict()

    def get(self, root: str) -> CompiledView | None:
        """None for a simple root, and for one that this worker has not met."""
        view = self._views.get(root)
        if view is not None:
            self._views.move_to_end(root)
        return view

    def put(self, root: str, version: str, view: str) -> CompiledView | None:
        """Keep what Redis says is in force; both empty: the root has no policies any more.

        Raises StoreUnavailableError for a text that is no view, such as one of a newer release.
        """
        if not version:
            self._views.pop(root, None)
            return None
        known = self.get(root)
        if known is not None and known.version == version:
            return known
        try:
            policies = from_json(view)
            if policies.root != root:
                raise ValueError(f"a view of {policies.root}")
        except ValueError as error:
            self._views.pop(root, None)
            text = f"config of {root} holds no view that is understood here: {error}"
            raise StoreUnavailableError("policies", text, transient=False) from error
        compiled = CompiledView(version, PolicyIndex(policies, key=bucket_key))
        self._keep(root, compiled)
        return compiled

    def learn(self, policies: PolicySet) -> CompiledView:
        """Keep what a cold lookup found."""
        compiled = compile_view(policies)
        self._keep(policies.root, compiled)
        return compiled

    def _keep(self, root: str, compiled: CompiledView) -> None:
        self._views[root] = compiled
        self._views.move_to_end(root)
        if len(self._views) > self._max_roots:
            self._views.popitem(last=False)
