// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Agent is what an ADD knows from rocectl agent: what the node may lease of
// RailPools, and which sticky addresses a pod has. nodefile.Store implements Agent, and
// has the contracts and the errors.
type Agent interface {
	Read(pool string) (nodefile.File, error)
	Ask(pool string, k nodefile.Key) (nodefile.Answer, error)
}

var _ Agent = nodefile.Store{}

// stickyClaim is what a claim knows of the sticky addresses of its pod.
type stickyClaim struct {
	file     nodefile.File // what the node may lease of the RailPool
	key      nodefile.Key
	refused  bool            // the pod has none, or another machine uses one of them
	grant    nodefile.Answer // the zero Answer if the rails have ordinary addresses
	ordinary []plan.Rail     // the rails with these
}

// askSticky asks the agent for the sticky addresses of the pod, if the pool is sticky and the
// pod is one of a StatefulSet that requests no address itself. The rails of the claim then
// request those that are granted by number. It returns TryAgain when the agent gives neither
// addresses nor a reason why there are none.
func (c *Claim) askSticky() error {
	s := &c.sticky
	k, ok := nodefile.Sticky(c.req.Pod.Namespace, c.req.Pod.Name, string(c.req.IfName))
	if s.refused || !ok || !s.file.Sticky || len(c.req.IPAM.Requested) > 0 {
		return nil
	}
	answer, err := c.a.Agent.Ask(s.file.Pool, k)
	if answer.Wait != "" {
		err = errors.New(answer.Wait)
	}
	if err != nil {
		return waitFor(k, "wait: the runtime tries again automatically; if the error stays, the log of rocectl agent on this node and http://NODE:9482/healthz say why, "+
			"and kubectl get railleases --field-selector spec.pod="+k.Pod+" shows which node has them", "%w", err)
	}
	if !answer.Granted() {
		c.a.Log.Warn("the pod does not get its sticky addresses, but ordinary ones",
			"pool", s.file.Pool, "pod", c.req.Pod, "interface", k.Interface, "why", answer.None)
		c.ordinaryOnly()
		return nil
	}
	req, err := ofRailPool(c.given, s.file.Only(answer), c.rails[0].Facts.Parent.Addrs)
	if err != nil {
		return err
	}
	if !s.grant.Granted() {
		s.ordinary = c.rails
	}
	s.key, s.grant, c.rails = k, answer, slices.Clone(s.ordinary)
	for i := range c.rails {
		one := &c.rails[i].Rail
		*one = byNumber(req.Rails[one.Number])
	}
	return nil
}

// confirmSticky returns TryAgain if the grant has ended. It is called after the
// addresses are leased. From then on the agent, which looks for leases of the addresses
// after the end, sees this one.
func (c *Claim) confirmSticky() error {
	s := &c.sticky
	if !s.grant.Granted() || c.a.Now() < s.grant.Until {
		return nil
	}
	return waitFor(s.key, "wait: the next ADD requests them again", "the time in which rocectl agent held them for this ADD is over")
}

// ordinaryOnly gives the rails ordinary addresses from now on, and returns whether they
// had sticky ones.
func (c *Claim) ordinaryOnly() bool {
	s := &c.sticky
	had := s.grant.Granted()
	if had {
		c.rails = s.ordinary
	}
	s.grant, s.refused = nodefile.Answer{}, true
	return had
}

// withoutSticky gives the rails ordinary addresses instead of sticky ones, of which another
// machine has one. It returns whether the rails had any.
func (c *Claim) withoutSticky() bool {
	if !c.sticky.grant.Granted() {
		return false
	}
	c.a.Log.Warn("another machine uses a sticky address of the pod: the pod gets ordinary addresses",
		"pool", c.sticky.file.Pool, "pod", c.req.Pod, "interface", c.req.IfName)
	return c.ordinaryOnly()
}

// stickyError rewrites an error about a granted address, so that it names the pod: the user
// did not request this address by its number.
func (c *Claim) stickyError(err error) error {
	held := &cnierr.Error{}
	errors.As(err, &held)
	if _, other := netip.ParseAddr(held.Subject); other != nil || !c.sticky.grant.Granted() || held.Code != cnierr.TryAgain {
		return err
	}
	return waitFor(c.sticky.key, "wait: the DEL of the pod's former sandbox releases them; rocectl pool list shows all leases", held.Subject+": %w", held.Err)
}

func waitFor(k nodefile.Key, hint, why string, args ...any) error {
	return cnierr.New(cnierr.TryAgain, "lease the sticky addresses of", k.Namespace+"/"+k.Pod, hint, "interface %q: "+why, append([]any{k.Interface}, args...)...)
}

// byNumber returns a rail that requests every granted address by its number, so that an
// error names the pod that has one.
func byNumber(rail conf.Rail) conf.Rail {
	for _, s := range rail.Subnets {
		rail.Requested = append(rail.Requested, s.Ranges[0].First)
	}
	return rail
}
