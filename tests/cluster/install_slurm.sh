#!/bin/bash
# Installs what the cluster tests need, when it is missing: Slurm, munge, iproute2. Root, Debian or Ubuntu.
set -euo pipefail
PATH=$PATH:/usr/sbin
missing=()
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null || missing+=(slurm-wlm)
command -v munged >/dev/null || missing+=(munge)
command -v tc >/dev/null || missing+=(iproute2)
[ ${#missing[@]} -eq 0 ] && exit 0
[ "$(id -u)" = 0 ] || { echo "${missing[*]} missing; as root: apt-get install ${missing[*]}" >&2; exit 1; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
