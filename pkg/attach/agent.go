// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Agent is the node's agent as an ADD sees it. It says what the node may lease of
// RailPools, and which addresses of a sticky one are kept for a pod. The two never
// talk: each reads what the other has written.
type Agent struct {
	Ranges Ranges
	// Now is any clock that does not go back.
	Now func() time.Duration
	// Wait returns after d, or with the context's error when that ends.
	Wait func(ctx context.Context, d time.Duration) error
	// Log takes why a pod does not get the addresses that it would keep.
	Log *slog.Logger
}

// Ranges is the files of the agent. nodefile.Store is one, with the contracts and the
// errors.
type Ranges interface {
	Read(pool string) (nodefile.File, error)
	Want(pool string, k nodefile.Key) error
	Unwant(pool string, k nodefile.Key) error
	Answer(pool string, k nodefile.Key) (a nodefile.Answer, there bool, err error)
}

const (
	// agentTime is how long an ADD waits for an answer: the agent looks for requests
	// every 100 ms and needs an answer or two of the API server.
	agentTime = 2 * time.Second
	agentPoll = 10 * time.Millisecond
)

// Keep returns a request as OfRailPool does, but for the addresses that are kept
// for its pod, and the agent's answer that grants them. Once they are leased, Still
// must be asked. Without any, or for a pod that keeps none, the answer is the zero
// one, and the request as it was: only a sticky pool keeps addresses, for the pods of a
// StatefulSet, and who asks for one by number gets that one. It returns TryAgain when
// the agent does not answer in time.
func (a Agent) Keep(ctx context.Context, req conf.Request, f nodefile.File, nic []netip.Prefix) (conf.Request, nodefile.Answer, error) {
	k, ok := nodefile.Sticky(req.Pod.Namespace, req.Pod.Name, string(req.IfName))
	if !ok || !f.Sticky || len(req.IPAM.Requested) > 0 {
		return req, nodefile.Answer{}, nil
	}
	granted, err := a.ask(ctx, f.Pool, k)
	if err != nil {
		return req, nodefile.Answer{}, err
	}
	if !granted.Granted() {
		a.Log.Warn("the pod does not get the addresses that are kept for it, but ordinary ones",
			"pool", f.Pool, "pod", req.Pod, "interface", k.Interface, "why", granted.None)
		return req, nodefile.Answer{}, nil
	}
	req, err = OfRailPool(req, f.Only(granted), nic)
	return byNumber(req), granted, err
}

// ask returns the agent's answer, for which it waits.
func (a Agent) ask(ctx context.Context, pool string, k nodefile.Key) (nodefile.Answer, error) {
	answer, there, err := a.Ranges.Answer(pool, k)
	if there || err != nil {
		return answer, err
	}
	if err := a.Ranges.Want(pool, k); err != nil {
		return answer, err
	}
	for end := a.Now() + agentTime; a.Now() < end && a.Wait(ctx, agentPoll) == nil; {
		if answer, there, err = a.Ranges.Answer(pool, k); there || err != nil {
			return answer, err
		}
	}
	return answer, waitFor(k, "it has been asked for them; if that goes on, the log of rocectl agent on this node and http://NODE:9482/healthz say why, "+
		"and kubectl get railleases --field-selector spec.pod="+k.Pod+" shows which node has them",
		"rocectl agent has not answered yet")
}

// Forget takes back what an ADD has asked for that came to no end: the node would
// hold addresses for a pod that it has not got. What was not told was not asked for.
func (a Agent) Forget(d conf.Del) error {
	return a.Ranges.Unwant(d.RailPool, nodefile.Key{Namespace: d.Pod.Namespace, Pod: d.Pod.Name, Interface: string(d.IfName)})
}

// Still says, with TryAgain, when an answer does not hold any more. The agent takes
// it away before it looks for leases of its addresses, and gives them to other nodes
// if there are none: if it has looked before they were leased, the answer is gone now.
func (a Agent) Still(pool string, granted nodefile.Answer) error {
	if !granted.Granted() {
		return nil
	}
	now, there, err := a.Ranges.Answer(pool, granted.Key)
	if err != nil || there && now.Equal(granted) {
		return err
	}
	return waitFor(granted.Key, "the next ADD asks for them again", "rocectl agent has given them back in the same moment")
}

// Kept is what an ADD says of an error of leasing what an answer grants, if that is
// about an address, and not about a lock: nobody has asked for it by its number.
func Kept(granted nodefile.Answer, err error) error {
	held := &cnierr.Error{}
	errors.As(err, &held)
	if _, other := netip.ParseAddr(held.Subject); other != nil || !granted.Granted() || held.Code != cnierr.TryAgain {
		return err
	}
	return waitFor(granted.Key, "the DEL of a former sandbox gives them back: rocectl pool list shows all leases", held.Subject+": %w", held.Err)
}

func waitFor(k nodefile.Key, hint, why string, args ...any) error {
	return cnierr.New(cnierr.TryAgain, "lease the addresses kept for", k.Namespace+"/"+k.Pod, hint, "interface %q: "+why, append([]any{k.Interface}, args...)...)
}

// byNumber asks for every address that a request may have by its number. A pool
// that has leased it then says to whom, and not that it is exhausted.
func byNumber(req conf.Request) conf.Request {
	each := slices.Clone(req.Each())
	for i := range each {
		for _, s := range each[i].IPAM.Subnets {
			each[i].IPAM.Requested = append(each[i].IPAM.Requested, s.Ranges[0].First)
		}
	}
	if req.Rails == nil {
		return each[0]
	}
	req.Rails = each
	return req
}
