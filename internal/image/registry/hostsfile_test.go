package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// hostsFile replaces the hosts.toml of a site, and returns its path.
func (s *site) hostsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(s.cfg.Dirs[0], "team.test", "hosts.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHostsFileThatCannotBeUsedAsksNobody: the registry of the image's name may be excluded by the file, so a file with a
// fault must not lead there. The error names the place and what to do.
func TestHostsFileThatCannotBeUsedAsksNobody(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		where string
	}{
		"not TOML":         {"server = \"http://HOST\"\n[", ":2: is not TOML"},
		"a missing quote":  {"[host.\"http://HOST\"]\ncapabilities = [\"pull]\n", ":2: is not TOML"},
		"a missing ca":     {"[host.\"http://HOST\"]\nca = \"gone.crt\"\n", "/team.test/gone.crt, which is not there"},
		"a ca without PEM": {"server = \"http://HOST\"\nca = [\"hosts.toml\"]\n", ":2: ca: names "},
		"a missing key":    {"[host.\"http://HOST\"]\n\nclient = [[\"a.cert\", \"a.key\"]]\n", ":3: client: names "},
		"capabilities":     {"[host.\"http://HOST\"]\ncapabilities = [\"pull\", \"fly\"]\n", ":2: capabilities: want a list of pull, resolve, push and referrers, not \"fly\""},
		"a wrong type":     {"[host.\"http://HOST\"]\nskip_verify = \"yes\"\n", ":2: skip_verify: want true or false, not \"yes\""},
		"not a server":     {"server = \"a registry\"\n[host.\"http://HOST\"]\n", ":1: \"a registry\": is not the URL of a server"},
		"not a host":       {"[host.\"https:///x\"]\n", ":1: \"https:///x\": is not the URL of a server"},
		"an empty host":    {"[host.\"\"]\n", ":1: host.\"\": names no host"},
		"a duration":       {"[host.\"http://HOST\"]\ndial_timeout = \"soon\"\n", ":2: dial_timeout: want a duration"},
		"a header":         {"[host.\"http://HOST\".header]\nAuthorization = 1234567\n", "header Authorization: want a string"},
		"no table":         {"host = \"http://HOST\"\n", ":1: host: want tables [host.\"https://HOST\"]"},
		"a value":          {"[host]\n\"http://HOST\" = 1\n", ":2: host: want tables [host.\"https://HOST\"]"},
		"a scheme":         {"server = \"htps://HOST\"\n", "the scheme \"htps\" is unknown"},
		"another scheme":   {"[host.\"ftp://HOST\"]\n", "the scheme \"ftp\" is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := &imagetest.Registry{}
			s := newSite(t, asked)
			path := s.hostsFile(t, strings.ReplaceAll(c.text, "HOST", s.hosts[0]))
			// The name of the image has the address of a registry, too.
			if err := os.Rename(filepath.Dir(path), filepath.Join(s.cfg.Dirs[0], s.hosts[0])); err != nil {
				t.Fatal(err)
			}
			named, err := reference.ParseDockerRef(s.hosts[0] + "/app:1")
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), named, Auth{Username: "u", Password: "secret-word"}, s.cfg)
			where := strings.ReplaceAll(c.where, "/team.test/", "/"+s.hosts[0]+"/")
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), filepath.Join(s.cfg.Dirs[0], s.hosts[0], "hosts.toml")+":") ||
				!strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "correct the file, or remove ") || strings.Contains(err.Error(), "1234567") {
				t.Errorf("error %v, want one with %q", err, where)
			}
			r, err := Describe(t.Context(), named, Auth{}, s.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Resolve(t.Context()); !errors.Is(err, errs.Invalid) {
				t.Errorf("resolved with error %v", err)
			}
			if _, err := r.Explain(t.Context(), true); !errors.Is(err, errs.Invalid) {
				t.Errorf("tried with error %v", err)
			}
			if asked := asked.Requests(); len(asked) > 0 {
				t.Errorf("the registry was asked: %q", asked)
			}
		})
	}
}

// TestHostsFileThatIsADirectory: what cannot be read is as what cannot be used.
func TestHostsFileThatIsADirectory(t *testing.T) {
	asked := &imagetest.Registry{}
	s := newSite(t, asked)
	path := s.hostsFile(t, "")
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	named, err := reference.ParseDockerRef("team.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), named, Auth{}, s.cfg); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), path+": is a directory: have it be a file") {
		t.Errorf("error %v", err)
	}
	r, err := Describe(t.Context(), named, Auth{}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if shown, err := r.Explain(t.Context(), true); !errors.Is(err, errs.Invalid) || len(shown) != 1 || !strings.Contains(shown[0].Problem, "is a directory") {
		t.Errorf("explained as %+v, %v", shown, err)
	}
}

// TestFilesThatAreNamedPipes: berth does not wait for a writer.
func TestFilesThatAreNamedPipes(t *testing.T) {
	for name, c := range map[string]struct{ text, pipe string }{
		"hosts.toml":          {"", "hosts.toml"},
		"an authority":        {"ca = \"ca.crt\"\n", "ca.crt"},
		"a certificate":       {"client = \"a.cert\"\n", "a.cert"},
		"a certs.d directory": {"", "x.crt"},
	} {
		s := newSite(t, &imagetest.Registry{})
		path := s.hostsFile(t, c.text)
		if c.text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(filepath.Dir(path), c.pipe), 0o600); err != nil {
			t.Fatal(err)
		}
		named, err := reference.ParseDockerRef("team.test/app:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), named, Auth{}, s.cfg); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.pipe) || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostsFileThatContainerdReads: what containerd ignores is a warning.
func TestHostsFileThatContainerdReads(t *testing.T) {
	s := newSite(t, &imagetest.Registry{})
	path := s.hostsFile(t, fmt.Sprintf("server = \"http://%s\"\nskip_verfy = true\n\n[host.\"http://%[1]s\"]\nCapabilities = [\"pull\", \"resolve\"]\nrewrite = \"x\"\n", s.hosts[0]))
	r := s.open(t, Auth{})
	if _, err := r.Resolve(t.Context()); err != nil {
		t.Error(err)
	}
	want := []string{
		path + ":2: skip_verfy: is not a key of hosts.toml, and has no effect",
		path + ":6: rewrite: is not a key of hosts.toml, and has no effect",
	}
	if got := r.Warnings(); !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	shown, err := r.Explain(t.Context(), false)
	if err != nil || len(shown) != 2 || shown[0].Problem != want[1] || shown[1].Problem != want[0] {
		t.Errorf("explained as %+v, %v", shown, err)
	}
}

// TestExplainShowsEachProblemAtItsEndpoint: a file with faults is shown as far as it can be read.
func TestExplainShowsEachProblemAtItsEndpoint(t *testing.T) {
	s := newSite(t, &imagetest.Registry{})
	named, err := reference.ParseDockerRef("team.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	explain := func(text string) (path string, shown []string) {
		t.Helper()
		path = s.hostsFile(t, text)
		r, err := Describe(t.Context(), named, Auth{}, s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		all, err := r.Explain(t.Context(), false)
		if !errors.Is(err, errs.Invalid) || r.Broken() == nil {
			t.Errorf("explained with error %v", err)
		}
		for _, e := range all {
			shown = append(shown, strings.Join([]string{e.URL, e.Source, e.Problem, strings.Join(e.Capabilities, ","), fmt.Sprint(e.Mirror)}, " | "))
			if !strings.Contains(e.Skipped, "every pull fails") {
				t.Errorf("%s: skipped because %q", e.URL, e.Skipped)
			}
		}
		return path, shown
	}
	if path, got := explain("[host.\"\"]\n"); len(got) != 2 || !strings.HasPrefix(got[0], "\"\" | "+path+":1 | "+path+":1: host.\"\": names no host") {
		t.Errorf("a mirror without a name is explained as %q", got)
	}
	path, got := explain("[host.\"https://u:secret@a.test/x\"]\ncapabilities = [\"pull\"]\nca = \"gone.crt\"\n\n[host.\"http://b.test\"]\ncapabilities = [\"fly\"]\n[host.\"http://c.test\"]\n")
	want := []string{
		"https://a.test/x | " + path + ":1 | " + path + ":3: ca: names " + filepath.Dir(path) + "/gone.crt, which is not there | pull | true",
		"http://b.test | " + path + ":5 | " + path + ":6: capabilities: want a list of pull, resolve, push and referrers, not \"fly\" | pull,resolve,push | true",
		"http://c.test | " + path + ":7 |  | pull,resolve,push | true",
		"https://team.test/v2 | default of the registry's name: " + path + " has no key server |  | pull,resolve,push | false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("explained as\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	certificates := filepath.Join(s.cfg.Dirs[0], "certificates.test")
	if err := os.Mkdir(certificates, 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := reference.ParseDockerRef("certificates.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), other, Auth{}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if all, err := r.Explain(t.Context(), false); err != nil || len(all) != 1 || all[0].Source != "default of the registry's name: "+certificates+" has no hosts.toml" {
		t.Errorf("a directory without hosts.toml is explained as %+v, %v", all, err)
	}
	if path, got := explain("server = \n"); len(got) != 1 || !strings.HasPrefix(got[0], "https://team.test/v2 | "+path+" | ") || !strings.Contains(got[0], path+":1: is not TOML") {
		t.Errorf("a file that is not TOML is explained as %q", got)
	}
}
