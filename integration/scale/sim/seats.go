// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sim

import "time"

// Places is how many requests of one user the API server has in hand, and all
// agents are one user: they have one ServiceAccount. 245 are done at a time, the
// share of the priority level workload-low (100 of 245 of 600), and 300 wait, in
// the hand of a flow there (6 queues of 50): the defaults of API Priority and
// Fairness (pkg/apis/flowcontrol/bootstrap of k8s.io/apiserver v0.35). That a long
// list takes more than one place is left out.
const Places = 245 + 300

// longest is the longest Retry-After.
const longest = 32

// Seats counts requests in hand, and says to those that are refused for how long, as
// droppedRequestsTracker of k8s.io/apiserver does: twice as long when many were
// refused since it was changed, and a second less when few were.
type Seats struct {
	inside  int
	after   int64 // seconds, less the first one
	changed int64 // when it became longer
	second  int64 // that is counted now
	refused map[int64]int64
}

// Enter says whether there is a place, and takes it.
func (s *Seats) Enter() bool {
	if s.inside >= Places {
		return false
	}
	s.inside++
	return true
}

// Leave gives it back.
func (s *Seats) Leave() { s.inside-- }

// Refuse counts a refusal and returns what it is told.
func (s *Seats) Refuse(now time.Duration) time.Duration {
	if s.refused == nil {
		s.refused, s.changed = map[int64]int64{}, -longest
	}
	second := int64(now / time.Second)
	if second != s.second {
		s.second = second
		s.adapt(second)
	}
	s.refused[second]++
	return time.Duration(s.after+1) * time.Second
}

func (s *Seats) adapt(second int64) {
	after, lately := s.after+1, int64(0)
	for back := int64(1); back <= after; back++ {
		lately += s.refused[second-back]
	}
	switch {
	case second-s.changed >= after && lately >= 3*after:
		after, s.changed = min(2*after, longest), second
	case lately < after && after > 1:
		after--
	}
	s.after = after - 1
}
