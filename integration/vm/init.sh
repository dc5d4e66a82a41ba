#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# Process 1 of the guest, in the initramfs: makes the root that root.sh has copied
# the root, never to be written to, and goes on in start.sh there. What can be done here
# is done here: starting a program from there takes the guest half a second the first
# time. machine has RELEASE, KVM, NODE, RAILS, TYPE and DIR; files has what the guest shares
# with the host: a number, and the path in both.
set -e
/bin/busybox --install -s /bin
. /vm/machine
for m in /modules/*; do insmod "$m"; done

# share TAG FOLDER: mounts what QEMU has under the tag, with an overlay in memory.
share() {
	mkdir -p "/shares/$1" "/over/$1/upper" "/over/$1/work" "$2"
	mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose "$1" "/shares/$1"
	mount -t overlay -o "lowerdir=/shares/$1,upperdir=/over/$1/upper,workdir=/over/$1/work" "$1" "$2"
}
mkdir /over
mount -t tmpfs -o mode=755 over /over
share root /new

mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs -o mode=755 run /new/run
mkdir /new/run/vm
cp /vm/* /new/run/vm
share modules "/new/lib/modules/$RELEASE"
while read -r tag folder; do share "$tag" "/new$folder"; done </vm/files

hostname "node$NODE"
ip link set lo up
for link in /new/sys/class/net/eth*; do # vm.go gives rails their MAC addresses; the order is that of the PCI bus
	[ -e "$link" ] || continue
	read -r mac <"$link/address"
	case $mac in
	52:54:00:00:*) name=r$((0x${mac##*:})) ;;
	*) name=host ;;
	esac
	ip link set "${link##*/}" name "$name"
	ip link set "$name" up
done
if [ -n "$REACH" ]; then # the addresses are those that QEMU gives to itself and to a guest
	ip addr add 10.0.2.15/24 dev host
	ip route add "$REACH" via 10.0.2.2
fi

exec </new/dev/null >/new/dev/hvc0 2>&1
stty raw </new/dev/hvc0 # no carriage returns
exec switch_root /new /bin/sh /run/vm/start.sh
