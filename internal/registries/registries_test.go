package registries

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/manifest"
)

// document is a file that contains only registries.
type document struct {
	Registries []Registry `json:"registries" help:"Registries."`
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"{host: docker.io}, {host: '*', mirrors: [{url: 'https://m'}]}, {host: '[::1]:5000', server: 'http://a'}": "",
		"{host: https://docker.io}":                           `registries[0].host: "https://docker.io": want a host`,
		"{host: a}, {host: a}":                                `registries[1].host: "a": is there twice; leave one out`,
		"{host: '*', server: 'https://a'}":                    `registries[0].server: "https://a": has no place under *`,
		"{host: a, server: b}":                                `registries[0].server: "b": has no scheme`,
		"{host: a, clientKey: k}":                             "registries[0].clientKey: is of no use alone; set clientCert, too",
		"{host: a, mirrors: [{url: m}]}":                      `registries[0].mirrors[0].url: "m": has no scheme`,
		"{host: a, mirrors: [{url: http://u:p@m}]}":           "registries[0].mirrors[0].url: has a password in it; use credentials",
		"{host: a, mirrors: [{url: http://m, clientKey: k}]}": "registries[0].mirrors[0].clientKey: is of no use alone",
	} {
		var doc document
		r := manifest.ReadPlain("", []byte("registries: ["+text+"]"), &doc)
		Check(r, "registries", doc.Registries)
		if err := r.Err(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

func TestHostsTOML(t *testing.T) {
	all := []Registry{
		{Host: "docker.io", Access: Access{CA: []string{"/ca"}}, Mirrors: []Mirror{{URL: "https://m", OverridePath: true, Access: Access{ClientCert: "/c", ClientKey: "/k", SkipVerify: true}}}},
		{Host: "*", Mirrors: []Mirror{{URL: "https://all", Capabilities: []string{"pull"}}}},
	}
	SetDefaults(all)
	var places []string
	server := func(at, url string, a Access) (hoststoml.Server, error) {
		places = append(places, at+url)
		return a.Server(url), nil
	}
	var got []hoststoml.File
	for _, reg := range all {
		file, err := reg.HostsTOML(server)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, file)
	}
	want := []hoststoml.File{
		{
			Registry: hoststoml.Server{URL: "https://registry-1.docker.io", CA: []string{"/ca"}},
			Mirrors: []hoststoml.Mirror{{
				Server:       hoststoml.Server{URL: "https://m", ClientCert: "/c", ClientKey: "/k", SkipVerify: true},
				Capabilities: []string{"pull", "resolve"}, OverridePath: true,
			}},
		},
		{Mirrors: []hoststoml.Mirror{{Server: hoststoml.Server{URL: "https://all"}, Capabilities: []string{"pull"}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"https://registry-1.docker.io", "mirrors[0].https://m", "mirrors[0].https://all"}, places); diff != "" {
		t.Error(diff)
	}
	refuse := func(string, string, Access) (hoststoml.Server, error) { return hoststoml.Server{}, errs.NotFound }
	if _, err := all[1].HostsTOML(refuse); !errors.Is(err, errs.NotFound) {
		t.Errorf("an error of server: %v", err)
	}
}

func TestAuthorization(t *testing.T) {
	a := Access{Credentials: "/c"}
	for text, want := range map[string]string{"u:p\n": "Basic dTpw", "Bearer x": "Bearer x", `{"auths": {"m:5000": {"auth": "eDp5"}}}`: "Basic eDp5"} {
		if got, err := a.Authorization("http://m:5000/hub", text); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, kind := range map[string]error{"geheim": errs.Invalid, `{"auths": {"a": {"auth": "eDp5"}}}`: errs.NotFound} {
		if _, err := a.Authorization("http://m", text); !errors.Is(err, kind) || strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "eDp5") {
			t.Errorf("%s: %v; want %v", text, err, kind)
		}
	}
}

func TestHasCredentials(t *testing.T) {
	for _, c := range []struct {
		reg  Registry
		want bool
	}{
		{Registry{Mirrors: []Mirror{{}}}, false},
		{Registry{Access: Access{Credentials: "/c"}}, true},
		{Registry{Mirrors: []Mirror{{}, {Access: Access{Credentials: "/c"}}}}, true},
	} {
		if got := c.reg.HasCredentials(); got != c.want {
			t.Errorf("%+v: %v", c.reg, got)
		}
	}
}
