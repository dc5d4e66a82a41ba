// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program roce-env prints the RDMA settings of the pod in which it runs, as
// rocectl env does, and says what the pod lacks to use them.
//
// It is small, because each pod gets a copy: an init container with the image of
// roce-cni runs rocectl install --from /pod --to FOLDER. It needs no privileges and
// changes nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"

	"github.com/roce-cni/roce-cni/cmd/internal/podenv"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/tool/advice"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

const usage = `Print the settings that NCCL, NVSHMEM, UCX, Mooncake, vLLM, SGLang and perftest need to use
this pod's rails:

    eval "$(roce-env)" || exit

The output is that of "rocectl env". It ends with "false" if the settings are not
complete, if the container cannot open the RDMA devices, or if it cannot lock memory.
The errors say what is missing. The exit status is then 1.

`

func main() {
	flags := flag.NewFlagSet("roce-env", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	ifName := flags.String("ifname", "", "only the interface of this `NAME`")
	version := flags.Bool("version", false, "print the version")
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil || flags.NArg() > 0:
		fmt.Fprintln(os.Stdout, "false # see the error")
		os.Exit(1)
	case *version:
		fmt.Fprintf(os.Stdout, "roce-env %s\n", buildversion.BuildVersion)
		return
	}
	if err := run(os.Stdout, gids.Node{Sys: os.DirFS("/sys")}, conf.LinkName(*ifName)); err != nil {
		e := cnierr.CNI("roce-env", err)
		fmt.Fprintf(os.Stderr, "%s\nhint: %s\n", e.Msg, e.Details)
		os.Exit(1)
	}
}

func run(w io.Writer, pod gids.Node, only conf.LinkName) error {
	own, err := podenv.Own()
	if err != nil {
		return err
	}
	ns, err := pod.Here(context.Background(), only)
	var settings advice.Settings
	if err == nil {
		settings, err = advice.Tell(ns)
		err = errors.Join(err, own.Check(ns.Rails))
	}
	return errors.Join(err, podenv.Write(w, ns.Rails, settings, err))
}
