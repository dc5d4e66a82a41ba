#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# images.sh REGISTRY BIN: builds the images that the pods of the quick start have from
# other registries, of programs of this machine and of the folder BIN, and pushes them.
#
#   registry.k8s.io/pause           sleeps, for the sandboxes of pods
#   docker.io/library/debian:12-slim  the base of make image-tools, with perftest already: there is no internet
#   ghcr.io/…/k8s-rdma-shared-dev-plugin  the real program, behind deviceplugin.sh
set -euo pipefail
registry=$1 bin=$2
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shell DIR [APPLET...]: a static shell.
shell() {
	mkdir -p "$work/$1/bin" "$work/$1/tmp"
	cp "$(realpath "$bin/busybox")" "$work/$1/bin/busybox"
	for applet in sh "${@:2}"; do ln -s busybox "$work/$1/bin/$applet"; done
}

# image DIR NAME COMMAND: pushes what is in the folder.
image() {
	printf 'FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/bin:/usr/bin\nENTRYPOINT %s\n' "$3" >"$work/Dockerfile"
	buildah build --quiet --network none --file "$work/Dockerfile" --tag "$registry/$2" "$work/$1" >&2
	buildah push --quiet "$registry/$2"
}

shell pause sleep
image pause pause:road '["/bin/sleep", "1000000"]'

shell debian cat sed awk mktemp rm sleep env
printf '#!/bin/sh\nexit 0\n' >"$work/debian/bin/apt-get"
chmod 755 "$work/debian/bin/apt-get"
mkdir -p "$work/debian/etc/libibverbs.d"
cp /etc/libibverbs.d/rxe.driver "$work/debian/etc/libibverbs.d/"
echo 'hosts: files dns' >"$work/debian/etc/nsswitch.conf"
rxe=$(echo /usr/lib/*/libibverbs/librxe-rdmav*.so)
for file in /usr/bin/ib_write_bw "$rxe" $(ldd /usr/bin/ib_write_bw "$rxe" | sed -n 's/.*[ \t]\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
	mkdir -p "$work/debian/$(dirname "$file")"
	cp -L "$file" "$work/debian/$file"
done
# 100 writes in place of ten seconds: an emulated processor loses packets of a long stream.
mv "$work/debian/usr/bin/ib_write_bw" "$work/debian/usr/bin/ib_write_bw.real"
printf '#!/bin/sh\nexec /usr/bin/ib_write_bw.real $(echo "$@" | sed "s/-D 10/-n 100/")\n' >"$work/debian/usr/bin/ib_write_bw"
chmod 755 "$work/debian/usr/bin/ib_write_bw"
image debian library/debian:12-slim '[]'

shell plugin cat cp ln ls mkdir mount readlink basename
cp "$(realpath "$bin/k8s-rdma-shared-dp")" "$work/plugin/bin/k8s-rdma-shared-dp"
cp "$here/deviceplugin.sh" "$work/plugin/deviceplugin.sh"
mkdir -p "$work/plugin/usr/share/misc"
printf '1af4  Virtio\n\t1041  Network card\nC 02  Network controller\n\t00  Ethernet controller\n' >"$work/plugin/usr/share/misc/pci.ids"
image plugin mellanox/k8s-rdma-shared-dev-plugin:v1.5.3 '["/bin/sh", "/deviceplugin.sh"]'
