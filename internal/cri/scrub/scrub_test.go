package scrub

import (
	"strings"
	"testing"
)

func TestCredentialsAreHidden(t *testing.T) {
	const secret = "s3cr3t-V4lue.abcdefghijklmnop"
	s := New()
	for name, text := range map[string]string{
		"user info":          `cannot pull "https://joe:` + secret + `@reg.example.com/v2/app": 401`,
		"user info, no name": `Get https://` + secret + `@reg.example.com/v2/: EOF`,
		"bearer header":      `Authorization: Bearer ` + secret + ` was refused`,
		"basic header, map":  `map[Authorization:[Basic ` + secret + `]]`,
		"bare bearer":        `server said: Bearer ` + secret,
		"token in query":     `Get "https://reg.example.com/token?service=x&access_token=` + secret + `&scope=y": EOF`,
		"azure sas":          `https://acc.blob.example.com/l?sv=2021&sig=` + secret + `&se=2026: 403`,
		"aws presigned":      `https://b.example.com/l?X-Amz-Credential=` + secret + `&X-Amz-Signature=` + secret,
		"denied, header":     `may require authorization: authorization failed; authorization: Bearer ` + secret,
		"json":               `body {"token": "` + secret + `","expires_in":300}`,
		"quoted json":        `body "{\"identity_token\":\"` + secret + `\"}"`,
		"password json":      `{"username":"joe","password":"` + secret + `"}`,
	} {
		got := s.Text(text)
		if strings.Contains(got, secret) || strings.Contains(got, "abcdefghijklmnop") {
			t.Errorf("%s: %s", name, got)
		}
		if !strings.Contains(got, Hidden) {
			t.Errorf("%s: nothing shows that something was hidden: %s", name, got)
		}
	}
}

func TestOrdinaryTextIsNotChanged(t *testing.T) {
	s := New()
	for _, text := range []string{
		`cannot pull docker.io/library/busybox:1.36: manifest unknown: not found`,
		`Get "https://reg.example.com/v2/app/manifests/latest?ns=docker.io": dial tcp 10.0.0.1:443: connect: connection refused`,
		`cannot find user@example in /etc/passwd: the password file has no such line`,
		`basic sandbox failed: token bucket is empty, author: me`,
		`pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials`,
		`may require authorization: server message: insufficient_scope: authorization failed`,
	} {
		if got := s.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
