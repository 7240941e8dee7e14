#!/usr/bin/env bash
# The wheel with the oldest (lowest-direct) or the newest (highest) versions that pyproject.toml allows, in an environment of its own:
#   tests/versions.sh lowest-direct [EXTRA]... [-- PYTEST_ARGUMENT...]
# torch stays the tested version of constraints.txt, since each other one is gigabytes; without extras, those of the tests are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
resolution=$1 && shift
extras=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do extras+=(--extra "$1") && shift; done
[ ${#extras[@]} -gt 0 ] || extras=(--extra dev)
if [ $# -gt 0 ]; then shift; else set -- tests/core tests/plan tests/evals tests/papers; fi
folder=$PWD/build/versions/$resolution
rm -rf "$folder" && mkdir -p "$folder"
python3 -m venv "$folder/venv"
bin=$folder/venv/bin

"$bin/pip" install --quiet uv
"$bin/pip" install --quiet --constraint constraints.txt torch
"$bin/python" -c "import torch; print('torch==' + torch.__version__)" > "$folder/torch.txt"
UV_FIND_LINKS=${PIP_FIND_LINKS:-} "$bin/uv" pip install --quiet --python "$bin/python" --resolution "$resolution" \
    --overrides "$folder/torch.txt" "${extras[@]}" --requirements pyproject.toml
"$bin/pip" wheel --quiet --no-deps --wheel-dir "$folder" .
"$bin/pip" install --quiet --no-deps "$folder"/contextwise-*.whl
"$bin/uv" pip check --quiet --python "$bin/python" || "$bin/uv" pip check --python "$bin/python"
"$bin/pip" list --format freeze

(
    mkdir "$folder/work" && cd "$folder/work"
    contextwise() { echo "contextwise $*" && "$bin/contextwise" "$@" > last.txt 2>&1 || { cat last.txt && exit 1; }; }
    for day in $(seq 200); do echo "On day $day the company said that its model reads $((day * day)) words."; echo; done > text.txt
    contextwise prepare paragraphs:text.txt --tokenizer train:300 --out corpus
    contextwise trial gpt2 contextlm --corpus corpus --seeds 2 --rates fixed --tokens 2048 --out trial \
        --set recipe.model.size=pico --set recipe.data.context=32
    contextwise train contextlm-nano --corpus corpus --set training.tokens=null --set training.steps=8 --set data.context=32 --set model.size=pico --out run
    contextwise evaluate run --corpus corpus
    contextwise curve run --corpus corpus
    contextwise report run
    contextwise export run --out exported
    contextwise generate exported "On day" --max-new-tokens 8
    for arm in a b; do for seed in 0 1; do for document in $(seq 12); do
        echo "{\"arm\": \"$arm\", \"seed\": $seed, \"document\": \"$document\", \"tokens\": 10, \"nats\": $document.$seed}"
    done; done; done > losses.jsonl
    contextwise decide losses.jsonl --reference a --out decision
)
PATH=$bin:$PATH "$bin/python" -m pytest -m 'not slow and not long' --hypothesis-profile=ci "$@"
