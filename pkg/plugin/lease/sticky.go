// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// AgentFiles is the files between the plugins and rocectl agent. They say what the
// node may lease of RailPools, and which sticky addresses a pod has. The two use no
// other way: each reads what the other has written. nodefile.Store implements
// AgentFiles, and has the contracts and the errors.
type AgentFiles interface {
	Read(pool string) (nodefile.File, error)
	Want(pool string, k nodefile.Key) error
	Unwant(pool string, k nodefile.Key) error
	Answer(pool string, k nodefile.Key) (a nodefile.Answer, there bool, err error)
}

var _ AgentFiles = nodefile.Store{}

const (
	// agentTime is how long an ADD waits for an answer. The agent looks for requests
	// every 100 ms, and needs one or two answers from the API server.
	agentTime = 2 * time.Second
	agentPoll = 10 * time.Millisecond
)

// stickyClaim is what a claim knows of the sticky addresses of its pod.
type stickyClaim struct {
	file  nodefile.File // what the node may lease of the RailPool
	asked bool
	// grant is the agent's answer that grants sticky addresses; the zero Answer if
	// the pod has ordinary ones. ordinary is the rails with these.
	grant    nodefile.Answer
	ordinary []plan.Rail
}

// askSticky asks the agent once for the sticky addresses of the pod. If the agent
// grants them, the rails of the claim then request them by number. It asks nothing if
// the pool is not sticky, if the pod is not one of a StatefulSet, or if the pod requests
// an address itself. It returns TryAgain when the agent does not answer in time.
func (c *Claim) askSticky(ctx context.Context) error {
	s := &c.sticky
	k, ok := nodefile.Sticky(c.req.Pod.Namespace, c.req.Pod.Name, string(c.req.IfName))
	if s.asked || !ok || !s.file.Sticky || len(c.req.IPAM.Requested) > 0 {
		return nil
	}
	grant, err := c.a.ask(ctx, s.file.Pool, k)
	if err != nil {
		return err
	}
	s.asked = true
	if !grant.Granted() {
		c.a.Log.Warn("the pod does not get its sticky addresses, but ordinary ones",
			"pool", s.file.Pool, "pod", c.req.Pod, "interface", k.Interface, "why", grant.None)
		return nil
	}
	req, err := ofRailPool(c.given, s.file.Only(grant), c.rails[0].Facts.Parent.Addrs)
	if err != nil {
		return err
	}
	s.grant, s.ordinary, c.rails = grant, c.rails, slices.Clone(c.rails)
	for i := range c.rails {
		one := &c.rails[i].Rail
		*one = byNumber(req.Rails[one.Number])
	}
	return nil
}

// ask waits for the agent's answer and returns it.
func (a Allocator) ask(ctx context.Context, pool string, k nodefile.Key) (nodefile.Answer, error) {
	answer, there, err := a.Agent.Answer(pool, k)
	if there || err != nil {
		return answer, err
	}
	if err := a.Agent.Want(pool, k); err != nil {
		return answer, err
	}
	for end := a.Now() + agentTime; a.Now() < end && a.Wait(ctx, agentPoll) == nil; {
		if answer, there, err = a.Agent.Answer(pool, k); there || err != nil {
			return answer, err
		}
	}
	return answer, waitFor(k, "wait: the runtime tries again automatically; if the error stays, the log of rocectl agent on this node and http://NODE:9482/healthz say why, "+
		"and kubectl get railleases --field-selector spec.pod="+k.Pod+" shows which node has them",
		"rocectl agent has not answered yet")
}

// forget withdraws the request of an ADD that did not finish. Without forget, the
// node would hold addresses for a pod that it does not have. If there is no request,
// that is success.
func (a Allocator) forget(d conf.Del) error {
	return a.Agent.Unwant(d.RailPool, nodefile.Key{Namespace: d.Pod.Namespace, Pod: d.Pod.Name, Interface: string(d.IfName)})
}

// confirmSticky returns TryAgain if the grant is not valid any more. It is called
// after the addresses are leased. The agent first removes its answer, then looks for
// leases of the addresses, and releases them for other nodes if there are none. If
// the agent looked before the addresses were leased, the answer is gone now.
func (c *Claim) confirmSticky() error {
	grant := c.sticky.grant
	if !grant.Granted() {
		return nil
	}
	now, there, err := c.a.Agent.Answer(c.sticky.file.Pool, grant.Key)
	if err != nil || there && now.Equal(grant) {
		return err
	}
	return waitFor(grant.Key, "wait: the next ADD requests them again", "rocectl agent released them at the same moment")
}

// withoutSticky gives the rails ordinary addresses instead of sticky ones, because
// another machine has one of these. It returns whether the rails had sticky
// addresses.
func (c *Claim) withoutSticky() bool {
	s := &c.sticky
	if !s.grant.Granted() {
		return false
	}
	c.a.Log.Warn("another machine uses a sticky address of the pod: the pod gets ordinary addresses",
		"pool", c.sticky.file.Pool, "pod", c.req.Pod, "interface", c.req.IfName)
	c.rails, s.grant = s.ordinary, nodefile.Answer{}
	return true
}

// stickyError rewrites the error of leasing a granted address, so that it names the
// pod: the user did not request this address by its number. An error that is not
// about an address, such as one about a lock, stays as it is.
func stickyError(grant nodefile.Answer, err error) error {
	held := &cnierr.Error{}
	errors.As(err, &held)
	if _, other := netip.ParseAddr(held.Subject); other != nil || !grant.Granted() || held.Code != cnierr.TryAgain {
		return err
	}
	return waitFor(grant.Key, "wait: the DEL of the pod's former sandbox releases them; rocectl pool list shows all leases", held.Subject+": %w", held.Err)
}

func waitFor(k nodefile.Key, hint, why string, args ...any) error {
	return cnierr.New(cnierr.TryAgain, "lease the sticky addresses of", k.Namespace+"/"+k.Pod, hint, "interface %q: "+why, append([]any{k.Interface}, args...)...)
}

// byNumber returns a rail that requests every granted address by its number. If such
// an address is leased, the error then names the pod that has it, and does not say
// that the pool is exhausted.
func byNumber(rail conf.Rail) conf.Rail {
	for _, s := range rail.Subnets {
		rail.Requested = append(rail.Requested, s.Ranges[0].First)
	}
	return rail
}
