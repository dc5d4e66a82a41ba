// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLinksAreFoundByManyNamesAtOnce(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	names := make([]string, 100)
	for i := range names {
		names[i] = "lo"
		if i%3 == 1 {
			names[i] = fmt.Sprint("nosuch", i)
		}
	}
	found := c.LinksByName(t.Context(), names...)
	if len(found) != len(names) {
		t.Fatalf("%d answers, want %d", len(found), len(names))
	}
	for i, n := range found {
		if missing := i%3 == 1; missing != errors.Is(n.Err, unix.ENODEV) || !missing && (n.Err != nil || n.Link.Name != "lo") {
			t.Errorf("%s: got %q, %v", names[i], n.Link.Name, n.Err)
		}
	}
	if found := c.LinksByName(t.Context()); len(found) != 0 {
		t.Errorf("no names: %d answers", len(found))
	}
}

// More refusals than the socket can hold: each has the kernel's words.
func TestManyChangesHaveTheirResults(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	var changes []Change
	const many = 2000
	for i := range many {
		index := int32(1)
		if i%2 == 1 {
			index = 99
		}
		changes = append(changes, AddAddress(index, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)))
	}
	errs := c.Each(t.Context(), changes...)
	if len(errs) != many {
		t.Fatalf("%d results, want %d", len(errs), many)
	}
	for i, err := range errs {
		if refused := i%2 == 1; refused != errors.Is(err, unix.ENODEV) || !refused && err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	if as, err := c.Addresses(t.Context(), 1); err != nil || len(as) != many/2 {
		t.Errorf("%d addresses, %v, want %d", len(as), err, many/2)
	}
}

func TestEachResultOfACallThatIsOverSaysSo(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range c.Batch(ctx, SetUp("lo", 0), SetAlias("lo", "x")) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	}
	if l, err := c.LinkByName(t.Context(), "lo"); err != nil || l.Alias != "" || l.Flags&unix.IFF_UP != 0 {
		t.Errorf("got %+v, %v: nothing may be done", l, err)
	}
}

// lo is the one link of a fresh namespace, and cannot be removed.
func TestGroups(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	const group = 0x726f6365
	if err := c.Do(t.Context(), deleteGroup(group)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a group without links: %v, want ENODEV", err)
	}
	errs := c.Batch(t.Context(), setGroup(1, group), deleteGroup(group))
	if errs[0] != nil || !errors.Is(errs[1], unix.EOPNOTSUPP) {
		t.Errorf("got %v, want EOPNOTSUPP for lo", errs)
	}
	if l, err := c.LinkByIndex(t.Context(), 1); err != nil || l.Group != group {
		t.Errorf("lo is in group %#x, %v, want %#x", l.Group, err, group)
	}
}

func TestALinkOfAnotherIsNotInTheGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		taken []uint32
		want  uint32
	}{
		{nil, firstGroup}, {[]uint32{0, 1, firstGroup + 1}, firstGroup}, {[]uint32{firstGroup + 1, firstGroup}, firstGroup + 2},
	} {
		var all []Link
		for _, g := range tt.taken {
			all = append(all, Link{Group: g})
		}
		if got := freeGroup(all); got != tt.want {
			t.Errorf("with links in %#x: got %#x, want %#x", tt.taken, got, tt.want)
		}
	}
}

// One link of the group cannot be removed: the kernel then removes none.
func TestLinksThatCannotGoTogetherGoOneByOne(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	for _, group := range []uint32{0, firstGroup} {
		if err := c.Do(t.Context(), setGroup(1, group)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c"} {
			if err := c.Do(t.Context(), bridge(name)); err != nil {
				t.Fatal(err)
			}
		}
		links, err := c.Links(t.Context())
		if err != nil || len(links) != 4 {
			t.Fatalf("%d links, %v, want lo and three", len(links), err)
		}
		if together := c.deleteTogether(t.Context(), links[1:3], nil); together != (group == 0) {
			t.Errorf("lo in group %#x: together %v", group, together)
		}
		for _, err := range c.DeleteLinks(t.Context(), links[1:], nil) {
			if err != nil {
				t.Error(err)
			}
		}
		if left, err := c.Links(t.Context()); err != nil || len(left) != 1 || left[0].Name != "lo" {
			t.Errorf("want lo to be left, got %+v, %v", left, err)
		}
	}
}

// bridge makes a link without a lower link.
func bridge(name string) Change {
	return Change{request(unix.RTM_NEWLINK, creation, linkHeader(0), text(unix.IFLA_IFNAME, name), kind("bridge"))}
}
