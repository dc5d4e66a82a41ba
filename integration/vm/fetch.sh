#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# fetch.sh SERIES CACHE MODULE: puts Debian's newest kernel of a series (6.1 or
# 7) into CACHE/<version>. MODULE is the folder with the sources of our modules,
# which are built for 6.1 alone: other kernels want other compilers.
#
# fetch.sh qemu CACHE: puts QEMU of bookworm-backports into CACHE/qemu, which has
# a NIC with SR-IOV (igb). That of bookworm has none.
#
# The packages come from the mirror that apt is set up for, through lists and
# sources of our own: the machine's stay as they are, and so do its packages.
set -euo pipefail
series=$1 cache=$2 module=${3:-}
tmp=$cache/fetch.$$
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"/{lists/partial,archives/partial,deb,root,kernel}
tmp=$(realpath "$tmp")

# mirror SUITES: the URI of the first source of the machine with such a suite.
mirror() {
	apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
		awk -v want="^($1)\$" '$1 ~ want { print $2; exit }'
}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
debian=$(mirror 'bookworm|trixie') security=$(mirror '(bookworm|trixie)-security')
if [ -z "$debian" ]; then
	echo "fetch.sh: apt has no source of Debian 12 or 13: add one and run apt-get update" >&2
	exit 1
fi
{
	echo "deb [signed-by=$keys] $debian bookworm main"
	if [ "$series" = qemu ]; then
		echo "deb [signed-by=$keys] $debian bookworm-backports main"
	else
		echo "deb [signed-by=$keys] $debian trixie-backports main"
	fi
	[ -z "$security" ] || echo "deb [signed-by=$keys] $security bookworm-security main"
} >"$tmp/sources.list"
: >"$tmp/status"

# private COMMAND: apt's commands with our sources and nothing of the machine's.
private() {
	"$@" -qq -o Dir::Etc::SourceList="$tmp/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::State="$tmp" -o Dir::State::Status="$tmp/status" -o Dir::Cache="$tmp" \
		-o APT::Sandbox::User=root
}

# again COMMAND: private COMMAND, up to five times: mirrors have bad moments.
again() {
	for wait in 2 5 15 30; do
		private "$@" </dev/null && return
		echo "fetch.sh: $* has failed; again in $wait s" >&2
		sleep "$wait"
	done
	private "$@" </dev/null
}
again apt-get update --error-on=any

if [ "$series" = qemu ]; then
	(cd "$tmp/deb" && again apt-get download -t bookworm-backports qemu-system-{x86,common,data} seabios)
	for deb in "$tmp"/deb/*.deb; do dpkg-deb -x "$deb" "$tmp/root"; done
	rm -rf "${cache:?}/qemu"
	mv "$tmp/root" "$cache/qemu"
	exit
fi

# 6.1.0-56-amd64, 7.3.4+deb13-amd64; not -cloud-amd64, not -rt-amd64.
version=$(private apt-cache pkgnames linux-image- |
	grep -oP "^linux-image-\K${series//./[.]}[.][^-]+(-[0-9]+)?-amd64$" | sort -V | tail -n 1)
[ -n "$version" ] || { echo "fetch.sh: no kernel of series $series" >&2; exit 1; }

# What is there of these: 6.1 has all in the image's package, 7 splits it.
packages=()
for p in linux-{image,base,binary,modules}-"$version"; do
	[ -z "$(private apt-cache pkgnames "$p")" ] || packages+=("$p")
done
[ "$series" != 6.1 ] || packages+=("linux-headers-$version" "linux-headers-${version%-*}-common" linux-kbuild-6.1)
echo "fetch.sh: fetching ${packages[*]}" >&2
(cd "$tmp/deb" && again apt-get download "${packages[@]}")
for deb in "$tmp"/deb/*.deb; do dpkg-deb -x "$deb" "$tmp/root"; done

# Only what a test may need, and decompressed: decompressing a module takes the
# guest longer than reading it.
kernel=$tmp/kernel
from=$tmp/root/lib/modules/$version
[ -d "$from" ] || from=$tmp/root/usr/lib/modules/$version
to=$kernel/lib/modules/$version
mkdir -p "$to"
cp "$from"/modules.{builtin,builtin.modinfo,order} "$to"
cd "$from"
# shellcheck disable=SC2046 # the names of Debian's modules are words
tar -cf - $(find kernel/{arch,block,crypto,fs,lib,net} kernel/drivers/{block,char,infiniband,net,virtio} -name '*.ko*' |
	grep -vE '/(ethernet|wireless|infiniband/hw)/') \
	$(find kernel/drivers/{dca,i2c/algos,net/ethernet/intel/igb*,pps,ptp} -name '*.ko*') | tar -C "$to" -xf -
cd - >/dev/null
find "$to" -name '*.ko.xz' -print0 | xargs -0 -r xz -d
find "$to" -name '*.ko.zst' -print0 | xargs -0 -r zstd -qd --rm

if [ "$series" = 6.1 ]; then
	headers=$tmp/root/usr/src/linux-headers-$version
	# They name each other by where apt-get install would have put them.
	sed -i "s|/usr/src/|$tmp/root/usr/src/|" "$headers/Makefile" "$headers/.kernelvariables"
	cp -r "$module" "$tmp/module"
	make -s -C "$headers" M="$tmp/module" CC=gcc-12 modules >&2
	mkdir "$to/extra"
	cp "$tmp"/module/*.ko "$module"/* "$to/extra" # with the sources, which tell whether they are new
fi
depmod -b "$kernel" "$version"

# The kernel in vmlinuz, decompressed: QEMU starts it by its PVH entry, and the
# guest saves three seconds of emulated decompression. The header is described
# in Documentation/arch/x86/boot.rst: setup_sects, payload_offset and
# payload_length. The payload ends with four bytes of its decompressed size.
image=$tmp/root/boot/vmlinuz-$version
[ -e "$image" ] || image=$from/vmlinuz
field() { od -An -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
start=$((($(field 0x1f1 1) + 1) * 512 + $(field 0x248 4)))
head -c "$((start + $(field 0x24c 4) - 4))" "$image" | tail -c "+$((start + 1))" >"$tmp/payload"
case $(od -An -t x1 -N 4 "$tmp/payload" | tr -d ' ') in
fd377a58) xz -dc --single-stream <"$tmp/payload" ;;
28b52ffd) zstd -qdc <"$tmp/payload" ;;
*) echo "fetch.sh: $image is compressed in a way that is not known here" >&2 && exit 1 ;;
esac >"$kernel/vmlinux"

rm -rf "${cache:?}/$version"
mv "$kernel" "$cache/$version"
