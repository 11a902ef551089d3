#!/usr/bin/env bash
# How long the doctor, the diff and a trace take beside the tools that read or check all rules, on a node with 2000 Services
# of 10 endpoints:
#
#     offline   kpx --from BUNDLE    beside    iptables-nft-restore --test  on the same rules
#     live      kpx                  beside    iptables-nft-save
#
# Runs in a network namespace of its own, as root; `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
target=${TARGET:-team-08/svc-00988}
address=${ADDRESS:-10.97.3.239:80}

restored
offline="$kpx --from $scratch/bundle"
live="$kpx --netns $netns --cluster-from $scratch/bundle --node node1"
test="ip netns exec $netns iptables-nft-restore --test $scratch/bundle/node/iptables-save.txt"
save="ip netns exec $netns iptables-nft-save"
echo "doctor"
compare offline 1.5 "$offline doctor" "$test"
compare live 0.8 "$live doctor" "$save"
echo "diff"
compare live 0.7 "$live diff" "$save"
echo "trace"
compare offline 0.25 "$offline trace $target --source external" "$test"
compare live 0.1 "$live trace $target --source external" "$save"
compare "no API" 0.1 "$kpx --netns $netns --no-api trace $address --source external" "$save"
[ "$status" = 0 ] || echo "$0: kpx takes longer than it may" >&2
exit "$status"
