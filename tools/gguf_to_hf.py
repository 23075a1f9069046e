"""Convert a GGUF file to the format of transformers, which vLLM reads: gguf_to_hf.py MODEL.gguf FOLDER.

Weights become bfloat16. Needs transformers, gguf and accelerate (.venv-adapters-vllm).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: Path, folder: Path) -> None:
    """Convert ``source`` into ``folder``."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    # The weights are dequantized, but the model keeps its quantizer, which refuses to save.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
