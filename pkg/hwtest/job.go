// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// job runs the steps raw-qp and gid-time-job while ib_write_bw runs between two pods. transfers
// says that the NIC can transfer.
func (s *scene) job(ctx context.Context, in [2]*kernel.Kernel, transfers bool) {
	of := s.port.String()
	c, err := nldev.Dial()
	if err != nil {
		s.say("raw-qp", cannotTell(of, err.Error(), "the module ib_core"))
		return
	}
	defer c.Close()
	ctx, stop := context.WithCancel(ctx)
	running, pairs, err := s.connect(ctx, c, in)
	defer func() {
		stop()
		for _, p := range running {
			<-p.ended
		}
	}()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		s.say("raw-qp", cannotTell(of, err.Error(), "the package perftest"))
		return
	case err != nil:
		s.say("raw-qp", s.Node.ofNIC(s.port, clientFailed(of, err.Error())))
		return
	}
	s.say("raw-qp", s.raw(ctx, c, pairs))
	if !transfers {
		s.say("gid-time-job", cannotTell(of, "ib_write_bw does not transfer", "a transfer: see pod-rdma"))
		return
	}
	found := s.pods[0].times(ctx, s.v)
	if client := running[1]; client.over() {
		found = s.Node.ofNIC(s.port, clientFailed(of, "the transfer ended: "+lastLine(client.said.String())))
	}
	s.say("gid-time-job", found)
}

// connect starts ib_write_bw in two pods. It returns what runs, the server first, and a queue
// pair of each.
func (s *scene) connect(ctx context.Context, c *nldev.Conn, in [2]*kernel.Kernel) (running []*program, pairs [2]uint32, err error) {
	args := func(p *pod) []string {
		return slices.Concat([]string{"ib_write_bw"}, p.on(s.port), []string{"--size=65536", "--duration=600", "-p", "18815"})
	}
	server, err := start(ctx, in[1], args(s.pods[1])...)
	if err != nil {
		return nil, pairs, err
	}
	running = append(running, server)
	peer, _ := s.pods[1].target(s.port)
	for range clientTries {
		client, err := start(ctx, in[0], append(args(s.pods[0]), peer.String())...)
		if err != nil {
			return running, pairs, err
		}
		running = []*program{server, client}
		err = s.wait(ctx, func() error {
			for i, p := range []*program{client, server} {
				own, err := connected(ctx, c, s.port.Device.Index, p.pid)
				if err != nil || p.over() {
					return err
				}
				if len(own) == 0 {
					return errors.New("ib_write_bw does not connect")
				}
				pairs[i] = own[0]
			}
			return nil
		})
		if err != nil || !client.over() {
			return running, pairs, err
		}
		pause(ctx)
	}
	return running, pairs, fmt.Errorf("ib_write_bw does not connect: %s", lastLine(running[1].said.String()))
}

// raw looks for the GID index in what the hardware tells of the queue pairs of two pods.
func (s *scene) raw(ctx context.Context, c *nldev.Conn, pairs [2]uint32) report.Finding {
	of := s.port.String()
	var dumps [2][]byte
	var index [2]int
	for i, p := range s.pods[:2] {
		_, index[i] = p.target(s.port)
		var err error
		dumps[i], err = raw(ctx, c, s.port.Device.Index, pairs[i])
		switch {
		case errors.Is(err, errNotOffered):
			return ok(of, "a raw queue pair is %v", err)
		case err != nil:
			return cannotTell(of, fmt.Sprintf("queue pair %d: %v", pairs[i], err), "ib_write_bw that runs longer")
		}
	}
	places := indexAt(dumps, index)
	found := fmt.Sprintf("the GID indexes %d and %d are at these bytes of %d: %v", index[0], index[1], len(dumps[0]), places)
	peer, _ := s.pods[1].target(s.port)
	gid := peer.As16()
	at := bytes.Index(dumps[0], gid[:])
	found += fmt.Sprintf("; the GID of the peer begins at byte %d, so src_addr_index of mlx5 would be at %d", at, at-beforeGID)
	if len(places) == 0 {
		return problem(of, found, aKnownFault)
	}
	return ok(of, "%s", found)
}

// beforeGID is how many bytes before the peer's GID mlx5 has src_addr_index (mlx5_ifc.h,
// mlx5_ifc_ads_bits).
const beforeGID = 7

// indexAt returns the places at which each of two dumps has its own index.
func indexAt(dumps [2][]byte, index [2]int) (places []int) {
	for i := range min(len(dumps[0]), len(dumps[1])) {
		if int(dumps[0][i]) == index[0] && int(dumps[1][i]) == index[1] {
			places = append(places, i)
		}
	}
	return places
}
