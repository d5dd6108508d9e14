package redact

import (
	"bytes"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		`"HTTPS_PROXY=http://me:geheim@proxy.example:3128",`:                         `"HTTPS_PROXY=http://…@proxy.example:3128",`,
		`"HTTPS_PROXY=http://me:it's@proxy"`:                                         `"HTTPS_PROXY=http://…@proxy"`,
		`"http_proxy=me:geheim@proxy.example:3128",`:                                 `"http_proxy=…@proxy.example:3128",`,
		`"CreateCommand": ["podman", "-e", "HTTP_PROXY=http://a:ge@heim@p"]`:         `"CreateCommand": ["podman", "-e", "HTTP_PROXY=http://…@p"]`,
		` HTTP Proxy: http://me:geheim@proxy:3128`:                                   ` HTTP Proxy: http://…@proxy:3128`,
		`"HTTP_PROXY": "me:geheim@p"`:                                                `"HTTP_PROXY": "…@p"`,
		`"HTTP_PROXY=http://proxy.example:3128"`:                                     `"HTTP_PROXY=http://proxy.example:3128"`,
		`pulled docker://registry.example/app@sha256:0123`:                           `pulled docker://registry.example/app@sha256:0123`,
		`kubeadm join --token abcdef.0123456789abcdef`:                               `kubeadm join --token abcdef.…`,
		`      auth = "bWU6Z2VoZWlt"`:                                                `      auth = "…"`,
		`      password = 'geheim'`:                                                  `      password = '…'`,
		`{"password":"geheim","username":"me"}`:                                      `{"password":"…","username":"me"}`,
		`Authorization = "Basic Z2VoZWlt"`:                                           `Authorization = "Basic …"`,
		`Authorization: Bearer geheim`:                                               `Authorization: Bearer …`,
		`token: eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl end`:              `token: … end`,
		`    client-key-data: Z2VoZWlt`:                                              `    client-key-data: …`,
		"a\n-----BEGIN EC PRIVATE KEY-----\ngeheim\n-----END EC PRIVATE KEY-----\nb": "a\n(a private key)\nb",
		"plain\nlines: of a log, level=info token count\n":                           "plain\nlines: of a log, level=info token count\n",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPieces: text that is written in pieces is redacted line by line.
func TestPieces(t *testing.T) {
	var out bytes.Buffer
	w := To(&out)
	text := "one\nHTTP_PROXY=http://me:geheim@p\nlast http://me:geheim@q"
	for i := range len(text) {
		if _, err := w.Write([]byte(text[i : i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || out.String() != "one\nHTTP_PROXY=http://…@p\nlast http://…@q" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestLongLine: memory is bounded. Text that cannot be checked is not written.
func TestLongLine(t *testing.T) {
	var out bytes.Buffer
	w := To(&out)
	for range 3 * longest / 1024 {
		_, _ = w.Write([]byte(strings.Repeat("geheim  ", 128)))
	}
	_, _ = w.Write([]byte("\nnext\n"))
	if err := w.Close(); err != nil || out.String() != "(a line of more than a mebibyte is left out)\nnext\n" || cap(w.line) > longest {
		t.Errorf("%.100q, %v", out.String(), err)
	}
}

func FuzzText(f *testing.F) {
	f.Add("HTTP_PROXY=http://me:geheim@p\n")
	f.Add("-----BEGIN PRIVATE KEY-----\nx\n")
	const body = "bWFya2Vy"
	const key = "\n-----BEGIN PRIVATE KEY-----\n" + body + "\n-----END PRIVATE KEY-----\n"
	f.Add(key)
	f.Fuzz(func(t *testing.T, text string) {
		// After any text, no part of the key is left.
		if with := Text(text + key); strings.Count(with, body) > strings.Count(text, body) {
			t.Errorf("%q and a private key left %q", text, with)
		}
		clean := Text(text)
		if strings.Contains(clean, "://me:geheim@") {
			t.Errorf("%q left %q", text, clean)
		}
		if strings.Count(clean, "\n") > strings.Count(text, "\n")+1 {
			t.Errorf("%q became %q", text, clean)
		}
	})
}
