// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// healsEvery is how often the agent looks for what was healed. healsAtOnce is how many Events
// it writes then, at most: the healer does no more for long.
const (
	healsEvery  = 5 * time.Second
	healsAtOnce = 20
)

// tellHeals tells what was healed since the agent started, until the context ends. An Event
// that cannot be written is lost: it is in the calls of the node all the same.
func (a *Agent) tellHeals(ctx context.Context) {
	file := calls.File{Dir: a.Ranges.Dir}
	_, mark, _ := file.After("") // those before the start
	for a.Wait(ctx, healsEvery) == nil {
		ended, last, err := file.After(mark)
		if mark = last; err != nil {
			continue // the metrics say so
		}
		told := 0
		for _, c := range ended {
			if !c.ByHealer() || told == healsAtOnce {
				continue
			}
			told++
			if err := a.Tell(ctx, a.Node.Name, healed(c)); err != nil {
				a.Log.Warn("an Event of a pod cannot be written", append(About(err), "pod", c.Pod)...)
			}
		}
	}
}

func healed(c calls.Call) fleet.Healed {
	h := fleet.Healed{At: c.At, UID: c.UID, Failed: c.Code != 0, Message: c.Error}
	h.Namespace, h.Pod, _ = strings.Cut(c.Pod, "/")
	switch {
	case c.Verb == calls.Alarm:
		h.Alarm = true
	case !h.Failed:
		h.Message = fmt.Sprintf("interface %s: made again: %s", c.IfName, strings.Join(c.Made(), ", "))
	}
	return h
}
