#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# root.sh CACHE PACKAGE...: prints the folder CACHE/root-SUM with the root of virtual
# machines, and makes it if it is not there: a copy of what this machine has of the Debian
# packages, of the essential ones, and of all that these depend on. SUM tells their versions, so
# packages that were upgraded make a new root. Nothing that another program has put into a
# folder of the system is in it.
set -euo pipefail
export LC_ALL=C
cache=$1
shift
mapfile -t essential < <(dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p')
mapfile -t packages < <(comm -12 <(dpkg-query -W -f '${Package}\n' | sort -u) \
	<(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts \
		--no-breaks --no-replaces --no-enhances "$@" "${essential[@]}" | grep '^[a-z0-9]' | sort -u))
versions=$(dpkg-query -W -f '${binary:Package} ${Version}\n' "${packages[@]}")
root=$cache/root-$(cat "$0" - <<<"$versions" | sha256sum | cut -c 1-16)
echo "$root"
[ ! -d "$root" ] || exit 0

tmp=$cache/root.new
rm -rf "$tmp"
find "$cache" -maxdepth 1 -name 'root-*' -mtime +1 -exec rm -rf {} + # a machine may be using a newer one
mkdir -p "$tmp"
# The folders that Debian has as links to those below usr.
for d in bin sbin lib lib64; do
	mkdir -p "$tmp/usr/$d"
	ln -s "usr/$d" "$tmp/$d"
done
# Names of the packages' files, without documents; tar takes those that are there.
mapfile -t names < <(cut -d ' ' -f 1 <<<"$versions")
dpkg-query -L "${names[@]}" | sed -nE '/^\/(bin|sbin|lib|lib64|\.)$/d; /^\/usr\/share\/(doc|man|info|locale|lintian|bug|perl5)(\/|$)/d; s|^/(.)|\1|p' |
	sort -u | (cd / && while IFS= read -r f; do [ ! -e "$f" ] && [ ! -L "$f" ] || printf '%s\0' "$f"; done) |
	tar -C / --no-recursion --null -T - -cf - | tar -C "$tmp" --keep-directory-symlink -xpf -
# What the packages' scripts make: names of programs and libraries with alternatives, and users.
find /usr/bin /usr/sbin /usr/lib /bin/ /sbin/ -type l -lname '/etc/alternatives/*' | while read -r link; do
	chosen=$(readlink "$link")
	target=$(readlink "$chosen") || continue
	if [ -e "$tmp$target" ] && [ ! -e "$tmp$link" ]; then
		mkdir -p "$tmp/etc/alternatives" && ln -sf "$target" "$tmp$chosen" && ln -sf "$chosen" "$tmp$link"
	fi
done
for f in passwd group; do cp "$tmp/usr/share/base-passwd/$f.master" "$tmp/etc/$f"; done
cp "$tmp/usr/share/libc-bin/nsswitch.conf" "$tmp/etc/nsswitch.conf"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$tmp/etc/hosts"
mkdir -p "$tmp"/{dev,proc,run,sys,tmp,root,opt,mnt,srv,var/lib,var/log,var/cache,var/tmp}
chmod 1777 "$tmp/tmp" "$tmp/var/tmp"
[ -e "$tmp/var/run" ] || ln -s /run "$tmp/var/run"
ln -sf ../proc/self/mounts "$tmp/etc/mtab"
ldconfig -r "$tmp"
mv "$tmp" "$root"
