"""Every figure of the README and of the first page of results is computed here from a committed result."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.estimates import count
from contextwise.base.intervals import mean_estimate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
OTHERS = ("Python ≥ 3.11", "Apache-2.0", "version = {0.1.0}")
"""Numbers of the README that are no figures."""
FIGURE = re.compile(r"[+−-]?\d+\.\d+\w*|\d+(?:\.\d+)?\s?(?:%|×|KiB|MB/s|nats|seeds)")

Triple = tuple[float, float, float]


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def arms(name: str, arm: str) -> dict[str, Triple]:
    """Text -> the difference to GPT-2 after the last seed, with its interval."""
    rows = {}
    for text, trial in read(name)["trials"].items():
        (own,) = (each for each in trial["comparisons"] if each["arm"] == arm)
        last = own["looks"][-1]["fixed"]
        rows[text] = last["value"], last["low"], last["high"]
    return rows


def against(control: str, name: str, arm: str) -> dict[str, Triple]:
    """Trial -> the losses of an arm minus those of another, paired by seed, with Student's interval."""
    rows = {}
    for text, trial in read(name)["trials"].items():
        (first,), (other,) = trial["losses"][arm].values(), trial["losses"][control].values()
        found = mean_estimate(np.array(first) - np.array(other))
        rows[text] = found.value, *found.limits
    return rows


def budget(name: str) -> str:
    (tokens,) = {each["budget"] for trial in read(name)["trials"].values() for each in trial["comparisons"]}
    return count(tokens)


def decided(rows: dict[str, Triple], sign: int) -> dict[str, Triple]:
    return {text: row for text, row in rows.items() if min(sign * row[1], sign * row[2]) > 0}


def signed(*values: float) -> str:
    return " to ".join(f"{value:+.3f}" for value in values).replace("-", "−")


def whole(row: Triple) -> str:
    value, low, high = row
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def span(*groups: dict[str, Triple]) -> str:
    """The smallest and the largest value of the decided ones."""
    values = [row[0] for rows in groups for row in rows.values()]
    return signed(min(values), max(values))


def predictions() -> list[str]:
    """The rows of the table on ContextLM, in docs/results/index.md."""
    name = "norms-flops-524k-cpu"
    plain, norm = (against(control, name, "shared_norm").values() for control in ("gpt2", "embedding_norm"))
    rows = [
        f"| 4 layers of 64, {budget(name)} tokens of code, equal FLOPs; the paper's form, with AdamW and with Muon | "
        f"[{' and '.join(map(whole, plain))}](injections.md#norms-and-their-control) (t); minus GPT-2 with a norm behind its "
        f"embedding {' and '.join(map(whole, norm))} (t) |"
    ]
    for text, words, decision in (
        ("web", "web pages", "undecided"),
        ("news", "news", "undecided"),
        ("code", "code", "worse"),
    ):
        (trial,) = read(f"controls-{text}-cpu")["trials"].values()
        own, *_, last = (each for each in trial["comparisons"] if each["arm"] == "own_norms")
        assert own["budget"] < last["budget"] and last["decision"] == decision
        losses = {arm: np.array(by_budget[str(last["budget"])]) for arm, by_budget in trial["losses"].items()}
        plain, matched = (mean_estimate(losses["own_norms"] - losses[arm]) for arm in ("gpt2", "pm_norm"))
        shown = [whole((each.value, *each.limits)) for each in (plain, matched)]
        look = last["looks"][-1]["fixed"]
        rows.append(
            f"| 4 layers of 128, {count(last['budget'])} tokens of {words}, equal FLOPs; norms, with Muon | "
            f"[{shown[0]}](injections.md#against-both-controls-at-two-budgets) (t); minus a model with as many parameters and "
            f"a norm behind its embedding {shown[1]} (t), minus GPT-2 with that norm "
            f"{whole((look['value'], look['low'], look['high']))} |"
        )
    for kind, heading in (("flops", "every-way-on-five-corpora"), ("time", "at-equal-training-time")):
        name = f"answers-{kind}-131k-cpu"
        worse = [decided(arms(name, arm), 1) for arm in ("contextlm", "contextlm-every")]
        once, every = worse
        four = {"web", "books", "news", "wikitext"}
        assert set(every) == four and set(once) == (four if kind == "flops" else four | {"code"})
        at = "equal FLOPs" if kind == "flops" else "equal time"
        code = "code open" if kind == "flops" else f"on code {whole(once['code'])} with one gate, open with one a layer"
        once.pop("code", None)
        rows.append(
            f"| 4 layers of 128, {budget(name)} tokens, {at}; gates | [{span(once, every)}](context-prediction.md#{heading}) "
            f"on four of five texts; {code} |"
        )
    late, later = (
        arms_of_one("answers-flops-late-pico-cpu", *each)
        for each in (("pico64-books", "every", 2_097_152), ("pico4m-books", "every", 4_194_304))
    )
    assert late[2] < 0 and later[2] < 0
    rows.append(
        f"| 2 layers of 64, {count(2_097_152)} and {count(4_194_304)} tokens of books, equal FLOPs; gate before every layer | "
        f"[{whole(late)} and {whole(later)}](context-prediction.md#where-it-turns) |"
    )
    name = "answers-flops-deep-fresh-gpu"
    deep = arms(name, "behind")
    assert set(decided(deep, -1)) == {"c"} and set(decided(deep, 1)) == {"news"} and len(deep) == 5
    rows.append(
        f"| 8 layers of 128, {budget(name)} tokens, equal FLOPs (H200); gate behind the first layer | "
        f"[{whole(deep['c'])}](context-prediction.md#asked-again) on C, {whole(deep['news'])} on news; three texts open |"
    )
    name = "answers-time-deep-cpu"
    deep = arms(name, "behind")
    assert set(decided(deep, -1)) == {"c"} and set(decided(deep, 1)) == {"code", "news", "books"}
    rows.append(
        f"| 8 layers of 64, {budget(name)} tokens, equal time; gate behind the first layer | "
        f"[{span(decided(deep, 1))}](context-prediction.md#at-equal-time-on-five-texts) on code, news and books, "
        f"{whole(deep['c'])} on C; web pages open |"
    )
    return rows


def arms_of_one(name: str, trial: str, arm: str, tokens: int) -> Triple:
    (own,) = (each for each in read(name)["trials"][trial]["comparisons"] if each["arm"] == arm)
    last = own["looks"][-1]["fixed"]
    assert own["budget"] == tokens
    return last["value"], last["low"], last["high"]


def costs() -> list[str]:
    """The rows of the other table there."""
    name = "answers-flops-longer-gpu"
    gate, supervised, plain = (against("pm", name, arm) for arm in ("every", "supervised", "gpt2"))
    assert set(decided(gate, 1)) == {"c"} and len(decided(gate, -1)) == 4
    assert set(supervised) - set(decided(supervised, -1)) == {"news"} and len(decided(plain, -1)) == 5
    ratio = read("time_to_loss-cpu")["time_to_loss"]["gpt2-nano"]["share_of_nanogpt"]
    steps = [shape["fastest"]["speed"]["median"] for shape in read("training_step-cpu")["shapes"].values()]
    memory = read("memory-cpu")["train"]["bytes_per_token"]
    ours, theirs = (memory[who] / 1024 for who in ("contextwise", "transformers"))
    return [
        f"| Minus GPT-2 with two more layers (PM), the paper's control: five texts, {budget(name)} tokens, equal FLOPs (H100), "
        f"intervals of 95% each | gate before every layer "
        f"[{span(decided(gate, -1))}](context-prediction.md#longer-on-five-texts) on four, {signed(gate['c'][0])} on C; "
        f"supervised {span(decided(supervised, -1))} on four, news open; GPT-2 itself "
        f"{span(plain)} on all five |",
        "| Tokens a second of GPT-2 124M on an H100, against nanoGPT, before it was tuned there | "
        f"[{on_gpu():.2f}×](speed.md#on-a-gpu) |",
        "| Time to the same held-out loss on two CPU cores, against nanoGPT's `train.py` (five seeds, three rounds of timing) "
        "| "
        f"[{ratio['median']:.3f} of its time](speed.md#time-to-a-loss), {ratio['low']:.3f} to {ratio['high']:.3f} |",
        "| A training step on two CPU cores, against the fastest of transformers and nanoGPT | "
        f"[{min(steps):.2f}× to {max(steps):.2f}×](../../benchmarks/README.md#results-on-two-cores) |",
        "| Peak memory a token, training at 8,192 tokens with a vocabulary of 50k, against transformers | "
        f"[{ours:.0f} KiB against {theirs:.0f}](../../benchmarks/README.md#results-on-two-cores) |",
    ]


def on_gpu() -> float:
    """Tokens a second over nanoGPT's on a GPU."""
    speed = read("gpu-fast-gpu")["shapes"]["GPT-2 124M"]["speed"]
    return speed["contextwise: plain / nanoGPT: plain"]["median"]


def answers() -> list[str]:
    """The rows of the README's table."""
    name = "norms-flops-524k-cpu"
    plain, norm = (against(control, name, "shared_norm") for control in ("gpt2", "embedding_norm"))
    assert (
        list(plain) == list(norm) == ["norms-code-adamw-gpt2", "norms-code-muon-gpt2"] and len(decided(plain, -1)) == 2
    )
    for arm, decision in {"shared_norm": "better", "embedding_norm": "better", "gate": "undecided"}.items():
        each = [one for trial in read(name)["trials"].values() for one in trial["comparisons"] if one["arm"] == arm]
        assert [one["decision"] for one in each] == [decision] * 2
    gate = against("gpt2", name, "gate")
    assert not decided(gate, -1) and not decided(gate, 1)
    low, high = sorted(-value for value, _, _ in plain.values())
    (_, low_adamw, high_adamw), (_, low_muon, _) = norm.values()
    assert low_adamw < 0 < high_adamw and low_muon > 0  # not ahead
    assert all(value < 0 for value, _, _ in against("gpt2", name, "embedding_norm").values())
    ratio = read("time_to_loss-cpu")["time_to_loss"]["gpt2-nano"]["share_of_nanogpt"]
    curve = read("curve-smollm2-cpu")
    effective = curve["measures"]["effective_context"]
    assert effective["value"] is None  # beyond what was measured
    return [
        "| How much of its context does SmolLM2-135M-Instruct (4-bit weights) use on web pages? | "
        f"[More than {effective['measured_to']:.0f} tokens](docs/measure.md#the-context-curve): its loss still falls "
        f"from there to {curve['bins'][-1]['visible_to']:,} |",
        "| Does a small GPT-2 have a lower loss with ContextLM's prediction of the context, added as its authors' code does "
        f"(`injection: paper`)? {budget(name)} tokens of code, equal FLOPs | Yes, by [{low:.3f} to {high:.3f} nats a token]"
        "(docs/results/injections.md#norms-and-their-control). But a norm after the embedding, without any prediction, gains "
        "as much: against GPT-2 with that norm, ContextLM is not ahead. The default "
        "`gate` is undecided against GPT-2 |",
        "| How long does training to the loss of nanoGPT's `train.py` take on two CPU cores? | "
        f"[{ratio['median']:.3f} of its time](docs/results/speed.md#time-to-a-loss) "
        f"({ratio['low']:.3f} to {ratio['high']:.3f} in three rounds), with Muon, in fewer tokens and faster steps |",
        "| How fast are the training steps of a GPT-2 of 124M parameters on an H100? | "
        f"[{on_gpu():.2f} times as fast](docs/results/speed.md#on-a-gpu) as those of nanoGPT |",
    ]


def test_the_picture_of_the_readme_says_what_the_curve_does() -> None:
    first, *_, last = read("curve-smollm2-cpu")["bins"]
    words = f"falls from {first['loss']:.2f} nats per token with one visible token to {last['loss']:.2f} with 1,024"
    assert (first["visible_to"], last["visible_to"]) == (1, 1024) and words in (ROOT / "README.md").read_text()
    plain, begun = (read(f"curve-smollm2{way}-cpu") for way in ("", "-bos"))
    assert round(plain["seconds"] / 60) == 9 and "eleven lengths of context, took nine minutes" in " ".join(
        (ROOT / "README.md").read_text().split()
    )
    assert len(plain["settings"]["contexts"]) == 11
    assert plain["corpus"]["fingerprint"] == begun["corpus"]["fingerprint"] and begun["settings"]["bos"]
    (bare, _, *others), (one, two, *later) = plain["bins"], begun["bins"]
    words = f"the loss is {one['loss']:.2f} at one visible token, not {bare['loss']:.2f}, and {two['loss']:.2f} at two"
    assert words in " ".join((ROOT / "docs/measure.md").read_text().split())
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(others, later, strict=True)) < 0.13  # of the first rows


def figures_beside(text: str, rows: list[str]) -> list[str]:
    """The figures of a text that are in none of these rows, which it must have."""
    for row in rows:
        assert row in text, f"the text lacks: {row}"
        text = text.replace(row, "")
    for known in OTHERS:
        text = text.replace(known, "")
    return FIGURE.findall(re.sub(r"\]\([^)]*\)", "]", text))


def test_the_figures_of_the_readme_are_those_of_the_results_and_no_others() -> None:
    """Below the demo, whose figures its own command prints."""
    text = (ROOT / "README.md").read_text().partition("## What it is")[2]
    assert not figures_beside(text, answers()), "figures without a source"


def test_the_figures_of_the_first_page_of_results_are_those_of_the_results_and_no_others() -> None:
    text = (ROOT / "docs" / "results" / "index.md").read_text().partition("## What decides")[2]
    assert not figures_beside(text, [*predictions(), *costs()]), "figures without a source"


def test_a_figure_without_a_source_is_found() -> None:
    for line in (
        "a loss of 4.6617",
        "0.02 nats better",
        "+0.1143 [+0.03, +0.2]",
        "14% of the tokens",
        "1.3× as fast",
        "8 seeds",
    ):
        assert FIGURE.search(line), line
    assert not FIGURE.search("4 layers of 128, sizes × contexts, exit status 2")


def test_the_time_to_a_loss_is_a_median_of_ratios_within_a_round() -> None:
    """Rounds of half, a third and a quarter, where the medians of the times alone would say something else."""
    from benchmarks.time_to_loss import Speed, time_to_goal

    ours = [Speed.of({"seconds": 1 + s, "tokens": 1}, {"seconds": 1 + 3 * s, "tokens": 3}) for s in (1.0, 2.0, 1.0)]
    theirs = [Speed(1.0, 2.0), Speed(1.0, 6.0), Speed(1.0, 4.0)]
    assert [(one.start, one.per_token) for one in ours] == [(1.0, 1.0), (1.0, 2.0), (1.0, 1.0)]
    share = time_to_goal(ours, theirs, {0: {"tokens": 1e9, "nanogpt_tokens": 1e9}})
    assert [round(each, 6) for each in share["rounds"]] == [0.5, 0.333333, 0.25]
    assert (share["low"], share["median"], share["high"]) == tuple(sorted(share["rounds"]))
