"""Stored outputs of a server with tokens, and a later one without: --data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suffixsvc.errors import ListenError
from suffixsvc.store.folder_reading import reading
from support.openai_serving import access_to, client_of, running, settings_of, token_of


def is_marked(data: Path) -> bool:
    with reading(data) as view:
        return view.access_controlled


def test_stored_outputs_of_a_server_with_tokens_are_not_served_without(cycle: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    alice = token_of("alice")
    with running(settings_of(cycle, lanes=1, data=data)):
        pass
    assert not is_marked(data)
    access = access_to(tmp_path / "access", alice)
    controlled = settings_of(cycle, lanes=1, access=access, data=data)
    with running(controlled) as server, client_of(server, alice) as client:
        client.completions.create(model="cycle", prompt="ab", max_tokens=4, temperature=0)
    assert is_marked(data)
    settings = settings_of(cycle, lanes=1, data=data)
    with pytest.raises(ListenError, match="must be served with access control"), running(settings):
        pass
    assert is_marked(data)
    with running(replace(settings, open_to_all=True)):
        pass
    assert not is_marked(data)
    with running(settings):
        pass
