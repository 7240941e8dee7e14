"""The two variants of the package, by hand-worked examples and by their definitions."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks.forms import CHUNK, CONTEXTLM, overlapping, supervised
from benchmarks.forms import pathway as sized_pathway
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from contextwise.base.errors import ConfigError
from contextwise.base.recipes import RECIPES
from contextwise.models import ContextLMForCausalLM, ModelSize, backbone_config, build_model, load_model
from contextwise.models.export import export_model_folder
from contextwise.models.spec import pretraining_losses
from contextwise.models.variant.code import digest, name_code, read_code
from contextwise.models.variant.modeling import VariantConfig, VariantForCausalLM

EXAMPLES = RECIPES / "variants"
VOCABULARY = 7


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


token_order, next_latent = example("token_order"), example("next_latent")


def small(family: str = "gpt2") -> nn.Module:
    torch.manual_seed(0)
    if family == "llama":
        shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape))
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=2))


def variant_of(path: Path, name: str, config: Any, **options: Any) -> VariantForCausalLM:
    sha256 = digest(read_code(path))
    name_code(path, sha256)
    torch.manual_seed(0)
    return VariantForCausalLM(VariantConfig(config, path.name, name, options, sha256))


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_examples_are_short():
    assert all(len(path.read_text().splitlines()) < 150 for path in EXAMPLES.glob("*.py"))


# ---- token order prediction ----


def test_target_scores_worked_by_hand():
    """After the first token come 3, 5, 3, 4 and the end: with W = 3 the second 3 has its score from its first occurrence."""
    scores = token_order.target_scores(torch.tensor([[3, 5, 3, 4]]), 3)
    none = -math.inf
    assert scores.tolist() == [[[2, 1, none], [2, 1, 0], [2, 1, none], [2, none, none]]]
    weights = scores.softmax(-1)[0, 0]
    assert weights.tolist() == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1), 0])


def dense_scores(labels: list[int], position: int, window: int) -> torch.Tensor:
    """The definition: of each vocabulary item, W minus the distance to its next occurrence within W, or minus infinity."""
    scores = torch.full((VOCABULARY,), -math.inf)
    for item in range(VOCABULARY):
        ahead = labels[position : position + window]
        if item in ahead:
            scores[item] = window - (ahead.index(item) + 1)
    return scores


@given(
    labels=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
    window=st.integers(1, 40),
    unknown=st.integers(0, 3),
)
def test_scores_and_loss_are_those_of_the_definition(labels, window, unknown):
    """For every row, window and number of unlabelled tokens at the end: ListNet over the whole vocabulary."""
    tokens = torch.tensor([labels + [-100] * unknown])
    hidden, head = rows(1, tokens.shape[1], 4), rows(VOCABULARY, 4, seed=1).requires_grad_()
    hidden.requires_grad_()
    reached = min(window, token_order.FARTHEST)
    weights = token_order.target_scores(tokens, reached)[:, : len(labels)].softmax(-1)
    expected = torch.zeros(())
    for position in range(len(labels)):
        target = dense_scores(labels, position, window).softmax(-1)
        sparse = torch.zeros(VOCABULARY)
        items = token_order.upcoming(tokens, reached)[0, position].clamp(min=0)
        sparse.scatter_add_(0, items, weights[0, position])
        assert torch.allclose(sparse, target, atol=1e-6)
        expected = expected - (target * (hidden[0, position] @ head.T).log_softmax(-1)).sum()
    target_BTW = nn.functional.pad(weights, (0, 0, 0, unknown))
    total = token_order.order_loss(hidden, head, tokens, target_BTW)
    assert total.item() == pytest.approx(expected.item(), rel=1e-4)
    for mine, theirs in zip(
        torch.autograd.grad(total, (hidden, head)), torch.autograd.grad(expected, (hidden, head)), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_a_window_of_one_is_the_next_token_loss():
    model = small()
    part = token_order.TokenOrder(model, window=1)
    hidden, labels = rows(2, 5, 8), torch.randint(VOCABULARY, (2, 5))
    labels[1, 3:] = -100
    logits = hidden @ part.head.weight.T
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert part(model, hidden, labels, labels)["order"].item() == pytest.approx(expected.item(), rel=1e-5)


# ---- next-latent prediction ----


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_state_that_does_not_change_is_predicted_exactly_at_the_start(family):
    """The last layer is zero: nothing is predicted to change, so of equal hidden states both losses are zero."""
    model = small(family)
    part = next_latent.NextLatent(model, horizon=3)
    tokens = torch.randint(VOCABULARY, (2, 6))
    losses = part(model, rows(1, 1, 8).expand(2, 6, 8), tokens, tokens)
    assert losses["regression"] == 0 and losses["divergence"].item() == pytest.approx(0, abs=1e-6)
    assert part(model, rows(2, 6, 8), tokens, tokens)["regression"] > 0


def test_the_losses_are_those_of_the_equations():
    """Two steps, written out: the second starts from the first's prediction."""
    model = small()
    part = next_latent.NextLatent(model, horizon=2, regression=2.0, divergence=0.5)
    nn.init.normal_(part.dynamics[-1].weight, std=0.5)
    hidden, tokens = rows(1, 4, 8), torch.tensor([[1, 2, 3, 4]])
    embedded, head = model.transformer.wte(tokens)[0], model.lm_head.weight
    distance, divergence = [0.0, 0.0], [0.0, 0.0]
    for t in range(4):
        state = hidden[0, t]
        for step in range(2):
            if t + step + 1 < 4:
                state = state + part.dynamics(torch.cat([embedded[t + step + 1], state]))
                real = hidden[0, t + step + 1]
                distance[step] += nn.functional.smooth_l1_loss(state, real).item() / 4
                p, q = (head @ real).softmax(-1), (head @ state).softmax(-1)
                divergence[step] += (p * (p / q).log()).sum().item() / 4
    losses = part(model, hidden, tokens, tokens)
    assert losses["regression"].item() == pytest.approx(2.0 * sum(distance) / 2, rel=1e-4)
    assert losses["divergence"].item() == pytest.approx(0.5 * sum(divergence) / 2, rel=1e-4)


@pytest.mark.parametrize("make", [next_latent.NextLatent, token_order.TokenOrder])
def test_a_step_in_parts_has_the_losses_of_the_whole_step(make):
    """Rows of documents of other lengths are weighted by their labels, as micro-batches are."""
    model = small()
    model.config.eos_token_id = 0
    part = make(model)
    tokens = torch.cat([packed(lengths)[0] for lengths in ([12, 4], [2] * 8, [16])])
    labels, hidden = tokens.roll(-1, 1), rows(3, 16, 8)
    labels[2, 9:] = -100
    shares = labels.ne(-100).sum(1) / labels.ne(-100).sum()
    parts = [part(model, hidden[i : i + 1], tokens[i : i + 1], labels[i : i + 1]) for i in range(3)]
    for name, loss in part(model, hidden, tokens, labels).items():
        weighted = sum(share * each[name] for share, each in zip(shares, parts, strict=True))
        assert loss.item() == pytest.approx(weighted.item(), rel=1e-5)


def test_targets_and_head_get_no_gradient():
    model = small()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    part = next_latent.NextLatent(model)
    nn.init.normal_(part.dynamics[-1].weight)
    hidden, tokens = rows(1, 5, 8).requires_grad_(), torch.randint(VOCABULARY, (1, 5))
    sum(part(model, hidden, tokens, tokens).values()).backward()
    assert hidden.grad[0, -1].abs().max() == 0, "the last state is a target alone"
    assert hidden.grad[0, :-1].abs().amin(0).max() > 0
    assert model.lm_head.weight.grad is None
    assert model.transformer.wte.weight.grad.abs().max() > 0
    assert all(parameter.grad.abs().max() > 0 for parameter in part.parameters())


def test_positions_without_a_label_do_not_count():
    model = small()
    part = next_latent.NextLatent(model)
    hidden, tokens = rows(1, 6, 8), torch.randint(VOCABULARY, (1, 6))
    labels = tokens.clone()
    labels[:, 4:] = -100
    whole = part(model, hidden[:, :4], tokens[:, :4], labels[:, :4])
    for name, loss in part(model, hidden, tokens, labels).items():
        assert loss.item() == pytest.approx(whole[name].item(), rel=1e-5)


def packed(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of documents that begin with end-of-text (0), and of its positions in their documents."""
    draw = torch.Generator().manual_seed(seed)
    row = [torch.cat([torch.zeros(1).long(), torch.randint(1, VOCABULARY, (n - 1,), generator=draw)]) for n in lengths]
    return torch.cat(row)[None], torch.cat([torch.arange(n) for n in lengths])[None]


def apart(row: torch.Tensor, lengths: list[int], fill: float) -> torch.Tensor:
    """The documents of a row, each in a row of its own, which is filled up."""
    longest, documents = max(lengths), row[0].split(lengths)
    rows = [torch.cat([each, each.new_full((longest - len(each), *each.shape[1:]), fill)]) for each in documents]
    return torch.stack(rows)


def test_the_step_to_another_document_does_not_count():
    """End-of-text at position 12: the state of position 11 has no term, that of 12 has one, whatever tells the border."""
    model = small()
    model.config.eos_token_id = 0
    part = next_latent.NextLatent(model)
    tokens, positions = packed([12, 4])
    unknown = tokens.clamp(min=1)  # another tokenizer's end-of-text
    for ids, places in ((tokens, None), (tokens, positions), (unknown, positions)):
        hidden = rows(1, 16, 8).requires_grad_()
        part(model, hidden, ids, ids.roll(-1), places)["regression"].backward()
        assert hidden.grad[0].abs().sum(-1).eq(0).nonzero().flatten().tolist() == [11, 15]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 4), st.booleans())
def test_documents_of_a_row_have_the_losses_that_they_have_apart(lengths, horizon, separate):
    """Rollouts end with their document in every packed row, windows of token order where documents do not see each other."""
    model = small()
    model.config.eos_token_id = 0
    tokens, positions = packed(lengths)
    labels, hidden = tokens.roll(-1), rows(1, sum(lengths), 8)
    alone = apart(hidden, lengths, 0.0), apart(tokens, lengths, 1), apart(labels, lengths, -100)
    kinds = [next_latent.NextLatent(model, horizon)]
    if separate:
        kinds.append(token_order.TokenOrder(model, window=5))
    for part in kinds:
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.5)
        together = part(model, hidden, tokens, labels, positions if separate else None)
        for name, loss in part(model, *alone).items():
            steps = [
                max(1, min(horizon, n - 1)) for n in (sum(lengths), max(lengths))
            ]  # of the rollout, in which it is a mean
            whole = together[name].item() * (1 if name == "order" else steps[0] / steps[1])
            assert whole == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.parametrize("name", ["token_order.py:TokenOrder", "next_latent.py:NextLatent"])
def test_a_variant_that_asks_for_positions_gets_them(name):
    """A step on documents that do not see each other is the step on them apart."""
    file, _, own = name.partition(":")
    config = LlamaConfig(**small("llama").config.to_dict() | {"eos_token_id": None})
    model = variant_of(EXAMPLES / file, own, config).train()
    lengths = [5, 7, 4]
    tokens, positions = packed(lengths)
    labels = tokens.roll(-1)
    together = pretraining_losses(model, {"input_ids": tokens, "labels": labels, "position_ids": positions})
    alone = {"input_ids": apart(tokens, lengths, 1), "labels": apart(labels, lengths, -100)}
    torch.testing.assert_close(together.sums, pretraining_losses(model, alone).sums)


def test_the_vocabulary_of_a_variant_can_be_resized(tmp_path):
    model = variant_of(EXAMPLES / "token_order.py", "TokenOrder", small("llama").config).eval()
    model.resize_token_embeddings(VOCABULARY + 3)
    assert model.config.vocab_size == VOCABULARY + 3
    model.save_pretrained(tmp_path)
    loaded, tokens = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), torch.tensor([[VOCABULARY + 2, 1]])
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


SMEARED = """
import torch
from torch import nn
from transformers import GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class Smeared(GPT2LMHeadModel):
    def __init__(self, config, known: bool = False):
        super().__init__(config)
        self.known = known

    def forward(self, input_ids=None, past_key_values=None, **kwargs):
        out = self.transformer(input_ids, past_key_values=past_key_values, use_cache=True)
        own = self.transformer.wte(input_ids)
        before = nn.functional.pad(own[:, :-1], (0, 0, 1, 0))  # of the text so far, not of what the cache holds
        shift = own if self.known else before
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state + shift), past_key_values=out.past_key_values)


class Buffered(GPT2LMHeadModel):
    def __init__(self, config, scale: float = 1.0):
        super().__init__(config)
        self.register_buffer("shift", torch.linspace(0, scale if scale < 9 else 2, config.n_embd), persistent=False)
        self.plain = torch.arange(config.n_embd) / 8
        self.shared = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.shared.weight = self.lm_head.weight

    def forward(self, input_ids=None, **kwargs):
        hidden = self.transformer(input_ids)[0]
        return CausalLMOutputWithPast(logits=self.shared(hidden + self.shift * self.plain))
"""


def smeared(folder: Path, name: str = "Smeared", stem: str = "smeared-model", **options: bool) -> VariantForCausalLM:
    file = folder / f"{stem}.py"
    file.write_text(SMEARED)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=8, n_layer=2, n_head=2, initializer_range=0.5)
    return variant_of(file, name, config, **options).eval()


def test_values_outside_of_the_saved_state_are_computed_again(tmp_path):
    """A layer that shares the weight of the head is read with it."""
    model, tokens = smeared(tmp_path, "Buffered", scale=2.0), torch.tensor([[1, 2, 3]])
    model.save_pretrained(tmp_path / "model")
    for load in (load_model, AutoModelForCausalLM.from_pretrained):
        with torch.no_grad():
            assert torch.equal(load(tmp_path / "model")(tokens).logits.cpu(), model(tokens).logits)


def test_a_variant_without_a_loss_of_its_own_gets_that_of_its_logits(tmp_path):
    """So that transformers' Trainer trains it, by the number of targets of all its batches."""
    model, tokens = smeared(tmp_path, stem="scored"), torch.tensor([[1, 2, 3], [4, 5, 6]])
    labels = tokens.clone()
    labels[0, 2] = -100
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(
            model(tokens).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        torch.testing.assert_close(model(tokens, labels=labels).loss, nats / 3)
        out = model(tokens, labels=labels, num_items_in_batch=7, return_dict=True)
        assert torch.equal(out[0], out.loss) and out["loss"] is out.loss
        torch.testing.assert_close(out.loss, nats / 7)
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=2, report_to="none", save_strategy="no", use_cpu=True
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    assert Trainer(model, arguments, train_dataset=rows).train().training_loss > 0


def test_a_variant_with_a_loss_of_its_own_is_asked_for_no_other(tmp_path):
    """Its forward pass knows labels, but not by how many targets of all batches to divide."""
    file = tmp_path / "own_loss.py"
    file.write_text(
        "from transformers import GPT2LMHeadModel\n"
        "from transformers.modeling_outputs import CausalLMOutput\n"
        "class Own(GPT2LMHeadModel):\n"
        "    def forward(self, input_ids, labels=None):\n"
        "        logits = self.lm_head(self.transformer(input_ids).last_hidden_state)\n"
        "        return CausalLMOutput(loss=None if labels is None else logits.sum(), logits=logits)\n"
    )
    model = variant_of(file, "Own", GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=1)).eval()
    tokens = torch.tensor([[1, 2, 3]])
    assert not model.accepts_loss_kwargs and smeared(tmp_path, stem="other").accepts_loss_kwargs
    out = model(tokens, labels=tokens, num_items_in_batch=7)
    assert torch.equal(out.loss, out.logits.sum())


def test_a_variant_is_exported_without_code_that_opens_it_elsewhere(tmp_path):
    smeared(tmp_path, known=True).save_pretrained(tmp_path / "model")
    with pytest.raises(
        ConfigError, match="a model of smeared-model.py, .* without Contextwise; leave out `standalone`"
    ):
        export_model_folder(tmp_path / "model", tmp_path / "out", standalone=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("known", [False, True])
def test_a_variant_generates_the_tokens_of_its_whole_text(tmp_path, capsys, known):
    model = smeared(tmp_path, stem="smeared", known=known)
    text = torch.tensor([[1, 2, 3]])
    found = model.generate(text, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    options = GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert model.generate(text, generation_config=options).tolist() == found.tolist() and options.use_cache is None
    while text.shape[1] < 15:
        text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], dim=1)
    assert found.tolist() == text.tolist()
    assert model.reads_cache == known and ("so it generates without one" in capsys.readouterr().err) == (not known)


@pytest.mark.parametrize("length", [3, 16, 22])
def test_the_forms_of_the_benchmark_are_contextlm(length):
    """Chunks that begin where the last one ends do not overlap; a supervised prediction changes no logits."""
    torch.manual_seed(0)
    stock = build_model(backbone_config("gpt2", ModelSize(2, 32, 2, 1e-3), 50, 32)).eval()
    models = [
        ContextLMForCausalLM.from_backbone(stock, **CONTEXTLM),
        overlapping(stock, CHUNK),
        supervised(stock, ahead=3),
    ]
    for model in models:
        model.load_state_dict(models[0].state_dict(), strict=False)
        torch.nn.init.normal_(model.context.gate.weight)
        model.context.gate.load_state_dict(models[0].context.gate.state_dict())
    tokens = torch.randint(0, 50, (2, length))
    with torch.no_grad():
        expected = models[0](tokens, use_cache=False).logits
        assert all(torch.equal(model(tokens, use_cache=False).logits, expected) for model in models[1:])
        overlaps = overlapping(stock, 2)
        overlaps.load_state_dict(models[0].state_dict())
        whole = overlaps(tokens, use_cache=False).logits
        assert torch.allclose(overlaps(tokens[:, :-1], use_cache=False).logits, whole[:, :-1], atol=1e-5)
        assert torch.equal(whole, expected) == (length < CHUNK + 1)
    hidden, pathway = torch.zeros(2, length, 32), models[2].context
    last = pathway.last
    losses = models[2].training_losses(hidden, tokens, tokens)
    assert set(losses) == {"context", "context2", "context3"}
    if length < CHUNK:  # nothing is predicted
        assert last is None and not any(losses.values())
    elif length > 4 * CHUNK:
        pathway.last = (last[1].roll(-1, dims=1), *last[1:])  # what is predicted is what comes
        assert float(models[2].training_losses(hidden, tokens, tokens)["context"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"rate": 8.0}, {"narrow": 2}, {"start": 0.1, "rate": 4.0}])
def test_a_pathway_of_another_gate_or_width_begins_as_its_backbone_and_is_causal(options):
    torch.manual_seed(0)
    stock = build_model(backbone_config("gpt2", ModelSize(2, 32, 2, 1e-3), 50, 32)).eval()
    model, tokens = sized_pathway(stock, **options), torch.randint(0, 50, (2, 20))
    plain = ContextLMForCausalLM.from_backbone(stock, chunk_size=CHUNK, predictor_layers=2, injection_layer=1)
    with torch.no_grad():
        backbone = stock(tokens).logits
        same = torch.allclose(model(tokens, use_cache=False).logits, backbone, atol=1e-6)
        assert same == ("start" not in options)
        if not options:
            model.load_state_dict(plain.state_dict())
            model.context.gate.weight.normal_()
            plain.context.gate.weight.copy_(model.context.gate.weight)
            assert torch.equal(model(tokens, use_cache=False).logits, plain(tokens, use_cache=False).logits)
        model.context.gate.weight.normal_()
        changed = torch.cat([tokens[:, :12], (tokens[:, 12:] + 1) % 50], dim=1)
        logits, others = (model(ids, use_cache=False).logits for ids in (tokens, changed))
        assert torch.equal(logits[:, :12], others[:, :12]) and not torch.allclose(logits, backbone, atol=1e-3)
    if "narrow" in options:
        assert model.num_parameters() < plain.num_parameters()


def form(make, **settings):
    torch.manual_seed(0)
    model = make(build_model(backbone_config("gpt2", ModelSize(2, 32, 2, 1e-3), 50, 32)).eval(), **settings)
    torch.nn.init.normal_(model.context.gate.weight)
    return model


def test_overlapping_chunks_are_causal_in_eager_attention_and_refuse_what_they_do_not_know():
    model, tokens = form(overlapping), torch.randint(0, 50, (2, 20))
    model.set_attn_implementation("eager")
    changed = torch.cat([tokens[:, :12], (tokens[:, 12:] + 1) % 50], dim=1)
    with torch.no_grad():
        logits, others = (model(ids, use_cache=False).logits for ids in (tokens, changed))
        assert torch.equal(logits[:, :12], others[:, :12]) and not torch.equal(logits[:, 12:], others[:, 12:])
        with pytest.raises(ConfigError, match="no packed documents, padding or cache"):
            model(tokens)


def test_a_prediction_is_supervised_within_its_document():
    model, tokens = form(supervised, ahead=2), torch.randint(0, 50, (1, 22))
    documents = (tokens[:, :9], tokens[:, 9:])
    with torch.no_grad():
        found = []
        for ids in documents:
            model(ids, use_cache=False)
            found.append(model.training_losses(None, ids, ids))
        model(tokens, position_ids=torch.cat([torch.arange(9), torch.arange(13)])[None], use_cache=False)
        packed = model.training_losses(None, tokens, tokens)
    # 2 and 3 chunks: 1 and 2 pairs of neighbours, 0 and 1 of the chunks behind them.
    assert float(packed["context"]) == pytest.approx(float(found[0]["context"] + 2 * found[1]["context"]) / 3, rel=1e-5)
    assert float(packed["context2"]) == pytest.approx(float(found[1]["context2"]), rel=1e-5)
    assert float(found[0]["context2"]) == 0


def test_the_weight_of_the_supervision_falls_to_zero_and_is_kept_with_the_model():
    """40 tokens a call of 100: weights of 1, 0.6, 0.2, 0 and 0 times the first."""
    model, tokens = form(supervised, until=100), torch.randint(0, 50, (2, 20))

    def loss(model):
        model(tokens, use_cache=False)
        return float(model.training_losses(None, tokens, tokens)["context"].detach())

    first = loss(model)
    kept = form(supervised, until=100)
    kept.load_state_dict(model.state_dict())
    assert [loss(model) / first for _ in range(4)] == pytest.approx([0.6, 0.2, 0, 0])
    assert loss(kept) / first == pytest.approx(0.6)
    assert "seen" not in form(supervised).state_dict()


def test_an_edited_file_is_said_not_to_be_the_code_that_is_used(tmp_path, capsys):
    file = tmp_path / "edited.py"
    file.write_text(f"# {tmp_path}\n")
    sha256 = digest(read_code(file))
    name_code(file, sha256)
    name_code(file, sha256)
    assert not capsys.readouterr().err
    file.write_text("# another\n")
    name_code(file, sha256)
    assert f"{file} has changed since it was named: the code of then is used" in " ".join(
        capsys.readouterr().err.split()
    )
