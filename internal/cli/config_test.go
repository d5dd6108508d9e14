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
	for text, warning := range map[string]string{
		`{"auths":{}}`: "",
		"x{":           "no image can be pulled: cannot read the credentials of registries: FILE:1: is not JSON: character 1 of the line does not belong there",
		"{\n\"auths\": {\"r.test\": {\"auth\": s3cret}}}\n":   "FILE:2: is not JSON: character 30 of the line does not belong there",
		"{\n\"auths\": {\"r.test\": {\n":                      "FILE:3: is not JSON: the file ends before its last value does",
		"{\n\n\"auths\": {\"r.test\": {\"auth\": 12345678}}}": "FILE:3: auths.auth: want a string",
		"[]": "FILE:1: the file: want an object",
		`{"auths": {"r.test": {"auth": "s3cret"}}}`: `no image of the host can be pulled: credentials: auth of FILE, entry "r.test" is not base64 of user:password`,
	} {
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
		if err := cmd.Execute(); err != nil || strings.HasSuffix(out.String(), ": no fault\n") != (warning == "") || strings.HasSuffix(out.String(), ": no fault, 1 warning\n") != (warning != "") {
			t.Errorf("config check: %v\n%s%s", err, out.String(), errOut.String())
		}
		got, want := errOut.String(), strings.ReplaceAll(warning, "FILE", credentials)
		if strings.HasPrefix(got, "warning: image.credential_files: ") != (want != "") || !strings.Contains(got, want) || strings.Contains(got, "s3cret") || strings.Contains(got, "12345678") {
			t.Errorf("with %q it warns\n%s\nwant\n%s", text, got, want)
		}
	}
}
