// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// onVLANs replaces the links of the rails by their VLANs. A VLAN that has the name that
// roce would give to it takes one round trip, for all rails together.
func (s search) onVLANs(ctx context.Context, req conf.Request, links []plan.Link, faults []error) error {
	var names []string
	for i := range links {
		if faults[i] == nil {
			names = append(names, string(conf.VLAN{ID: req.VLAN, NIC: links[i].Name}.Name()))
		}
	}
	named := s.LinksByName(ctx, names...)
	for i, nic := range links {
		if faults[i] != nil {
			continue
		}
		is, err := s.existing(ctx, req.VLAN, nic, named[0])
		named = named[1:]
		if err == nil {
			links[i], err = s.vlan(req, nic, is)
		}
		var verdict *cnierr.Error
		if err != nil && !errors.As(err, &verdict) {
			return err
		}
		faults[i] = err
	}
	return nil
}

// existing returns the VLAN of a NIC, under any name, and the zero link if there is none.
// found is what has the name that roce would give to it.
func (s search) existing(ctx context.Context, id int, nic plan.Link, found rtnl.Named) (rtnl.Link, error) {
	is := func(l rtnl.Link) bool {
		return l.Kind == "vlan" && l.VLAN == id && l.Lower.Index == nic.Index && l.Lower.NSID == rtnl.NoNSID
	}
	if found.Err == nil && is(found.Link) {
		return found.Link, nil
	}
	if found.Err != nil && !errors.Is(found.Err, unix.ENODEV) {
		return rtnl.Link{}, found.Err
	}
	links, err := s.Links(ctx)
	if err != nil {
		return rtnl.Link{}, err
	}
	if i := slices.IndexFunc(links, is); i >= 0 {
		return links[i], nil
	}
	if found.Err == nil {
		return rtnl.Link{}, cnierr.New(cnierr.BadParent, "use VLAN", found.Link.Name, "rename that link, or make the VLAN under another name: ip link add link NIC name NAME type vlan id ID",
			"the node has another link of this name, which is not VLAN %d of %s", id, nic.Name)
	}
	return rtnl.Link{}, nil
}

// vlan returns what the plan needs to know of a VLAN. Below it is the NIC, from which it
// gets what it does not have yet.
func (s search) vlan(req conf.Request, nic plan.Link, is rtnl.Link) (plan.Link, error) {
	out := nic
	out.VLAN = &plan.OnVLAN{VLAN: conf.VLAN{ID: req.VLAN, NIC: nic.Name}, Identity: plan.NIC{Index: nic.Index, MAC: nic.MAC}}
	out.Addrs = nil
	if is.Index == 0 {
		out.Name, out.Index = out.VLAN.Name(), 0
		return out, nil
	}
	if err := ready(is, req.MTU); err != nil {
		return plan.Link{}, err
	}
	out.VLAN.Foreign = !ours(is) || is.Name != string(out.VLAN.Name())
	out.Name, out.Index, out.MAC, out.MTU, out.Addrs = conf.LinkName(is.Name), is.Index, MAC(is), is.MTU, own(s.addrs[is.Index])
	out.Layers = append([][]int32{{is.Index}}, nic.Layers...)
	return out, nil
}

// ours says whether roce has made a VLAN.
func ours(l rtnl.Link) bool { return l.Kind == "vlan" && l.Alias == plan.VLANMark }
