# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# generated.sh PROGRAMS KUBECTL FOLDER NAME: runs the agent in a machine of integration/vm,
# which becomes the node NAME. FOLDER has the node's /etc/machine-id and kubeconfig. When the
# network "generated" and a block of its RailPool are there, a pod gets the network.
set -e
PATH=$1:$PATH kubectl=$2 folder=$3 name=$4

rocectl agent --node "$name" --kubeconfig "$folder/kubeconfig" --host-root "$folder" --rails 1s &
until [ -e /run/roce/pools/generated/ranges ]; do sleep 0.2; done

# The agent has no right to read networks.
get() { "$kubectl" --kubeconfig "$folder/admin" --cache-dir /run/kubectl get network-attachment-definition generated -o "$1"; }
echo "## plan"
get yaml | rocectl plan - | grep '^#'
ip netns add pod
get 'jsonpath={.spec.config}' >/run/network.json
echo "## ADD"
export CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=net1 CNI_PATH=$1
CNI_COMMAND=ADD roce </run/network.json >/run/result.json || { cat /run/result.json; exit 1; }
rocectl gids
rocectl check
CNI_COMMAND=DEL roce </run/network.json
echo "## done"
