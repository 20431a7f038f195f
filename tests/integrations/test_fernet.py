"""FernetCodec: its keys, their rotation, and the data that it makes."""

from __future__ import annotations

import subprocess
import sys
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

pytest.importorskip("cryptography", reason="the extra [codec] is not installed")

from cryptography.fernet import Fernet, InvalidToken

from pg_scheduler import ConfigurationError, Scheduler
from pg_scheduler.integrations.fernet import FernetCodec

LATER = datetime(2099, 1, 1, tzinfo=UTC)
OLD, NEW = b"QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=", "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="


async def work(value: Any) -> None: ...


def test_data_is_decrypted_with_any_of_the_keys_and_encrypted_with_the_first() -> None:
    old, both, new = FernetCodec([OLD]), FernetCodec((NEW, OLD)), FernetCodec([NEW])
    assert both.decode(old.encode(b"x", "a"), "a") == b"x"
    assert new.decode(both.encode(b"x", "a"), "a") == b"x"
    with pytest.raises(InvalidToken):
        new.decode(old.encode(b"x", "a"), "a")
    assert (old.name, len(old.key_id or "")) == ("fernet", 8)
    assert both.key_id == new.key_id != old.key_id
    assert FernetCodec([OLD], encrypt=False).key_id is None
    assert Fernet(NEW).decrypt(urlsafe_b64encode(new.encode(b"x", "a"))) == b"x"


@pytest.mark.parametrize("keys", [[], ()])
def test_codec_without_keys_is_rejected(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"pass keys=\[Fernet.generate_key\(\)\]"):
        FernetCodec(keys)


@pytest.mark.parametrize("key", ["secret", b"", "x" * 44, "é" * 44, None, 7, OLD[:-4]])
def test_invalid_key_is_rejected_without_its_value(key: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FernetCodec([NEW, key])
    assert str(caught.value) == (
        "keys[1] is not a Fernet key, 32 bytes in URL-safe Base64; create one with Fernet.generate_key()"
    )


def test_key_instead_of_a_list_is_rejected_without_its_value() -> None:
    with pytest.raises(TypeError, match=r"^keys must be a list, not str; pass keys=\[key\]$"):
        FernetCodec(NEW)
    assert NEW not in repr(FernetCodec([NEW]))


async def test_arguments_are_encrypted_and_keys_rotated(pool: asyncpg.Pool) -> None:
    steps = [
        FernetCodec([OLD], encrypt=False),
        FernetCodec([OLD]),
        FernetCodec([OLD, NEW]),
        FernetCodec([NEW, OLD]),
    ]
    for number, codec in enumerate(steps):
        scheduler = Scheduler(pool, codec=codec)
        await scheduler.schedule(work, execution_time=LATER, args=("ada",), job_id=str(number))
        jobs = await scheduler.list_jobs()
        assert [each.args for each in jobs] == [("ada",)] * (number + 1)
    rows = await pool.fetch(
        "SELECT job_id, task_data -> 'args' ->> 'key' FROM scheduled_jobs ORDER BY job_id"
    )
    old, new = steps[1].key_id, steps[3].key_id
    assert [tuple(row) for row in rows] == [("0", None), ("1", old), ("2", old), ("3", new)]
    read = [each.args for each in await Scheduler(pool, codec=FernetCodec([NEW])).list_jobs()]
    assert read == [("ada",), (), (), ("ada",)]


def test_package_does_not_import_cryptography() -> None:
    program = "import sys, pg_scheduler; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
