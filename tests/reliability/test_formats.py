"""Files of every earlier format, through the command line: they open or migrate, or the remedy is named.

What a folder holds is compared with digests that were written down once, so that a reader that changed
together with the format would be noticed.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
import xxhash

from suffixsvc.engine.backup.manifest import BackupManifest
from suffixsvc.errors import StoreForeignError
from suffixsvc.store import LmdbStore
from suffixsvc.store.files.meta_journal import JOURNAL_FILE
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.records.table_records import OLDEST_SCHEMA, SCHEMA_VERSION
from suffixsvc_client import SuffixClient
from support.command_line import run_verb
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir

GOLDEN = Path(__file__).parents[1] / "golden"
#: of the outputs of the golden folder of each schema: ids, tokens, runs, prompt tails, labels, time to live
CONTENTS = {
    1: "0ff0bbc445ee03b6",
    2: "ddb471c7c708914e",
    3: "a9510acf1ba97d87",
    4: "8e9505f613ba21b5",
    5: "7e75e5a1ac2ffc11",
}
#: the token in golden/access/tokens.toml that does not expire
GOLDEN_TOKEN = "sfx_aaaaaaaaaa_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"


def golden_folder(schema: int, folder: Path) -> bytes:
    """Unpack a data folder that a release of a schema wrote; the bytes of its data file."""
    folder.mkdir()
    raw = gzip.decompress((GOLDEN / "store" / f"v{schema}" / "data.mdb.gz").read_bytes())
    (folder / "data.mdb").write_bytes(raw)
    return raw


def contents_of(data: Path) -> tuple[str, int, dict[str, tuple[list[int], list[int]]]]:
    """A digest and the number of all outputs; by namespace prompt tail and tokens of one of them."""
    store = LmdbStore(data)
    try:
        rows = [(stored.output_id, stored.output) for stored in store.scan()]
    finally:
        store.close()
    plain = [
        [
            output_id,
            output.namespace,
            output.token_ids.tolist(),
            [n for n in output.segment_lens if n],
            output.prompt_tail.tolist(),
            sorted(output.labels.items()),
            output.ttl_seconds,
        ]
        for output_id, output in rows
    ]
    samples = {
        output.namespace: (output.prompt_tail.tolist(), output.token_ids.tolist())
        for _, output in rows
        if len(output.token_ids) > 2 and len([n for n in output.segment_lens if n]) == 1
    }
    return xxhash.xxh3_64_hexdigest(json.dumps(plain).encode()), len(rows), samples


def refused(folder: Path, *options: str) -> str:
    """What a service that does not start says, in one line."""
    process = ServeProcess(folder, *options).launch()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if line.startswith("suffixsvc serve:")]
    return line


def test_every_schema_is_tried() -> None:
    assert set(CONTENTS) == set(range(OLDEST_SCHEMA, SCHEMA_VERSION + 1))
    assert {each.name for each in (GOLDEN / "store").iterdir()} == {f"v{schema}" for schema in CONTENTS}


@pytest.mark.parametrize("schema", CONTENTS)
def test_a_data_folder(schema: int, figure: Callable[..., None]) -> None:
    """Refused unchanged with the remedy, migrated by the verb after a backup, served; equal contents."""
    with socket_dir() as folder:
        data = folder / "data"
        before = golden_folder(schema, data)
        if schema < SCHEMA_VERSION:
            line = refused(folder)
            assert f"got schema {schema}, of an earlier release" in line
            assert "suffixsvc migrate" in line
            assert "serve --migrate" in line
            assert (data / "data.mdb").read_bytes() == before
        found = json.loads(run_verb("check", "--data", data, "--json").stdout)
        # the golden folders are a data file only: a manifest may name a segment whose file is not there
        assert {each["area"] for each in found["findings"]} <= {"segments"}, found
        run = run_verb("migrate", data)
        assert run.returncode == 0, run.stderr
        backup = data / f"backup-schema-{schema}"
        assert backup.exists() == (schema < SCHEMA_VERSION)
        if backup.exists():
            assert (backup / "data.mdb").read_bytes() == before
        digest, outputs, samples = contents_of(data)
        assert digest == CONTENTS[schema]
        with ServeProcess(folder) as service:
            service.start()
            with SuffixClient(service.address) as client:
                assert client.stats().outputs == outputs
                for path, (tail, tokens) in samples.items():
                    eventually(
                        lambda path=path, tail=tail, tokens=tokens: drafts(client, path, tail, tokens),
                        f"{path} is drafted from",
                    )
                client.namespace("new").add_output([1, 2, 3])
            assert service.terminate() == 0
            run = run_verb("check", "--data", data)
            assert run.returncode == 0, run.stdout + run.stderr
            service.start()  # without --migrate
            with SuffixClient(service.address) as client:
                assert client.namespace("new").stats().outputs == 1
            assert service.terminate() == 0
        if backup.exists():
            shutil.copyfile(
                backup / "data.mdb", data / "data.mdb"
            )  # the way back, as docs/upgrading.md has it
            shutil.rmtree(data / "segments", ignore_errors=True)
            assert f"got schema {schema}" in refused(folder)
        outcome = "opens" if schema == SCHEMA_VERSION else "refused with the remedy; migrates after a backup"
        figure(f"data folder, schema {schema}", outcome, "equal contents; check clean; the way back works")


def drafts(client: SuffixClient, path: str, tail: list[int], tokens: list[int]) -> bool:
    """Whether the service drafts the continuation of a stored output."""
    record = next(each for each in client.namespaces() if each.path == path)
    namespace = client.namespace(path, record.tokenizer or None)
    with namespace.open_session([*tail, *tokens[:-1]], private=True) as session:
        return tokens[-1] in session.step([], max_draft_tokens=4).token_ids.tolist()


def test_a_data_folder_of_a_newer_release(figure: Callable[..., None]) -> None:
    with socket_dir() as folder:
        data = folder / "data"
        golden_folder(SCHEMA_VERSION, data)
        with lmdb.open(str(data), max_dbs=16, lib_version=0) as env, env.begin(write=True) as txn:
            database = env.open_db(b"meta", txn=txn, create=False)
            raw = txn.get(keys.SCHEMA_KEY, db=database)
            assert raw is not None
            created = table_records.decode_schema(raw)[1]
            txn.put(keys.SCHEMA_KEY, table_records.encode_schema(SCHEMA_VERSION + 1, created), db=database)
        before = (data / "data.mdb").read_bytes()
        for options in ((), ("--migrate",)):
            line = refused(folder, *options)
            assert f"got {SCHEMA_VERSION + 1}, of a newer release" in line
            assert "newer release" in line
        for verb in (("migrate", data), ("check", "--data", data), ("stats", "--data", data)):
            run = run_verb(*verb)
            assert run.returncode == 2, run.stdout
            assert "newer release" in run.stderr
        assert (data / "data.mdb").read_bytes() == before
        figure(
            "data folder, a newer schema",
            "refused by serve, migrate, check",
            "unchanged; the remedy is named",
        )


def test_files_of_another_version_beside_the_log(figure: Callable[..., None]) -> None:
    """Segments of an unknown version are left alone and built again; an unknown journal is refused."""
    with socket_dir() as folder:
        data = folder / "data"
        constants = {
            "suffixsvc.engine.sealing.maintenance._PERIOD_SECONDS": 0.05,
            "suffixsvc.engine.sealing.maintenance._MAX_HOT_BATCHES": 100 / (1 << 20),
            "suffixsvc.engine.sealing.maintenance._SMALLEST_SHARE": 1e9,
        }
        text = list(range(100, 400))
        with ServeProcess(folder, constants=constants) as service:
            service.start()
            with SuffixClient(service.address) as client:
                client.namespace("a").add_output(text, [1])
                eventually(lambda: list((data / "segments").glob("*.seg")), "it is sealed")
            assert service.terminate() == 0
            [segment] = (data / "segments").glob("*.seg")
            golden = (GOLDEN / "segment" / "v1.seg").read_bytes()
            raw = bytearray(segment.read_bytes())
            assert raw[:12] == golden[:12], "segments have another version than the golden one"
            raw[8] += 1
            segment.write_bytes(raw)
            service.start()
            with SuffixClient(service.address) as client:
                eventually(lambda: drafts(client, "a", [1], text), "it is drafted from the log")
            assert service.terminate() == 0
            assert segment.read_bytes() == raw, "a file of another version is left as it is"
        figure("a segment of another version", "left alone; built again from the log", "drafts go on")
        journal = bytes.fromhex("".join((GOLDEN / "meta_journal" / "v2.hex").read_text().split()))
        (data / JOURNAL_FILE).write_bytes(journal[:4] + b"\x09" + journal[5:])
        line = refused(folder)
        assert JOURNAL_FILE in line
        (data / JOURNAL_FILE).unlink()
        figure("a commit journal of another version", "refused", "the remedy is named")


def test_the_other_files(tmp_path: Path, figure: Callable[..., None]) -> None:
    """The files of tokens and of backups: the golden ones are read, other versions are refused."""
    with socket_dir() as folder:
        tokens = folder / "tokens.toml"
        golden = (GOLDEN / "access" / "tokens.toml").read_text()
        assert "version = 1" in golden
        tokens.write_text(golden.replace("version = 1", "version = 2"))
        tokens.chmod(0o600)
        assert "version" in refused(folder, "--tokens", str(tokens))
        tokens.write_text(golden)
        run = run_verb("token", "list", "--tokens", tokens)
        assert run.returncode == 0, run.stderr
        assert "alice" in run.stdout
        figure("file of tokens, version 1", "opens", "another version is refused")
    text = (GOLDEN / "backup" / "v1.json").read_bytes()
    assert BackupManifest.from_json(text, "v1.json").outputs == 40
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "backup.json").write_bytes(
        text.replace(b"suffixsvc-backup/1", b"suffixsvc-backup/2")
    )
    with pytest.raises(StoreForeignError):
        BackupManifest.from_json((tmp_path / "backup" / "backup.json").read_bytes(), "backup.json")
    run = run_verb("restore", tmp_path / "backup", "--data", tmp_path / "restored")
    assert run.returncode == 2
    assert not (tmp_path / "restored").exists()
    figure("manifest of a backup, version 1", "opens", "another version is refused")
