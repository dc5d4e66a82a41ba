# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# Starts the real device plugin where it finds Soft-RoCE. It looks for RDMA devices
# and netdevs in the folder of a PCI function, where the driver of a NIC has them.
# Soft-RoCE has no PCI function, and the netdevs of virtio are one folder below theirs.
# So this shows the plugin a copy of each folder with both in it.
set -e
for netdev in /sys/class/infiniband/*; do
	rdma=$(basename "$netdev")
	name=$(cat "$netdev/parent")
	pci=$(readlink -f "/sys/class/net/$name/device/..")
	copy=/tmp/$rdma
	mkdir -p "$copy/infiniband/$rdma" "$copy/net/$name"
	cp "$pci/modalias" "$pci/revision" "$pci/class" "$pci/vendor" "$pci/device" "$copy/"
	for link in driver subsystem; do ln -s "$(readlink -f "$pci/$link")" "$copy/$link"; done
	mount --bind "$copy" "$pci"
done
exec /bin/k8s-rdma-shared-dp
