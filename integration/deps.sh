#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# Installs the programs that the tests and the demo run, when one is missing: those
# below, and those in integration/vm/packages, which virtual machines have too. There
# are no other lists: make test, make demo and .ci/run all come here. Nothing is
# touched, and no package index is read, when all are there.
# "deps.sh vm" is for the virtual machines of integration/vm, too, and
# "deps.sh road" also for integration/road.
set -euo pipefail

# What must be there | the Debian package that has it.
needs=(
	"make|make"
	"git|git"
	"gcc|gcc" # go test -race links with cgo
	"/usr/include/stdlib.h|libc6-dev"
)
[ "${1:-}" != road ] || needs+=("buildah|buildah")
[ "${1:-}" != vm ] && [ "${1:-}" != road ] || needs+=(
	"qemu-system-x86_64|qemu-system-x86"
	"/var/lib/dpkg/info/busybox-static.list|busybox-static" # busybox is not static
	"xz|xz-utils"
	"zstd|zstd"
	"gcc-12|gcc-12" # as Debian built 6.1
	"mpicc|libopenmpi-dev"
)
while IFS='|' read -r when need; do
	case $when-${1:-} in all-* | vm-vm | vm-road) needs+=("$need") ;; esac
done <"$(dirname "$0")/vm/packages"

PATH=$PATH:/usr/sbin:/sbin # not on the PATH of ordinary users of Debian

missing=()
for need in "${needs[@]}"; do
	what=${need%%|*}
	[ -e "$what" ] || command -v "$what" >/dev/null || missing+=("${need##*|}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "integration/deps.sh: missing: ${missing[*]} (names of Debian packages); install them, or run this script as root on Debian" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "integration/deps.sh: installing ${missing[*]}" >&2
# What cannot be installed may be newer by now than the package index says, and
# another apt may be at work.
for wait in 2 5 15 30 0; do
	apt-get update -qq </dev/null || true # some index may do
	apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 "${missing[@]}" </dev/null && exit
	echo "integration/deps.sh: apt-get has failed" >&2
	sleep "$wait"
done
exit 1
