#!/usr/bin/env python3
"""Computes the golden vectors of the cipher suites from docs/sealed-block.md and docs/protocol.md alone, with Python's `cryptography` and `hmac`.

crates/cipher/tests/suites.rs, crates/seal/tests/it/suites.rs and crates/channel/tests/golden.rs hold what it prints. Not part of the build.
"""
import hashlib
import hmac

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

SUITES = {1: "aes-256-gcm", 2: "aes-128-gcm", 3: "chacha20-poly1305", 0xF0: "aes192-cbc+hmac-md5", 0xF1: "3des-cbc+hmac-md5"}


def cbc(algorithm, iv, text):
    encryptor = Cipher(algorithm, modes.CBC(iv)).encryptor()
    return encryptor.update(text) + encryptor.finalize()


def paper(algorithm, block, label, key, nonce, associated, plain):
    cipher = algorithm(key[:24])
    mac_key = hmac.new(key, label, hashlib.md5).digest()
    iv = cbc(cipher, bytes(block), nonce + bytes(4))[-block:]
    whole = len(plain) // block * block
    sealed = cbc(cipher, iv, plain[:whole])
    mask = cbc(cipher, bytes(block), sealed[-block:] if whole else iv)
    sealed += bytes(a ^ b for a, b in zip(plain[whole:], mask))
    return sealed, hmac.new(mac_key, nonce + len(associated).to_bytes(8, "big") + associated + sealed, hashlib.md5).digest()


def seal(suite, key, nonce, associated, plain):
    if suite in (0xF0, 0xF1):
        algorithm, block, label = {0xF0: (algorithms.AES, 16, b"mac"), 0xF1: (TripleDES, 8, b"mac 3des")}[suite]
        return paper(algorithm, block, label, key, nonce, associated, plain)
    aead = {1: lambda: AESGCM(key), 2: lambda: AESGCM(key[:16]), 3: lambda: ChaCha20Poly1305(key)}[suite]()
    both = aead.encrypt(nonce, plain, associated)
    return both[:-16], both[-16:]


def derive(key, info):
    return HKDF(hashes.SHA256(), 32, b"strongroom/1 volume", info).derive(key)


def crc64_nvme(data):
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFFFFFFFFFF


def main():
    key, nonce = bytes(range(32)), bytes(range(0xA0, 0xAC))
    text = bytes((7 * at + 3) % 256 for at in range(35))
    print("cipher:")
    for suite, name in SUITES.items():
        sealed, tag = seal(suite, key, nonce, b"associated", text)
        print(f'    (Suite::{name}, "{sealed.hex()}", "{tag.hex()}"),')
    print("seal:")
    domain, attach_id, counter = bytes(range(0x10, 0x20)), bytes(range(0x40, 0x50)), (9).to_bytes(8, "big")
    epoch, lba, block_size = (7).to_bytes(4, "big"), bytes(range(1, 9)), (512).to_bytes(4, "big")
    plain = bytes((7 * at + 3) % 256 for at in range(512))
    block_key = bytes(range(0xB0, 0xC0)) * 2
    for suite, name in SUITES.items():
        # Of AES-256-GCM the document has the vectors, but for the key that blocks share.
        for mode, flags in [(1, 6)] if suite == 1 else [(1, 0), (2, 0), (1, 2)]:
            fields = bytes([1, suite, mode, flags])
            associated = b"SRB1" + fields + domain + lba + block_size + epoch + attach_id + counter
            if flags == 0:
                seal_key = derive(key, b"seal" + domain + epoch + bytes([suite]))
                used, nonce = derive(seal_key, b"attach" + attach_id), bytes(4) + counter
            else:
                used, nonce = block_key, bytes(12) if flags == 2 else bytes(4) + counter
            if mode == 1:
                sealed, tag = seal(suite, used, nonce, associated, plain)
            else:
                sealed, (_, tag) = plain, seal(suite, used, nonce, associated + plain, b"")
            record = fields + epoch + attach_id + counter + crc64_nvme(sealed).to_bytes(8, "big") + tag
            record += block_key if flags else b""
            digest = hashlib.sha256(sealed).hexdigest()
            print(f'    (Suite::{name}, {mode}, {flags}, "{digest}", "{record.hex()}"),')
    print("channel, S2-1: CONFIRM, then a PDU with sealed block data:")
    root = hmac.new(b"strongroom/1 channel", bytes(range(32)), hashlib.sha256).digest()
    for suite, name in SUITES.items():
        frames = []
        for direction, (kind, header, data) in [
            (2, (0x53, bytes.fromhex("0001 15 00 0000ffff 01000000 00000000"), b"")),
            (1, (0x56, bytes(range(48)) + b"keys", b"data")),
        ]:
            way = bytes([21, direction]) + (b"" if suite == 1 else bytes([suite]))
            secret = HKDFExpand(hashes.SHA256(), 32, b"direction" + way).derive(root)
            key = HKDFExpand(hashes.SHA256(), 32, b"key").derive(secret)
            iv = HKDFExpand(hashes.SHA256(), 12, b"iv").derive(secret)
            prefix = bytes([kind, 0]) + len(header).to_bytes(2, "big") + len(data).to_bytes(4, "big")
            sealed, tag = seal(suite, key, iv, prefix, header + data)
            frames.append((prefix + sealed + tag).hex())
        print(f'        (Suite::{name}, ["{frames[0]}", "{frames[1]}"]),')


main()
