package pullsecret

import "testing"

// TestCredentialsFitImages: credentials match an image by registry, with * for one label, and by
// path. The longest match wins.
func TestCredentialsFitImages(t *testing.T) {
	for _, c := range []struct {
		place, image string
		fits         bool
	}{
		{"https://index.docker.io/v1/", "busybox", true},
		{"https://index.docker.io/v1/", "team/app:1", true},
		{"docker.io", "registry.test/app", false},
		{"registry.test", "registry.test/app:1", true},
		{"registry.test", "registry.test:5000/app", false},
		{"http://registry.test:5000/v2/", "registry.test:5000/app", true},
		{"registry.test/team", "registry.test/team/app", true},
		{"registry.test/team", "registry.test/teams/app", false},
		{"*.registry.test", "eu.registry.test/app", true},
		{"*.registry.test", "registry.test/app", false},
		{"*.registry.test", "a.b.registry.test/app", false},
		{"localhost", "localhost/app", true},
	} {
		credential := &Credential{Place: registryPlace(c.place)}
		if _, ok := credential.For(c.image); ok != c.fits {
			t.Errorf("%s for %s: got %v", c.place, c.image, ok)
		}
	}
	wide, narrow := &Credential{Place: "registry.test"}, &Credential{Place: "registry.test/team"}
	w, _ := wide.For("registry.test/team/app")
	if n, _ := narrow.For("registry.test/team/app"); n <= w {
		t.Errorf("the narrow place fits %d, the wide one %d", n, w)
	}
}
