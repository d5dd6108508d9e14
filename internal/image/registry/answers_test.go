package registry

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/registry/keyring"
)

// fails resolves a reference of team.test. HOST in the wanted text is the registry, MIRROR the mirror before it.
func (s *site) fails(t *testing.T, ref string, auth Auth, kind error, want string) {
	t.Helper()
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, auth, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Resolve(t.Context())
	want = strings.NewReplacer("HOST", s.hosts[len(s.hosts)-1], "MIRROR", s.hosts[0], "DIR", s.cfg.Dirs[0]).Replace(want)
	if !errors.Is(err, kind) || err.Error() != want {
		t.Errorf("%s: error\n%v\nof kind %v, want\n%s\nof kind %v", ref, err, errs.Kind(err), want, kind)
	}
}

// TestAnswersInWords: the error of a pull names the registry, what it does not have, and whose credentials it refuses.
func TestAnswersInWords(t *testing.T) {
	const dgst = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	wrong := Auth{Username: "joe", Password: "wrong-passw0rd"}
	const noCredentials = "wants credentials and berth has none (401); it may answer so if it does not have app"

	open := newSite(t, &imagetest.Registry{})
	open.fails(t, "team.test/app:2", Auth{}, errs.NotFound, "the registry HOST does not have the tag 2 of app")
	open.fails(t, "team.test/app:1@"+dgst, Auth{}, errs.NotFound, "the registry HOST does not have the manifest "+dgst+" of app")

	basic := newSite(t, &imagetest.Registry{User: "joe", Password: "right"})
	basic.fails(t, "team.test/app:1", Auth{}, errs.Denied, "the registry HOST "+noCredentials)
	gone := filepath.Join(t.TempDir(), "gone.json")
	missing, err := keyring.Read([]string{gone})
	if err != nil {
		t.Fatal(err)
	}
	basic.cfg.Keys = missing
	basic.fails(t, "team.test/app:1", Auth{}, errs.Denied, "the registry HOST "+noCredentials+"; "+gone+" of image.credential_files does not exist")
	basic.cfg.Keys = keysFor(t, basic.hosts[0], "joe:wrong-passw0rd")
	basic.fails(t, "team.test/app:1", Auth{}, errs.Denied, "the registry HOST refused the credentials of "+basic.cfg.Keys.Find(basic.hosts[0]).String()+" (401)")

	forbids := newSite(t, &imagetest.Registry{Intercept: func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"errors": [{"code": "DENIED", "message": "not from this network"}]}`))
		return true
	}})
	forbids.fails(t, "team.test/app:1", Auth{}, errs.Denied, `the registry HOST denies access to app without credentials (403): it says "denied: not from this network"`)
	path := forbids.hostsFile(t, fmt.Sprintf("server = \"http://%s\"\n[header]\nAuthorization = \"Basic eA==\"\n", forbids.hosts[0]))
	forbids.fails(t, "team.test/app:1", Auth{}, errs.Denied,
		`the registry HOST denies access to app with the credentials of the header Authorization of `+path+`:1 (403): it says "denied: not from this network"`)

	// The image has the name of the registry itself, which gets the credentials of the request.
	for _, c := range []struct {
		registry *imagetest.Registry
		auth     Auth
		want     string
	}{
		{&imagetest.Registry{User: "joe", Password: "right"}, wrong, "the registry HOST refused the credentials of the request (401)"},
		{&imagetest.Registry{User: "joe", Password: "right"}, Auth{RegistryToken: "wrong-token"}, "the registry HOST refused the credentials of the request (401)"},
		{&imagetest.Registry{User: "joe", Password: "right", Bearer: true, Token: "t"}, wrong, "HOST, which issues the tokens of the registry HOST, refused the credentials of the request (401)"},
		{&imagetest.Registry{User: "joe", Password: "right", Bearer: true, Token: "t"}, Auth{}, "HOST, which issues the tokens of the registry HOST, " + noCredentials},
	} {
		server := httptest.NewServer(c.registry)
		defer server.Close()
		c.registry.Realm = server.URL + "/token"
		s := &site{hosts: []string{strings.TrimPrefix(server.URL, "http://")}, cfg: Config{Dirs: []string{t.TempDir()}}}
		s.fails(t, s.hosts[0]+"/app:1", c.auth, errs.Denied, c.want)
	}
}

// TestAnswersOfSeveralEndpoints: each that was asked is named once, with what it has answered.
func TestAnswersOfSeveralEndpoints(t *testing.T) {
	lacks := newSite(t, &imagetest.Registry{}, &imagetest.Registry{})
	lacks.fails(t, "team.test/app:2", Auth{}, errs.NotFound,
		"the registry HOST does not have the tag 2 of app (asked before: the mirror MIRROR does not have the tag 2 of app)")
	mixed := newSite(t, &imagetest.Registry{User: "a", Password: "b"}, &imagetest.Registry{Intercept: status(http.StatusBadGateway)})
	mixed.fails(t, "team.test/app:1", Auth{}, errs.Unavailable,
		"http://HOST/v2: unexpected status from HEAD request to http://HOST/v2/app/manifests/1?ns=team.test: 502 Bad Gateway (asked before: "+
			"the mirror MIRROR wants credentials and berth has none (401); it may answer so if it does not have app)")
}

// keysFor are credentials of the node for a host.
func keysFor(t *testing.T, host, pair string) *keyring.Ring {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte(pair))), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Read([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
