#!/bin/bash
# Builds gfootball's wheel once and installs it: football.sh VENV [CACHE]   (6 to 7 minutes the first time)
# Needs: apt-get install libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev libboost-all-dev cmake
# PyPI has the source only, and an isolated build fails: its setup needs an old setuptools, so it builds in its own venv.
set -euo pipefail
VENV=$(realpath "$1")
TAG=$("$VENV/bin/python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
CACHE=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/dba3c/wheels}/gfootball-2.10.2-$TAG-$(uname -m)
if ! ls "$CACHE"/gfootball-*.whl >/dev/null 2>&1; then
    mkdir -p "$(dirname "$CACHE")"
    BUILD=$(mktemp -d "$(dirname "$CACHE")/.gfootball-XXXXXX") # on its file system: a move there is whole or not at all
    trap 'rm -rf "$BUILD"' EXIT
    "$VENV/bin/python" -m venv "$BUILD/venv"
    "$BUILD/venv/bin/pip" install -q setuptools==69.5.1 wheel psutil
    export PATH="$BUILD/venv/bin:$PATH" # its build calls python3
    nice -n 10 "$BUILD/venv/bin/pip" wheel -q --no-deps --no-build-isolation --no-binary gfootball -w "$BUILD/wheel" gfootball==2.10.2
    mv -T "$BUILD/wheel" "$CACHE" || [ -e "$CACHE" ] # another has built it meanwhile
fi
"$VENV/bin/pip" install -q "$CACHE"/gfootball-*.whl gym==0.25.2 # later ones changed the API under its wrappers
"$VENV/bin/python" -c 'import gfootball.env; print("gfootball is installed")'
