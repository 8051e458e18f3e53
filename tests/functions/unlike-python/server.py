"""Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot."""

import json
import os
import queue
import random
import secrets
import sqlite3
import ssl
import tempfile
import threading
import uuid
from http.server import ThreadingHTTPServer

import bcrypt
import nanoid
import numpy
from awscrt.crypto import EC, ED25519, ECExportFormat, ECType, ED25519ExportFormat
from Crypto.PublicKey import ECC
from Crypto.Random import get_random_bytes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.signing import SigningKey
from nacl.utils import random as of_sodium
from ulid import ULID

from drawing import serve

database = sqlite3.connect(":memory:", check_same_thread=False)
held, seeded, generator = random.Random(), random.Random(42), numpy.random.default_rng()
asked, told = queue.Queue(), queue.Queue()


def in_a_thread():
    while asked.get():
        told.put(ssl.RAND_bytes(8).hex())


def child():
    """A process of its own, which draws when it reads a byte."""
    (reading, ask), (answer, writing) = os.pipe(), os.pipe()
    if os.fork():
        return ask, answer
    while os.read(reading, 1):
        os.write(writing, f"{ssl.RAND_bytes(8).hex()} {random.random():.17f}".encode())
    os._exit(0)


threading.Thread(target=in_a_thread, daemon=True).start()
ask, answer = child()


def private(key):
    encoding = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*encoding).hex()[-32:]


def draw():
    asked.put(True)
    os.write(ask, b"?")
    in_child = os.read(answer, 100).decode().split()
    return {
        "random.random": random.random(),
        "random.Random()": held.random(),
        "random.Random(42)": seeded.random(),
        "SystemRandom": random.SystemRandom().random(),
        "os.urandom": os.urandom(8).hex(),
        "secrets": secrets.token_hex(8),
        "ssl": ssl.RAND_bytes(8).hex(),
        "ssl in a thread that was there": told.get(timeout=5),
        "ssl in a child process": in_child[0],
        "random in a child process": in_child[1],
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "tempfile": tempfile.mktemp(),
        "sqlite3": database.execute("select random()").fetchone()[0],
        "numpy.random": numpy.random.random(),
        "numpy.random.normal": numpy.random.normal(),
        "numpy default_rng": generator.random(),
        "rsa": private(rsa.generate_private_key(65537, 1024)),
        "ec": private(ec.generate_private_key(ec.SECP256R1())),
        "ed25519": private(ed25519.Ed25519PrivateKey.generate()),
        "AESGCM": AESGCM.generate_key(128).hex(),
        "aws-lc ec": EC.new_generate(ECType.P_256).export_key(ECExportFormat.SEC1).hex(),
        "aws-lc ed25519": ED25519.new_generate().export_private_key(ED25519ExportFormat.RAW).hex(),
        "pycryptodome": get_random_bytes(8).hex(),
        "pycryptodome ecc": str(ECC.generate(curve="P-256").d),
        "sodium": of_sodium(8).hex(),
        "sodium key": SigningKey.generate().encode().hex(),
        "bcrypt salt": bcrypt.gensalt(4).decode(),
        "nanoid": nanoid.generate(),
        "ulid": str(ULID()),
    }


serve(draw, ThreadingHTTPServer)
