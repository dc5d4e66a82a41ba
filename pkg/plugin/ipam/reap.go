// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// reapWindow is how many namespaces one call looks at. attachWindow is how many
// attachments: a pod can have many interfaces in one namespace.
const (
	reapWindow   = 2
	reapSample   = 32
	attachWindow = 32
)

// reap puts leases of namespaces that are gone into quarantine, because Multus
// sends no GC to secondary networks and a DEL may never come. It looks at no
// more than limit namespaces: those of the owners that are stored next to
// the owner of this call. So it needs almost no further pages. Which
// namespaces these are is chance. Without limit it looks at all, but only when
// no address is free.
//
// A missing namespace proves nothing where this process cannot see the
// namespaces of the node, for instance in a container without /run/netns. So
// reap reaps nothing unless it finds the namespace of the present call in the
// same folder, or both are named by a process. It also reaps nothing if most
// namespaces that it looked at seem to be gone.
func (w *work) reap(k Key, present Netns, limit int) error {
	if !w.visible(present) {
		return nil
	}
	checked, gone, dead, err := w.look(k, present, limit)
	if err != nil {
		return err
	}
	if gone > 4 && 2*gone > checked {
		w.warn("most of the checked namespaces are gone, which can be an error: no lease is freed", "checked", checked, "gone", gone)
		return nil
	}
	for _, n := range dead {
		h, err := n.Holding()
		if err != nil {
			return err
		}
		w.warn("leases are freed: their namespace is gone", "owner", h.Owner.String(), "container", h.Owner.ContainerID,
			"interface", h.Owner.IfName, "netns", h.Owner.Netns.Path, "addresses", len(h.Places))
		w.reaped = append(w.reaped, h.Owner)
		if _, err := w.Retire(h, allPlaces); err != nil {
			return err
		}
	}
	return nil
}

// look judges up to limit namespaces. It returns the number of namespaces that
// it judged, the number of those that are gone, and the holdings of those.
func (w *work) look(k Key, present Netns, limit int) (checked, gone int, dead []ledger.Neighbour, err error) {
	known := map[Netns]bool{present: false}
	seen := 0
	for n, err := range w.Neighbours(k) {
		if err != nil {
			return 0, 0, nil, err
		}
		isDead, ok := known[n.Netns]
		if seen == 4*limit || !ok && checked == limit {
			break
		}
		seen++
		if !ok {
			isDead, err = w.ended(k, present, n)
			if err != nil {
				return 0, 0, nil, err
			}
			known[n.Netns] = isDead
			checked++
			if isDead {
				gone++
				limit = max(limit, reapSample)
			}
		}
		if isDead {
			dead = append(dead, n)
		}
	}
	return checked, gone, dead, nil
}

// ended says whether the namespace of a holding is surely gone. The kernel gives the inode
// number of a namespace that is gone to the next one. Where namespaces are named by
// process, the namespace of the present call can therefore look like that of a dead pod.
func (w *work) ended(k Key, present Netns, n ledger.Neighbour) (bool, error) {
	if w.dead(present, n.Netns) {
		return true, nil
	}
	if n.Netns.Path == present.Path || n.Netns.Dev != present.Dev || n.Netns.Ino != present.Ino || !leftByProcess(n.Netns.Path) {
		return false, nil
	}
	h, err := n.Holding()
	return err == nil && h.Owner.ContainerID != k.ContainerID, err
}

// visible says whether the namespace of the present call is at its path.
func (w *work) visible(present Netns) bool {
	if present.Path == "" {
		return false
	}
	alive, err := w.alive(present)
	return err == nil && alive
}

// dead says whether a namespace is surely gone.
func (w *work) dead(present, n Netns) bool {
	if n.Path == "" || !samePlace(n.Path, present.Path) {
		return false
	}
	alive, err := w.alive(n)
	return err == nil && !alive
}
