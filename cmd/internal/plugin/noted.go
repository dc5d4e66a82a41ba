// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"os"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Noted is a call that is noted in the state folder when it ends. StateDir, Network and
// Pod are set when they are known.
type Noted struct {
	StateDir string
	Network  string
	Pod      conf.Pod

	verb  string
	at    conf.Attachment
	began time.Time
	steps []calls.Step
}

// Note begins the note of a call.
func Note(in conf.Input) *Noted {
	return &Noted{
		verb: in.Command, at: conf.Attachment{ContainerID: conf.ContainerID(in.ContainerID), IfName: conf.LinkName(in.IfName)}, began: time.Now(),
	}
}

// Took notes a step. Steps of one name count as one.
func (n *Noted) Took(step string, d time.Duration) {
	i := slices.IndexFunc(n.steps, func(s calls.Step) bool { return s.Name == step })
	if i < 0 {
		n.steps, i = append(n.steps, calls.Step{Name: step}), len(n.steps)
	}
	n.steps[i].Took += d
}

// End notes the call with its error. If it ended before the settings were read, they are
// read from file. A note that cannot be written is none: the call itself matters more.
func (n *Noted) End(file string, err error) {
	c := calls.Call{
		At: time.Now().UTC(), Verb: n.verb, Network: n.Network, Attachment: n.at, Pod: n.Pod.String(), Took: time.Since(n.began), Steps: n.steps, Trace: os.Getenv("TRACEPARENT"),
	}
	if err != nil {
		c.Code, c.Error = cnierr.CodeOf(err), err.Error()
	}
	if n.StateDir == "" {
		s, fault := Settings(file)
		if fault != nil {
			return
		}
		n.StateDir = s.StateDir
	}
	_ = calls.File{Dir: n.StateDir}.Append(c)
}
