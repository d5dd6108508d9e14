// Package redact removes secrets from text that people pass on: proxies' passwords, tokens and keys
// in the output of engines, nodes and services. It knows their forms, and not the source of the
// text.
package redact

import (
	"bytes"
	"io"
	"regexp"
)

// Hidden replaces a secret.
const Hidden = "…"

// rule is a form of secret, with its replacement.
type rule struct {
	form *regexp.Regexp
	with string
}

// rules are those of one line.
func rules() []rule {
	return []rule{
		// Name and password of a URL, and of a proxy without a scheme.
		{regexp.MustCompile(`(://)[^\s/"<>]*@`), "${1}" + Hidden + "@"},
		{regexp.MustCompile(`(?i)(_proxy\\?["']?\s*[=:]\s*\\?["']?)(?:[a-z]+://)?[^\s"…]*@`), "${1}" + Hidden + "@"},
		// Tokens that nodes join with, keep their public half.
		{regexp.MustCompile(`\b([a-z0-9]{6})\.[a-z0-9]{16}\b`), "${1}." + Hidden},
		// Tokens of service accounts and the like.
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), Hidden},
		{regexp.MustCompile(`(?i)\b(authorization\\?["']?\s*[:=]\s*\\?["']?(?:basic|bearer)\s+)[^\s"'\\]+`), "${1}" + Hidden},
		// Fields of configurations of registries and of kubeconfig files.
		{regexp.MustCompile(`(?i)\b((?:password|passwd|auth|identity_?token|registry_?token|client-key-data|secret|token)\\?["']?\s*[:=]\s*)(\\?["'])[^"'\\]+`), "${1}${2}" + Hidden},
		{regexp.MustCompile(`(?i)\b((?:password|passwd|client-key-data|client_secret)=)[^\s"'&]+`), "${1}" + Hidden},
		{regexp.MustCompile(`(?i)^(\s*(?:password|client-key-data|token):\s+)[^\s"']+`), "${1}" + Hidden},
	}
}

// longest is the length of the longest line that is scanned as a whole, in bytes.
const longest = 1 << 20

// Writer removes secrets from the text that is written to it, line by line. Close writes the rest;
// it does not close the writer below. Lines of more than a mebibyte are left out.
type Writer struct {
	to    io.Writer
	rules []rule
	line  []byte
	// long: the line is longer than longest. key: the lines belong to a private key.
	long, key bool
}

// To is a Writer onto another.
func To(w io.Writer) *Writer { return &Writer{to: w, rules: rules()} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	written := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.add(p)
			return written, nil
		}
		w.add(p[:i+1])
		p = p[i+1:]
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
}

func (w *Writer) add(part []byte) {
	if w.long = w.long || len(w.line)+len(part) > longest; w.long {
		w.line = w.line[:0]
		return
	}
	w.line = append(w.line, part...)
}

// Close writes a last line that does not end.
func (w *Writer) Close() error { return w.flush() }

func (w *Writer) flush() error {
	line := w.line
	if w.long {
		line = []byte("(a line of more than a mebibyte is left out)\n")
	}
	w.line, w.long = nil, false
	if len(line) == 0 {
		return nil
	}
	_, err := w.to.Write(w.clean(line))
	return err
}

// clean is a line without its secrets.
func (w *Writer) clean(line []byte) []byte {
	switch {
	case bytes.Contains(line, []byte("-----BEGIN ")) && bytes.Contains(line, []byte("PRIVATE KEY-----")):
		// In JSON the whole of it is on one line.
		w.key = !bytes.Contains(line, []byte("-----END "))
		return []byte("(a private key)\n")
	case w.key:
		w.key = !bytes.Contains(line, []byte("-----END "))
		return nil
	}
	for _, r := range w.rules {
		line = r.form.ReplaceAll(line, []byte(r.with))
	}
	return line
}

// Text is a text without its secrets.
func Text(text string) string {
	var clean bytes.Buffer
	w := To(&clean)
	_, _ = w.Write([]byte(text)) // a buffer takes all
	_ = w.Close()
	return clean.String()
}
