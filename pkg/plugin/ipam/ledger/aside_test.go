// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

// asides returns all addresses that are set aside.
func asides(t *testing.T, s Store) []Aside {
	t.Helper()
	var out []Aside
	must(t, s.View(t.Context(), always(func(l *Ledger) { out = slices.Collect(l.Asides()) })))
	return out
}

func TestAnAddressIsSetAsideUntilItIsDropped(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	want := []Aside{
		{addr(1), Owner{IfName: "net1", Program: "roce", Netns: netns.Ref{Path: "/run/netns/x", ID: netns.ID{Dev: 4, Ino: 7}}}},
		{addr(2), Owner{}},
	}
	err := s.Update(t.Context(), always(func(l *Ledger) {
		l.SetAside(want[1])
		l.SetAside(want[0])
	}))
	must(t, err)
	if diff := gocmp.Diff(want, asides(t, s), addrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err = s.Update(t.Context(), always(func(l *Ledger) {
		if got, found := l.Aside(addr(1)); !found || got != want[0] {
			t.Errorf("got %v, %t", got, found)
		}
		if _, found := l.Aside(addr(3)); found {
			t.Error("an address is set aside that is not")
		}
		l.DropAside(addr(1))
	}))
	if diff := gocmp.Diff(want[1:], asides(t, s), addrs); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if why := damage(t, s); why != nil {
		t.Errorf("it counts as damage: %v", why)
	}
}

// The container is not known: only one plugin can have made the interface in the namespace.
func TestAnAsideBelongsToTheInterfaceOfItsNamespace(t *testing.T) {
	t.Parallel()
	ns := netns.ID{Dev: 4, Ino: 7}
	aside := func(ifName, program string, in netns.ID) Aside {
		return Aside{addr(1), Owner{IfName: ifName, Program: program, Netns: netns.Ref{ID: in}}}
	}
	roce, other := Key{ContainerID: "c1", IfName: "net1", Program: "roce"}, Key{ContainerID: "c1", IfName: "net1", Program: "macvlan"}
	for _, c := range []struct {
		a    Aside
		k    Key
		in   netns.ID
		want bool
	}{
		{aside("net1", "roce", ns), roce, ns, true},
		{aside("net1", "", ns), other, ns, true},
		{aside("net1", "", ns), roce, ns, false},
		{aside("net1", "roce", ns), other, ns, false},
		{aside("net2", "roce", ns), roce, ns, false},
		{aside("net1", "roce", netns.ID{Dev: 4, Ino: 8}), roce, ns, false},
		{aside("net1", "roce", netns.ID{Dev: 5, Ino: 7}), roce, ns, false},
		{aside("net1", "roce", netns.ID{}), roce, netns.ID{}, false}, // several had it
	} {
		if got := c.a.Of(c.k, c.in); got != c.want {
			t.Errorf("%+v of %+v in %v: got %t", c.a, c.k, c.in, got)
		}
	}
}

func TestAnOwnerIsNamedByWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	o := Owner{PodNamespace: "ml", PodName: "trainer-0", ContainerID: "c1", Netns: netns.Ref{Path: "/run/netns/x"}}
	for _, c := range []struct {
		want   string
		forget func()
	}{
		{"pod ml/trainer-0", func() { o.PodNamespace = "" }},
		{"pod trainer-0", func() { o.PodName = "" }},
		{"container c1", func() { o.ContainerID = "" }},
		{"namespace /run/netns/x", func() { o.Netns = netns.Ref{} }},
		{"several namespaces", func() {}},
	} {
		if got := o.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		c.forget()
	}
}

// A pod that comes back under its name gets its addresses back, in any container.
func TestAnIdentityIsThatOfThePodOrElseOfTheContainer(t *testing.T) {
	t.Parallel()
	pod := Owner{ContainerID: "c1", IfName: "net1", Network: "n", Program: "roce", PodNamespace: "ml", PodName: "trainer-0", PodUID: "u1", Netns: netns.Ref{Path: "/x"}}
	same := Owner{ContainerID: "c2", IfName: "net1", PodNamespace: "ml", PodName: "trainer-0", PodUID: "u2"}
	alone := Owner{ContainerID: "c1", IfName: "net1"}
	if pod.Identity() != same.Identity() || alone.Identity() != (Owner{ContainerID: "c1", IfName: "net1", Network: "n", Program: "p"}).Identity() {
		t.Error("what comes back has another identity")
	}
	seen := map[[32]byte]Owner{}
	for _, o := range []Owner{
		pod, alone,
		{ContainerID: "c2", IfName: "net1"},
		{ContainerID: "c1", IfName: "net2"},
		{IfName: "net2", PodNamespace: "ml", PodName: "trainer-0"},
		{IfName: "net1", PodNamespace: "ai", PodName: "trainer-0"},
		{IfName: "net1", PodNamespace: "ml", PodName: "trainer-1"},
	} {
		if other, is := seen[o.Identity()]; is {
			t.Errorf("%+v and %+v are one", o, other)
		}
		seen[o.Identity()] = o
	}
}
