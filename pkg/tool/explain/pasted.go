// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package explain

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// Plain returns a text without the colours of terminals, and with the quotation marks
// and line ends that JSON, kubelet and syslog have escaped.
func Plain(text string) string {
	// The escape character, as it is and as JSON, Go and syslog write it.
	text = regexp.MustCompile(`(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|#033)\[[0-9;?]*[A-Za-z]`).ReplaceAllString(text, "")
	text = strings.NewReplacer(`\u0027`, "'", `\u0022`, `"`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(text)
	text = regexp.MustCompile(`\\+(["'])`).ReplaceAllString(text, "$1")
	return regexp.MustCompile(`\\+[nrt]`).ReplaceAllString(text, "\n")
}

// english has what libc, the shell and ls print in a Chinese locale, and the English.
func english() *strings.Replacer {
	return strings.NewReplacer(
		"无法分配内存", "Cannot allocate memory",
		"设备或资源忙", "Device or resource busy",
		"设备上没有空间", "No space left on device",
		"没有那个文件或目录", "No such file or directory",
		"网络不可达", "Network is unreachable",
		"未找到命令", "command not found",
		"无法访问", "cannot access",
		"段错误", "Segmentation fault",
		"：", ": ",
	)
}

// alike makes equal what terminals, logs, documents, languages and versions of a program
// write in different ways: quotation marks, blanks, and the blank before a colon.
func alike(text string) string {
	text = english().Replace(text)
	text = strings.NewReplacer("’", "'", "‘", "'", "“", `"`, "”", `"`, "\u00a0", " ", "\r", "\n").Replace(text)
	text = regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
	text = regexp.MustCompile(` ?\n[ \n]*`).ReplaceAllString(text, "\n")
	return strings.ReplaceAll(text, " :", ":")
}

// unwrapped joins the lines that a narrow terminal has cut, inside of words too. They
// are as long as the longest line.
func unwrapped(text string) string {
	lines := strings.Split(text, "\n")
	longest := 0
	for _, l := range lines {
		longest = max(longest, utf8.RuneCountInString(l))
	}
	var b strings.Builder
	for i, l := range lines {
		b.WriteString(l)
		if i < len(lines)-1 && utf8.RuneCountInString(l) < longest {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
