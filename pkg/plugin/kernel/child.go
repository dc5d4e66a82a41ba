// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// child executes plan.Child.
type child struct {
	namespace
	op plan.Child
}

// children is a run.
type children []child

// do creates the links. It leaves alone a link of ours that is as planned. It replaces
// a link of ours with other parameters: that one is a leftover of an earlier plan.
func (r children) do(ctx context.Context) error {
	r[0].adds = true
	parents, err := r.parents(ctx, r[0].doing("add"))
	if err != nil {
		return err
	}
	var todo work
	for i, n := range named(ctx, r[0].conn, r, func(m child) conf.LinkName { return m.op.Name }) {
		if err := todo.add(r[i], parents[i], n); err != nil {
			return err
		}
	}
	return todo.do(ctx, r[0].conn)
}

const deleting = "delete interface"

// doing returns the words for an error about the link, such as "add macvlan".
func (m child) doing(verb string) string { return verb + " " + m.op.Mode.Kind() }

// work is what a run has to do.
type work struct {
	unmarked children // that lack nothing but their mark
	wrong    []rtnl.Link
	missing  children
	on       []parentage // of the missing ones
}

// add looks at what is there under a link's name.
func (w *work) add(m child, p parentage, n rtnl.Named) error {
	is := n.Link
	switch {
	case errors.Is(n.Err, unix.ENODEV):
		w.missing, w.on = append(w.missing, m), append(w.on, p)
		return nil
	case n.Err != nil:
		return classify(m.doing("add"), string(m.op.Name), n.Err)
	case !m.owns(is):
		return cnierr.New(cnierr.BadEnv, m.doing("add"), string(m.op.Name),
			"choose another interface name in the pod's networks annotation", "the pod has %s of that name", m.describe(is))
	}
	marked := is
	marked.Alias = m.op.Mark
	switch {
	case len(m.differences(marked, p)) > 0:
		w.wrong = append(w.wrong, is)
		w.missing, w.on = append(w.missing, m), append(w.on, p)
	case is.Alias != m.op.Mark:
		w.unmarked = append(w.unmarked, m)
	}
	return nil
}

func (w *work) do(ctx context.Context, pod *rtnl.Conn) error {
	var changes []rtnl.Change
	for _, m := range w.unmarked {
		changes = append(changes, m.marking())
	}
	for i, err := range pod.Each(ctx, changes...) {
		if err != nil {
			return classify(w.unmarked[i].doing("add"), string(w.unmarked[i].op.Name), err)
		}
	}
	for _, l := range w.wrong { // seldom more than one
		if err := remove(ctx, pod, []rtnl.Link{l}, nil); err != nil {
			return err
		}
	}
	return w.missing.create(ctx, w.on)
}

// undo removes the links that are ours, also those that the pod has renamed or moved to
// another namespace.
func (r children) undo(ctx context.Context) error {
	links, err := r[0].conn.Links(ctx)
	if errors.Is(err, rtnl.ErrTooMuch) {
		return r.undoNamed(ctx)
	}
	if err != nil {
		return classify(deleting, string(r[0].op.Name), err)
	}
	var ours []rtnl.Link
	var away children
	for _, m := range slices.Backward(r) {
		if l, ok := m.among(links); ok {
			ours = append(ours, l)
		} else if !m.op.MAC.IsZero() && !m.adds { // without MAC, the record is lost
			away = append(away, m)
		}
	}
	return errors.Join(remove(ctx, r[0].conn, ours, links), away.removeElsewhere(ctx))
}

// undoNamed removes the links that have the name of ADD. The others end with the namespace of
// the pod, which made so many links that they cannot be listed.
func (r children) undoNamed(ctx context.Context) error {
	var errs []error
	for i, n := range named(ctx, r[0].conn, r, func(m child) conf.LinkName { return m.op.Name }) {
		if n.Err == nil && r[i].owns(n.Link) {
			errs = append(errs, remove(ctx, r[0].conn, []rtnl.Link{n.Link}, nil))
		} else {
			errs = append(errs, classify(deleting, string(r[i].op.Name), ignore(n.Err, unix.ENODEV)))
		}
	}
	return errors.Join(errs...)
}

// among finds our link among those of the pod, whatever its name is.
func (m child) among(links []rtnl.Link) (rtnl.Link, bool) {
	i := slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Has(string(m.op.Name)) && m.owns(l) })
	if i < 0 {
		i = slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Alias == m.op.Mark && m.owns(l) })
	}
	if i < 0 {
		i = slices.IndexFunc(links, m.owns)
	}
	if i < 0 {
		return rtnl.Link{}, false
	}
	return links[i], true
}

func (r children) check(ctx context.Context) error { return checkEach(ctx, r) }

func (m child) check(ctx context.Context) error {
	action := m.doing("check")
	is, err := m.conn.LinkByName(ctx, string(m.op.Name))
	if errors.Is(err, unix.ENODEV) {
		return m.missing(ctx, action)
	}
	if err != nil {
		return classify(action, string(m.op.Name), err)
	}
	if !m.owns(is) {
		return damaged(action, string(m.op.Name), m.recreate(),
			"want the interface with alias %s, got %s", m.op.Mark, m.describe(is))
	}
	parents, err := children{m}.parents(ctx, action)
	if err != nil {
		return err
	}
	if v := m.op.VLAN; v.ID != 0 && parents[0].MTU < m.op.MTU { // repair raises the MTU of the VLAN, too
		if nic, err := m.host.LinkByName(ctx, string(v.NIC)); err == nil {
			parents[0].MTU = nic.MTU
		}
	}
	var found, fixes []string
	changed := []error{parents[0].down(m, action), m.renamed(parents[0], action)}
	for _, d := range m.differences(is, parents[0]) {
		if d.changed != nil {
			changed = append(changed, damaged(action, string(m.op.Name), d.fix, "%w", d.changed))
			continue
		}
		found, fixes = append(found, d.what), append(fixes, d.fix...)
	}
	if len(found) == 0 {
		return errors.Join(changed...)
	}
	return errors.Join(append([]error{damaged(action, string(m.op.Name), fixes, "%s", strings.Join(found, ", "))}, changed...)...)
}

// missing returns the finding that no link has our name. If our link has
// another name, it says which.
func (m child) missing(ctx context.Context, action string) error {
	links, err := m.conn.Links(ctx)
	if err != nil {
		return classify(action, string(m.op.Name), err)
	}
	is, ok := m.among(links)
	if !ok {
		found := damaged(action, string(m.op.Name), m.redo(m.op), "the pod has no such interface")
		if at, is := m.elsewhere(ctx); at != "" {
			found = damaged(action, string(m.op.Name), m.redo(m.op, plan.IP(at)+shell.Command(" link del dev %s", is.Name)), "it was moved to the namespace %s, as %q", at, is.Name)
		}
		if parents, err := (children{m}).parents(ctx, action); err == nil { // else do reports it
			found = errors.Join(found, m.renamed(parents[0], action))
		}
		return found
	}
	now := is.Name // the pod chose it
	down, name, up := m.ip("link set dev %s down", now), m.ip("link set dev %s name %s", now, m.op.Name), m.ip("link set dev %s up", m.op.Name)
	return damaged(action, string(m.op.Name), []string{down, name, up}, "%w to %q", ErrRenamed, is.Name)
}

// renamed returns a finding if the parent has another name now.
func (m child) renamed(p parentage, action string) error {
	if p.Name == string(m.op.Parent) {
		return nil
	}
	return damaged(action, string(m.op.Name), []string{m.parentIP("link set dev %s name %s", p.Name, m.op.Parent)}, "%w", &ChangedError{Property: Master, Want: string(m.op.Parent), Got: p.Name})
}

// recreate returns the commands that replace an existing link with ours.
func (m child) recreate() []string { return m.redo(m.op, m.ip("link del dev %s", m.op.Name)) }

// owns says whether a link is ours; see plan.Child.
func (m child) owns(l rtnl.Link) bool {
	if !m.isKind(l) {
		return false // any program can set an alias: it proves nothing alone
	}
	if l.Alias == m.op.Mark {
		return true
	}
	if m.op.Mode == conf.L2 && l.Name != string(m.op.Name) && l.Name != m.nameAside() {
		return false // all ipvlans of a NIC have its MAC
	}
	return !m.op.MAC.IsZero() && parent.MAC(l) == m.op.MAC && !strings.HasPrefix(l.Alias, plan.MarkPrefix)
}

// isKind says whether a link is of the kind of ours. Without a mode, the record is lost.
func (m child) isKind(l rtnl.Link) bool {
	if m.op.Mode == "" {
		return childKind(l)
	}
	return l.Kind == m.op.Mode.Kind()
}

// childKind says whether a link is of a kind that roce makes on a NIC.
func childKind(l rtnl.Link) bool { return l.Kind == "macvlan" || l.Kind == "ipvlan" }

// describe describes a link that is not ours.
func (m child) describe(l rtnl.Link) string {
	kind := l.Kind
	if kind == "" {
		kind = l.Encap()
	}
	s := fmt.Sprintf("a link of kind %s with address %s", kind, parent.MAC(l))
	if l.Alias != "" {
		s += fmt.Sprintf(" and alias %q", l.Alias)
	}
	return s
}

// parentage is the link that carries a child: the one that we ask for, as it is now.
type parentage struct {
	rtnl.Link
	nsid int32 // of its namespace, in the pod's
}

// ErrParentDown is in the finding of Check about a link that is in place when the NIC
// below it cannot carry anything.
var ErrParentDown = errors.New("its NIC")

// down returns a finding if the NIC is down or has no carrier.
func (p parentage) down(m child, action string) error {
	switch {
	case p.Flags&unix.IFF_UP == 0:
		return damaged(action, string(m.op.Name), []string{m.parentIP("link set dev %s up", p.Name)}, "%w %s is down", ErrParentDown, p.named(m))
	case p.Flags&unix.IFF_LOWER_UP == 0:
		return cnierr.New(cnierr.Damaged, action, string(m.op.Name), "look at cable and switch port of the NIC", "%w %s has no carrier", ErrParentDown, p.named(m))
	}
	return nil
}

// named returns the name of the parent now, and also its name in ADD if that was another.
func (p parentage) named(m child) string {
	if p.Name == string(m.op.Parent) {
		return p.Name
	}
	return fmt.Sprintf("%s (%s in ADD)", p.Name, m.op.Parent)
}

// parentIP returns an ip(8) command in the namespace of the parent.
func (m child) parentIP(format string, args ...any) string {
	ip := "ip"
	if m.op.InPod {
		ip = plan.IP(plan.NetnsName(m.path))
	}
	return ip + " " + shell.Command(format, args...)
}

// standsOn says whether a link is on the parent. If the parent is of the kind of the child, the
// kernel has used the link below it (macvlan_common_newlink, ipvlan_link_new). The namespace
// of that link may have no number in ours, so only the index counts.
func (m child) standsOn(p parentage, l rtnl.Link) bool {
	if p.Kind == m.op.Mode.Kind() {
		return l.Lower.Index == p.Lower.Index
	}
	return l.Lower == rtnl.Lower{Index: p.Index, NSID: p.nsid}
}

// parents looks up the parents now: a stored index may belong to another link
// by now, and so may a stored name.
func (r children) parents(ctx context.Context, action string) ([]parentage, error) {
	k, out := r[0].Kernel, make([]parentage, len(r))
	c, nsid := k.host, rtnl.NoNSID
	if r[0].op.InPod {
		c = k.pod
	}
	var err error
	for i, n := range named(ctx, c, r, func(m child) conf.LinkName { return m.op.Parent }) {
		if out[i].Link, err = r[i].parentNow(ctx, c, n, action); err != nil {
			return nil, err
		}
	}
	if c == k.host {
		if nsid, err = k.pod.GiveNSID(ctx, k.hostNS.FD()); err != nil {
			return nil, classify(action, string(r[0].op.Parent), err)
		}
	}
	for i := range out {
		out[i].nsid = nsid
	}
	return out, nil
}

// parentNow returns the link that ADD used, whatever its name is now. found is what has
// its name of ADD.
func (m child) parentNow(ctx context.Context, c *rtnl.Conn, found rtnl.Named, action string) (rtnl.Link, error) {
	want := m.op.NIC
	is := func(l rtnl.Link) bool {
		return want == plan.NIC{} || l.Index == want.Index || parent.MAC(l) == want.MAC
	}
	if found.Err == nil && is(found.Link) {
		return found.Link, nil
	}
	if found.Err != nil && !errors.Is(found.Err, unix.ENODEV) {
		return rtnl.Link{}, classify(action, string(m.op.Parent), found.Err)
	}
	if want.Index != 0 {
		if l, err := c.LinkByIndex(ctx, want.Index); err == nil && parent.MAC(l) == want.MAC {
			return l, nil
		}
	}
	if found.Err != nil {
		return rtnl.Link{}, cnierr.New(cnierr.BadParent, action, string(m.op.Parent), "ip link shows whether the master was renamed or removed", "%w", found.Err)
	}
	return rtnl.Link{}, cnierr.New(cnierr.BadParent, action, string(m.op.Parent), "delete the pod: its NIC was removed, or renamed and given another MAC",
		"it is another NIC than in ADD: want MAC %s, got %s", want.MAC, parent.MAC(found.Link))
}

// difference is one property of a link that is not as planned, and the commands
// that correct it. If another program may set the property, changed says so.
type difference struct {
	what    string
	fix     []string
	changed *ChangedError
}

func (m child) differences(l rtnl.Link, p parentage) []difference {
	var out []difference
	differ := func(what string, want, got any, fix ...string) {
		if want != got {
			out = append(out, difference{what: fmt.Sprintf("want %s %v, got %v", what, want, got), fix: fix})
		}
	}
	change := func(what, want, got, fix string, raise int) {
		if want != got {
			out = append(out, difference{fix: []string{fix}, changed: &ChangedError{what, want, got, raise}})
		}
	}
	if !m.isKind(l) || !m.standsOn(p, l) {
		return []difference{{what: fmt.Sprintf("want %s on %s, got %s", m.op.Mode.Article(), m.op.Parent, m.describe(l)), fix: m.recreate()}}
	}
	set := m.ip("link set dev %s ", m.op.Name)
	differ("alias", m.op.Mark, l.Alias, set+"alias "+m.op.Mark)
	differ("mode", m.op.Mode, conf.Mode(l.Mode), set+"type "+m.op.Mode.Kind()+" mode "+string(m.op.Mode))
	change(MAC, m.op.MAC.String(), parent.MAC(l).String(), set+"address "+m.op.MAC.String(), 0)
	raise := 0
	if l.MTU < m.op.MTU && m.op.MTU <= p.MTU {
		raise = m.op.MTU
	}
	change(MTU, fmt.Sprint(m.op.MTU), fmt.Sprint(l.MTU), set+fmt.Sprint("mtu ", m.op.MTU), raise)
	return out
}

// create makes the links and marks them. One sendmsg has all messages, so that
// no signal comes between a link and its mark. It uses the pod's socket, so
// that the kernel makes the links in the pod.
func (r children) create(ctx context.Context, on []parentage) error {
	if len(r) == 0 {
		return nil
	}
	var changes []rtnl.Change
	for i, m := range r {
		changes = append(changes, m.creation(string(m.op.Name), on[i]), m.marking())
	}
	answers := r[0].conn.Batch(ctx, changes...)
	for i, m := range r {
		if err := m.created(ctx, on[i], answers[2*i], answers[2*i+1]); err != nil {
			return err
		}
	}
	return nil
}

// created interprets what the kernel answers about making and marking the link.
func (m child) created(ctx context.Context, p parentage, making, marking error) error {
	switch {
	case errors.Is(making, unix.EEXIST):
		return m.createAside(ctx, p)
	case making != nil:
		return m.refused(making)
	case marking != nil:
		return errors.Join(classify(m.doing("mark"), string(m.op.Name), marking), children{m}.undo(context.WithoutCancel(ctx)))
	}
	return nil
}

// createAside makes the link under a name that no other link has and renames
// it. Kernels before 6.15 make a link in the namespace of its parent and then
// move it (rtnl_newlink_create: link_net ? : tgt_net). So a link of the host
// with our name is in the way. If the process dies before the rename, the link
// keeps its first name until the pod is gone.
func (m child) createAside(ctx context.Context, p parentage) error {
	name := m.nameAside()
	if err := m.conn.Do(ctx, m.creation(name, p)); err != nil {
		return m.refused(err)
	}
	l, err := m.conn.LinkByName(ctx, name)
	if err != nil {
		return classify(m.doing("rename"), name, err)
	}
	if err := m.conn.Do(ctx, rtnl.Rename(l.Index, string(m.op.Name), m.op.Mark)); err != nil {
		return errors.Join(classify(m.doing("rename"), string(m.op.Name), err),
			remove(context.WithoutCancel(ctx), m.conn, []rtnl.Link{l}, nil))
	}
	return nil
}

// nameAside returns a name that no other link has. It follows from the operation, so that
// undo finds the link of a process that died.
func (m child) nameAside() string {
	if m.op.Mode != conf.L2 {
		return "rc" + hex.EncodeToString(m.op.MAC[:])
	}
	sum := sha256.Sum256([]byte(m.op.Mark)) // ipvlans share a MAC
	return "rc" + hex.EncodeToString(sum[:6])
}

// creation returns the change that makes the link under a name.
func (m child) creation(name string, p parentage) rtnl.Change {
	spec := rtnl.Child{Kind: m.op.Mode.Kind(), Name: name, Lower: rtnl.Lower{Index: p.Index, NSID: p.nsid}, MTU: m.op.MTU, Mode: string(m.op.Mode), BCQueueLen: m.op.BCQueueLen}
	if !m.op.MAC.IsZero() {
		spec.Address = m.op.MAC[:]
	}
	return rtnl.AddChild(spec)
}

// marking returns the change that marks the link. It uses the name of the link,
// because the index is not known until the kernel answers.
func (m child) marking() rtnl.Change { return rtnl.SetAlias(string(m.op.Name), m.op.Mark) }

// remove removes links of a pod, in one group if possible. all are the links
// that are there.
func remove(ctx context.Context, pod *rtnl.Conn, doomed, all []rtnl.Link) error {
	var errs []error
	for i, err := range pod.DeleteLinks(ctx, doomed, all) {
		errs = append(errs, classify(deleting, doomed[i].Name, err))
	}
	return errors.Join(errs...)
}

// refused says why the kernel did not create the link.
func (m child) refused(err error) error {
	return classify(m.doing("add"), string(m.op.Name), fmt.Errorf("on %q: %w", m.op.Parent, err),
		meaning{unix.ENODEV, cnierr.BadParent, "ip link shows whether the master was renamed or removed"},
		meaning{unix.EBUSY, cnierr.BadParent, "a NIC has either macvlans or ipvlans: use one kind of child for all networks of the master; if the master is a port of a bridge, bond or switch, use the interface of that bridge, bond or switch as master; if it has a passthru child, delete that pod first; fillers of its GID table are macvlans, too: ip netns del roce-gids, while no pod uses its rdma.gidIndex"},
		meaning{unix.EINVAL, cnierr.BadParent, "use an Ethernet master and an MTU of at most the master's; a passthru child must be the only child of its master, also of fillers of its GID table: ip netns del roce-gids"},
		meaning{unix.EOPNOTSUPP, cnierr.Unsupported, "load the driver on the node: modprobe " + m.op.Mode.Kind()},
		meaning{unix.EEXIST, cnierr.TryAgain, "another process made a link of the same name: " + cnierr.Again},
	)
}
