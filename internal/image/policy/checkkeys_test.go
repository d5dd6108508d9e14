package policy

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestCheckDirReadsKeys: a policy whose keys are missing refuses all images of its scope.
func TestCheckDirReadsKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	absent := filepath.Join(dir, "absent")
	path := write("team.json", `{"default": [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "`+absent+`"}], "transports": {"docker": {
		"r.test/b": [{"type": "insecureAcceptAnything"}, {"type": "sigstoreSigned", "keyPath": "`+absent+`"}],
		"r.test/a": [{"type": "sigstoreSigned", "fulcio": {"caPath": "`+absent+`", "oidcIssuer": "i", "subjectEmail": "e"}, "rekorPublicKeyPath": "`+absent+`"}]},
		"dir": {"": [{"type": "sigstoreSigned", "keyPath": "`+absent+`"}]}}}`)
	write("other.json", `{"default": [{"type": "reject"}]}`)
	var got []string
	for _, fault := range CheckDir(dir) {
		got = append(got, fault.Error())
	}
	missing := "stat " + absent + ": no such file or directory"
	want := []string{
		"image policy " + path + ": default[0].keyPath: " + missing,
		"image policy " + path + ": transports.docker.r.test/a[0].rekorPublicKeyPath: " + missing,
		"image policy " + path + ": transports.docker.r.test/b[1].keyPath: " + missing,
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults\n%q\nwant\n%q", got, want)
	}
}
