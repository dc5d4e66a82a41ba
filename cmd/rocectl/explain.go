// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/explain"
)

// maxPasted limits what explain reads from standard input: 16 MiB of a log.
const maxPasted = 16 << 20

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [CODE... | TEXT | -]",
		Short: "Explain an error: what it means, and what to do",
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			if len(args) == 0 {
				for _, e := range cnierr.Table() {
					explainCode(out, e.Code)
				}
				return nil
			}
			text := strings.Join(args, " ")
			if all := codes(text); len(all) > 0 {
				for _, code := range all {
					explainCode(out, code)
				}
				return nil
			}
			if text == "-" {
				b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPasted))
				if err != nil {
					return cnierr.New(cnierr.IO, "read", "standard input", "", "%w", err)
				}
				text = string(b)
			}
			return explainText(out, text)
		},
	}
}

// codes returns the codes of a text that is nothing else, such as "106" or "error 106".
func codes(text string) []cnierr.Code {
	var out []cnierr.Code
	for _, word := range regexp.MustCompile(`[^\s\[\](),.:=]+`).FindAllString(text, -1) {
		switch strings.ToLower(word) {
		case "roce", "roce-ipam", "roce-env", "rocectl", "error", "errors", "code", "codes", "and":
			continue
		}
		code, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil
		}
		out = append(out, cnierr.Code(code))
	}
	return out
}

func explainCode(w io.Writer, c cnierr.Code) {
	answer(w, c, explain.Code(c, locale()))
}

func answer(w io.Writer, c cnierr.Code, a explain.Answer) {
	fmt.Fprintf(w, "%d  %s\n     %s\n", c, a.Cause, a.Do)
}

// locale returns that of messages (POSIX, "Environment Variables").
func locale() string { return cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_MESSAGES"), os.Getenv("LANG")) }

// explainText explains all errors that a text has: our codes, and what is known of
// other programs.
func explainText(w io.Writer, text string) error {
	text = explain.Plain(text)
	type said struct {
		code cnierr.Code
		explain.Answer
	}
	seen := map[said]bool{}
	for _, m := range regexp.MustCompile(`\b(roce|roce-ipam|roce-env|rocectl)\[(\d{1,9})\] *`).FindAllStringSubmatchIndex(text, -1) {
		n, err := strconv.ParseUint(text[m[4]:m[5]], 10, 32)
		if err != nil {
			continue
		}
		code := cnierr.Code(n)
		a := explain.Code(code, locale())
		if program := text[m[2]:m[3]]; program == "roce-env" || program == "rocectl" {
			if one, ok := explain.InPod(text[m[1]:], locale()); ok {
				a = one
			}
		}
		if !seen[said{code, a}] {
			seen[said{code, a}] = true
			answer(w, code, a)
		}
	}
	found := explain.Load().Find(text)
	if len(seen) > 0 { // a code says more than a general answer
		found = slices.DeleteFunc(found, func(f explain.Found) bool { return f.General })
	}
	for i, e := range found {
		if i == 1 {
			fmt.Fprintln(w, "The text has these too. They may be consequences of the first, or have nothing to do with it:")
		}
		a, general := e.In(locale()), ""
		if e.General {
			general = " (a general answer)"
		}
		fmt.Fprintf(w, "%s: %s%s\n  cause: %s\n  do:    %s\n", e.From, e.Text, general, a.Cause, a.Do)
	}
	if len(seen)+len(found) == 0 {
		return cnierr.New(cnierr.BadConfig, "explain", firstWords(text),
			"give it the lines of the error itself, or a code in brackets as in roce[101]",
			"no known error in it")
	}
	return nil
}

func firstWords(text string) string {
	const most = 60
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + " …"
	}
	return text
}
