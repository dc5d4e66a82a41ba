// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

func serveCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be the second node of a test between two nodes",
		Long: `Be the second node of a test between two nodes, until it is stopped: make one pod on all
active RoCE NICs, as roce-hwtest --mutate does, and answer the tests of the first node. It
answers only callers with the same token, which $ROCE_VERIFY_TOKEN has on both nodes. At
the end everything is removed.`,
		Example: `  export ROCE_VERIFY_TOKEN=$(openssl rand -hex 16)    # once, and the same value on the other node
  roce-hwtest serve                                   # on the second node
  roce-hwtest --mutate --peer SECOND_NODE             # on the first`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, err := verify.KeyOf(os.Getenv(verify.TokenVariable))
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			b, unlock, err := openBench(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			if err := b.Clean(ctx); err != nil {
				return err
			}
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
			if err != nil {
				return cnierr.New(cnierr.IO, "listen", listen, "stop the other program, or choose another --listen", "%w", err)
			}
			defer l.Close()
			b.Node, b.Second = hwtest.Live(&recording.Recording{}), true
			return b.Serve(ctx, l, key, func() { fmt.Fprintf(cmd.OutOrStdout(), "listens on %s\n", l.Addr()) })
		},
	}
	cmd.Flags().StringVar(&listen, "listen", ":9484", "the `ADDRESS` to listen on")
	return cmd
}
