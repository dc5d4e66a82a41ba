#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# again.sh COMMAND...: runs a command that fetches something, and again when it
# fails, five times in all: mirrors and proxies have bad moments. It tells of each
# failure, and ends as the last one does.
set -uo pipefail
for wait in 2 5 15 30; do
	"$@" && exit
	echo "again.sh: $1 has failed (status $?); again in $wait s" >&2
	sleep "$wait"
done
exec "$@"
