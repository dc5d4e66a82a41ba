// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// neighbourTable asks whether the tables of neighbours are large enough. All network
// namespaces of a machine share them.
func neighbourTable() Check {
	return Check{
		Name: "neighbour-table",
		Asks: "are the neighbour tables large enough for pods x rails x peers?",
		Why:  "all pods share these tables; when one is full, gateways and peers stop answering (error 106, \"neighbor table overflow!\" in dmesg)",
		look: func(ctx context.Context, n Node) []report.Finding {
			leased := map[bool]int{} // by whether the address is an IPv4 address
			if n.Peers > 0 {
				entries, err := n.Leases.List(ctx, "")
				if err != nil {
					return []report.Finding{cannotTell("how many addresses are leased: "+err.Error(), "the right to read the leases in the state folder")}
				}
				for _, e := range entries {
					if e.State == ledger.Leased {
						leased[e.Addr.Is4()]++
					}
				}
			}
			return []report.Finding{n.table("ipv4", "arp_cache", leased[true]), n.table("ipv6", "ndisc_cache", leased[false])}
		},
	}
}

// largeTable is how many neighbours of a family a node with RoCE pods should have places for.
const largeTable = 16384

// table judges the table of a family, of which the node has leased some addresses.
func (n Node) table(family, cache string, leased int) report.Finding {
	limit, err := n.number("net." + family + ".neigh.default.gc_thresh3")
	if err != nil {
		return cannotTell("its size cannot be read: "+err.Error(), "the network namespace of the node").About(family)
	}
	entries, overflows, err := n.neighbours(cache)
	if err != nil {
		return cannotTell(fmt.Sprintf("it has %d places: %v", limit, err), "/proc/net/stat of the network namespace of the node").About(family)
	}
	found := fmt.Sprintf("%d of %d entries used", entries, limit)
	if overflows > 0 {
		found += fmt.Sprintf(", full %d times since the boot", overflows)
	}
	need := leased * n.Peers
	if need > 0 {
		found += fmt.Sprintf(", and %d leased addresses x %d peers need %d", leased, n.Peers, need)
	}
	// The kernel never sets the count of overflows back. So one of a table that is large
	// now may be older than its size.
	if overflows > 0 && limit < largeTable || entries*5 > limit*4 || need > limit {
		size := max(limit*4, largeTable)
		for size < 2*need {
			size *= 2
		}
		setting := fmt.Sprintf("net.%s.neigh.default.gc_thresh", family)
		return problem(found, fmt.Sprintf("sysctl -w %[1]s3=%[2]d %[1]s2=%[3]d %[1]s1=%[4]d  # and so in /etc/sysctl.d", setting, size, size/2, size/4)).About(family)
	}
	return ok("%s", found).About(family)
}

// neighbours returns how many entries a table has, and how often it was full. The
// file has a line for each CPU (neigh_stat_seq_show), each with all entries.
func (n Node) neighbours(cache string) (entries, overflows int, err error) {
	text, err := n.text("proc/net/stat/" + cache)
	if err != nil {
		return 0, 0, err
	}
	lines := strings.Split(text, "\n")
	names := strings.Fields(lines[0])
	first, last := slices.Index(names, "entries"), slices.Index(names, "table_fulls")
	if first < 0 || last < 0 {
		return 0, 0, errors.New("/proc/net/stat/" + cache + " has no column table_fulls")
	}
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		if len(words) != len(names) {
			return 0, 0, errors.New("/proc/net/stat/" + cache + " has a line of another length")
		}
		all, err := strconv.ParseUint(words[first], 16, 32)
		if err != nil {
			return 0, 0, err
		}
		full, err := strconv.ParseUint(words[last], 16, 32)
		if err != nil {
			return 0, 0, err
		}
		entries, overflows = int(all), overflows+int(full)
	}
	return entries, overflows, nil
}
