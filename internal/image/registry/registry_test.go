package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCredentialsAreForOneRegistry(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("joe:pa:ss"))
	for name, c := range map[string]struct {
		auth   Auth
		domain string
		want   Credentials
	}{
		"none":             {Auth{}, "r.example", Credentials{}},
		"user":             {Auth{Username: "joe", Password: "p"}, "r.example", Credentials{User: "joe", Secret: "p"}},
		"encoded":          {Auth{Auth: encoded}, "r.example", Credentials{User: "joe", Secret: "pa:ss"}},
		"padded":           {Auth{Auth: base64.StdEncoding.EncodeToString([]byte("joe:p\x00\x00"))}, "r.example", Credentials{User: "joe", Secret: "p"}},
		"identity token":   {Auth{IdentityToken: "t"}, "r.example", Credentials{Secret: "t"}},
		"registry token":   {Auth{RegistryToken: "t"}, "r.example", Credentials{Bearer: "t"}},
		"address fits":     {Auth{Username: "joe", ServerAddress: "https://R.example/v2/"}, "r.example", Credentials{User: "joe"}},
		"address differs":  {Auth{Username: "joe", ServerAddress: "https://other.example"}, "r.example", Credentials{}},
		"address of port":  {Auth{Username: "joe", ServerAddress: "r.example:5000"}, "r.example", Credentials{}},
		"hub by old name":  {Auth{Username: "joe", ServerAddress: "https://index.docker.io/v1/"}, "docker.io", Credentials{User: "joe"}},
		"hub is not other": {Auth{Username: "joe", ServerAddress: "https://index.docker.io/v1/"}, "r.example", Credentials{}},
	} {
		got, err := c.auth.Credentials(c.domain)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	for _, bad := range []string{"no base64!", base64.StdEncoding.EncodeToString([]byte("nocolon"))} {
		if _, err := (Auth{Auth: bad}).Credentials("r"); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), bad) {
			t.Errorf("auth %q: %v", bad, err)
		}
	}
}

// TestErrorsOfTheDiskAreNotOfTheRegistry: a full disk is Exhausted, also where secrets are removed, and one that fails says
// nothing about the network.
func TestErrorsOfTheDiskAreNotOfTheRegistry(t *testing.T) {
	disk := func(cause error) error {
		return fmt.Errorf("cannot copy: %w", &fs.PathError{Op: "write", Path: "/x", Err: cause})
	}
	network := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for name, c := range map[string]struct{ err, want error }{
		"full":         {disk(syscall.ENOSPC), errs.Exhausted},
		"failing":      {disk(syscall.EIO), nil},
		"read-only":    {disk(syscall.EROFS), nil},
		"a sync":       {fmt.Errorf("cannot commit: %w", syscall.EIO), nil},
		"a connection": {fmt.Errorf("cannot read: %w", network), errs.Unavailable},
		"a request":    {&url.Error{Op: "Get", URL: "https://r.example", Err: syscall.ECONNREFUSED}, errs.Unavailable},
	} {
		err := classify(c.err)
		if !errors.Is(errs.Kind(err), c.want) || !errors.Is(errs.Kind(Scrub(err, Auth{Username: "u", Password: "p"})), c.want) {
			t.Errorf("%s: %v has the kind %v, want %v", name, err, errs.Kind(err), c.want)
		}
	}
}

func TestScrubRemovesSecretsAndKeepsTheKind(t *testing.T) {
	auth := Auth{Username: "joe", Password: "p&ss/word", IdentityToken: "idtoken123", RegistryToken: "regtoken123"}
	auth.Auth = base64.StdEncoding.EncodeToString([]byte("ann:0ther-pass"))
	text := "get https://user:hunter2@r.example/v2/?token=abc&sig=def with Bearer abcdefgh12345 and basic am9lOnA= " +
		auth.Auth + " idtoken123 regtoken123 p&ss/word p%26ss%2Fword 0ther-pass " + base64.StdEncoding.EncodeToString([]byte("joe:p&ss/word"))
	err := Scrub(fmt.Errorf("%s: %w: %w", text, errs.Unavailable, context.DeadlineExceeded), auth)
	for _, secret := range []string{"hunter2", "abc&", "sig=def", "abcdefgh12345", "am9lOnA=", auth.Auth, "idtoken", "regtoken", "p&ss", "p%26ss", "0ther"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is left in %q", secret, err)
		}
	}
	if !strings.Contains(err.Error(), "r.example/v2/") {
		t.Errorf("too much is gone: %q", err)
	}
	if !errors.Is(err, errs.Unavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errs.Invalid) {
		t.Errorf("kinds of %v", err)
	}
	if Scrub(nil, auth) != nil {
		t.Error("no error became one")
	}
	err = Scrub(errors.New("HEAD https://mirror.example/v2/?ns=r.example: 503 Service Unavailable"), auth)
	if want := "HEAD https://mirror.example/v2/?REDACTED: 503 Service Unavailable"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

type answerOK struct{ asked *int }

func (a answerOK) RoundTrip(*http.Request) (*http.Response, error) {
	*a.asked++
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestCredentialsAreNotSentInClearTextToOtherHosts(t *testing.T) {
	asked := 0
	local := newLocality()
	local.saw("configured.example", loopback)
	transport := guard(answerOK{&asked}, map[string]bool{"configured.example": true}, local)
	for url, allowed := range map[string]bool{
		"https://anywhere.example/token":   true,
		"http://configured.example/token":  true,
		"http://127.0.0.1:5000/token":      true,
		"http://stranger.example/token":    false,
		"http://configured.example:81/tok": false,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, err := http.NewRequestWithContext(context.Background(), method, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Basic x")
			before := asked
			resp, err := transport.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != allowed || (asked > before) != allowed {
				t.Errorf("%s %s: error %v, allowed %v", method, url, err, allowed)
			}
		}
	}
}
