"""What LongBench's and L-Eval's tasks are: metric, group and longest answer of each."""

from dataclasses import dataclass

from contextwise.evaluation.measures.long_tasks.metrics import Metric

SINGLE, MULTI, SUMMARY, SYNTHETIC, CODE = (
    "Single-Doc",
    "Multi-Doc",
    "Summary",
    "Synthetic",
    "Code & Class.",
)


@dataclass(frozen=True)
class Dataset:
    """
    Attributes:
        metric: how answers are scored.
        group: what its score is averaged with.
        new_tokens: most tokens of an answer.
        few_shot: the text holds examples: only the first line of an answer counts, and chat models read it without a template.
        continues: the answer goes on from the text, as code does: no chat template either.
    """

    metric: Metric
    group: str
    new_tokens: int
    few_shot: bool = False
    continues: bool = False


LONGBENCH = {
    "narrativeqa": Dataset("qa_f1", SINGLE, 128),
    "qasper": Dataset("qa_f1", SINGLE, 128),
    "multifieldqa_en": Dataset("qa_f1", SINGLE, 64),
    "multifieldqa_zh": Dataset("qa_f1", SINGLE, 64),
    "hotpotqa": Dataset("qa_f1", MULTI, 32),
    "2wikimqa": Dataset("qa_f1", MULTI, 32),
    "musique": Dataset("qa_f1", MULTI, 32),
    "dureader": Dataset("rouge", MULTI, 128),
    "gov_report": Dataset("rouge", SUMMARY, 512),
    "qmsum": Dataset("rouge", SUMMARY, 512),
    "multi_news": Dataset("rouge", SUMMARY, 512),
    "vcsum": Dataset("rouge", SUMMARY, 512),
    "passage_count": Dataset("count", SYNTHETIC, 32),
    "passage_retrieval_en": Dataset("retrieval", SYNTHETIC, 32),
    "passage_retrieval_zh": Dataset("retrieval", SYNTHETIC, 32),
    "trec": Dataset("classification", CODE, 64, few_shot=True),
    "triviaqa": Dataset("qa_f1", CODE, 32, few_shot=True),
    "samsum": Dataset("rouge", CODE, 128, few_shot=True),
    "lsht": Dataset("classification", CODE, 64, few_shot=True),
    "lcc": Dataset("code", CODE, 64, continues=True),
    "repobench-p": Dataset("code", CODE, 64, continues=True),
}
"""LongBench's tasks, in the groups of ContextLM's Table 5.

The table does not say which tasks its groups hold. Here its "Code & Class." has LongBench's few-shot tasks beside code.
"""

LEVAL = {
    "exam": Dataset("exam", "Exams", 16),
    "f1": Dataset("qa_f1", "Questions", 64),
    "rouge": Dataset("rouge", SUMMARY, 512),
}
"""L-Eval's kinds of evaluation; those by judges ("LLM", "human") have no metric."""

OTHER = "Other"
OTHER_NEW_TOKENS = 64
"""For a data set of the user's own, whose lines do not say."""


def longbench_dataset(name: str) -> Dataset | None:
    """LongBench's task of that name, or LongBench-E's (``qasper_e``); None for another."""
    return LONGBENCH.get(name.removesuffix("_e"))
