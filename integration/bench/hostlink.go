// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import "strconv"

// roceLinked returns our configuration of one NIC with a link to the node.
func (w *world) roceLinked(name string, dual bool, probe any) (*chain, error) {
	link := object{"routes": []any{"10.96.0.0/12", "fd00:96::/108"}}
	return w.ourChain(name, dual, probe, 1, object{"master": nic(0), "hostLink": link}, strconv.Itoa(firstNet))
}

// linked is the contest between an attachment with a link to the node and one without.
func linked(w *world, runs int) (contest, error) {
	with, err := w.roceLinked("linked", false, nil)
	if err != nil {
		return contest{}, err
	}
	without, err := w.roce("alone", false, nil)
	if err != nil {
		return contest{}, err
	}
	const link = "roce with hostLink"
	return contest{
		name: "IPv4, hostLink", against: "without", runs: runs,
		players: []player{
			{name: link, add: with.add, del: with.del},
			{name: roce, add: without.add, del: without.del},
		},
		rows: []row{
			{"ADD, default checks", add, link, roce, 1.50, ""},
			{"DEL", del, link, roce, 0, ""},
		},
	}, nil
}
