#!/usr/bin/env bash
# Tests, speed and memory on one GPU, in eight minutes.   benchmarks/gpu.sh [--small] [--nanogpt FOLDER]
# PARTS="right fast" runs these parts alone.
#
# Writes gpu-right, gpu-fast and gpu-room (JSON, with hardware and versions) into $OUT, or into benchmarks/results. Each part has a limit
# of time, and what it has measured by then is kept. --small tries all of it on a CPU, at a hundredth of the size.
#
# The machine needs Python with torch and transformers (PYTHON, by default .venv/bin/python or python3), and the packages in
# pyproject.toml; what is missing is named before anything is measured. On a machine without a network bring them along as wheels:
#   pip download --no-deps --only-binary=:all: -d wheels NAME ...      # where there is a network
#   pip install --no-index --no-deps --target site wheels/*.whl        # there, with PYTHONPATH=site
# (beside torch 2.11 and transformers 5.17 these were needed: transformers datasets dill multiprocess plotly pydantic pydantic_core
# annotated-types typing-inspection typing_extensions rapidfuzz rich typer regex jsonschema referencing rpds-py attrs
# jsonschema-specifications; for lm_eval also evaluate jsonlines more_itertools nltk pytablewriter rouge-score sqlitedict tabledata
# tcolorpy typepy word2number dataproperty mbstrdecoder pathvalidate chardet).
# nanoGPT is no part of this repository: clone karpathy/nanoGPT beside it, or into a folder in it that git ignores, where only the
# repository's folder is copied to the GPU; without --nanogpt it is left out. The same holds for lm_eval, which `room` compares with.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
out="${OUT:-benchmarks/results}"
scale=1
for argument in "$@"; do [ "$argument" = --small ] && scale=4; done # a CPU may be slow

"$PYTHON" - <<'CHECK' || exit 2
import importlib.util, sys, tomllib
named = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
modules = {"pyyaml": "yaml"}
names = [each.split(">")[0] for each in named] + ["pytest", "hypothesis", "xdist"]
missing = [name for name in names if importlib.util.find_spec(modules.get(name, name)) is None]
if missing:
    sys.exit(f"these packages are missing: {', '.join(missing)}; how to bring them along is at the top of benchmarks/gpu.sh")
CHECK

status=0
part() { # NAME SECONDS ARGUMENT...
    echo "== $1, at most $(($2 * scale)) seconds"
    timeout --kill-after=5 "$(($2 * scale))" "$PYTHON" -m benchmarks.gpu "$1" --out "$out" "${@:3}" || {
        echo "== $1 ended with status $?; what it had measured is in $out"
        status=1
    }
}
declare -A seconds=([right]=110 [fast]=270 [room]=120)
for each in ${PARTS:-right fast room}; do part "$each" "${seconds[$each]}" "$@"; done
exit $status
