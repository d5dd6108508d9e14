package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigCheckWarnsOfCredentials: the daemon starts with such a file, and no pull succeeds.
func TestConfigCheckWarnsOfCredentials(t *testing.T) {
	dir := t.TempDir()
	credentials, file := filepath.Join(dir, "credentials.json"), filepath.Join(dir, "berth.toml")
	for text, warns := range map[string]bool{`{"auths":{}}`: false, "x{": true} {
		err := errors.Join(os.WriteFile(credentials, []byte(text), 0o600),
			os.WriteFile(file, fmt.Appendf(nil, "[image]\ncredential_files = ['%s']\n", credentials), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		var out, errOut strings.Builder
		cmd := newConfig()
		cmd.SetArgs([]string{"check", file})
		cmd.SetOut(&out)
		cmd.SetErr(&errOut)
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "no fault") {
			t.Errorf("config check: %v\n%s%s", err, out.String(), errOut.String())
		}
		if got := errOut.String(); strings.Contains(got, "warning: image.credential_files: ") != warns || strings.Contains(got, credentials) != warns {
			t.Errorf("with %q it warns %q", text, got)
		}
	}
}
