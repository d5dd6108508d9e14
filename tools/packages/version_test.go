package main

import "testing"

// TestVersions: each format has the form in which a pre-release sorts before its release.
func TestVersions(t *testing.T) {
	for _, c := range []struct{ text, tilde, apk string }{
		{"1.2.3", "1.2.3", "1.2.3"},
		{"1.2.4-dev.57", "1.2.4~dev.57", "1.2.4_pre57"},
		{"1.2.4-rc.1", "1.2.4~rc.1", "1.2.4_rc1"},
		{"1.2.4-rc.1.dev.3", "1.2.4~rc.1.dev.3", "1.2.4_rc1"},
	} {
		v, err := parseVersion(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if v.tilde() != c.tilde || v.apk() != c.apk {
			t.Errorf("%s is %q and %q, want %q and %q", c.text, v.tilde(), v.apk(), c.tilde, c.apk)
		}
	}
	for _, text := range []string{"", "v1.2.3", "1.2", "1.2.3-", "1.2.3-odd.1", "1.2.3-rc", "1.2.3 "} {
		if v, err := parseVersion(text); err == nil {
			t.Errorf("%q is accepted as %v", text, v)
		}
	}
}
