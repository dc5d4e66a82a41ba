// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// upgraded is a node with one attachment. Its record is a file of
// format 2, as a former version wrote it.
type upgraded struct {
	*world
	node  func() attach.Node
	del   func() conf.Del
	check func() conf.Request
	empty func(when string)
}

// format2 returns a node for each recorded file in testdata/format2.
func format2() map[string]func(t *testing.T) upgraded {
	of := func(w *world, extra string) upgraded {
		w.pod = w.fake.Pod(podPath("c1"))
		req := func() conf.Request { return w.request("c1", "net1", extra) }
		return upgraded{w, w.node, func() conf.Del { return w.del("c1", "net1") }, req, w.mustBeEmpty}
	}
	return map[string]func(t *testing.T) upgraded{
		"one-rail": func(t *testing.T) upgraded { return of(newWorld(t), "") },
		"eight-rails": func(t *testing.T) upgraded {
			w := newWorld(t)
			w.config = strings.Replace(railsConfig, `"count": 3`, `"count": 8`, 1)
			for i := 3; i <= 8; i++ {
				w.fake.NIC(conf.LinkName(fmt.Sprint("ens", i)), conf.MAC{0x52, 0x54, 0, 0, 0, byte(i)})
			}
			return of(w, "")
		},
		"shared-rdma": func(t *testing.T) upgraded {
			w := newWorld(t)
			w.mode = conf.RDMAShared
			return of(w, "")
		},
		"exclusive-rdma": func(t *testing.T) upgraded {
			w := exclusive(t)
			return of(w, fmt.Sprintf(`, "runtimeConfig": {"CNIDeviceInfoFile": %q}`, filepath.Join(w.dir, "devinfo")))
		},
		"adopted": func(t *testing.T) upgraded {
			w := chain(t)
			return upgraded{w, w.node, func() conf.Del { return w.del("c1", "net1") }, func() conf.Request { return w.adopted("c1", 3, "") }, w.mustBeAsMade}
		},
		"delegated": func(t *testing.T) upgraded {
			f := newForeign(t)
			return upgraded{f.world, func() attach.Node { return f.node() }, func() conf.Del { return f.del("") }, func() conf.Request { return f.request("") }, f.mustBeEmpty}
		},
	}
}

// inFormat2 runs fn for each recorded file, on a node where its attachment
// stands.
func inFormat2(t *testing.T, fn func(t *testing.T, u upgraded)) {
	t.Helper()
	t.Parallel()
	for name, fresh := range format2() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := fresh(t)
			if _, err := u.node().Add(ctx, u.check()); err != nil {
				t.Fatal(err)
			}
			u.now, u.wire.asked = time.Minute, nil
			b, err := os.ReadFile(filepath.Join("testdata", "format2", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), "STATEDIR", u.dir)
			write(t, filepath.Join(u.dir, "attachments", "c1", "net1.json"), text)
			fn(t, u)
		})
	}
}

func TestARecordOfFormat2IsChecked(t *testing.T) {
	inFormat2(t, func(t *testing.T, u upgraded) {
		if err := u.node().Check(ctx, u.check()); err != nil {
			t.Errorf("CHECK of an attachment that is whole: %v", err)
		}
		u.pod.IP("link del net1")
		if _, err := u.node().CheckRecord(ctx, c1); err == nil {
			t.Error("CHECK finds nothing although the interface is gone")
		}
	})
}

func TestARecordOfFormat2IsRepaired(t *testing.T) {
	inFormat2(t, func(t *testing.T, u upgraded) {
		whole := u.fake.String()
		u.pod.IP("route del default dev net1 table 100")
		if done, err := u.node().Repair(ctx, c1); err != nil || len(done) != 1 {
			t.Errorf("did %v, %v, want one operation", done, err)
		}
		if got := u.fake.String(); strings.Join(lines(got), "") != strings.Join(lines(whole), "") {
			t.Errorf("the pod after Repair:\n%s\nwant\n%s", got, whole)
		}
	})
}

func TestARecordOfFormat2IsUndoneByDEL(t *testing.T) {
	inFormat2(t, func(t *testing.T, u upgraded) {
		if err := u.node().Del(ctx, u.del()); err != nil {
			t.Error(err)
		}
		u.empty("after DEL")
	})
}

func TestARecordOfFormat2IsUndoneByDELWithoutNamespace(t *testing.T) {
	inFormat2(t, func(t *testing.T, u upgraded) {
		u.fake.RemovePod(podPath("c1"))
		if err := u.node().Del(ctx, u.del()); err != nil {
			t.Error(err)
		}
		u.mustBeEmpty("after DEL")
		if _, err := os.Stat(filepath.Join(u.dir, "devinfo")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file of the device information: %v, want it gone", err)
		}
	})
}

func TestARecordOfFormat2IsUndoneByGC(t *testing.T) {
	inFormat2(t, func(t *testing.T, u upgraded) {
		if err := u.node().GC(ctx, u.gc("rail")); err != nil {
			t.Error(err)
		}
		if _, err := u.node().Records.Load(c1); !errors.Is(err, record.ErrNotExist) {
			t.Errorf("load the record after GC: %v", err)
		}
		u.empty("after GC")
	})
}
