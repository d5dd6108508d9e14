package source

import (
	"strings"
	"testing"
)

// FuzzEnvFile: the content of an env file, which a container can write, is refused or is read
// without additions.
func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{"A='1'\n", " # c\n\nB=\nA='x\ny' # c\n", "A=1", "A= 'x'", "A='", "=x", "A B='1'"} {
		f.Add(seed, "A")
	}
	f.Fuzz(func(t *testing.T, data, name string) {
		value, there, err := readEnvFile(data, name)
		if err != nil {
			if there || value != "" {
				t.Errorf("%q, %v with an error", value, there)
			}
			return
		}
		if !strings.Contains(data, value) || strings.Contains(value, "'") || (there && !strings.Contains(data, name+"=")) {
			t.Errorf("%q has %s=%q", data, name, value)
		}
	})
}
