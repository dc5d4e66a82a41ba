#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# build.sh CACHE PROGRAM...: puts the real programs that the tests run into
# CACHE, and links of their plain names into CACHE/bin. What is there stays.
#
# Kubernetes, Multus and the CNI project's plugins come from the Go module proxy, built in modules of their
# own, so that go.mod of this project lists nothing of theirs. From nothing the
# API server takes ten minutes on two cores; the others share most of it. etcd
# and the runtime are Debian's packages, unpacked and not installed.
#
# KUBERNETES and MULTUS choose other versions: KUBERNETES=v1.31.14. CONTAINERD=sid takes
# containerd of another Debian than this machine runs; runc stays.
set -euo pipefail
again=(bash "$(realpath "$(dirname "$0")/../again.sh")")
cache=$(realpath -m "$1")
shift

kubernetes=${KUBERNETES:-v1.35.4}
multus=${MULTUS:-v4.2.4}
containerd=${CONTAINERD:-}
plugins=v1.9.1
helm=v3.19.0
lws=v0.7.0
training=v1.9.3
mpi=v0.6.0
kuberay=v1.5.0
deviceplugin=v1.5.3
whereabouts=v0.9.2

declare -A packages=([etcd]=etcd-server [runc]=runc [busybox]=busybox-static [docker-registry]=docker-registry [promtool]=prometheus)

tmp=$cache/new.$$
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp" "$cache/bin"

# source_of MODULE VERSION: prints where the sources of a module are.
source_of() { (cd "$tmp" && GOWORK=off GOFLAGS=-mod=mod "${again[@]}" go mod download -json "$1@$2") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

# compile OUT MODULE VERSION PACKAGE: builds a program with the versions of
# dependencies that upstream builds it with: upstream's go.mod, in which the
# modules that live in its own repository are replaced by what was published of
# them.
compile() {
	local out=$1 module=$2 version=$3 package=$4 from
	printf 'module source\n' >"$tmp/go.mod"
	from=$(source_of "$module" "$version")
	[ -n "$from" ] || { echo "build.sh: no sources of $module $version" >&2; exit 1; }
	mkdir -p "$tmp/src"
	sed -E -e 's|^module .*|module build|' \
		-e "s#^(\tk8s.io/[a-z-]+) v0\.0\.0\$#\1 v0.${version#v*.}#" \
		-e "s#=> \./staging/src/(k8s.io/[a-z-]+)#=> \1 v0.${version#v*.}#" "$from/go.mod" >"$tmp/src/go.mod"
	printf '\nrequire %s %s\n' "$module" "$version" >>"$tmp/src/go.mod"
	cp "$from/go.sum" "$tmp/src"
	(cd "$tmp/src" && GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 "${again[@]}" go list -deps "$module/$package" >/dev/null) # fetches all sources
	(cd "$tmp/src" && GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 go build -buildvcs=false -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$tmp/program" "$module/$package")
	mv "$tmp/program" "$out"
}

# publish OUT MODULE VERSION FILE: copies a file of a module, or several that a pattern names.
publish() {
	printf 'module source\n' >"$tmp/go.mod"
	# shellcheck disable=SC2086 # the pattern
	cat "$(source_of "$2" "$3")"/$4 >"$tmp/program"
	mv "$tmp/program" "$1"
}

# fetch downloads a package. If the package index of the machine is too old, or
# there is none, the next time finds a new one.
# shellcheck disable=SC2016 # $1 is that of bash -c
fetch='apt-get download -qq -o APT::Sandbox::User=root "$1" </dev/null || { apt-get update -qq </dev/null; exit 1; }'

# suite NAME: writes apt's configuration for another Debian than this machine runs, from the
# same mirror.
suite() {
	local mirror
	# shellcheck disable=SC2016 # apt expands it
	mirror=$(apt-get indextargets --format '$(REPO_URI)' | awk '/\/debian\/$/ && !n++')
	mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/archives/partial"
	: >"$tmp/apt/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$tmp/apt/sources"
	cat >"$tmp/apt/conf" <<-EOF
		Dir::Etc::sourcelist "$tmp/apt/sources";
		Dir::Etc::sourceparts "-";
		Dir::State::lists "$tmp/apt/lists";
		Dir::State::status "$tmp/apt/status";
		Dir::Cache "$tmp/apt";
	EOF
}

# unpack OUT PACKAGE [SUITE]: unpacks a package of the Debian that this machine runs, or
# of another one.
unpack() {
	mkdir -p "$tmp/deb"
	if [ -n "${3:-}" ]; then
		suite "$3"
		export APT_CONFIG=$tmp/apt/conf
	fi
	(cd "$tmp/deb" && "${again[@]}" bash -c "$fetch" fetch "$2")
	unset APT_CONFIG
	dpkg-deb -x "$tmp/deb/$2"_*.deb "$tmp/root"
	mv "$tmp/root" "$1"
}

for program; do
	case $program in
	containerd | ctr | containerd-shim-runc-v2)
		name=debian-${containerd:+$containerd-}containerd from="containerd $containerd"
		;;
	kube*) name=$program-$kubernetes from="k8s.io/kubernetes $kubernetes cmd/$program" ;;
	multus | multus-daemon | multus-shim) name=$program-$multus from="gopkg.in/k8snetworkplumbingwg/multus-cni.v4 $multus cmd/$program" ;;
	helm) name=$program-$helm from="helm.sh/helm/v3 $helm cmd/helm" ;;
	lws-crds) name=$program-$lws from="sigs.k8s.io/lws $lws config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml" ;;
	pytorch-crds) name=$program-$training from="github.com/kubeflow/training-operator $training manifests/base/crds/kubeflow.org_pytorchjobs.yaml" ;;
	mpi-crds) name=$program-$mpi from="github.com/kubeflow/mpi-operator $mpi manifests/base/kubeflow.org_mpijobs.yaml" ;;
	ray-crds) name=$program-$kuberay from="github.com/ray-project/kuberay/ray-operator $kuberay config/crd/bases/ray.io_rayclusters.yaml" ;;
	k8s-rdma-shared-dp) name=$program-$deviceplugin from="github.com/Mellanox/k8s-rdma-shared-dev-plugin $deviceplugin cmd/$program" ;;
	whereabouts) name=$program-$whereabouts from="github.com/k8snetworkplumbingwg/whereabouts $whereabouts cmd" ;;
	whereabouts-controlloop) name=$program-$whereabouts from="github.com/k8snetworkplumbingwg/whereabouts $whereabouts cmd/controlloop" ;;
	whereabouts-crds) name=$program-$whereabouts from="github.com/k8snetworkplumbingwg/whereabouts $whereabouts doc/crds/whereabouts*.yaml" ;;
	bridge | loopback | macvlan) name=$program-$plugins from="github.com/containernetworking/plugins $plugins plugins/main/$program" ;;
	sbr | tuning) name=$program-$plugins from="github.com/containernetworking/plugins $plugins plugins/meta/$program" ;;
	host-local) name=$program-$plugins from="github.com/containernetworking/plugins $plugins plugins/ipam/$program" ;;
	*) name=debian-$program from=${packages[$program]} ;;
	esac
	at=$cache/$name
	[ -e "$at" ] || {
		echo "build.sh: $name" >&2
		# shellcheck disable=SC2086 # several words
		case $name in
		debian-*) unpack "$at" $from ;;
		*-crds-*) publish "$at" $from ;;
		*) compile "$at" $from ;;
		esac
	}
	if [ -d "$at" ]; then
		for f in "$at"/{,usr/}{,s}bin/*; do [ ! -e "$f" ] || ln -sfnr "$f" "$cache/bin/$(basename "$f")"; done
	else
		ln -sfnr "$at" "$cache/bin/$program"
	fi
done
