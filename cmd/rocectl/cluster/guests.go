// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// maxConnections is enough for kubelet and some collectors of metrics. Each one takes memory.
const maxConnections = 128

// guests are the connections of an http.Server that every client in the network may connect
// to. If there are too many, the oldest one ends of the network that has most: a client that
// keeps many gets in the way of no other.
type guests struct {
	mu   sync.Mutex
	open []net.Conn // the oldest first
}

// note is http.Server.ConnState.
func (g *guests) note(c net.Conn, state http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch state {
	case http.StateNew:
		if g.open = append(g.open, c); len(g.open) > maxConnections {
			i := g.worst()
			_ = g.open[i].Close() // its goroutine ends with it
			g.open = slices.Delete(g.open, i, i+1)
		}
	case http.StateClosed:
		if i := slices.Index(g.open, c); i >= 0 {
			g.open = slices.Delete(g.open, i, i+1)
		}
	case http.StateActive, http.StateIdle, http.StateHijacked:
	}
}

// worst returns the oldest connection of the networks with the most.
func (g *guests) worst() (worst int) {
	counts, most := map[netip.Prefix]int{}, 0
	for _, c := range g.open {
		counts[origin(c)]++
	}
	for i, c := range g.open {
		if n := counts[origin(c)]; n > most {
			worst, most = i, n
		}
	}
	return worst
}

// origin returns the address of a client, or the /64 of it: one client can have all of that.
func origin(c net.Conn) netip.Prefix {
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	a := from.Addr().Unmap().WithZone("")
	return netip.PrefixFrom(a, min(a.BitLen(), 64)).Masked()
}
