# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# Goes on where init.sh ended, with the host's programs: makes the RDMA devices,
# runs the command, and tells its exit status.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /run/vm/machine

# The runner ends the machine when it has the status.
finish() {
	stty raw </dev/hvc0 # waits for the output
	echo "$1" >"$(echo /dev/vport*p1)"
	while :; do sleep 1000; done
}

case $TYPE in
mlx5-like) # one as usual; two ports; RoCE that is off, on a representor; a VF of irdma; more as usual
	modprobe port_name name=r3=pf0vf0 || finish "modprobe port_name: status $?"
	devices="mlx5_%d=r0;mlx5_%d=r1,r2;mlx5_%d:raw=r3;irdma%d:32:v2:zero=r4"
	i=5
	while [ "$i" -lt "$RAILS" ]; do
		devices="$devices;mlx5_%d=r$i"
		i=$((i + 1))
	done
	;;
sriov) # the NICs, and two virtual functions of the first, without GUIDs
	echo 2 >/sys/class/net/r0/device/sriov_numvfs || finish "sriov_numvfs: status $?"
	modprobe igbvf || finish "modprobe igbvf: status $?"
	for i in 0 1; do
		ip link set "$(ls "/sys/class/net/r0/device/virtfn$i/net")" name "v$i" && ip link set "v$i" up || finish "VF $i: status $?"
	done
	devices="mlx5_%d=r0;mlx5_%d=r1;mlx5_%d:zero=v0;mlx5_%d:zero=v1"
	;;
*) devices= ;;
esac
if [ -n "$devices" ]; then
	modprobe fake_roce devices="$devices" || finish "modprobe fake_roce: status $?"
	RAILS=0
fi
i=0
while [ "$i" -lt "$RAILS" ]; do
	rdma link add "rxe$i" type rxe netdev "r$i" || finish "rdma link add: status $?"
	i=$((i + 1))
done
export VM_NODE="$NODE" VM_KVM="$KVM"
(cd "$DIR" && exec sh /run/vm/command)
finish $?
