# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# A macvlan child of r0 in a namespace: its GID is in the table of r0's device.
# Ends with status 3 if all went well.
set -e
uname -r
cat /proc/uptime
for i in 0 1; do echo "rxe$i on $(cat /sys/class/infiniband/rxe$i/parent) mtu $(cat /sys/class/net/r$i/mtu)"; done
printf '<%s>' "$@"
echo
ip netns add pod
ip link add link r0 name net1 netns pod type macvlan mode bridge
ip -n pod link set net1 up
ip -n pod address add 172.16.0.11/24 dev net1
# A work queue makes the GID: this is to wait for it, some milliseconds.
for _ in 1 2 3 4 5 6 7 8 9 10; do
	sh testdata/gids.sh rxe0 >/run/gids
	! grep -q ':ac10:000b ' /run/gids || break
	sleep 0.1
done
cat /run/gids
exit 3
