#!/usr/bin/env python3
"""Computes the golden vector of a shared key from docs/pairing.md and RFC 9180 alone, with Python's `cryptography` (X25519, Ed25519, AES-GCM).

crates/handshake/src/shared_key.rs holds what it prints. HPKE is written out here, because a vector needs a chosen ephemeral key. Not part of the build.
"""
import base64
import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SENDER, RECIPIENT, EPHEMERAL = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32
TEXT = b"the text of a key file\n"
P = 2**255 - 19
KEM, KDF, AEAD = b"\x00\x20", b"\x00\x01", b"\x00\x02"
SUITE_KEM, SUITE_HPKE = b"KEM" + KEM, b"HPKE" + KEM + KDF + AEAD


def raw(key):
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def extract(suite, salt, label, ikm):
    return hmac.new(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, hashlib.sha256).digest()


def expand(suite, prk, label, info, length):
    info = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    out, block, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha256).digest()
        out, counter = out + block, counter + 1
    return out[:length]


def montgomery(edwards):
    """u = (1 + y) / (1 - y), RFC 7748 section 4.1."""
    y = int.from_bytes(edwards, "little") & (1 << 255) - 1
    return ((1 + y) * pow(1 - y, P - 2, P) % P).to_bytes(32, "little")


def hpke_seal(recipient, info, text):
    ephemeral = X25519PrivateKey.from_private_bytes(EPHEMERAL)
    encapsulated = raw(ephemeral.public_key())
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
    prk = extract(SUITE_KEM, b"", b"eae_prk", shared)
    secret = expand(SUITE_KEM, prk, b"shared_secret", encapsulated + recipient, 32)
    context = b"\x00" + extract(SUITE_HPKE, b"", b"psk_id_hash", b"") + extract(SUITE_HPKE, b"", b"info_hash", info)
    secret = extract(SUITE_HPKE, secret, b"secret", b"")
    key, nonce = expand(SUITE_HPKE, secret, b"key", context, 32), expand(SUITE_HPKE, secret, b"base_nonce", context, 12)
    return encapsulated, AESGCM(key).encrypt(nonce, text, b"")


sender, recipient = (Ed25519PrivateKey.from_private_bytes(seed) for seed in (SENDER, RECIPIENT))
named = b"\x01" + raw(sender.public_key()) + raw(recipient.public_key())
encapsulated, sealed = hpke_seal(montgomery(raw(recipient.public_key())), b"strongroom shared key 1" + named, TEXT)
# The recipient's private key, RFC 8032 section 5.1.5, gives the same X25519 key.
scalar = X25519PrivateKey.from_private_bytes(hashlib.sha512(RECIPIENT).digest()[:32])
assert raw(scalar.public_key()) == montgomery(raw(recipient.public_key()))
message = named + encapsulated + sealed
message += sender.sign(b"strongroom shared key signature 1" + message)
encoded = base64.b64encode(message).decode()
print("-----BEGIN STRONGROOM SHARED KEY-----")
for at in range(0, len(encoded), 64):
    print(encoded[at : at + 64])
print("-----END STRONGROOM SHARED KEY-----")
