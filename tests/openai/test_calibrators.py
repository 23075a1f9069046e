"""What one principal's drafts are worth is learned from its own answers only."""

from __future__ import annotations

from pathlib import Path

import openai
from suffixsvc_driver.layers.prediction import PredictionLayer
from suffixsvc_openai.engine.calibrators import Calibrators
from support.openai_serving import access_to, client_of, cycle_text, running, settings_of, token_of

ALICE, BOB = token_of("alice"), token_of("bob")
LAYER = PredictionLayer([1]).spec.name


def test_a_principal_has_one_calibrator_while_it_is_used() -> None:
    calibrators = Calibrators(most=2)
    alice, bob = calibrators.of("alice"), calibrators.of("bob")
    assert alice is not bob
    assert calibrators.of("alice") is alice
    calibrators.of("carol")  # in place of bob
    assert calibrators.of("alice") is alice
    assert calibrators.of("bob") is not bob


def test_wrong_predictions_of_one_principal_do_not_change_those_of_another(
    cycle: Path, tmp_path: Path
) -> None:
    def ask(client: openai.OpenAI, content: str) -> None:
        client.chat.completions.create(
            model="cycle",
            messages=[{"role": "user", "content": "x"}],
            temperature=0,
            max_tokens=24,
            prediction={"type": "content", "content": content},
        )

    settings = settings_of(cycle, access=access_to(tmp_path, ALICE, BOB))
    with running(settings) as server, client_of(server, ALICE) as alice, client_of(server, BOB) as bob:
        calibrators = server.service.engine.calibrators
        ask(bob, cycle_text("\n", 24))
        before = calibrators.of("bob").table(LAYER).calibrate([0.8], [0])[0]
        for number in range(30):
            ask(alice, f"{number}, which is not what it writes")
        assert calibrators.of("alice").table(LAYER).calibrate([0.8], [0])[0] < 0.5
        assert calibrators.of("bob").table(LAYER).calibrate([0.8], [0])[0] == before > 0.7
