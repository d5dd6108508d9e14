package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/registry"
)

// TestCredentialsOfASearch: credentials go to the registry that they are for, and to no other one that is tried.
func TestCredentialsOfASearch(t *testing.T) {
	list := []string{"first.test", "docker.io", "last.test:5000"}
	auth := func(server string) image.Auth {
		return image.Auth{Username: "joe", Password: "secret", ServerAddress: server}
	}
	for _, c := range []struct {
		what, ref  string
		registries []string
		auth       image.Auth
		want       []string
	}{
		{"without a list", "app", nil, auth(""), []string{"docker.io"}},
		{"for the name's registry", "first.test/app", list, auth(""), []string{"first.test"}},
		{"without an address: as a kubelet has chosen them", "app", list, auth(""), []string{"docker.io"}},
		{"without an address, and without docker.io", "app", []string{"first.test", "last.test:5000"}, auth(""), nil},
		{"without an address, for one registry", "app", []string{"first.test"}, auth(""), nil},
		{"for the first", "app", list, auth("first.test"), []string{"first.test"}},
		{"for the last", "app", list, auth("https://last.test:5000/v2/"), []string{"last.test:5000"}},
		{"for docker.io", "app", list, auth("https://index.docker.io/v1/"), []string{"docker.io"}},
		{"for another one", "app", list, auth("other.test"), nil},
		{"of nobody", "app", list, image.Auth{}, nil},
	} {
		rules := PullRules{SearchRegistries: c.registries}
		found, err := rules.search(c.ref, c.auth)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, named := range found.candidates {
			sent, err := registry.Auth(found.auth).Credentials(reference.Domain(named))
			if err != nil {
				t.Error(err)
			}
			if sent != (registry.Credentials{}) {
				got = append(got, reference.Domain(named))
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("credentials %s: sent to %v, want %v", c.what, got, c.want)
		}
		if limited := len(c.registries) > 0 && names.IsShort(c.ref) && c.auth == auth(""); found.limited != limited {
			t.Errorf("credentials %s: limited is %v", c.what, found.limited)
		}
		if c.auth == (image.Auth{}) && found.auth != c.auth {
			t.Errorf("credentials %s became %+v", c.what, found.auth)
		}
	}
}

func TestErrorOfASearch(t *testing.T) {
	absent := fmt.Errorf("a.test/app:1: %w", &unservedError{fmt.Errorf("there is no such manifest: %w", errs.NotFound)})
	refused := fmt.Errorf("b.test/app:1: %w", &unservedError{fmt.Errorf("401 Unauthorized: %w", errs.Denied)})
	away := fmt.Errorf("c.test/app:1: %w", &unservedError{fmt.Errorf("connection refused: %w", errs.Unavailable)})
	for _, c := range []struct {
		answers Faults
		kind    error
	}{
		{Faults{absent}, errs.NotFound},
		{Faults{refused, absent}, errs.Denied},
		{Faults{away, refused, absent}, errs.Unavailable},
	} {
		err := (&search{limited: true}).unserved("app:1", c.answers)
		if !errors.Is(errs.Kind(err), c.kind) || len(c.answers) > 1 && errors.Is(err, errs.NotFound) {
			t.Errorf("%v has kind %v, want %v alone", err, errs.Kind(err), c.kind)
		}
		text := errs.Message(err)
		for _, answer := range c.answers {
			if !strings.Contains(text, errs.Message(answer)) || !strings.Contains(text, "only docker.io gets them") {
				t.Errorf("%q lacks %q, or what became of the credentials", text, errs.Message(answer))
			}
		}
	}
}

func TestNamesThatAreJudged(t *testing.T) {
	img := &image.Image{Tags: []string{"a.test/app:1", "b.test/app:1", "b.test/app:2"}, Digests: []string{"b.test/app@sha256:" + strings.Repeat("a", 64)}}
	all := append(slices.Clone(img.Tags), img.Digests...)
	list := []string{"none.test", "b.test", "a.test"}
	for _, c := range []struct {
		name       string
		registries []string
		want       []string
	}{
		{"app:1", list, []string{"b.test/app:1"}},
		{"app:1", []string{"a.test", "b.test"}, []string{"a.test/app:1"}},
		{"app:3", list, all[1:]}, // the tag has moved: those of the first registry that the image has
		{"app:1", nil, all},
		{"a.test/app:3", list, all[:1]},
		{"", list, all},
	} {
		candidates, _ := names.Candidates(c.name, c.registries)
		var got []string
		for _, named := range namesFor(img, candidates) {
			got = append(got, named.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q of %v: %v, want %v", c.name, c.registries, got, c.want)
		}
	}
}
