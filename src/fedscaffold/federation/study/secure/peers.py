"""Which sites a site adds its numbers up with: their keys, known by fingerprints that people can compare."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedscaffold.core.files import Fields
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.secure_sum.keys import public_identity

PEERS, SUMS = "peers", "sums"  # names of a site's notes
IDENTITY = "[0-9a-f]{64}"
AcceptPeers = Callable[[Mapping[str, str]], bool]


def identity_of(store: SiteStore) -> Ed25519PrivateKey:
    """The key with which a site signs in secure sums, made from its secret."""
    seed = hashlib.sha256(b"fedscaffold identity in secure sums" + store.secret).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def identity_in_hexadecimal(store: SiteStore) -> str:
    """The public half of a site's key, as it is told."""
    return public_identity(identity_of(store)).hex()


def read_peers(values: Any) -> dict[str, bytes]:
    """The sites' keys that the coordinator passes on, validated field by field."""
    fields = Fields(values, "the request").fields("identities")
    return {site: bytes.fromhex(fields.text(site, pattern=IDENTITY)) for site in fields.names()}


def own_fingerprint(store: SiteStore) -> str:
    """The fingerprint of a site's key, which its people tell those of the other sites."""
    return fingerprint(public_identity(identity_of(store)))


def fingerprint(public: bytes) -> str:
    """A short text that belongs to one key, in groups of four characters."""
    digest = hashlib.sha256(b"fedscaffold identity in secure sums" + public).hexdigest()[:32]
    return " ".join(digest[k : k + 4] for k in range(0, len(digest), 4))


def pin_peers(store: SiteStore, name: str, told: Mapping[str, bytes], accept: AcceptPeers) -> bool:
    """Keep the other sites' keys that the coordinator passes on, if the site's people accept their fingerprints.

    A key that was kept before stays: another one in its place is refused, whoever sends it.
    """
    if told.get(name) != public_identity(identity_of(store)):
        raise Refusal(RefusalCode.PEERS_CHANGED, "the coordinator tells another key of this site than it has")
    before = known_peers(store)
    changed = sorted(site for site, key in told.items() if site in before and before[site] != key)
    if changed:
        raise Refusal(
            RefusalCode.PEERS_CHANGED,
            f"the key of {', '.join(changed)} is another than the one that this site accepted before",
        )
    new = {site: fingerprint(key) for site, key in told.items() if site != name and site not in before}
    if new and not accept(new):
        return False
    store.save_note(PEERS, {site: key.hex() for site, key in {**before, **told}.items()})
    return True


def known_peers(store: SiteStore) -> dict[str, bytes]:
    """The keys of sites that were accepted, by site."""
    return {site: bytes.fromhex(str(key)) for site, key in (store.load_note(PEERS) or {}).items()}


def check_sites(store: SiteStore, sites: tuple[str, ...]) -> None:
    """Refuse a sum over other sites than earlier ones: the difference would tell a single site's numbers."""
    earlier: Any = (store.load_note(SUMS) or {}).get("sites")
    if earlier is not None and sorted(earlier) != sorted(sites):
        raise Refusal(RefusalCode.OTHER_SITES)


def keep_sites(store: SiteStore, sites: tuple[str, ...]) -> None:
    """Remember over which sites a sum may have been finished."""
    if store.load_note(SUMS) is None:
        store.save_note(SUMS, {"sites": sorted(sites)})
