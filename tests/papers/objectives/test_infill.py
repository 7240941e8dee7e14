"""Infilling: the prompts of models of all kinds, and the part of their output that is the answer."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.sampling import Sampling
from contextwise.models.loading import load_generating_model
from contextwise.objectives import Vocabulary
from contextwise_papers.objectives import UL2, Infilling, SpanCorruption
from contextwise_papers.objectives.infill.filling import Infiller, filling_objective, form_of
from contextwise_papers.objectives.spans import corrupt
from filling import (
    BYTES,
    END,
    LETTERS,
    POSITIONS,
    RENAMED,
    SPANS,
    context_lm,
    gpt2,
    infill,
    middle,
    t5,
    taught,
    tokenizer_of,
)

NEW, SPECIAL, LONGEST = 8, 3, 4  # tokens to write, special tokens of a prompt, bytes of the longest character
TEXTS = st.text(st.characters(codec="utf-8"), max_size=(POSITIONS - NEW - SPECIAL) // (2 * LONGEST))
PLAIN = Infilling()
BERT = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


@pytest.mark.long
@pytest.mark.parametrize("spm", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_contextlm_that_learned_a_pattern_fills_it_everywhere(spm: bool) -> None:
    """GPT-2 and T5: tests of scores and of the command."""
    tokenizer = tokenizer_of(RENAMED)
    for before in LETTERS:
        for behind in LETTERS:
            filled = infill(taught("contextlm"), tokenizer, before, behind, spm=spm, objective=RENAMED)
            assert filled == middle(before, behind)


@given(prefix=TEXTS, suffix=TEXTS, spm=st.booleans(), marked=st.booleans(), end=st.booleans())
def test_a_prompt_is_the_objectives_own_arrangement_up_to_the_middle(
    prefix: str, suffix: str, spm: bool, marked: bool, end: bool
) -> None:
    objective = Infilling(spm="marked" if marked else "published", end_token="<|fim_end|>" if end else None)
    tokenizer = tokenizer_of(objective)
    model = gpt2(objective)
    made = Infiller(model, tokenizer, spm=spm, objective=objective, max_new_tokens=NEW).prompt(prefix, suffix)
    before, inner, behind = (ids.astype(np.int64) for ids in BYTES.encode([prefix, "the middle", suffix]))
    assert made.dropped == (0, 0)
    written = objective.arrangement(Vocabulary(tokenizer, END)).write(before, inner, behind, spm)
    # The arrangement ends with the middle and its end token; all before those is what the model reads.
    ending = len(inner) + (1 if end else 0)
    assert made.ids.tolist() == written[: len(written) - ending].tolist()
    assert written[len(made.ids) :].tolist()[: len(inner)] == inner.tolist()


@pytest.mark.long
@given(prefix=TEXTS, suffix=TEXTS)
def test_an_encoder_decoder_reads_what_span_corruption_makes_of_one_span(prefix: str, suffix: str) -> None:
    tokenizer = tokenizer_of(SPANS)
    made = Infiller(t5(SPANS), tokenizer, objective=SPANS).prompt(prefix, suffix)
    before, inner, behind = (ids.astype(np.int64) for ids in BYTES.encode([prefix, "middle", suffix]))
    noise = np.repeat([False, True, False], [len(before), len(inner), len(behind)])
    sentinels = np.array(Vocabulary(tokenizer, END).ids(SPANS.special_tokens, "spans"))
    inputs, targets = corrupt(np.concatenate([before, inner, behind]), noise, sentinels)
    assert made.ids.tolist() == [*inputs.tolist(), END]
    assert form_of(t5(SPANS), tokenizer, SPANS).opening == (END, int(targets[0]))


def test_special_tokens_in_the_texts_are_text() -> None:
    prompt = Infiller(gpt2(PLAIN), tokenizer_of(PLAIN), max_new_tokens=4).prompt("<|fim_middle|>", "<|endoftext|>")
    special = [i for i in prompt.ids.tolist() if i >= END]
    assert len(special) == 3 and len(set(special)) == 3 and END not in special


@pytest.mark.parametrize("kind", ["gpt2", "contextlm", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_batch_gives_each_row_what_it_gets_alone(kind: str) -> None:
    # Models that were not taught write on and on; an encoder-decoder like that would only repeat itself.
    objective = SPANS if kind == "t5" else PLAIN
    model = taught("t5") if kind == "t5" else {"gpt2": gpt2, "contextlm": context_lm}[kind](PLAIN, seed=3)
    infiller = Infiller(model, tokenizer_of(objective), max_new_tokens=12)
    holes = [("a", "b"), ("a long prefix, with ", "a suffix"), ("c", "d"), ("z" * 30, ""), ("", ""), ("", "b")]
    prompts = [infiller.prompt(*hole) for hole in holes]
    together = infiller.fill(prompts)
    alone = [infiller.fill([prompt])[0] for prompt in prompts]
    assert together == alone
    assert len({filling.text for filling in alone}) > 1


def _answering(model: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model write these tokens."""

    def generate(inputs: torch.Tensor, **given: Any) -> torch.Tensor:
        return torch.cat([given.get("decoder_input_ids", inputs), torch.tensor([ids])], dim=1)

    monkeypatch.setattr(model, "generate", generate)


@pytest.mark.parametrize(("stop", "complete"), [("<|fim_end|>", True), ("<|endoftext|>", True), (None, False)])
def test_the_middle_ends_at_the_end_token_or_at_end_of_text(
    stop: str | None, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = gpt2(PLAIN), tokenizer_of(PLAIN)
    end = [] if stop is None else [tokenizer.convert_tokens_to_ids(stop), *b"beyond"]
    _answering(model, [*b"inner", *end], monkeypatch)
    infiller = Infiller(model, tokenizer)
    assert infiller.fill([infiller.prompt("a", "b")]) == [("inner", complete)]


@pytest.mark.parametrize("stop", ["<extra_id_1>", "<extra_id_3>", "<|endoftext|>"])
def test_the_middle_of_an_encoder_decoder_ends_at_the_next_sentinel(stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = t5(SPANS), tokenizer_of(SPANS)
    _answering(model, [*b"inner", tokenizer.convert_tokens_to_ids(stop), *b"beyond"], monkeypatch)
    assert infill(model, tokenizer, "a", "b") == "inner"


def test_a_model_of_ul2_gets_its_mode_token_in_front() -> None:
    objective = UL2(sentinels=4)
    tokenizer, model = tokenizer_of(objective), t5(objective)
    mode = tokenizer.convert_tokens_to_ids("[NLU]")
    for known in (objective, None):
        ids = Infiller(model, tokenizer, objective=known).prompt("a", "b").ids.tolist()
        assert ids == [mode, ord("a"), tokenizer.convert_tokens_to_ids("<extra_id_0>"), ord("b"), END]
    spans = Infiller(model, tokenizer, objective=SpanCorruption(sentinels=4)).prompt("a", "b").ids.tolist()
    assert spans == ids[1:]


def test_without_a_recipe_the_usual_names_are_tried() -> None:
    objective = Infilling(end_token=None)
    form = form_of(gpt2(objective), tokenizer_of(objective))
    assert form.stops == (END,) and form.name == "PSM"


@given(prefix=st.integers(0, 90), suffix=st.integers(0, 90), new=st.integers(1, 90), context=st.integers(12, POSITIONS))
def test_what_is_nearest_the_hole_is_kept(prefix: int, suffix: int, new: int, context: int) -> None:
    before = "".join(chr(33 + i) for i in range(prefix))
    behind = "".join(chr(33 + i) for i in range(suffix))
    infiller = Infiller(_MODEL, _TOKENIZER, max_new_tokens=new, context=context)
    prompt = infiller.prompt(before, behind)
    assert len(prompt.ids) + infiller.new_tokens <= context
    kept = before[prompt.dropped[0] :], behind[: suffix - prompt.dropped[1]]
    [first, second, third] = [i for i in prompt.ids.tolist() if i > END]
    assert prompt.ids.tolist() == [first, *kept[0].encode(), second, *kept[1].encode(), third]
    # No room is left unused, and neither is cut below half of it for the other's sake
    if any(prompt.dropped):
        assert len(kept[0]) + len(kept[1]) == infiller.room
        assert all(
            len(part) >= infiller.room // 2 or len(part) == whole
            for part, whole in zip(kept, (prefix, suffix), strict=True)
        )
    else:
        assert infiller.note(prompt) == ""


_MODEL, _TOKENIZER = gpt2(PLAIN), tokenizer_of(PLAIN)


def test_what_is_left_out_is_said() -> None:
    infiller = Infiller(_MODEL, _TOKENIZER, max_new_tokens=11)
    note = infiller.note(infiller.prompt("x" * 100, "y" * 70))
    assert note == (
        "note: the first 75 tokens of the prefix and the last 45 tokens of the suffix were left out, "
        "so that 50 tokens around the hole fit into the model's context"
    )


def test_a_seed_decides_the_middle_and_the_default_is_the_likeliest() -> None:
    infiller = Infiller(gpt2(PLAIN, seed=1), _TOKENIZER, max_new_tokens=20)
    prompt = infiller.prompt("a", "b")
    drawn = list(infiller.texts(prompt, Sampling(seed=5), samples=3))
    assert list(infiller.texts(prompt, Sampling(seed=5))) == drawn[:1] and len(set(drawn)) == 3
    assert list(infiller.texts(prompt)) == list(infiller.texts(prompt, Sampling(greedy=True, seed=9)))


def test_a_space_at_the_start_of_the_middle_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "</s>": 1, "▁one": 2, "▁two": 3, "▁three": 4, "<extra_id_0>": 5}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", additional_special_tokens=["<extra_id_0>"]
    )
    model = t5(SPANS)
    _answering(model, [3, 1], monkeypatch)
    assert tokenizer.decode([3]) == "two"
    assert infill(model, tokenizer, "one", " three") == " two"


def _without(objective: Any) -> Any:
    """A model whose embedding ends before the objective's tokens."""
    model = copy.deepcopy(t5(objective) if objective is SPANS else gpt2(objective))
    model.resize_token_embeddings(END + 1)
    return model


@pytest.mark.parametrize(
    ("model", "tokenizer", "options", "message"),
    [
        (gpt2(PLAIN), BYTES.tokenizer, {}, r"no tokens <\|fim_prefix\|>, .* train it with the objective 'infilling'"),
        (gpt2(PLAIN), tokenizer_of(PLAIN), {"objective": RENAMED}, "no tokens <P>, <S>, <M>;"),
        (_without(PLAIN), tokenizer_of(PLAIN), {}, "it has no tokens"),
        (t5(SPANS), BYTES.tokenizer, {}, "no token <extra_id_0>.* the objective 'spans' or 'ul2'"),
        (_without(SPANS), tokenizer_of(SPANS), {}, "no token <extra_id_0>"),
        (t5(SPANS), tokenizer_of(SPANS), {"spm": True}, "SPM is an order of a decoder's input"),
        (
            gpt2(PLAIN),
            tokenizer_of(PLAIN),
            {"spm": True, "objective": Infilling(spm_share=0)},
            "in the order PSM alone .*spm_share is 0.* ask for PSM",
        ),
        (
            gpt2(PLAIN),
            tokenizer_of(PLAIN),
            {"objective": Infilling(spm_share=1)},
            "in the order SPM alone .*spm_share is 1.* ask for SPM",
        ),
        (gpt2(PLAIN), tokenizer_of(PLAIN), {"max_new_tokens": 0}, "0 tokens were asked for"),
        (gpt2(PLAIN), tokenizer_of(PLAIN), {"context": 65}, "the context is 65, but the model has only 64 positions"),
        (gpt2(PLAIN), tokenizer_of(PLAIN), {"context": 4, "max_new_tokens": 1}, "4 positions are too few"),
        (BertForMaskedLM(BERT), tokenizer_of(PLAIN), {}, "the model is an encoder"),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_is_refused(model: Any, tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        infill(model, tokenizer, "a", "b", **options)


def test_a_run_says_how_it_was_trained(tmp_path: Any) -> None:
    run = tmp_path / "run"
    run.mkdir()

    def written(objective: Any, replayed: Any = None) -> Any:
        replay = {"corpus": "old", "objective": replayed}
        recipe = {"name": "x", "data": {"context": 48, "replay": replayed and replay}, "objective": objective}
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return filling_objective(Subject(run))

    values = RENAMED.model_dump(mode="json")
    parts = [{"weight": 0.5, "objective": {"name": "causal"}}, {"weight": 0.5, "objective": values}]
    assert written(values) == RENAMED and written({"name": "mixture", "parts": parts}) == RENAMED
    assert written({"name": "spans"}) == SpanCorruption() and written({"name": "causal"}) is None
    assert written({"name": "causal"}, values) == RENAMED and written({"name": "spans"}, values) == SpanCorruption()
    assert Subject(run).run_context == 48
    assert filling_objective(Subject("somebody/model")) is None and Subject("somebody/model").run_context is None


def test_a_damaged_encoder_decoder_is_one_sentence(tmp_path: Any) -> None:
    t5(SPANS).config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"no encoder-decoder could be loaded from {tmp_path}"):
        load_generating_model(str(tmp_path))
