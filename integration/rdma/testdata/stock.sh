# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# stock.sh COMMAND: makes the two rails in a machine that has none, out of veth
# NICs, and runs the command. So there is Soft-RoCE as the kernel has it, without
# the module that integration/vm loads with its own rails.
set -e
for m in veth rdma_rxe rdma_ucm; do modprobe "$m"; done
for i in 0 1; do
	ip link add "r$i" mtu 9000 type veth peer name "wire$i" mtu 9000
	ip link set "r$i" up
	ip link set "wire$i" up
	rdma link add "rxe$i" type rxe netdev "r$i"
done
exec "$@"
