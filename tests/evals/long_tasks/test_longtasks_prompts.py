"""Templates, exact truncation, and which answers are given together."""

import importlib.util
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.base.errors import ConfigError, DataError
from contextwise.models.rope import extend_positions, same_frequencies_up_to
from contextwise_evals.answering.prompts import Encoder
from contextwise_evals.long_tasks.items import _Definition, read_items
from contextwise_evals.long_tasks.prompts import LongPrompt, check_visible, encode_item, filled, plan_answers, shown_at
from longtasks_files import BYTES, leval_line, longbench_line
from small import write_rows

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")
FOLDER = Path(importlib.util.find_spec("lm_eval").submodule_search_locations[0]) / "tasks" / "longbench"
LONGBENCH = sorted(f.stem for f in FOLDER.glob("*.yaml") if not f.stem.startswith("_") and not f.stem.endswith("_e"))


def item_of(tmp_path, **values):
    (item, *_), _ = read_items([write_rows(tmp_path / "x.jsonl", [longbench_line(0, **values)])])
    return item


def made(body, text, keep="ends", head=(), tail=(), item=None):
    return LongPrompt(tuple(head), tuple(body), tuple(tail), item, keep, text)


def test_the_middle_is_cut_out_exactly():
    prompt = made(range(100, 110), (2, 8), head=[1], tail=[2])
    assert prompt.prompt(10) == prompt.prompt(99) == [1, *range(100, 110), 2]
    assert prompt.prompt(6) == [1, 100, 101, 102, 107, 108, 109, 2]
    assert prompt.prompt(7) == prompt.prompt(6)  # LongBench: int(max_length / 2) tokens of each end
    assert prompt.prompt(2) == [1, 100, 109, 2]


def test_the_nearest_tokens_of_the_text_stay_with_all_that_is_around_it():
    prompt = made(range(100, 110), (2, 8), "nearest", head=[1], tail=[2])
    assert prompt.prompt(10) == [1, *range(100, 110), 2]
    assert prompt.prompt(9) == [1, 100, 101, *range(103, 110), 2]
    assert prompt.prompt(5) == [1, 100, 101, 107, 108, 109, 2]


@given(
    st.integers(1, 40), st.integers(0, 9), st.integers(0, 9), st.integers(2, 80), st.sampled_from(["ends", "nearest"])
)  # fmt: skip
def test_what_is_visible_is_a_part_of_the_prompt_of_the_right_size(text, before, behind, visible, keep):
    count = before + text + behind
    prompt = made(range(count), (before, before + text), keep)
    if keep == "nearest":
        visible = max(visible, prompt.around + 1)
    seen = prompt.prompt(visible)
    assert seen == sorted(set(seen)) and set(seen) <= set(range(count))
    assert len(seen) == count if count <= visible else len(seen) in (visible, visible - 1)
    if keep == "nearest":
        assert set(range(before)) | set(range(before + text, count)) <= set(seen)


def test_a_prompt_is_tokenized_as_a_whole(tmp_path):
    template = "Text: {context}\nQ: {input} {{sic}}\nA:"
    item = item_of(tmp_path, prompt=template)
    encoder = Encoder(BYTES)
    prompt = encode_item(item, encoder, None, "nearest")
    whole = f"Text: {item.context}\nQ: {item.question} {{sic}}\nA:"
    assert prompt.body == tuple(BYTES(whole, add_special_tokens=False).input_ids)
    first, last = prompt.text
    assert BYTES.decode(prompt.body[first:last]) == item.context
    assert prompt.around == len(whole) - len(item.context)
    shown = BYTES.decode(prompt.prompt(prompt.around + 20))
    assert shown == f"Text: {item.context[-20:]}\nQ: {item.question} {{sic}}\nA:"


def test_which_template_is_used(tmp_path):
    assert item_of(tmp_path, prompt="{context} own").template == "{context} own"
    assert item_of(tmp_path).template == item_of(tmp_path, dataset="hotpotqa_e").template
    assert "Only give me the answer" in item_of(tmp_path).template


@pytest.mark.parametrize("name", LONGBENCH)
def test_longbench_s_prompts_are_the_harness_s(tmp_path, name):
    number = {"passage_retrieval_en": "Paragraph 3", "passage_retrieval_zh": "段落3"}.get(name, "3")
    classes = ["3"] if name in ("trec", "lsht") else None
    item = item_of(tmp_path, dataset=name, answers=[number], all_classes=classes, context="x {{y}} {z}")
    task = yaml.load((FOLDER / f"{name}.yaml").read_text(), _Definition)
    prompt, (start, end) = filled(item)
    assert prompt == Template(task["doc_to_text"]).render(context=item.context, question=item.question)
    assert prompt[start:end] == item.context


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        ({"metric": "qa_f1"}, "Question: What is the key of house 0?\nAnswer:"),
        ({"metric": "rouge", "input": ""}, "A summary of the text above:"),
        ({"metric": "rouge", "group": "Summary"}, "Task: What is the key of house 0?\nAnswer:"),
        ({"metric": "code", "context": "x = 1\n", "input": ""}, "x = 1\n"),
    ],
)
def test_plain_templates(tmp_path, values, ending):
    item = item_of(tmp_path, dataset="mine", **values)
    text, (start, end) = filled(item)
    assert text.endswith(ending) and text[start:end] == item.context


def test_exams_are_asked_for_letters(tmp_path):
    (item, _), _ = read_items([write_rows(tmp_path / "leval_tpo.jsonl", [leval_line()])])
    assert "give the letter alone" in filled(item)[0]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{input}", r"names \{context\} 0 times; once is needed"),
        ("{context}{context}", r"names \{context\} 2 times"),
        ("{context}{answers}", r"names \{answers\}; it may name \{context\} and \{input\}"),
        ("{context.__class__}", r"names \{context\.__class__\}"),
        ("{context", r"cannot be read \(.*write \{\{ for a brace"),
    ],
)
def test_wrong_templates_are_named_with_their_line(tmp_path, template, message):
    with pytest.raises(DataError, match=rf"x\.jsonl:1: the template of 'hotpotqa' {message}"):
        filled(item_of(tmp_path, prompt=template))


def test_too_small_a_visible_context_is_refused(tmp_path):
    prompt = made(range(20), (5, 15), "nearest", item=item_of(tmp_path))
    with pytest.raises(
        ConfigError, match=r"is 10, which holds nothing of a text: the prompt around it takes 10 tokens at .*:1; give"
    ):
        check_visible([prompt], 10)
    check_visible([prompt], 11)
    check_visible([made(range(20), (5, 15), "ends", item=item_of(tmp_path))], 2)


def test_chat_marks_are_never_cut_and_code_has_none(tmp_path):
    tokenizer = BYTES.__class__(tokenizer_object=BYTES.backend_tokenizer, eos_token=BYTES.eos_token)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [answer] "
    plain, chat = Encoder(tokenizer), Encoder(tokenizer, True)
    asked = encode_item(item_of(tmp_path, dataset="mine", metric="qa_f1"), plain, chat, "ends")
    shown = tokenizer.decode(asked.prompt(4))
    assert shown == "[user] Rer: [answer] "  # of "Read the text … Answer:"
    code = encode_item(item_of(tmp_path, dataset="lcc"), plain, chat, "ends")
    assert "[user]" not in tokenizer.decode(code.prompt(10_000))


def items_of(tmp_path, sizes):
    lines = [
        longbench_line(i, context="x" * size, max_new_tokens=4, prompt="{context}") for i, size in enumerate(sizes)
    ]
    items, _ = read_items([write_rows(tmp_path / "sizes.jsonl", lines)])
    return {"hotpotqa": [encode_item(item, Encoder(BYTES), None, "ends") for item in items]}


def test_a_whole_prompt_is_answered_once(tmp_path):
    prompts = items_of(tmp_path, [10, 30, 100, 30])
    visible = [20, 40, 80]
    batches = plan_answers(prompts, visible, 90)
    asked = {(batch.visible, index) for batch in batches for index in batch.indices}
    assert asked == {(80, 2), (40, 1), (40, 2), (40, 3), (20, 0), (20, 1), (20, 2), (20, 3)}
    assert [shown_at(prompts["hotpotqa"][1], context, visible) for context in visible] == [20, 40, 40]
    for batch in batches:
        longest = max(len(prompts["hotpotqa"][i].prompt(batch.visible)) for i in batch.indices) + 4
        assert len(batch.indices) == 1 or len(batch.indices) * longest <= 90
    assert [batch.visible for batch in batches] == sorted((b.visible for b in batches), reverse=True)


def test_under_dynamic_ntk_a_batch_has_one_length_beyond_the_trained_one(tmp_path):
    prompts = items_of(tmp_path, [10, 12, 30, 100, 30, 50])
    config = LlamaConfig(
        vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    together = {batch.indices for batch in plan_answers(prompts, [60], 10_000, same_frequencies_up_to(model))}
    assert together == {(0, 1, 2, 3, 4, 5)}
    extend_positions(model, 64, "dynamic")
    together = {batch.indices for batch in plan_answers(prompts, [60], 10_000, same_frequencies_up_to(model))}
    assert together == {(0, 1), (2, 4), (3,), (5,)}  # 14 and 16 tokens, both within 32; 34 twice; 64; 54
