package credential_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/credential"
	"github.com/berthrun/berth/internal/errs"
)

func TestHeader(t *testing.T) {
	config := `{"auths": {
		"https://index.docker.io/v1/": {"auth": "dTpw"},
		"Assets.example:8443": {"username": "a", "password": "b:c"},
		"token.example": {"registrytoken": "t"}}}`
	for _, c := range []struct {
		text, host string
		own        bool
		want       string
	}{
		{"u:p\n", "any", true, "Basic dTpw"},
		{"u:p", "any", false, ""},
		{"Bearer x", "any", true, "Bearer x"},
		{"Basic dTpw", "any", true, "Basic dTpw"},
		{config, "registry-1.docker.io", false, "Basic dTpw"},
		{config, "assets.example:8443", false, "Basic YTpiOmM="},
		{config, "token.example", true, "Bearer t"},
		{config, "assets.example", true, ""},
		{`{}`, "assets.example", true, ""},
	} {
		f, err := credential.Parse("f", c.text)
		if got := f.Header(c.host, c.own); err != nil || got != c.want {
			t.Errorf("%.10q for %s (own %v): %q, %v; want %q", c.text, c.host, c.own, got, err, c.want)
		}
	}
}

// TestNoTextInErrors: no error about a file contains its text.
func TestNoTextInErrors(t *testing.T) {
	for _, text := range []string{
		"", "hunter2", "u:hunter2\nmore", "u:hunter2\x00", `{"auths": "hunter2"}`, `{hunter2`,
		`{"auths": {"h": {"auth": "hunter2"}}}`, `{"auths": {"h": {"identitytoken": "hunter2"}}}`, `{"auths": {"h": {"registrytoken": "hunter2\n"}}}`,
	} {
		_, err := credential.Parse("/etc/f.auth", text)
		if err == nil || !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
			t.Errorf("%q: %v, want Invalid or Unsupported", text, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "/etc/f.auth") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"u:p", "Bearer x", `{"auths": {"h": {"auth": "dTpw"}}}`, "\r", `{"auths": {"": {"username": "\n"}}}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := credential.Parse("f", text)
		if err != nil {
			if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
				t.Errorf("kind of %v", err)
			}
			return
		}
		for _, host := range append(file.Hosts(), "h") {
			if header := file.Header(host, true); strings.ContainsAny(header, "\r\n\x00") {
				t.Errorf("header for %q: %q", host, header)
			}
		}
	})
}
