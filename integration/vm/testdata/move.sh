# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# Exclusive mode: a device goes to a namespace, back, there again, and comes
# back by itself when the namespace goes.
set -ex
in_pod() { ip netns exec pod rdma "$@"; }
names() { sed 's/^[0-9]*: \([^:]*\):.*/\1/' | xargs; }

rdma system set netns exclusive
ip netns add pod
rdma dev set rxe0 netns pod
[ "$(rdma dev | names)" = rxe1 ]
[ "$(in_pod dev | names)" = rxe0 ]
ip netns attach init 1
in_pod dev set rxe0 netns init
[ "$(rdma dev | names)" = "rxe0 rxe1" ]
[ -z "$(in_pod dev | names)" ]
rdma dev set rxe0 netns pod
ip netns delete pod
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ "$(rdma dev | names)" != "rxe0 rxe1" ] || exit 0
	sleep 0.5
done
exit 1
