#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# ground.sh COMMAND...: runs tests where nothing that other programs or earlier runs have left
# can help or hurt them, and where nothing of them stays. The folders that roce and runtimes use
# are empty; so is /run. There are no network interfaces but lo, and no processes but
# those of the command: they end with it. It needs root and REQUIRE_NETNS=1, as the Makefile sets it;
# otherwise the tests that could hurt are skipped, and the command runs as it is.
#
# There is no network, so what is to be fetched must be there before. The empty folders
# below /etc, /opt and /var are made on the machine if they are not there, to mount on.
set -euo pipefail
[ "${REQUIRE_NETNS:-}" = 1 ] || exec "$@"
mkdir -p /etc/roce /etc/cni /opt/cni /var/lib/cni /var/log/roce
# The shell is process 1, which reaps what the tests leave.
exec unshare --mount --propagation private --net --pid --fork --kill-child --mount-proc bash -euc '
	# Runtimes look mounts up by their paths, and would find those that an empty /run only hides.
	findmnt -rno TARGET | grep ^/run/ | tac | xargs -r umount --lazy
	for d in /etc/roce /etc/cni /opt/cni /var/lib/cni /var/log/roce /run; do
		mount -t tmpfs -o mode=755 ground "$d"
	done
	# Files in /sys/class/net are those of the namespace that sysfs was mounted in.
	mkdir /run/sys
	mount --rbind /sys /run/sys
	mount -t sysfs sysfs /sys
	mount --rbind /run/sys/fs/cgroup /sys/fs/cgroup
	umount --lazy /run/sys
	rmdir /run/sys
	ip link set lo up
	set +e
	"$@"
	exit "$?"
' ground "$@"
