"""``suffixsvc generate``: invalid input, grammars and schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.generating import PROMPT, Generating, Terminal, process
from support.serving import PATIENCE_S
from support.tiny_gguf import write_tiny_chain

# -- bad input


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "two prompts": (
        ("a", "--prompt", "b"),
        "only one prompt must be given; got PROMPT and --prompt",
    ),
    "no such file": (("--prompt-file", "/none/p.txt"), "the prompt must be a readable file"),
    "chat and raw": (("a", "--chat", "--raw"), "--chat and --raw must not be given together"),
    "system and raw": (("a", "--system", "s", "--raw"), "--system and --raw must not be given together"),
    "two stores": (
        ("a", "--data", "d", "--service", "unix:/s"),
        "--data and --service must not be given together",
    ),
    "a service that preloads": (("a", "--service", "unix:/s", "--preload", "sql"), "serve --preload"),
    "an address": (
        ("a", "--service", "nonsense"),
        "--service must be an address; expected unix:PATH or HOST",
    ),
    "an empty stop text": (("a", "--stop", ""), "--stop must have at least one character"),
    "no text": (("a\udcff", "--raw"), "the prompt must be UTF-8"),
    "no text to stop at": (("a", "--stop", "\udcff"), "--stop must be UTF-8"),
    "an empty prompt": (("", "--raw"), "the prompt must have at least one token"),
    "a policy": (("a", "--policy", "best"), "policy must be expected-gain or first-match"),
    "a controller": (
        ("a", "--policy", "first-match", "--controller", "x"),
        "controller must be fixed-k",
    ),
    "a controller without its policy": (("a", "--controller", "fixed-k"), "--policy must be first-match"),
    "layers": (
        ("a", "--layers", "prompt-lookup,magic"),
        "--layers must be known; expected prompt-lookup, suffix",
    ),
    "an unused store": (
        ("a", "--layers", "none", "--data", "d"),
        "--data must not be given without the suffix layer",
    ),
    "a namespace": (("a", "--namespace", "a b"), "namespace path must be without spaces"),
    "a temperature": (("a", "--temperature", "-1"), "temperature must be"),
    "settings": (("a", "--settings", "/none.toml"), "settings file /none.toml must be readable"),
    "experts": (("a", "--experts", "2"), "has no experts"),
    "a recipe": (("a", "--preload", "poems"), "poems"),
    "a recipe of others": (("a", "--preload", "sql"), "the recipe sql must be of the model's tokenizer"),
    "a draft model": (("a", "--draft", "none.gguf"), "no such model file"),
    "a long prompt": (
        ("a" * 300, "--raw", "--context", 256),
        "the prompt is longer than the target's context",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(generate: Generating, cycle: Path, what: str) -> None:
    arguments, said = BAD[what]
    ran = generate(cycle, *arguments)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert ran.err.splitlines()[-1].startswith("suffixsvc generate: ")
    assert said in ran.err.splitlines()[-1]


def test_bad_models(generate: Generating, tmp_path: Path) -> None:
    assert "is not downloaded" in generate("smollm2-135m", "a").err
    assert "no such model in the registry" in generate("unknown", "a").err
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert generate(tmp_path / "m.gguf", "a").code == 2
    strange = write_tiny_chain(tmp_path / "strange.gguf", {})
    strange.write_bytes(
        strange.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lhama", 1)
    )
    ran = generate(strange, "a")
    assert ran.code == 2
    assert "unknown model architecture: 'lhama'" in ran.err


def test_no_prompt_on_a_terminal(brief: Path, tmp_path: Path) -> None:
    with Terminal() as terminal:
        child = process(brief, home=tmp_path, stdin=terminal.side)
        _, said = child.communicate(timeout=PATIENCE_S)
        terminal.close_side()
    assert child.returncode == 2
    assert "a prompt must be given; expected PROMPT, --prompt TEXT" in said


def test_prompts_that_are_not_utf8(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, "--raw", stdin=b"ab\xff")
    assert ran.code == 2
    assert "the prompt must be UTF-8; got stdin, byte 2" in ran.err
    ran = generate(cycle, "--chat", "--max-tokens", 3, stdin=b"hello\nab\xff\n")
    assert ran.code == 2
    assert "a turn must be UTF-8" in ran.err


# -- choosing


def test_drafts_do_not_violate_a_grammar(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "digits.gbnf"
    grammar.write_text('root ::= [cde]+ "x" [0-9] [0-9]')
    ran = generate(cycle, *PROMPT, "--grammar", grammar)
    assert ran.code == 0
    assert re.fullmatch(r"cde[cde]*x?\d{0,2}", ran.out.strip())
    plain = generate(cycle, *PROMPT, "--grammar", grammar, "--layers", "none")
    assert ran.out == plain.out


def test_json_that_fits_a_schema(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}')
    ran = generate(cycle, *PROMPT, "--json-schema", schema)
    assert ran.code == 0
    assert ran.out.strip().startswith("{")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--min-p", "2"), "min_p must be"),
        (("--repeat-penalty", "-1"), "repeat_penalty must be"),
        (("--grammar", "missing.gbnf"), "the grammar must be a readable file"),
        (("--json-schema", "missing.json"), "the schema must be a readable file"),
    ],
)
def test_invalid_sampling_options(
    generate: Generating, cycle: Path, options: tuple[str, ...], said: str
) -> None:
    ran = generate(cycle, *PROMPT, *options)
    assert ran.code == 2
    assert said in ran.err


def test_a_malformed_grammar_says_where(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "bad.gbnf"
    grammar.write_text('root ::= "a" (\n')
    ran = generate(cycle, *PROMPT, "--grammar", grammar)
    assert ran.code == 2
    assert "line" in ran.err


def test_a_grammar_is_checked_before_the_model(generate: Generating, tmp_path: Path) -> None:
    """Measuring the cost of a model's steps can take a minute."""
    (tmp_path / "no.gguf").write_bytes(b"GGUF but no model")
    for text in ('root ::= "a" (\n', ""):
        grammar = tmp_path / "bad.gbnf"
        grammar.write_text(text)
        ran = generate(tmp_path / "no.gguf", *PROMPT, "--grammar", grammar)
        assert ran.code == 2
        assert "no.gguf" not in ran.err
        assert "grammar" in ran.err


@pytest.mark.parametrize("words", ["", " \n"])
def test_an_empty_prompt_is_refused(generate: Generating, cycle: Path, words: str) -> None:
    ran = generate(cycle, "--prompt", words)
    assert ran.code == 2
    assert "the prompt must not be empty" in ran.err


def test_invalid_addresses_are_reported(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT, "--draft", "http://")
    assert ran.code == 2
    assert "the address of a llama-server must be" in ran.err
