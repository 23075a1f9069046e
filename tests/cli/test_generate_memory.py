"""``suffixsvc generate``: where it remembers, a draft model of its own or of others, settings files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import suffixsvc_cli as cli
from suffixsvc import Limits, SuffixCache
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc_client import SuffixClient
from suffixsvc_driver.profile.settings_file import (
    LayerSettings,
    Settings,
    TargetSettings,
    read_settings,
    write_settings,
)
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer
from support.generating import Generating, generating, process
from support.serving import PATIENCE_S, ServeProcess, serving, socket_dir
from support.tiny_gguf import byte_texts, chain_of, write_tiny_chain, write_tiny_llama
from support.tiny_kinds import write_tiny_moe

TEXT = "abcdefghijklmnopqrstuvwxyz012345"
#: nothing of the prompt helps; the end of the text is never in sight
PROMPT = ("a", "--raw", "--max-tokens", 28)
WRITTEN = TEXT[1:29]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the same long line whenever it is asked."""
    return write_tiny_chain(tmp_path_factory.mktemp("line") / "line.gguf", chain_of(TEXT))


@pytest.fixture
def generate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Generating]:
    yield from generating(capsys, monkeypatch, tmp_path / "home")


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


# -- memory


def test_a_data_folder_stores_outputs(generate: Generating, model: Path, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    first = generate(model, *PROMPT, *data, "--json").turns[0]
    second = generate(model, *PROMPT, *data, "--json", "--no-commit").turns[0]
    assert first["text"] == second["text"] == WRITTEN
    assert (first["stats"]["accepted"], first["namespace"]) == (0, "line")
    assert second["sources"].count("namespace") > 10
    with SuffixCache(tmp_path / "data") as cache:
        [record] = cache.namespaces()
        assert (record.path, record.tokenizer) == ("line", first["model"]["tokenizer"])
        assert cache.stats().outputs == 1, "the second was not to be remembered"
    elsewhere = generate(model, *PROMPT, *data, "--json", "--namespace", "else/where").turns[0]
    assert elsewhere["stats"]["accepted"] == 0


def test_a_folder_that_a_service_holds_is_refused(generate: Generating, model: Path, folder: Path) -> None:
    with ServeProcess(folder) as serve:
        serve.start()
        ran = generate(model, *PROMPT, "--data", folder / "data")
        assert ran.code == 2
        assert f"is in use; expected one process at a time; got process {serve.ready['pid']}" in ran.err
        assert "use it: --service ADDRESS" in ran.err
        through = generate(model, *PROMPT, "--service", serve.address)
        assert (through.code, through.out) == (0, WRITTEN + "\n")
        assert serve.terminate() == 0
    with SuffixCache(folder / "data") as cache:
        assert cache.stats().tokens == len(WRITTEN)


def test_another_tokenizer_is_refused(
    generate: Generating, model: Path, tmp_path: Path, folder: Path
) -> None:
    texts = [*byte_texts()[1:], "\u0100"]
    other = write_tiny_llama(tmp_path / "other.gguf", texts=[*texts, "<|endoftext|>"], width=16, layers=1)
    data = ("--data", tmp_path / "data", "--namespace", "shared")
    assert generate(model, *PROMPT, *data).code == 0
    ran = generate(other, "a", "--raw", *data)
    assert ran.code == 2
    assert "tokenizer" in ran.err
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        shared = ("--service", address, "--namespace", "shared")
        assert generate(model, *PROMPT, *shared).code == 0
        ran = generate(other, "a", "--raw", *shared)
    assert ran.code == 2
    assert "tokenizer" in ran.err


@pytest.mark.parametrize("mode", [(), ("--mode", "follow"), ("--mode", "remote")])
def test_a_service_stores_outputs(
    generate: Generating, model: Path, folder: Path, mode: tuple[str, ...]
) -> None:
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        service = ("--service", address, *mode, "--json")
        runs = [generate(model, *PROMPT, *service).turns[0] for _ in range(2)]
        runs.append(generate(model, *PROMPT, *service, "--no-commit").turns[0])
        assert cache.stats().outputs == 2, "the last was not to be stored"
    assert [run["text"] for run in runs] == [WRITTEN] * 3
    assert all(run["sources"].count("namespace") > 10 for run in runs[1:])


def test_a_service_without_followers_drafts_itself(generate: Generating, model: Path, folder: Path) -> None:
    with (
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s", max_followers=0) as (_, address),
    ):
        for _ in range(2):
            ran = generate(model, *PROMPT, "--service", address, "--json")
        assert "the service drafts, by a call per step: " in ran.err
        assert ran.turns[0]["sources"].count("namespace") > 10
        ran = generate(model, *PROMPT, "--service", address, "--no-commit")
        assert (ran.code, ran.out) == (0, WRITTEN + "\n")
        assert "a private session needs a follower" in ran.err
        ran = generate(model, *PROMPT, "--service", address, "--mode", "follow")
        assert (ran.code, ran.out) == (2, "")


def test_a_full_service_costs_only_its_drafts(generate: Generating, model: Path, folder: Path) -> None:
    narrow = Limits(max_sessions=1)
    with (
        SuffixCache(limits=narrow) as cache,
        serving(cache, f"unix:{folder}/s", narrow) as (_, address),
        SuffixClient(address) as other,
    ):
        other.namespace("other").open_session([1])
        ran = generate(model, *PROMPT, "--service", address)
    assert (ran.code, ran.out) == (0, WRITTEN + "\n")
    assert "outputs are not stored: " in ran.err


@pytest.mark.parametrize("mode", ["auto", "remote"])
def test_an_unreachable_service_costs_only_its_drafts(
    generate: Generating, model: Path, folder: Path, mode: str
) -> None:
    ran = generate(model, *PROMPT, "--service", f"unix:{folder}/missing", "--mode", mode)
    assert (ran.code, ran.out) == (0, WRITTEN + "\n")
    assert "continuing without the service" in ran.err
    assert "the output is not stored: " in ran.err
    assert ("the service did not answer in" in ran.err) == (mode == "remote")


def test_a_killed_service_costs_only_its_drafts(
    generate: Generating, model: Path, folder: Path, tmp_path: Path
) -> None:
    long = write_tiny_chain(tmp_path / "long.gguf", chain_of(TEXT), context=1 << 15)
    arguments = ("a", "--raw", "--max-tokens", 1000, "--context", 1024, "--layers", "suffix", "--k", 1)
    with ServeProcess(folder) as serve:
        serve.start()
        child = process(long, *arguments, "--service", serve.address, home=tmp_path)
        assert child.stdout is not None
        begun = child.stdout.read(10)
        serve.kill()
        out, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, said
    assert begun == TEXT[1:11]
    assert out.removesuffix("\n")[-1:] == (TEXT * 50)[1000]
    assert "is not stored" in said


# -- settings


def test_options_override_settings(generate: Generating, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    write_settings(
        file,
        Settings(
            driver=DriverConfig(policy=Policy.FIRST_MATCH),
            target=TargetSettings(context_size=300, max_width=8),
            suffix=LayerSettings(enabled=False),
        ),
    )
    generate.target = TargetSettings(max_width=8)
    [turn] = generate(model, *PROMPT, "--json", "--settings", file).turns
    assert (turn["policy"], turn["namespace"], turn["text"]) == ("first-match", None, WRITTEN)
    assert turn["model"]["context_size"] == 512, "rounded up by llama.cpp"
    assert len(turn["curve"]["costs"]) == 9
    assert [seen["layer"] for seen in turn["steps"][0]["considered"]] == ["prompt-lookup"]
    options = ("--policy", "expected-gain", "--context", 200, "--layers", "suffix")
    [turn] = generate(model, *PROMPT, "--json", "--settings", file, *options).turns
    assert (turn["policy"], turn["model"]["context_size"]) == ("expected-gain", 256)
    assert [seen["layer"] for seen in turn["steps"][0]["considered"]] == ["suffix"]


def test_the_settings_of_the_manual_are_valid(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "generate.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```toml\n(.*?)```", manual, re.DOTALL)
    file = tmp_path / "s.toml"
    file.write_text(block)
    assert read_settings(file).target.experts_used == 6


def test_a_service_takes_its_longest_draft_from_settings(model: Path, folder: Path) -> None:
    file = folder / "s.toml"
    write_settings(file, Settings(suffix=LayerSettings(max_draft_tokens=5)))
    with ServeProcess(folder, "--settings", str(file)) as serve:
        serve.start()
        with SuffixClient(serve.address) as client:
            assert client.server_info().max_draft_tokens == 5
        assert serve.terminate() == 0
    assert Limits().max_draft_tokens > 5


def test_a_curve_is_measured_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    file = tmp_path / "s.toml"
    write_settings(file, Settings(target=TargetSettings(threads=1, max_width=4)))
    arguments = ["generate", str(model), "a", "--raw", "--max-tokens", "5", "--settings", str(file)]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == WRITTEN[:5] + "\n"
    assert "measuring the cost of steps on this machine" in err
    assert "measured (a plain step takes" in err
    assert cli.main([*arguments, "--no-measure", "--json"]) == 0, "a measured curve is used"
    out, err = capsys.readouterr()
    assert (json.loads(out)["curve"]["measured"], err) == (True, "")
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "elsewhere"))
    assert cli.main([*arguments, "--no-measure"]) == 0
    out, err = capsys.readouterr()
    assert out == WRITTEN[:5] + "\n"
    assert "expected by the cost curve, which is an estimate; " in err
    assert not (tmp_path / "elsewhere").exists(), "an estimate is not stored"


# -- a draft model

FIRST_MATCH = ("--policy", "first-match", "--layers", "draft-model", "--k", 5)


def test_a_draft_model_gets_a_process_of_its_own(
    generate: Generating, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    start = ChildProcesses.start

    def remember(self: ChildProcesses, *arguments: object) -> object:
        child = start(self, *arguments)  # type: ignore[arg-type]  # handed on
        pids.append(child.pid)
        return child

    monkeypatch.setattr(ChildProcesses, "start", remember)
    [turn] = generate(model, *PROMPT, "--draft", model, *FIRST_MATCH, "--json").turns
    assert turn["text"] == WRITTEN
    assert turn["sources"].count("draft_model") > 10
    [pid] = pids
    assert not Path(f"/proc/{pid}").exists(), "it is gone"


def test_a_worker_that_runs_already(generate: Generating, model: Path, folder: Path) -> None:
    engine = DraftEngine(model, ContextSettings(context_size=512, slots=2, threads=1, max_width=1))
    server = DraftWorkerServer(engine, f"unix:{folder}/w")
    server.start()
    try:
        ran = generate(model, *PROMPT, "--draft", server.address, *FIRST_MATCH, "--explain")
    finally:
        server.stop()
        engine.close()
    assert ran.out.endswith(WRITTEN + "\n")
    assert "tokens of draft-model in a batch of" in ran.out


def test_another_number_of_experts(generate: Generating, tmp_path: Path) -> None:
    mixture = write_tiny_moe(tmp_path / "moe.gguf", seed=1)
    run = (mixture, "hello", "--raw", "--max-tokens", 20, "--json")
    usual, [turn] = generate(*run).turns[0], generate(*run, "--experts", 1).turns
    assert (usual["model"]["experts_used"], turn["model"]["experts_used"]) == (None, 1)
    assert usual["token_ids"] != turn["token_ids"], "another number makes another model"
    assert "experts_used must be in 1 .. 4; got 9" in generate(*run, "--experts", 9).err


# -- a real model


def test_on_a_real_model(generate: Generating, real_model: Path) -> None:
    prompt = "Say: one two three one two three one two three"
    [turn] = generate(real_model, prompt, "--max-tokens", 24, "--context", 512, "--json").turns
    assert turn["prompt"] == prompt
    assert len(turn["token_ids"]) == len(turn["sources"]) <= 24
    assert turn["stats"]["tokens"] == len(turn["token_ids"])
    assert turn["finish"] in ("stop", "length")
    assert turn["text"].strip()
