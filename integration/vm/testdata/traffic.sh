# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# One RDMA transfer between two machines, on the last rail so that it cannot go
# another way: node 0 serves, node 1 writes to it. Only the wire joins them, so
# node 1 calls until node 0 listens.
set -e
at() { echo "at $(cut -d' ' -f1 /proc/uptime) s: $*"; }
at setup
ip address add "10.0.1.$((VM_NODE + 1))/24" dev r1
index=
until [ -n "$index" ]; do
	index=$(sh testdata/gids.sh rxe1 | sed -n "s/^\([0-9]*\) .*:ffff:0a00:010$((VM_NODE + 1)) r1$/\1/p")
done
at "GID index $index"
[ "$VM_NODE" = 0 ] && server= || server=10.0.1.1

# Transfers have five tries, on both sides: ib_write_bw fails after a transfer,
# with a correlation coefficient, if it cannot tell the processor's frequency,
# and with an emulated processor sometimes it cannot.
failed=0
until ib_write_bw --ib-dev=rxe1 --gid-index="$index" --size=65536 --iters=20 $server >/run/log 2>&1; do
	at "ib_write_bw failed"
	if ! grep "Couldn't connect" /run/log; then
		cat /run/log
		failed=$((failed + 1))
		[ "$failed" -lt 5 ] || exit 1
	fi
	sleep 1
done
at done
cat /run/log
