"""Models of the user's own, named as path.py:Name: training, trials, what is refused, and the worked examples of the guide."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.base.runs import RunFolder
from contextwise.experiments import cost
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.experiments.trial import Trial, load_trial
from contextwise.experiments.trial.settings import setting_in_words
from contextwise.models.loading import load_model
from contextwise.models.spec import pretraining_losses, training_flops_per_example, training_flops_per_target
from contextwise.models.variant import code
from contextwise.models.variant.modeling import VariantForCausalLM
from contextwise.training import Recipe, train
from contextwise.training.model import starting_model
from small_trials import RECIPE, small_trial

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "extend.md"
TOP, LATENT = (f"variants/{name}" for name in ("token_order.py:TokenOrder", "next_latent.py:NextLatent"))
WIDTH, VOCABULARY, CONTEXT = 16, 257, 16
MODELS = '''
import math

import torch
from torch import nn
from transformers import BertForMaskedLM, GPT2LMHeadModel, GPT2Model, MixtralConfig, MixtralForCausalLM


class Same(GPT2LMHeadModel):
    """Unchanged."""


class Drawn(GPT2LMHeadModel):
    """Draws hidden states to zero in training."""

    def training_losses(self, hidden, input_ids, labels):
        return {"size": hidden.square().mean()}


class Leaks(GPT2LMHeadModel):
    """Adds the mean of all embeddings through a gate that is zero at the start."""

    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids=None, **kwargs):
        embedded = self.transformer.wte(input_ids)
        return super().forward(inputs_embeds=embedded + self.gate * embedded.mean(1, keepdim=True), **kwargs)


class Headless(GPT2Model):
    """No causal language model."""


class Thing:
    """No model."""


def widened(model, factor=2):
    """Adds a layer with values of its own, behind a hook on the final norm."""
    norm = model.base_model.ln_f if hasattr(model.base_model, "ln_f") else model.base_model.norm
    model.extra = nn.Linear(model.config.hidden_size, model.config.hidden_size)
    nn.init.eye_(model.extra.weight)
    norm.register_forward_hook(lambda module, given, out: factor * model.extra(out))
    return model


class Far(nn.Module):
    def forward(self, x):
        return x + nn.functional.pad(x[:, 20:], (0, 0, 0, min(20, x.shape[1])))


def far(model):
    """Sees twenty tokens ahead."""
    model.transformer.h[0].mlp = nn.Sequential(model.transformer.h[0].mlp, Far())
    return model


def repeated(model):
    """Applies its feed-forward layer twice."""
    layer = model.transformer.h[0].mlp
    model.transformer.h[0].mlp = nn.Sequential(layer, layer)
    return model


class Narrow(GPT2LMHeadModel):
    """Has no logits of the last token of the vocabulary."""

    def forward(self, input_ids=None, **kwargs):
        out = super().forward(input_ids, **kwargs)
        out.logits = out.logits[..., :-1]
        return out


class Refuses(GPT2LMHeadModel):
    """Does not run."""

    def forward(self, input_ids=None, **kwargs):
        raise RuntimeError("not today")


class WithLosses(nn.Module):
    """Returns what it should not."""

    def __init__(self, model, kind):
        super().__init__()
        self.kind = kind

    def forward(self, model, hidden, input_ids, labels):
        mean = hidden.mean()
        wrong = {"none": None, "empty": {}, "tensor": mean, "vector": {"own": hidden}, "nan": {"own": mean * math.nan}}
        return wrong[self.kind]


def experts(model, number, inner=24):
    """Mixtral, whose experts are stacks of matrices."""
    c = model.config
    sizes = dict(vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=1, num_attention_heads=2)
    sizes |= dict(num_key_value_heads=2, intermediate_size=inner, tie_word_embeddings=True, sliding_window=None)
    return MixtralForCausalLM(MixtralConfig(num_local_experts=number, num_experts_per_tok=2, **sizes))


class Kernel(torch.autograd.Function):
    """A product that torch does not see."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.numpy() @ weight.numpy())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return torch.from_numpy(grad.numpy() @ weight.numpy().T), torch.zeros_like(weight)


class OwnLayer(nn.Linear):
    def forward(self, x):
        return x + Kernel.apply(x, self.weight)


def kernel(model):
    """A layer with a kernel of its own."""
    width = model.config.hidden_size
    model.transformer.h[0].mlp = OwnLayer(width, width, bias=False)
    return model


class Blind(GPT2LMHeadModel):
    """Does not read where documents begin."""

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        return super().forward(input_ids, **kwargs)


def leaves(model):
    raise SystemExit(0)


def nothing(model):
    return None


def fails(model):
    raise RuntimeError("no\\nway")


class Normalizer(nn.Module):
    """The z-loss, of the logits that are there."""

    def __init__(self, model):
        super().__init__()

    def forward(self, model, hidden, input_ids, labels, logits):
        return {"z": logits.float().logsumexp(-1)[labels != -100].square().mean()}


class SecondHead(Normalizer):
    """The same, of logits that are computed again."""

    def forward(self, model, hidden, input_ids, labels):
        return super().forward(model, hidden, input_ids, labels, model.get_output_embeddings()(hidden))


class Halved(GPT2LMHeadModel):
    """Begins with half of the embedding, and with another first layer."""

    def __init__(self, config):
        super().__init__(config)
        with torch.no_grad():
            self.transformer.wte.weight.mul_(0.5)
        self.transformer.h[0] = nn.Identity()


def halved(model):
    with torch.no_grad():
        model.transformer.wte.weight.mul_(0.5)
    return model


class Replaced(GPT2LMHeadModel):
    """The same model, of which one block is made anew; and a head that is known after the model is made."""

    def __init__(self, config):
        super().__init__(config)
        self.transformer.h[0].mlp = type(self.transformer.h[0].mlp)(4 * config.n_embd, config)
        self.own_head = self.lm_head

    def get_output_embeddings(self):
        return self.own_head


class HalvedBeside(nn.Module):
    def __init__(self, model):
        super().__init__()
        halved(model)

    def forward(self, model, hidden, input_ids, labels):
        return {}
'''


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that the tests name is kept in a folder of theirs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path / "models.py"


def values(corpus: Path, output: Path, variant: str | None, family: str = "gpt2", **training: Any) -> dict:
    settings = {"steps": 6, "tokens_per_step": 64, "learning_rate": 3e-3, "save_every": 2, "log_every": 1}
    settings |= {"precision": "fp32", "evaluation_tokens": 64}
    model = {"family": family, "layers": 1, "width": WIDTH, "heads": 2, "variant": variant}
    data = {"corpus": str(corpus), "context": CONTEXT}
    return {"name": "own", "data": data, "model": model, "training": settings | training, "output": str(output)}


def recipe(corpus: Path, output: Path, variant: str | None, family: str = "gpt2", **training: Any) -> Recipe:
    return validate(Recipe, values(corpus, output, variant, family, **training), "the recipe")


def flops(made: Recipe) -> float:
    config = made.model.config(made, VOCABULARY, 0)
    return training_flops_per_example(config, CONTEXT) / CONTEXT + training_flops_per_target(config)


def trial(corpus: Path, folder: Path, arms: Any, **changes: Any) -> Any:
    shared = RECIPE | {"training": RECIPE["training"] | {"optimizer": "muon"}}
    return small_trial(corpus, folder, **{"arms": arms, "recipe": shared, "tokens": 512, "seeds": 2} | changes)


# ---- what a variant costs, and where it starts ----


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_operations_are_counted_like_those_of_stock_models(family, corpus_folder, tmp_path, models):
    """An unchanged model costs what the stock model does; token order prediction one vocabulary head more, in training."""
    stock = recipe(corpus_folder, tmp_path, None, family)
    if family == "gpt2":
        assert flops(recipe(corpus_folder, tmp_path, f"{models}:Same")) == flops(stock)
    head = training_flops_per_target(stock.model.config(stock, VOCABULARY, 0))
    assert head == 6 * WIDTH * VOCABULARY
    assert flops(recipe(corpus_folder, tmp_path, TOP, family)) == flops(stock) + head
    with_layer = flops(recipe(corpus_folder, tmp_path, f"{models}:widened", family))
    assert with_layer == flops(stock) + 6 * WIDTH * WIDTH


def test_the_experts_of_a_token_count(corpus_folder, tmp_path, models):
    """Two experts of a token have the operations of one layer of their width; a router has those of its matrix."""
    four, eight = (flops(recipe(corpus_folder, tmp_path, f"{models}:experts,number={n}", "llama")) for n in (4, 8))
    assert eight - four == 6 * WIDTH * 4
    wider = flops(recipe(corpus_folder, tmp_path, f"{models}:experts,number=4,inner=32", "llama"))
    assert wider - four == 6 * 2 * 3 * WIDTH * (32 - 24)


def test_products_that_torch_does_not_count_are_noted(corpus_folder, tmp_path, models, capsys):
    flops(recipe(corpus_folder, tmp_path, f"{models}:widened"))
    assert "too low" not in capsys.readouterr().err
    flops(recipe(corpus_folder, tmp_path, f"{models}:kernel"))
    words = " ".join(capsys.readouterr().err.split())
    assert "torch sees no product of models.py:kernel with the matrix model.transformer.h.0.mlp.weight itself" in words


def test_shared_tensors_start_alike_and_own_ones_as_the_code_sets_them(corpus_folder, tmp_path, models):
    start = {}
    for variant in (None, f"{models}:Same", f"{models}:widened", TOP, LATENT):
        made = recipe(corpus_folder, tmp_path, variant, paired_initialization=True)
        torch.manual_seed(len(start))
        start[variant] = starting_model(made, made.model.config(made, VOCABULARY, 0)).state_dict()
    stock = start.pop(None)
    for own in start.values():
        assert all(torch.equal(tensor, own[f"model.{name}"]) for name, tensor in stock.items())
    assert torch.equal(start[f"{models}:widened"]["model.extra.weight"], torch.eye(WIDTH))
    assert start[LATENT]["part.dynamics.5.weight"].abs().max() == 0
    assert start[LATENT]["part.dynamics.3.weight"].abs().max() > 0


@pytest.mark.parametrize("helper", ["helper_of_mine.py", "helper_of_mine/__init__.py", "helper_of_mine/scales.py"])
def test_a_variant_that_imports_what_lies_beside_it_is_refused(corpus_folder, tmp_path, monkeypatch, helper):
    """Python finds it where the current folder is on the path, and a change of it would be no other run."""
    (tmp_path / helper).parent.mkdir(exist_ok=True)
    (tmp_path / helper).write_text("SCALE = 2\n")
    (tmp_path / "idea.py").write_text(
        "import json\n\n\ndef idea(model):\n    from helper_of_mine import SCALE\n    return model\n"
    )
    recipe(corpus_folder, tmp_path, f"{tmp_path / 'idea.py'}:idea")  # it cannot be found
    typed = "if TYPE_CHECKING:\n    import helper_of_mine\n\n\ndef typed(model):\n    return model\n"
    (tmp_path / "typed.py").write_text(typed)
    monkeypatch.syspath_prepend(tmp_path)
    recipe(corpus_folder, tmp_path, f"{tmp_path / 'typed.py'}:typed")
    with pytest.raises(
        ConfigError, match="imports helper_of_mine, which lies beside it, and whose changes would not be noticed"
    ):
        recipe(corpus_folder, tmp_path, f"{tmp_path / 'idea.py'}:idea")


def test_parts_that_a_class_makes_anew_start_as_those_of_the_stock_model(corpus_folder, tmp_path, models):
    start = []
    for variant in (None, f"{models}:Replaced"):
        made = recipe(corpus_folder, tmp_path, variant, paired_initialization=True)
        state = starting_model(made, made.model.config(made, VOCABULARY, 0)).state_dict()
        start.append({name.removeprefix("model."): value for name, value in state.items()})
    stock, own = start
    assert all(torch.equal(own[name], tensor) for name, tensor in stock.items())


@pytest.mark.parametrize("name", ["Halved", "halved", "HalvedBeside"])
@pytest.mark.parametrize("paired", [True, False])
def test_initial_values_that_a_variant_changes_are_trained_so(corpus_folder, tmp_path, models, name, paired):
    """The others are those of the stock model, value by value where arms start alike."""
    spread = {}
    for variant in (None, f"{models}:{name}"):
        made = recipe(corpus_folder, tmp_path, variant, paired_initialization=paired)
        torch.manual_seed(made.seed)
        model = starting_model(made, made.model.config(made, VOCABULARY, 0))
        spread[variant] = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
    stock, own = spread.values()
    if paired:
        torch.testing.assert_close(own["transformer.wte.weight"], stock["transformer.wte.weight"] / 2)
        assert torch.equal(own["transformer.wpe.weight"], stock["transformer.wpe.weight"])
    assert own["transformer.wte.weight"].std() < 0.7 * stock["transformer.wte.weight"].std()


def test_a_changed_forward_pass_is_trained_as_it_is(corpus_folder, tmp_path, models):
    """A hook of a function is part of the logits, in the loss too."""
    made = recipe(corpus_folder, tmp_path, f"{models}:widened,factor=0")
    model = starting_model(made, made.model.config(made, VOCABULARY, 0))
    tokens = torch.arange(CONTEXT)[None]
    losses = pretraining_losses(model.train(), {"input_ids": tokens, "labels": tokens})
    assert losses.sums[0].item() == pytest.approx(CONTEXT * torch.tensor(float(VOCABULARY)).log().item())


def test_a_variant_that_mixes_the_documents_of_a_row_is_refused_where_they_are_kept_apart(
    corpus_folder, tmp_path, models
):
    for name in ("Same", "Drawn", "Blind"):
        given = values(corpus_folder, tmp_path, f"{models}:{name}")
        given["data"]["separate_documents"] = True
        made = validate(Recipe, given, "the recipe")
        if name == "Blind":
            with pytest.raises(ConfigError, match=r"tokens of .*models.py:Blind see the documents before theirs"):
                starting_model(made, made.model.config(made, VOCABULARY, 0))
        else:
            starting_model(made, made.model.config(made, VOCABULARY, 0))


def test_a_class_may_have_losses_of_training(corpus_folder, tmp_path, models):
    made = recipe(corpus_folder, tmp_path, f"{models}:Drawn")
    model = starting_model(made, made.model.config(made, VOCABULARY, 0))
    tokens = torch.arange(CONTEXT)[None]
    batch = {"input_ids": tokens, "labels": tokens}
    losses, alone = pretraining_losses(model.train(), batch), pretraining_losses(model.eval(), batch)
    assert (losses.names, alone.names) == (("tokens", "size"), ("tokens",))
    size = model.hidden_states(input_ids=tokens).square().mean().item()
    assert losses.minimised().item() == pytest.approx(alone.minimised().item() + size, rel=1e-5)


def test_a_loss_that_reads_the_logits_costs_no_second_head(corpus_folder, tmp_path, models):
    tokens = torch.arange(CONTEXT)[None]
    found = {}
    for name in ("Normalizer", "SecondHead"):
        made = recipe(corpus_folder, tmp_path, f"{models}:{name}", paired_initialization=True)
        torch.manual_seed(0)
        model = starting_model(made, made.model.config(made, VOCABULARY, 0))
        losses = pretraining_losses(model.train(), {"input_ids": tokens, "labels": tokens})
        losses.minimised().backward()
        gradient = model.get_output_embeddings().weight.grad
        found[name] = losses.sums.detach(), gradient, training_flops_per_example(model.config, CONTEXT)
    (one, gradient, flops), (two, expected, more) = found.values()
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, expected)
    assert more - flops == 6 * CONTEXT * WIDTH * VOCABULARY  # forward, and both gradients


# ---- the guide ----


@pytest.mark.long
def test_the_examples_of_the_guide_are_trained_saved_and_measured(corpus_folder, tmp_path, contextwise):
    first, second, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "my_variant.py").write_text(first)
    (tmp_path / "second.py").write_text(second)
    for source, own in (("my_variant.py:Skipping,gate=0.5", True), ("second.py:SecondToken", False)):
        name = source.partition(".")[0]
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values(corpus_folder, tmp_path / f"run-{name}", source)))
        status, _, errors = contextwise(f"train {file}")
        assert status == 0, errors
        status, _, errors = contextwise(f"evaluate run-{name} --corpus {corpus_folder} --limit 2 --json")
        assert status == 0, errors
        run = RunFolder(tmp_path / f"run-{name}")
        model = load_model(run.path)
        assert isinstance(model, VariantForCausalLM) == own
        assert (run.path / f"{name}.py").read_text() == (tmp_path / f"{name}.py").read_text()
        assert (run.model / f"{name}.py").exists() == own
    parts = run.metrics("train")[-1]["parts"]
    assert parts.keys() == {"tokens", "second"} and run.metrics("train")[-1]["loss"] == parts["tokens"]
    skipping = AutoModelForCausalLM.from_pretrained(tmp_path / "run-my_variant/model").eval()
    assert skipping.model.gate.mean().item() == pytest.approx(0.5, abs=0.1)
    tokens = torch.arange(8)[None]
    cached = skipping.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
    whole = skipping.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=False, pad_token_id=0)
    assert torch.equal(cached, whole)


# ---- runs and trials ----


@pytest.mark.long
@pytest.mark.parametrize(
    "source", [TOP, LATENT, "models.py:Same", "models.py:repeated"], ids=lambda source: source.rpartition(":")[2]
)
def test_a_run_that_was_stopped_ends_with_the_same_weights(
    source, corpus_folder, tmp_path, models, stop_at, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    whole = train(recipe(corpus_folder, tmp_path / "whole", source))
    stopped = recipe(corpus_folder, tmp_path / "stopped", source)
    stop_at(4)
    with pytest.raises(Interrupted):
        train(stopped)
    stop_at(0)
    train(stopped)
    one, two = (load_model(run).state_dict() for run in (whole.path, tmp_path / "stopped"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert json.loads((whole.model / "config.json").read_text())["architectures"] == [
        "VariantForCausalLM" if "models" in source else "GPT2LMHeadModel"
    ]


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "seconds_per_step", lambda recipes, rounds, executor: dict.fromkeys(recipes, 1.0))


@pytest.mark.slow
def test_a_trial_of_variants_is_stopped_resumed_and_continued(corpus_folder, tmp_path, models, stop_at, untimed):
    arms = {"gpt2": None, "same": f"{models}:Same", "order": [f"{TOP},window=4", "model.variant.options.weight=0.5"]}
    given = trial(corpus_folder, tmp_path / "t", arms)
    lengths = {each.arm: each for each in Trial(given).lengths()}
    assert lengths["order"].tokens < lengths["gpt2"].tokens == lengths["same"].tokens
    stop_at(3)
    with pytest.raises(Interrupted):
        Trial(given).run()
    stop_at(0)
    losses = Trial(given).run().losses
    assert losses["same"][512] == pytest.approx(losses["gpt2"][512]), "the same model from the same start"
    run = RunFolder(next((tmp_path / "t/runs").glob("order-s0-*")))
    variant = run.recipe()["model"]["variant"]
    assert variant["options"] == {"window": 4, "weight": 0.5} and len(variant["sha256"]) == 64
    again = Trial(trial(corpus_folder, tmp_path / "t", arms, seeds=3)).run()
    assert again.losses["order"][512][:2] == losses["order"][512] and again.seeds == 3


@pytest.mark.slow
def test_an_edited_file_is_another_model(corpus_folder, tmp_path, models, untimed):
    """No result of the code before the edit is used; a trial that was looked at refuses it, and its own file continues it."""
    given = trial(corpus_folder, tmp_path / "t", ["gpt2", f"{models}:Same"])
    Trial(given).run()
    train(recipe(corpus_folder, tmp_path / "run", f"{models}:Same"))
    models.write_text(MODELS + "\n# edited\n")
    with pytest.raises(ConfigError, match=r"looked at with other settings \(the code of Same\)"):
        Trial(trial(corpus_folder, tmp_path / "t", ["gpt2", f"{models}:Same"]))
    with pytest.raises(ConfigError, match=r"contains another run \(its recipe differs in model.variant.sha256"):
        train(recipe(corpus_folder, tmp_path / "run", f"{models}:Same"))
    Trial(load_trial(tmp_path / "t/trial.yaml", {"seeds": 3})).run()
    assert load_model(tmp_path / "run").config.name == "Same"


def test_the_folder_of_a_file_is_no_part_of_the_question(corpus_folder, tmp_path, models):
    """A project that was moved continues its trials with the same commands."""
    moved = tmp_path / "moved" / models.name
    moved.parent.mkdir()
    moved.write_text(models.read_text())
    asked, again = (
        trial(corpus_folder, tmp_path / "t", {"gpt2": [], "own": [f"{file}:Same"]}).question()
        for file in (models, moved)
    )
    assert asked == again
    moved.write_text(MODELS + "\n# edited\n")
    assert trial(corpus_folder, tmp_path / "t", {"gpt2": [], "own": [f"{moved}:Same"]}).question() != asked


def test_a_page_shows_an_arm_by_its_file_class_and_options(corpus_folder, tmp_path, models):
    made = trial(corpus_folder, tmp_path / "t", {"gpt2": [], "own": [f"{models}:Same"]})
    (setting,) = made.question()["arms"]["own"]["settings"]
    assert setting_in_words(setting) == f"{models.name}:Same"
    options = setting.replace('"options": {}', '"options": {"factor": 3}')
    assert setting_in_words(options) == f"{models.name}:Same with factor=3"
    assert setting_in_words("model.size=pico") == "model.size=pico"


def test_a_file_may_move(corpus_folder, tmp_path, models):
    made = recipe(corpus_folder, tmp_path / "run", f"{models}:Same")
    train(made)
    moved = shutil.move(models, tmp_path / "moved.py")
    train(recipe(corpus_folder, tmp_path / "run", f"{moved}:Same"))


def test_code_that_was_not_named_here_is_not_run(corpus_folder, tmp_path, models, monkeypatch):
    """A model's folder from elsewhere is refused until its code is named in a recipe."""
    models.write_text(MODELS + f"\nopen({str(tmp_path / 'ran')!r}, 'a').write('x')\n")
    run = train(recipe(corpus_folder, tmp_path / "run", f"{models}:Same")).path
    models.unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(code, "_CODE", {})
    monkeypatch.setattr(code, "_MODULES", {})
    before = (tmp_path / "ran").read_text()
    with pytest.raises(CheckpointError, match=r"needs its own code, models.py, which was never named"):
        load_model(run)
    assert (tmp_path / "ran").read_text() == before
    again = recipe(corpus_folder, tmp_path, f"{run}/model/models.py:Same")
    again.model.config(again, VOCABULARY, 0)
    load_model(run)


# ---- bad input ----


@pytest.mark.long
@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("absent.py:Same", "absent.py cannot be read (No such file or directory)"),
        (
            "modles.py:Same",
            "(No such file or directory); give the path of a Python file; did you mean FOLDER/models.py?",
        ),
        ("models.py", "names no variant; write path.py:ClassName"),
        ("models.py:Same,factor", "names no variant; write path.py:ClassName"),
        ("models.py:Other", "models.py has no class and no function 'Other'; "),
        ("values.py:x", "values.py defines no class and no function; define 'x' there"),
        ("models.py:Hedless", "no function 'Hedless'; did you mean 'Headless'?"),
        ("models.py:Thing", "models.py:Thing cannot be built: TypeError: Thing() takes no arguments"),
        ("models.py:Headless", "is no causal language model: it gives Headless without a vocabulary head"),
        ("models.py:BertForMaskedLM", "takes the configuration BertConfig, but the recipe's family has GPT2Config"),
        ("models.py:nothing", "is no causal language model: it gives NoneType"),
        ("models.py:Same,depth=2", "models.py:Same cannot be built: TypeError: "),
        ("models.py:widened,factors=2", "widened() got an unexpected keyword argument 'factors'"),
        ("models.py:fails", "models.py:fails cannot be built: RuntimeError: no way (models.py, line 146)"),
        ("broken.py:Same", "broken.py cannot be run: SyntaxError: invalid syntax (broken.py, line 1)"),
        ("models.py:Leaks", "leaks: later tokens change its earlier predictions"),
        ("models.py:far", "leaks: later tokens change its earlier predictions"),
        ("models.py:Narrow", "its output has logits of shape (1, 32, 256), which should be"),
        ("models.py:Refuses", "fails in a training step of 32 tokens: RuntimeError: not today (models.py, line 80)"),
        ("models.py:WithLosses,kind=none", "WithLosses returns no losses of training; they should be a dictionary"),
        ("models.py:WithLosses,kind=empty", "WithLosses returns no losses of training"),
        ("models.py:WithLosses,kind=tensor", "WithLosses returns no losses of training"),
        ("models.py:WithLosses,kind=vector", "WithLosses returns no losses of training"),
        (
            "models.py:WithLosses,kind=nan",
            "WithLosses has a loss (own) of nan in its first training step; look for what",
        ),
        ("models.py:leaves", "models.py:leaves cannot be built: SystemExit: 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(
    variant, message, corpus_folder, tmp_path, models, contextwise
):
    (tmp_path / "broken.py").write_text("class Same(:\n")
    (tmp_path / "values.py").write_text("x = 1\n")
    written = values(corpus_folder, tmp_path / "run", variant)
    written["data"]["context"] = 2 * CONTEXT
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(written))
    message = message.replace("FOLDER", str(tmp_path))
    contextwise.refused("train own.yaml", message)
    small = "--set recipe.model.size=pico --set recipe.data.context=32"
    contextwise.refused(f"trial gpt2 {variant} --corpus {corpus_folder} {small}", message)


def test_a_leak_behind_a_closed_gate_is_found_in_every_run_set(corpus_folder, tmp_path, models):
    shared = values(corpus_folder, tmp_path, f"{models}:Leaks")
    runs = RunSet.of(RunSetSettings(recipe=shared, arms={"own": []}), tmp_path / "set")
    with pytest.raises(ConfigError, match="Leaks in .* leaks"):
        runs.train_missing()
    assert not (tmp_path / "set").exists()
