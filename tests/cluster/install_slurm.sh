#!/bin/bash
# Installs what the cluster tests need, when it is missing: Slurm, munge, iproute2. Root, Debian or Ubuntu.
set -euo pipefail
PATH=$PATH:/usr/sbin
[ "$(id -u)" = 0 ] || { echo "a Slurm of our own needs root for its daemons" >&2; exit 1; }
missing=()
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null || missing+=(slurm-wlm)
command -v munged >/dev/null || missing+=(munge)
command -v tc >/dev/null || missing+=(iproute2)
[ ${#missing[@]} -eq 0 ] && exit 0
command -v apt-get >/dev/null || { echo "${missing[*]} missing, and there is no apt-get to install them" >&2; exit 1; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
