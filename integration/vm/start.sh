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

if [ "$TYPE" = mlx5-like ]; then # one as usual; two ports; RoCE that is off; a VF of irdma
	modprobe fake_roce devices="mlx5_%d=r0;mlx5_%d=r1,r2;mlx5_%d:raw=r3;irdma%d:32:v2:zero=r4" || finish "modprobe fake_roce: status $?"
	RAILS=0
fi
i=0
while [ "$i" -lt "$RAILS" ]; do
	rdma link add "rxe$i" type rxe netdev "r$i" || finish "rdma link add: status $?"
	i=$((i + 1))
done
export VM_NODE="$NODE"
(cd "$DIR" && exec sh /run/vm/command)
finish $?
