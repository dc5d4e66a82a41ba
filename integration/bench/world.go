// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// patience is how long the machine may take to make the world ready.
const patience = 10 * time.Second

// world is a node with a NIC for each rail, leaves with the gateways at the
// other ends of them, and pods. The process is on the node once newWorld has
// returned.
type world struct {
	options
	name     string
	dir      string   // of all state
	made     []string // namespaces
	launcher launcher
}

// rails is how many rails there are. The first of them is the NIC of the contests
// over one.
const rails = 8

// nic returns the name of a rail's NIC.
func nic(rail int) string { return fmt.Sprintf("rail%d", rail) }

// firstNet is the number in the addresses of rail 0: 10.64.0.0/16 and
// fd00:64::/64. The others count up.
const firstNet = 64

func gateway4(rail int) string { return fmt.Sprintf("10.%d.0.1", firstNet+rail) }

func gateway6(rail int) string { return fmt.Sprintf("fd00:%d::1", firstNet+rail) }

// newWorld makes a world. Its caller removes it, also after an error.
func newWorld(o options) (*world, error) {
	w := &world{options: o, name: "rocebench-" + strings.ToLower(rand.Text()[:6])}
	var err error
	if err := os.MkdirAll(conf.DefaultStateDir, 0o700); err != nil {
		return w, err
	}
	if w.dir, err = os.MkdirTemp(conf.DefaultStateDir, w.name+"-"); err != nil {
		return w, err
	}
	node := w.name + "-node"
	if err := w.netns(node); err != nil {
		return w, err
	}
	for i := range rails {
		if err := w.wire(node, i); err != nil {
			return w, err
		}
	}
	for _, ns := range w.made {
		if err := await(ns); err != nil {
			return w, err
		}
	}
	return w, enter(node)
}

// wire makes a rail: the node's NIC, and a leaf with the gateway.
func (w *world) wire(node string, rail int) error {
	leaf, net := fmt.Sprintf("%s-leaf%d", w.name, rail), firstNet+rail
	if err := w.netns(leaf); err != nil {
		return err
	}
	for _, in := range []struct{ ns, script string }{
		{node, "link add " + nic(rail) + " mtu 9000 type veth peer name leaf0 mtu 9000 netns " + leaf},
		{node, fmt.Sprintf("addr add 10.%d.0.2/16 dev %s", net, nic(rail))},
		{node, fmt.Sprintf("addr add fd00:%d::2/64 dev %s nodad", net, nic(rail))},
		{node, "link set dev " + nic(rail) + " up"},
		{leaf, "addr add " + gateway4(rail) + "/16 dev leaf0"},
		{leaf, "addr add " + gateway6(rail) + "/64 dev leaf0 nodad"},
		{leaf, "link set dev leaf0 up"},
	} {
		if err := ip("-n " + in.ns + " " + in.script); err != nil {
			return err
		}
	}
	return nil
}

// fastDir is where state belongs: on a tmpfs, as /run is.
func fastDir() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

// remove removes everything that the world has made.
func (w *world) remove() {
	for _, ns := range w.made {
		_ = ip("netns del " + ns) // what it held is gone, or the next failure tells
	}
	_ = os.RemoveAll(w.dir)
}

// netns makes namespaces as runtimes do, with lo up.
func (w *world) netns(names ...string) error {
	for _, name := range names {
		if err := ip("netns add " + name); err != nil {
			return err
		}
		w.made = append(w.made, name)
		if err := ip("-n " + name + " link set lo up"); err != nil {
			return err
		}
	}
	return nil
}

// pods makes n pods and returns their names.
func (w *world) pods(n int) ([]string, error) {
	var names []string
	for range n {
		names = append(names, fmt.Sprintf("%s-%d", w.name, len(w.made)))
		if err := w.netns(names[len(names)-1]); err != nil {
			return nil, err
		}
	}
	return names, nil
}

func netnsPath(pod string) string { return "/run/netns/" + pod }

// enter puts this thread, and what is run from it, into a namespace.
func enter(name string) error {
	f, err := os.Open(netnsPath(name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", name, err)
	}
	return nil
}

// await waits until the links of a namespace have a carrier and their IPv6
// addresses can be used.
func await(ns string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		links, err := exec.CommandContext(ctx, "ip", "-n", ns, "-oneline", "link", "show", "up").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip link in %s: %w: %s", ns, err, links)
		}
		tentative, err := exec.CommandContext(ctx, "ip", "-n", ns, "-oneline", "addr", "show", "tentative").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip addr in %s: %w: %s", ns, err, tentative)
		}
		if !strings.Contains(string(links), "NO-CARRIER") && len(tentative) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("namespace %s is not ready after %v: %s%s", ns, patience, links, tentative)
		}
	}
}

// ip runs ip(8).
func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}
