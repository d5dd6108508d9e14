package portmap

import (
	"slices"
	"testing"
)

func TestWordsOf(t *testing.T) {
	for rule, want := range map[string][]string{
		`-A FROM -p tcp -j TO`: {"-A", "FROM", "-p", "tcp", "-j", "TO"},
		`-A FROM -m comment --comment "dnat name: \"net\" id: \"a b\"" -j TO`: {"-A", "FROM", "-m", "comment", "--comment", `dnat name: "net" id: "a b"`, "-j", "TO"},
		`--comment "" x\\y`: {"--comment", "", `x\y`},
		``:                  nil,
	} {
		if got, err := wordsOf(rule); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", rule, got, err, want)
		}
	}
	for _, rule := range []string{`"open`, `open\`} {
		if got, err := wordsOf(rule); err == nil {
			t.Errorf("%s: %q, want an error", rule, got)
		}
	}
}
