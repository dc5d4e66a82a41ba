// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// errNoSetting says that the kernel or the driver does not have a setting.
var errNoSetting = errors.New("there is no such setting")

// errSeveral says that several devices of the node have one name, as is possible in
// different namespaces since Linux 7.3. configfs takes any of them (filter_by_name).
var errSeveral = errors.New("several RDMA devices of the node have this name, and the kernel would use any of them")

const (
	tosFile = "RoCE ToS of"
	tcFile  = "traffic class of"
)

// tos returns the type of service that rdma_cm sets for connections of a device's
// port. It returns nil if rdma_cm is not loaded or may not be asked, or if several
// devices have the name.
func (s *Subsystem) tos(at plan.Place, d plan.RDMADevice) (*uint8, error) {
	var out *uint8
	err := s.withCM(at, d, func(file string) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 8)
		v := uint8(n)
		out = &v
		return err
	})
	if errors.Is(err, errNoSetting) || errors.Is(err, errSeveral) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	return out, classify("read "+tosFile, d.Name, err)
}

// setTOS sets the type of service of a device that is in the namespace.
func (s *Subsystem) setTOS(at plan.Place, d plan.RDMADevice, v uint8) error {
	err := s.withCM(at, d, func(file string) error { return write(file, strconv.Itoa(int(v))) })
	switch {
	case errors.Is(err, errNoSetting):
		return cnierr.New(cnierr.IO, "set "+tosFile, d.Name, "modprobe rdma_cm", "%w", err)
	case errors.Is(err, errSeveral):
		return cnierr.New(cnierr.IO, "set "+tosFile, d.Name, "give each device a name of its own: rdma dev set OLD name NEW", "%w", err)
	}
	return classify("set "+tosFile, d.Name, err)
}

// named returns how many devices of the node have a name, in all namespaces.
func (s *Subsystem) named(name string) int { return len(s.deviceFiles(name)) }

// withCM calls fn with the file of the type of service in configfs. Its folder exists only
// after a process makes it (make_cma_dev). The kernel looks the device up in the namespace
// of the calling thread.
func (s *Subsystem) withCM(at plan.Place, d plan.RDMADevice, fn func(file string) error) error {
	if s.named(d.Name) > 1 {
		return errSeveral
	}
	return s.at(at, func() error {
		t, err := s.mount("configfs")
		if err != nil {
			return missing(err)
		}
		defer t.close()
		dir := filepath.Join(t.path, "rdma_cm", d.Name)
		for range maxShared {
			var made bool
			made, err = inFolder(dir, func() error {
				return fn(filepath.Join(dir, "ports", fmt.Sprint(d.Port), "default_roce_tos"))
			})
			if made || !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		return err
	})
}

// maxShared is how often another process may remove the folder that it made and we
// use. Calls for other pods do that.
const maxShared = 100

// inFolder calls fn while a folder of configfs exists. It makes and removes the
// folder, unless another process made it.
func inFolder(dir string, fn func() error) (made bool, err error) {
	err = os.Mkdir(dir, 0o755) //nolint:gosec // configfs, where the kernel chooses the mode of what is in it
	switch {
	case err == nil:
		defer os.Remove(dir) //nolint:errcheck // the next user takes the folder as it is
		return true, fn()
	case errors.Is(err, fs.ErrExist):
		return false, fn()
	}
	return true, missing(err)
}

// missing returns errNoSetting for errors that mean that the kernel does not have the
// setting: no file system of the kind, no module, no device with connections.
func missing(err error) error {
	for _, e := range []error{unix.ENODEV, unix.ENOENT, unix.ENOSYS} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errNoSetting, err)
		}
	}
	return err
}

// trafficClass returns the class that the driver forces on a port. It returns nil if
// the driver forces none, or does not have this setting. Upstream drivers do not have
// it.
func (s *Subsystem) trafficClass(at plan.Place, d plan.RDMADevice) (*uint8, error) {
	sys, err := s.Files(at)
	if err != nil {
		return nil, err
	}
	b, err := fs.ReadFile(sys, classPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, classify("read "+tcFile, d.Name, err)
	}
	return parseClass(string(b)), nil
}

// parseClass reads the class of a port, nil if there is none. NVIDIA's driver
// writes "Global tclass=106" before the classes of single peers.
func parseClass(text string) *uint8 {
	line, _, _ := strings.Cut(text, "\n")
	if _, after, ok := strings.Cut(line, "="); ok {
		line = after
	}
	n, err := strconv.ParseUint(strings.TrimSpace(line), 10, 8)
	if err != nil {
		return nil
	}
	v := uint8(n)
	return &v
}

// setTrafficClass sets the class of a device in the host's namespace. It is
// written through a mount of its own: /sys may be read-only in a container.
func (s *Subsystem) setTrafficClass(d plan.RDMADevice, v uint8) error {
	t, err := s.mount("sysfs")
	if err != nil {
		return classify("mount sysfs of", plan.Host.String(), err)
	}
	defer t.close()
	err = write(filepath.Join(t.path, classPath(d)), strconv.Itoa(int(v)))
	if errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.Unsupported, "set "+tcFile, d.Name,
			"remove rdma.trafficClass: only NVIDIA's own driver has it; rdma.tos is for programs that use rdma_cm", "%w", errNoSetting)
	}
	return classify("set "+tcFile, d.Name, err)
}

func classPath(d plan.RDMADevice) string {
	return fmt.Sprintf("class/infiniband/%s/tc/%d/traffic_class", d.Name, d.Port)
}

// write writes a file that is there, and does not make it.
func write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
