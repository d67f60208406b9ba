#!/usr/bin/env bash
# What a release is, on another Python: scripts/try_wheel.sh python3.13 [options of pip install]
# Builds the wheel of the newest commit, installs it with constraints.txt into an environment of its own, and trains,
# evaluates and films CartPole there, as the README's first minute has it. Nothing of this checkout is on its path.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 PYTHON [options of pip install, e.g. --extra-index-url https://download.pytorch.org/whl/cpu]" >&2; exit 2; }
python=$1
shift
checkout=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/source"
git -C "$checkout" archive HEAD | tar -x -C "$place/source"
"$python" -m venv "$place/venv"
export PATH="$place/venv/bin:$PATH" PIP_CONSTRAINT="$place/source/constraints.txt" PYTHONPATH= PYTHONNOUSERSITE=1
cd "$place"
pip install --quiet "$@" "$(grep '^torch==' source/constraints.txt)"
pip wheel --quiet "$@" --no-deps --wheel-dir . ./source
pip install --quiet "$@" "$(ls "$place"/dba3c-*.whl)[classic-control]"
rm -rf source
dba3c --version
dba3c train CartPole-v1 --run-dir run | tee said
grep -q "^run ended: .* reached 475" said || { echo "it did not reach 475" >&2; exit 1; }
dba3c evaluate run --games 20
dba3c record run
