// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// world is a node with a NIC for each rail, leaves with the gateways at the
// other ends of them, and pods. The process is on the node once newWorld has
// returned.
type world struct {
	options
	name     string
	dir      string // of all state
	made     []*cnitest.Netns
	settled  bool // there are settings of this world
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
	w := &world{options: o, name: cnitest.UniqueName("rocebench-")}
	if err := os.MkdirAll(settings.DefaultStateDir, 0o700); err != nil {
		return w, err
	}
	var err error
	if w.dir, err = os.MkdirTemp(settings.DefaultStateDir, w.name+"-"); err != nil {
		return w, err
	}
	if err := w.settle(filepath.Join(w.dir, "roce")); err != nil {
		return w, err
	}
	node, err := w.netns(w.name + "-node")
	if err != nil {
		return w, err
	}
	for i := range rails {
		if err := w.wire(node, i); err != nil {
			return w, err
		}
	}
	for _, ns := range w.made {
		if err := ns.Ready(context.Background()); err != nil {
			return w, err
		}
	}
	return w, node.SetThread()
}

// settle writes the settings of the node, with this state folder. It replaces none that
// the machine had.
func (w *world) settle(stateDir string) error {
	if err := os.MkdirAll(filepath.Dir(conf.SettingsFile), 0o755); err != nil {
		return err
	}
	how := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if w.settled {
		how = os.O_WRONLY | os.O_TRUNC
	}
	f, err := os.OpenFile(conf.SettingsFile, how, 0o600)
	if err != nil {
		return err
	}
	w.settled = true
	_, err = fmt.Fprintf(f, `{"version": 1, "stateDir": %q}`, stateDir)
	return errors.Join(err, f.Close())
}

// wire makes a rail: the node's NIC, and a leaf with the gateway.
func (w *world) wire(node *cnitest.Netns, rail int) error {
	leaf, err := w.netns(fmt.Sprintf("%s-leaf%d", w.name, rail))
	if err != nil {
		return err
	}
	if err := node.Batch(fmt.Sprintf(`
		link add %[1]s mtu 9000 type veth peer name leaf0 mtu 9000 netns %[2]s
		addr add 10.%[3]d.0.2/16 dev %[1]s
		addr add fd00:%[3]d::2/64 dev %[1]s nodad
		link set dev %[1]s up`, nic(rail), leaf.Name, firstNet+rail)); err != nil {
		return err
	}
	return leaf.Batch(fmt.Sprintf(`
		addr add %s/16 dev leaf0
		addr add %s/64 dev leaf0 nodad
		link set dev leaf0 up`, gateway4(rail), gateway6(rail)))
}

// remove removes everything that the world has made.
func (w *world) remove() {
	for _, ns := range w.made {
		_ = ns.Delete() // what it held is gone, or the next failure tells
	}
	_ = os.RemoveAll(w.dir)
	if w.settled {
		_ = os.Remove(conf.SettingsFile)
	}
}

// netns makes a namespace as runtimes do, with lo up.
func (w *world) netns(name string) (*cnitest.Netns, error) {
	ns, err := cnitest.MakeNetns(name)
	if err != nil {
		return nil, err
	}
	w.made = append(w.made, ns)
	return ns, ns.Batch("link set lo up")
}

// pods makes n pods and returns their names.
func (w *world) pods(n int) ([]string, error) {
	var names []string
	for range n {
		ns, err := w.netns(fmt.Sprintf("%s-%d", w.name, len(w.made)))
		if err != nil {
			return nil, err
		}
		names = append(names, ns.Name)
	}
	return names, nil
}

func netnsPath(pod string) string { return "/run/netns/" + pod }
