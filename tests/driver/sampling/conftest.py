"""A tiny target whose vocabulary has tokens of several characters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixsvc_driver.targets.single import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama

#: what the byte-level vocabulary does not have: tokens of several characters
WORDS = ['{"', '":', '":"', '","', '"}', "nam", "name", '"k', "custom", "er", "false", "true", "null", '"]']


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = tmp_path_factory.mktemp("structured") / "t.gguf"
    write_tiny_llama(path, seed=3, texts=[*byte_texts(), *SPECIAL, *WORDS])
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        yield target
