#!/bin/bash
# revive_node.sh NODE DIR: a node that kill_node.sh killed comes back.
PATH=$PATH:/usr/sbin
exec slurmd -f "$(realpath -m "$2")/slurm.conf" -N "$1"
