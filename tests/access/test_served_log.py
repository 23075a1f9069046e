"""The mark of logs that were served with access control: real services, kills, backups, repairs, the flag."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.access.served_log import prepare_log
from suffixsvc.access.tokens import TokenFile
from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.errors import InvalidConfigError, ListenError, StoreError, StoreFullError, UnauthenticatedError
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc.store.folder_reading import reading
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import PATIENCE_S, ServeProcess, eventually, serving, socket_dir

TCP = ("127.0.0.1:0",)
TEXT = list(range(30))
GOLDEN = Path(__file__).parents[1] / "golden" / "store"


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def is_marked(data: Path) -> bool:
    """Whether the log of a closed folder has the mark."""
    with reading(data) as view:
        return view.access_controlled


def marked(data: Path) -> Path:
    """A folder with one output, whose log has the mark."""
    with SuffixCache(data, background=False) as cache:
        cache.namespace("alice/secret").add_output(TEXT)
        cache.set_access_controlled(True)
    return data


def token_of(data: Path) -> str:
    """A new token of alice, in the file of a data folder."""
    data.mkdir(mode=0o700, exist_ok=True)
    return TokenFile(data / "tokens.toml").create("alice")


def patient(token: str | None = None) -> ClientConfig:
    identity = ClientIdentity(token=token)
    return ClientConfig(identity=identity, step_timeout_s=60.0, open_timeout_s=60.0, call_timeout_s=60.0)


def client_at(service: ServeProcess, token: str | None = None) -> SuffixClient:
    [address] = service.ready["addresses"]
    return SuffixClient(address, patient(token))


def refused(service: ServeProcess) -> str:
    """The error of a service that must not start: one line, exit code 2."""
    service.ready_file.unlink(missing_ok=True)  # of one that was killed
    process = service.launch()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert not service.ready_file.exists()
    [line] = [line for line in said.splitlines() if line.startswith("suffixsvc serve:")]
    return line


# --- services ----------------------------------------------------------------------------------------


def test_without_its_tokens_a_log_is_not_open_to_all(folder: Path) -> None:
    """A kill, and the loss of the tokens, open nothing; the explicit flag does, for good."""
    token = token_of(folder / "data")
    with ServeProcess(folder, listen=TCP) as service:
        with client_at(service.start(), token) as client:
            client.namespace("alice/secret").add_output(TEXT)
        service.kill()
    (folder / "data" / "tokens.toml").unlink()
    for _ in range(2):
        line = refused(ServeProcess(folder, listen=TCP))
        assert "127.0.0.1:0" in line
        for part in ("must be served with access control", "got neither", "--tokens", "--open-to-all"):
            assert part in line
    with ServeProcess(folder, "--open-to-all", listen=TCP) as service:
        with client_at(service.start()) as client:
            assert [each.path for each in client.namespaces()] == ["alice/secret"]
        service.kill()
        assert "open to all callers from now on" in service.output()
    assert not is_marked(folder / "data")
    with ServeProcess(folder, listen=TCP) as service, client_at(service.start()) as client:
        assert [each.path for each in client.namespaces()] == ["alice/secret"]


@pytest.mark.parametrize("how", ["token", "principals", "socket mode"])
def test_every_kind_of_access_control_marks_the_log_before_a_call(folder: Path, how: str) -> None:
    (folder / "policies.toml").write_text("[principals]\n" if how == "principals" else "")
    options = ["--policies", str(folder / "policies.toml")]
    if how == "token":
        token_of(folder / "data")
    if how == "socket mode":
        options += ["--socket-mode", "0666"]
    with ServeProcess(folder, *options) as service:
        service.start()
        service.kill()
    assert is_marked(folder / "data")


def test_a_log_without_access_control_is_not_marked(folder: Path) -> None:
    for listen in (TCP, None):
        with ServeProcess(folder, listen=listen) as service:
            assert service.start().terminate() == 0
    assert not is_marked(folder / "data")


def test_a_token_that_is_created_while_the_service_runs_marks_the_log(folder: Path) -> None:
    with ServeProcess(folder, listen=TCP) as service:
        with client_at(service.start()) as client:
            client.namespace("open").add_output(TEXT)
        token = token_of(folder / "data")
        with client_at(service, token) as client:
            client.namespace("alice/secret").add_output(TEXT)

        def said() -> bool:
            """The mark is told, as far as standard error has come."""
            assert service.process is not None
            assert service.process.stderr is not None
            return "marked as served" in service.process.stderr.readline()

        eventually(said, "the log is marked")
        service.kill()
    assert is_marked(folder / "data")


def test_a_socket_of_the_services_own_user_is_the_operators_as_ever(folder: Path) -> None:
    """With tokens its callers need none either, and they can read the folder."""
    marked(folder / "data")
    with ServeProcess(folder) as service:
        with SuffixClient(service.start().address, patient()) as client:
            assert [each.path for each in client.namespaces()] == ["alice/secret"]
        assert service.terminate() == 0
    assert is_marked(folder / "data")
    both = (f"unix:{folder}/s.sock", *TCP)
    assert "127.0.0.1:0" in refused(ServeProcess(folder, listen=both))
    assert "127.0.0.1:0" in refused(ServeProcess(folder, "--metrics", "127.0.0.1:0"))
    assert "0.0.0.0:0" in refused(ServeProcess(folder, "--insecure-network", listen=("0.0.0.0:0",)))


def test_with_access_control_the_flag_is_refused_and_the_mark_stays(folder: Path) -> None:
    marked(folder / "data")
    token_of(folder / "data")
    line = refused(ServeProcess(folder, "--open-to-all", listen=TCP))
    assert "--open-to-all must not be given to a server with access control" in line
    assert is_marked(folder / "data")


def test_the_flag_is_an_option_as_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line over environment over file; help names it."""
    file = folder / "suffixsvc.toml"
    file.write_text("[serve]\nopen-to-all = true\n")

    def shown(*arguments: str) -> tuple[bool, str]:
        run = run_verb("config", "show", "serve", *arguments, "--json")
        assert run.returncode == 0, run.stderr
        row = json.loads(run.stdout)["open-to-all"]
        return row["value"], row["source"]

    assert shown() == (False, "default")
    assert shown("--config", str(file)) == (True, "file")
    monkeypatch.setenv("SUFFIXSVC_SERVE_OPEN_TO_ALL", "no")
    assert shown("--config", str(file)) == (False, "environment")
    assert shown("--config", str(file), "--open-to-all") == (True, "command line")
    for verb in ("serve", "openai"):
        assert "--open-to-all" in run_verb(verb, "--help").stdout
    run = run_verb("openai", "none.gguf", "--open-to-all")
    assert run.returncode == 2
    assert "must only be given with --data" in run.stderr


# --- the server's class and the engine ---------------------------------------------------------------


def test_an_embedded_engine_is_not_refused_and_its_server_is(tmp_path: Path) -> None:
    with SuffixCache(marked(tmp_path / "data"), background=False) as cache:
        assert cache.access_controlled
        server = SuffixServer(cache, [parse_address(TCP[0])])
        with pytest.raises(ListenError, match="must be served with access control"):
            server.start()
        server.drain()
        token = token_of(tmp_path)
        access = AccessControl(TokenFile(tmp_path / "tokens.toml"))
        with serving(cache, TCP[0], access=access) as (_, address):
            with SuffixClient(address, patient()) as client, pytest.raises(UnauthenticatedError):
                client.namespaces()
            with SuffixClient(address, patient(token)) as client:
                assert [each.path for each in client.namespaces()] == ["alice/secret"]
        with pytest.raises(InvalidConfigError, match="--open-to-all"):
            prepare_log(cache, access, TCP, open_to_all=True)
        assert cache.access_controlled
        cache.check()
        prepare_log(cache, AccessControl(), TCP, open_to_all=True)
        with serving(cache, TCP[0]) as (_, address), SuffixClient(address, patient()) as client:
            assert [each.path for each in client.namespaces()] == ["alice/secret"]
        cache.check()


def test_a_log_that_cannot_be_marked_is_not_served(tmp_path: Path) -> None:
    """Its tokens could be lost before it has the mark."""

    class FullLog:
        access_controlled = False

        def set_access_controlled(self, value: bool) -> None:
            raise StoreFullError("the store is full")

    token_of(tmp_path)
    access = AccessControl(TokenFile(tmp_path / "tokens.toml"))
    with pytest.raises(StoreError, match="full"):
        prepare_log(FullLog(), access, TCP)


def test_a_log_in_memory_has_a_mark_as_well() -> None:
    with SuffixCache() as cache:
        assert not cache.access_controlled
        cache.set_access_controlled(True)
        assert cache.access_controlled
        cache.check()
        cache.set_access_controlled(False)
        assert not cache.access_controlled
        cache.check()


# --- restored logs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [True, False])
def test_backups_and_restored_logs_have_the_mark_of_the_log(folder: Path, mark: bool) -> None:
    with SuffixCache(folder / "source", background=False) as cache:
        cache.namespace("alice/secret").add_output(TEXT)
        cache.set_access_controlled(mark)
        cache.seal()
        cache.backup(folder / "backup")
    run = run_verb("restore", folder / "backup", "--data", folder / "data")
    assert ("served with access control" in run.stdout) == mark
    done = restore(folder / "backup", folder / "other")
    assert done.access_controlled == mark
    for place in ("backup", "data", "other"):
        assert is_marked(folder / place) == mark
        assert check_folder(folder / place) == []
    for _ in range(2):  # a backup that is served itself is a folder as any other
        if mark:
            assert "access control" in refused(ServeProcess(folder, listen=TCP))
        else:
            with ServeProcess(folder, listen=TCP) as service:
                assert service.start().terminate() == 0
        shutil.rmtree(folder / "data")
        shutil.copytree(folder / "backup", folder / "data")


def test_a_backup_of_a_running_service_restored_with_its_tokens(folder: Path) -> None:
    token = token_of(folder / "data")
    (folder / "policies.toml").write_text('[principals."alice"]\nadmin = ["*"]\n')
    options = ("--policies", str(folder / "policies.toml"))
    with ServeProcess(folder, *options, listen=TCP) as service:
        with client_at(service.start(), token) as client:
            client.namespace("alice/secret").add_output(TEXT)
            client.backup(folder / "backup")
        service.kill()
    (folder / "data" / "tokens.toml").rename(folder / "tokens.toml")
    shutil.rmtree(folder / "data")
    restore(folder / "backup", folder / "data")
    assert "access control" in refused(ServeProcess(folder, listen=TCP))
    with ServeProcess(folder, "--tokens", str(folder / "tokens.toml"), listen=TCP) as service:
        with client_at(service.start()) as client, pytest.raises(UnauthenticatedError):
            client.namespaces()
        with client_at(service, token) as client:
            assert [each.path for each in client.namespaces()] == ["alice/secret"]


def test_a_file_of_tokens_that_is_named_is_required_before_it_has_one(folder: Path) -> None:
    with ServeProcess(folder, "--tokens", str(folder / "tokens.toml"), listen=TCP) as service:
        with client_at(service.start()) as client, pytest.raises(UnauthenticatedError):
            client.namespaces()
        token = TokenFile(folder / "tokens.toml").create("alice")
        with client_at(service, token) as client:
            eventually(lambda: _admitted(client), "the token is read")
        service.kill()
    assert is_marked(folder / "data")


def _admitted(client: SuffixClient) -> bool:
    with contextlib.suppress(UnauthenticatedError):
        return client.namespaces() == []
    return False


# --- folders of earlier releases ---------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_a_folder_of_an_earlier_release_has_no_mark_until_it_is_served_with_access_control(
    folder: Path, version: str
) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "data.mdb").write_bytes(gzip.decompress((GOLDEN / version / "data.mdb.gz").read_bytes()))
    with ServeProcess(folder, "--migrate", listen=TCP) as service:
        assert service.start().terminate() == 0
    assert not is_marked(data)
    token_of(data)
    with ServeProcess(folder, listen=TCP) as service:
        service.start()
        service.kill()
    (data / "tokens.toml").unlink()
    assert "access control" in refused(ServeProcess(folder, listen=TCP))
    assert check_folder(data) == []
