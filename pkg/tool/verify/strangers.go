// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"net"
	"slices"
	"sync"
)

// mostStrangers is the most connections of callers that have not yet shown that they know
// the token. A caller that does needs a moment for it.
const mostStrangers = 64

// strangers are these connections, the oldest first. A new one is always admitted. If there
// are too many, one of the address that has the most of them ends: so a host that opens
// thousands ends its own, and not that of another caller.
type strangers struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (s *strangers) admit(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
	if len(s.conns) <= mostStrangers {
		return
	}
	count, most := map[string]int{}, ""
	for _, c := range s.conns {
		host := hostOf(c)
		if count[host]++; count[host] > count[most] {
			most = host
		}
	}
	i := slices.IndexFunc(s.conns, func(c net.Conn) bool { return hostOf(c) == most })
	_ = s.conns[i].Close() // its reader sees the end
	s.conns = slices.Delete(s.conns, i, i+1)
}

// leave is for a caller that has shown that it knows the token, or that has gone.
func (s *strangers) leave(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(other net.Conn) bool { return other == c })
}

func hostOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}
