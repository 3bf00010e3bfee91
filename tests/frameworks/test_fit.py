"""`echelon fit --config`: architectures of transformers in their usual sizes are traced unmodified.

In the tier "all" 44 of them, up to 47 billion parameters; else those that take a few seconds.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.runs import ECHELON
from tests.tiers import pick

pytestmark = pytest.mark.framework("torch", "transformers")
QUICK = (
    "AlbertForMaskedLM", "DistilBertForMaskedLM", "GPT2LMHeadModel", "ResNetForImageClassification",
    "SegformerForImageClassification", "T5ForConditionalGeneration", "ViTForImageClassification",
)  # fmt: skip
OTHERS = (
    "BartForConditionalGeneration", "BeitForImageClassification", "BertForMaskedLM", "BloomForCausalLM",
    "CohereForCausalLM", "ConvNextForImageClassification", "DebertaV2ForMaskedLM", "DeiTForImageClassification",
    "ElectraForMaskedLM", "FalconForCausalLM", "Gemma2ForCausalLM", "GemmaForCausalLM", "GPTJForCausalLM",
    "GPTNeoForCausalLM", "GPTNeoXForCausalLM", "GraniteForCausalLM", "LlamaForCausalLM", "MambaForCausalLM",
    "MistralForCausalLM", "MixtralForCausalLM", "MobileNetV2ForImageClassification", "ModernBertForMaskedLM",
    "MptForCausalLM", "Olmo2ForCausalLM", "OlmoForCausalLM", "OPTForCausalLM", "PegasusForConditionalGeneration",
    "Phi3ForCausalLM", "PhiForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "RegNetForImageClassification",
    "RobertaForMaskedLM", "StableLmForCausalLM", "Starcoder2ForCausalLM", "SwinForImageClassification",
    "XLMRobertaForMaskedLM",
)  # fmt: skip
CHOSEN = pick(QUICK[::3], all=sorted((*QUICK, *OTHERS)))


@pytest.mark.parametrize("name", CHOSEN)
def test_architecture_is_traced(name: str, tmp_path: Path) -> None:
    """Two steps are seen, each weight once; the model has blocks that a strategy can shard, or is one block."""
    import transformers

    config = getattr(transformers, name).config_class()
    config.architectures = [name]
    config.to_json_file(tmp_path / "config.json", use_diff=False)
    images = "Image" in name
    words = ["--device", "a100-80", "--rows", "2", "--json", *(() if images else ("--length", "128"))]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [*ECHELON, "fit", *words, "--config", "config.json"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert (answer["steps"], answer["rows"]) == (2, 2)
    first = answer["devices"][0]["strategies"][0]
    assert first["parts"]["parameter"] >= 4 * answer["parameters"] > 0
    assert first["parts"].get("state", 0) >= 1.9 * first["parts"]["parameter"]
