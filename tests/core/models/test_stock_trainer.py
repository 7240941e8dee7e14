"""transformers' own Trainer, used directly with our models and a stock collator."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainingArguments

from contextlm_models import backbone, contextlm
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM


def tokenizer():
    words = {f"w{i}": i for i in range(60)} | {"[PAD]": 60}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), pad_token="[PAD]")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["contextlm", "multitoken"])
def test_a_user_trains_with_the_stock_trainer(kind, tmp_path):
    torch.manual_seed(0)
    model = (
        contextlm("gpt2", chunk_size=3)
        if kind == "contextlm"
        else MultiTokenForCausalLM(MultiTokenConfig(backbone("gpt2"), future_tokens=2))
    )
    # Rows of different lengths, each a run of consecutive words: easy to learn, and padded on the right by the collator.
    rows = [{"input_ids": [(start + i) % 60 for i in range(6 + start % 9)]} for start in range(64)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=60,
            per_device_train_batch_size=16,
            learning_rate=1e-2,
            logging_steps=10,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < 0.6 * losses[0]
    text = model.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=60)
    assert text[0].tolist() == [5, 6, 7, 8, 9, 10, 11]
