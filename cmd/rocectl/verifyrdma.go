// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/podenv"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// rdma tests what RDMA programs of a pod need. here says that this is the pod itself.
func (f *verifyFlags) rdma(cmd *cobra.Command, p verify.Pod, here bool) []report.Answer {
	ns, err := f.env.read(cmd)
	if err != nil {
		return []report.Answer{failedRDMA(p, err)}
	}
	rails, err := p.Rails(cmd.Context())
	if err != nil {
		return []report.Answer{failedRDMA(p, err)}
	}
	var out []report.Answer
	for _, r := range rails {
		out = append(out, gidOf(p, r, ns.Rails))
	}
	return append(out, container(p, ns.Rails, here))
}

// ports returns the RDMA port of each rail, for tests by RDMA.
func (f *verifyFlags) ports(cmd *cobra.Command) (map[conf.LinkName]gids.Rail, error) {
	ns, err := f.env.read(cmd)
	if err != nil {
		return nil, err
	}
	out := map[conf.LinkName]gids.Rail{}
	for _, r := range ns.Rails {
		if _, there := out[r.Link]; !there || r.Addr.Is4() {
			out[r.Link] = r
		}
	}
	return out, nil
}

// failedRDMA tells a pod without GIDs from one that cannot be judged.
func failedRDMA(p verify.Pod, err error) report.Answer {
	if cnierr.CodeOf(err) == cnierr.NoGID {
		return lacking(verify.GID, "all rails of "+p.Name, err.Error(), "rocectl doctor gid-table  # on the node")
	}
	return report.Answer{Check: verify.GID, Finding: report.Finding{
		Verdict: report.CannotTell, Of: "all rails of " + p.Name, Found: err.Error(), Missing: "RDMA devices: rocectl doctor on the node says what is missing",
	}}
}

func lacking(check, of, found, fix string) report.Answer {
	return report.Answer{
		Check: check, Why: "RDMA programs in the pod fail, or do not use this rail",
		Finding: report.Finding{Verdict: report.Problem, Of: of, Found: found, Fix: fix},
	}
}

func gidOf(p verify.Pod, r verify.Rail, have []gids.Rail) report.Answer {
	for _, g := range have {
		if g.Link == r.Link {
			return report.Answer{Check: verify.GID, Finding: report.Finding{
				Verdict: report.OK, Of: p.Of(r), Found: fmt.Sprintf("%s of %s has GID index %d of %s", g.Addr, r.Link, g.Index, g.Port),
			}}
		}
	}
	return lacking(verify.GID, p.Of(r), fmt.Sprintf("no RoCE v2 GID has an address of %s", r.Link), "rocectl doctor gid-table rdma-ports  # on the node")
}

// container tests the device files and the limit for locked memory.
func container(p verify.Pod, rails []gids.Rail, here bool) report.Answer {
	a := report.Answer{Check: verify.Container, Finding: report.Finding{Verdict: report.OK, Of: p.Name, Found: "it can open the RDMA devices and lock memory"}}
	if !here {
		a.Verdict, a.Found, a.Missing = report.CannotTell, "this is not the container", "rocectl verify in the container: device files and the limit for locked memory"
		return a
	}
	own, err := podenv.Own()
	if err == nil {
		err = own.Check(rails)
	}
	if err != nil {
		return lacking(verify.Container, p.Name, err.Error(), cnierr.CNI("rocectl", err).Details)
	}
	return a
}
