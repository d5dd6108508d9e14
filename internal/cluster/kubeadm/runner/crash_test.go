package runner

import (
	"slices"
	"strings"
	"testing"
)

const bogusFlag = `2026-11-24T01:00:00.123456789Z stderr F Error: unknown flag: --bogus-flag
2026-11-24T01:00:00.123456790Z stderr F E1124 01:00:00.000000       1 run.go:72] "command failed" err="unknown flag: --bogus-flag"
`

const panicked = `I1124 01:00:00.000000     100 server.go:1] "starting"
panic: cannot go on
goroutine 1 [running]:
main.main()
	/src/main.go:12 +0x1d
`

func TestReadParts(t *testing.T) {
	const text = "kubelet 3\netcd 0 yes /var/log/pods/a/etcd\nkube-apiserver 1 no /var/log/pods/b/kube-apiserver\nnoise\nkubelet x\n-1 -1\na 1 x\n"
	want := []part{{"kubelet", 3, false, ""}, {"etcd", 0, true, "/var/log/pods/a/etcd"}, {"kube-apiserver", 1, false, "/var/log/pods/b/kube-apiserver"}}
	got := readParts(text)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i, exits := range []int{3, 0, 2} {
		if got[i].exits() != exits {
			t.Errorf("%v has ended %d times, want %d", got[i], got[i].exits(), exits)
		}
	}
}

func TestFatalLines(t *testing.T) {
	for text, want := range map[string]string{
		bogusFlag: `Error: unknown flag: --bogus-flag|E1124 01:00:00.000000       1 run.go:72] "command failed" err="unknown flag: --bogus-flag"`,
		panicked:  "panic: cannot go on",
		"2026-11-24T01:00:00.1Z stderr F flag provided but not defined: -bogus\n2026-11-24T01:00:00.1Z stderr F Usage:\n2026-11-24T01:00:00.1Z stderr F   etcd [flags]\n": "flag provided but not defined: -bogus",
		"one\ntwo\nthree\nfour\nfive\n":                          "two|three|four|five",
		"E1124 1\nE1124 2\nE1124 3\nE1124 4\nE1124 5\nE1124 5\n": "E1124 2|E1124 3|E1124 4|E1124 5",
		"": "",
	} {
		if got := strings.Join(fatalLines(text), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if !dependencyMissing([]string{`err="dial tcp 127.0.0.1:2379: connect: connection refused"`}) || dependencyMissing(fatalLines(bogusFlag)) {
		t.Error("what is waited for is not told from what cannot be")
	}
}

// FuzzCrash: for any output of a node, the report has complete parts and is short.
func FuzzCrash(f *testing.F) {
	f.Add("kubelet 3\nkube-apiserver 1 no /var/log/pods/b/kube-apiserver\n")
	f.Add(bogusFlag)
	f.Add(panicked)
	f.Add("kubelet -1\na 1 x\nkube-apiserver one no /a\n\n")
	f.Add("E1124 1\nE1124 2\nE1124 3\nE1124 4\nE1124 5\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range readParts(text) {
			if p.name == "" || p.restarts < 0 || p.exits() < 0 || strings.ContainsAny(p.logs, " \n") {
				t.Errorf("%q has the part %+v", text, p)
			}
		}
		words := fatalLines(text)
		if len(words) > 4 {
			t.Errorf("%q has %d words", text, len(words))
		}
		for _, w := range words {
			if w == "" || strings.Contains(w, "\n") {
				t.Errorf("%q says %q", text, w)
			}
		}
	})
}
