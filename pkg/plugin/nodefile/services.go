// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

type servicesJSON struct {
	Version  int            `json:"version"`
	BootID   string         `json:"bootID"`
	Services []netip.Prefix `json:"services"`
}

// ServicesPath is the file with the CIDRs of the cluster's Services. No RailPool can have
// this name, because names of Kubernetes have no underscore.
func (s Store) ServicesPath() string { return filepath.Join(s.pools(), services) }

const services = "_services"

const (
	readingServices = "read CIDRs of Services in"
	servicesHint    = `check that rocectl agent runs on this node; its log and http://NODE:9482/healthz say what it waits for. ` +
		`Without the agent write the CIDRs into hostLink.routes in place of "auto"`
)

// Services returns the CIDRs of the cluster's Services, which the agent has written.
// There is at least one. Errors: TryAgain while there is no file of this boot; IO;
// Unreadable for an invalid file.
func (s Store) Services() ([]netip.Prefix, error) {
	path := s.ServicesPath()
	b, err := s.content(services)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cnierr.New(cnierr.TryAgain, readingServices, path, servicesHint, "rocectl agent has not written it yet")
	}
	if err != nil && !errors.As(err, &formError{}) {
		return nil, cnierr.New(cnierr.IO, readingServices, path, "", "%w", err)
	}
	var form servicesJSON
	if err == nil {
		form, err = parseServices(b)
	}
	if err != nil {
		return nil, cnierr.New(cnierr.Unreadable, readingServices, path, "remove the file: rocectl agent writes it again", "%w", err)
	}
	if form.BootID != s.BootID {
		return nil, cnierr.New(cnierr.TryAgain, readingServices, path, servicesHint, "it is of another boot")
	}
	return form.Services, nil
}

func parseServices(b []byte) (servicesJSON, error) {
	var form servicesJSON
	if err := decode(b, &form); err != nil {
		return form, err
	}
	if len(form.Services) == 0 {
		return form, errors.New("services: none")
	}
	for i, p := range form.Services {
		if !conf.Service(p) {
			return form, fmt.Errorf("services[%d]: %s is no range of ClusterIPs", i, p)
		}
	}
	return form, nil
}

// WriteServices writes the CIDRs of the cluster's Services, at least one, as Write does. It
// leaves alone a file that has them already, and returns whether it has written. The error
// is IO, or Bug for what Services would refuse.
func (s Store) WriteServices(cidrs []netip.Prefix) (bool, error) {
	if have, err := s.Services(); err == nil && slices.Equal(have, cidrs) {
		return false, nil
	}
	const op = "write CIDRs of Services to"
	path := s.ServicesPath()
	b, err := json.MarshalIndent(servicesJSON{version, s.BootID, cidrs}, "", "  ")
	if err == nil {
		_, err = parseServices(b)
	}
	if err != nil {
		return false, cnierr.New(cnierr.Bug, op, path, "", "%w", err)
	}
	err = write(op, path, path, b)
	return err == nil, err
}
