"""TRL's trainers with our models: the chunked loss runs the base model, so it must know the context."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from contextlm_models import backbone
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.data.tokenizers import byte_tokenizer
from contextwise_papers.cue import CueConfig, CueForCausalLM
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM

trl = pytest.importorskip("trl", reason="trl is not installed")
pytestmark = pytest.mark.long
MODELS = {
    "contextlm": lambda config: ContextLMForCausalLM(ContextLMConfig(config, chunk_size=3, injection="add")),
    "cue": lambda config: CueForCausalLM(CueConfig(config, decoder=None)),
    "multitoken": lambda config: MultiTokenForCausalLM(MultiTokenConfig(config, future_tokens=2)),
}
TEXTS = [{"text": "the cat sat on the mat " * (1 + i % 3)} for i in range(16)]
PAIRS = [{"prompt": "the cat ", "chosen": "sat on the mat", "rejected": "flew away"} for _ in range(8)]


def tokenizer():
    own = byte_tokenizer().tokenizer
    own.pad_token = own.pad_token or own.eos_token
    return own


def model(kind):
    torch.manual_seed(0)
    return MODELS[kind](backbone("llama", vocab_size=len(tokenizer()), max_position_embeddings=128))


def options(folder, **changes):
    steps = {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, "learning_rate": 1e-2}
    quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "bf16": False}
    return {"output_dir": str(folder)} | steps | quiet | changes


def losses(trainer):
    trainer.train()
    return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("kind", MODELS)
def test_the_losses_of_sft_agree(kind, tmp_path):
    """The plain loss, and the one that is computed from the base model in chunks; then packed rows, and another loss."""
    text, found = Dataset.from_list(TEXTS), {}
    forms = {"nll": {}, "chunked_nll": {}, "dft": {}, "packed": {"packing": True, "max_length": 64}}
    for name, changes in forms.items():
        changes |= {} if name == "packed" else {"loss_type": name}
        arguments = trl.SFTConfig(**options(tmp_path / name, **changes))
        parts = {"train_dataset": text, "eval_dataset": text, "processing_class": tokenizer()}
        trainer = trl.SFTTrainer(model(kind), args=arguments, **parts)
        found[name] = losses(trainer)
        assert found[name][0] > 0 and trainer.evaluate()["eval_loss"] > 0
    assert found["chunked_nll"] == pytest.approx(found["nll"], rel=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_preferences_are_learned(kind, tmp_path):
    parts = {"train_dataset": Dataset.from_list(PAIRS), "processing_class": tokenizer()}
    arguments = trl.DPOConfig(**options(tmp_path))
    first, *_, last = losses(trl.DPOTrainer(model(kind), ref_model=model(kind), args=arguments, **parts))
    assert first == pytest.approx(0.6931, abs=1e-3) and last < first


@pytest.mark.parametrize("kind", MODELS)
def test_saved_models_are_trained_by_their_path(kind, tmp_path):
    """Without a reference model, TRL loads one itself."""
    saved = str(tmp_path / "model")
    model(kind).save_pretrained(saved)
    tokenizer().save_pretrained(saved)
    text, pairs = Dataset.from_list(TEXTS), {"train_dataset": Dataset.from_list(PAIRS), "processing_class": tokenizer()}
    tuned = trl.SFTTrainer(model=saved, args=trl.SFTConfig(**options(tmp_path / "sft")), train_dataset=text)
    assert type(tuned.model) is type(model(kind)) and all(loss > 0 for loss in losses(tuned))
    for start in (saved, AutoModelForCausalLM.from_pretrained(saved)):
        first, *_, last = losses(trl.DPOTrainer(model=start, args=trl.DPOConfig(**options(tmp_path / "dpo")), **pairs))
        assert first == pytest.approx(0.6931, abs=1e-3) and last < first
