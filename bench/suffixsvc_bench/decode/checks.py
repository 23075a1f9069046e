"""Validation of the options of `bench decode` before the first measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.variants.peers import check_peers
from suffixsvc_bench.decode.variants.variants import settings_for
from suffixsvc_bench.decode.workload.jobs import check_workloads
from suffixsvc_driver.profile.pair_compatibility import compare_files
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import Controller, LayerKind, Policy
from suffixsvc_driver.settings.model_class import ModelClass
from suffixsvc_driver.targets.llama.experts import override_experts
from suffixsvc_models.gguf_header import check_gguf

#: policies whose variants are made for each set of layers
_LAYERED: Final = frozenset({Policy.EXPECTED_GAIN, Controller.FIXED})


def check_options(options: DecodeOptions) -> None:
    """Validate the options and the presence of their files.

    Raises:
        InvalidInputError, InvalidConfigError: an option is invalid, or a file does not exist.
    """
    _require_values("--temperature", options.temperatures)
    check_workloads(options.workloads, options.log, options.files)
    _require_values("--experts", options.experts)
    _require_values("--target", options.targets)
    for target in options.targets:
        header = check_gguf(target)
        for experts in options.experts:
            if experts is not None:
                override_experts(header, target.name, experts)
    if Controller.FIXED in options.policies:
        _require_values("--k", options.ks)
    for temperature in options.temperatures:
        settings_for(options, Sampling(temperature=temperature), ModelClass.DENSE_SMALL)
    if options.layers != ("all",) and not _LAYERED.intersection(options.policies):
        raise InvalidInputError(
            "--policy must include expected-gain or fixed-k with --layers", got=", ".join(options.policies)
        )
    with_model = [names for names in options.layers if LayerKind.DRAFT_MODEL in names.split("+")]
    if with_model and not options.drafts:
        raise InvalidInputError(
            "--draft must be given with the layer draft-model", got=f"--layers {with_model[0]}"
        )
    if options.prices and 0.0 not in options.temperatures:
        raise InvalidInputError(
            "--temperature must include 0 with --price-with",
            got=", ".join(f"{t:g}" for t in options.temperatures),
        )
    if options.llama_bin is not None:
        check_peers(
            options.llama_bin,
            options.llama_modes,
            programs=options.llama_programs,
            draft=bool(options.drafts),
        )
    for target, draft in options.pairs:
        if draft is not None:
            require_fit(target, draft)


def _require_values(option: str, values: Sequence[object]) -> None:
    if not values:
        raise InvalidInputError(f"{option} must have at least one value")


def require_fit(target: Path, draft: Path) -> None:
    """Check that a draft model has the target's vocabulary.

    Raises:
        InvalidInputError: it has another one.
        ModelError: a file is no model.
    """
    pair = compare_files(target, draft)
    if not pair.fits:
        failed = next(rule for rule in pair.rules if not rule.passed)
        raise InvalidInputError(
            f"--draft must have the vocabulary of --target: {draft.name} for {target.name}",
            got=f"{failed.rule}: {failed.what}",
            remedy="`suffixsvc compat` compares the models of a pair.",
        )
