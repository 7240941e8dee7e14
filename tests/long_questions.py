"""Made-up questions on long texts, in the harness's own form of LongBench."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from small import write_rows

MISSING = [name for name in ("lm_eval", "jieba", "fuzzywuzzy", "rouge") if importlib.util.find_spec(name) is None]
needs_longbench = pytest.mark.skipif(
    bool(MISSING), reason=f"of the extra 'eval' {', '.join(MISSING)} are not installed"
)


def long_line(number: int = 0, **values: Any) -> dict[str, Any]:
    """A question on a text whose answer stands in the middle of it."""
    filler = " ".join(f"Line {i} of text {number} says nothing." for i in range(12))
    cut = len(filler) // 2
    fact = f" The key of house {number} is number {100 + number}. "
    line = {
        "question": f"What is the key of house {number}?",
        "context": filler[:cut] + fact + filler[cut:],
        "answers": [f"number {100 + number}"],
        "length": 1000 * number,
    }
    return line | values


def define_long(folder: Path, task: str, rows: list[dict[str, Any]], new_tokens: int = 8, **further: Any) -> Path:
    """Write a file of questions, and a YAML file in which the harness's own Qasper of LongBench reads them."""
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.submodule_search_locations is not None
    own = Path(package.submodule_search_locations[0]) / "tasks" / "longbench" / "qasper.yaml"
    folder.mkdir(exist_ok=True)
    files = {"test": str(write_rows(folder / f"{task}.jsonl", rows))}
    values = {"include": str(own), "task": task, "tag": None, "dataset_path": "json", "dataset_name": None}
    values |= {"dataset_kwargs": {"data_files": files}, "doc_to_text": "{{context}}\n\n{{question}}"}
    values["generation_kwargs"] = {"max_gen_toks": new_tokens, "do_sample": False, "until": []}
    (folder / f"{task}.yaml").write_text(json.dumps(values | further))
    return folder
