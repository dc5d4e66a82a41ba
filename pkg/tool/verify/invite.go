// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"cmp"
	"context"
	"fmt"
	"sync"
)

// dials is how many servers are dialled at the same time.
const dials = 64

// Guest is a pod to invite: the address of its server, and what answers call it; "": by its
// own name.
type Guest struct{ Name, Address string }

// Invite dials the servers of pods. The seats are in the order of the guests; a pod that
// does not answer has a seat with Absent. No two pods that answer have the same name. The
// caller closes the others with Leave.
func (p Pod) Invite(ctx context.Context, guests []Guest, key Key) []Seat {
	out := make([]Seat, len(guests))
	limit := make(chan struct{}, dials)
	var wg sync.WaitGroup
	for i, g := range guests {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			peer, err := p.Dial(ctx, g.Address, key, g.Name)
			if err != nil {
				out[i] = Seat{Name: cmp.Or(g.Name, g.Address), Address: g.Address, Absent: err}
				return
			}
			out[i] = Seat{Member: peer, Name: peer.Name, Address: g.Address}
		})
	}
	wg.Wait()
	p.distinguish(out, guests)
	return out
}

// distinguish adds the address to each name that a pod has given itself and another one has,
// too: two pods of one node have its name.
func (p Pod) distinguish(seats []Seat, guests []Guest) {
	count := map[string]int{p.Name: 1}
	for _, s := range seats {
		count[s.Name]++
	}
	for i := range seats {
		s := &seats[i]
		if peer, is := s.Member.(*Peer); is && guests[i].Name == "" && count[s.Name] > 1 {
			peer.Name = fmt.Sprintf("%s (%s)", s.Name, s.Address)
			s.Name = peer.Name
		}
	}
}

// Leave ends the connections to the servers of seats.
func Leave(seats []Seat) {
	for _, s := range seats {
		if peer, is := s.Member.(*Peer); is {
			peer.Close()
		}
	}
}
