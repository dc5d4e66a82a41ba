// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// contest is players that do the same, in turn, and what is asked of them.
type contest struct {
	name    string
	against string // what the title of the columns says; "": upstream's chain
	runs    int
	players []player
	rows    []row
}

// player makes and removes an attachment, and tells how long that took.
type player struct {
	name     string
	add, del func(ctx context.Context, pod string) (time.Duration, error)
	// every is in how many runs it has one, 0 for each: for who takes seconds.
	every int
}

func (p player) plays(round int) bool { return p.every == 0 || round%p.every == 0 }

// row compares what two players take for a verb.
type row struct {
	name       string
	verb       verb
	ours, with string  // players
	target     float64 // the ratio of the medians at most; 0: only shown
	less       string  // the time of this player is taken off both; "": none
}

type verb string

const (
	add verb = "ADD"
	del verb = "DEL"
)

// The players.
const (
	unchecked = "roce without wire checks"
	roce      = "roce"
	upstream  = "upstream"
	bare      = "kernel"
	least     = "minimal"
)

// ipv4 is the contest over the usual attachment of today.
func ipv4(w *world, runs int) (contest, error) {
	off, err := w.roce("off", false, object{"conflict": "off", "gateway": "off"})
	if err != nil {
		return contest{}, err
	}
	on, err := w.roce("on", false, nil)
	if err != nil {
		return contest{}, err
	}
	theirs, err := w.chained("theirs", false, 0)
	if err != nil {
		return contest{}, err
	}
	minimal, err := w.least("least")
	if err != nil {
		return contest{}, err
	}
	alone := &floor{conf: on.list.Plugins[0].Bytes, addresses: spare(false)}
	return contest{
		name: "IPv4", runs: runs,
		players: []player{
			{name: unchecked, add: off.add, del: off.del},
			{name: upstream, add: theirs.add, del: theirs.del},
			{name: roce, add: on.add, del: on.del},
			{name: bare, add: alone.add, del: alone.del},
			{name: least, add: minimal.add, del: minimal.del},
		},
		rows: []row{
			{"ADD, wire checks off", add, unchecked, upstream, 0.40, ""},
			{"  against only what the kernel must have", add, unchecked, least, 1.5, ""},
			{"ADD, default checks", add, roce, upstream, 0.90, ""},
			{"  the kernel's work of an ADD alone", add, bare, upstream, 0, ""},
			{"DEL", del, roce, upstream, 0.60, ""},
			{"  against only what the kernel must have", del, roce, least, 1.2, ""},
			{"  the kernel's removal of the link alone", del, bare, upstream, 0, ""},
			{"  what is left of both without that", del, roce, upstream, 0, bare},
		},
	}, nil
}

// dualStack is the contest with an address of each family.
func dualStack(w *world, runs int) (contest, error) {
	on, err := w.roce("on6", true, nil)
	if err != nil {
		return contest{}, err
	}
	theirs, err := w.chained("theirs6", true, 0)
	if err != nil {
		return contest{}, err
	}
	alone := &floor{conf: on.list.Plugins[0].Bytes, addresses: spare(true)}
	return contest{
		name: "dual stack", runs: runs,
		players: []player{
			{name: roce, add: on.add, del: on.del},
			{name: upstream, add: theirs.add, del: theirs.del},
			{name: bare, add: alone.add, del: alone.del},
		},
		rows: []row{
			{"ADD, default checks", add, roce, upstream, 0.05, ""},
			{"  the kernel's work of an ADD alone", add, bare, upstream, 0, ""},
			{"DEL", del, roce, upstream, 0, ""},
			{"  the kernel's removal of the link alone", del, bare, upstream, 0, ""},
			{"  what is left of both without that", del, roce, upstream, 0, bare},
		},
	}, nil
}

// samples are sorted durations, for each player and verb.
type samples map[string]map[verb][]time.Duration

// warmUp is how many runs of each are not counted: files get into memory, and
// state folders are made.
const warmUp = 2

// measure runs a contest. The namespaces of its pods are made before, because
// the kernel is busy with that, and stay until the world goes, because
// removing them keeps it busier still (cleanup_net).
func (w *world) measure(ctx context.Context, c contest) (samples, error) {
	out := samples{}
	for _, p := range c.players {
		out[p.name] = map[verb][]time.Duration{}
	}
	order := c.order()
	pods, err := w.pods(len(order))
	if err != nil {
		return nil, err
	}
	for i, turn := range order {
		p := turn.player
		adds, dels, err := p.play(ctx, pods[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if turn.counts {
			out[p.name][add] = append(out[p.name][add], adds)
			out[p.name][del] = append(out[p.name][del], dels)
		}
	}
	for _, verbs := range out {
		for _, s := range verbs {
			slices.Sort(s)
		}
	}
	return out, nil
}

// turn is one of a player's runs, which counts unless it is to warm up.
type turn struct {
	player
	counts bool
}

// order returns who has its turn when. Each player has each place equally often.
func (c contest) order() (out []turn) {
	for round := range c.runs + warmUp {
		for i := range c.players {
			p := c.players[(i+round)%len(c.players)]
			switch {
			case round < warmUp:
				out = append(out, turn{player: p})
			case p.plays(round - warmUp):
				out = append(out, turn{p, true})
			}
		}
	}
	return out
}

func (p player) play(ctx context.Context, pod string) (adds, dels time.Duration, err error) {
	if adds, err = p.add(ctx, pod); err != nil {
		return 0, 0, err
	}
	if err := rest(ctx); err != nil {
		return 0, 0, err
	}
	if dels, err = p.del(ctx, pod); err != nil {
		return 0, 0, err
	}
	return adds, dels, rest(ctx)
}

// pause is what a call does behind its back at most: the kernel closes sockets
// and frees links. A pod lives longer than that, and the next call, which may
// be another player's, must not pay for it.
const pause = 150 * time.Millisecond

func rest(ctx context.Context) error {
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
