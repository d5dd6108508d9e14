package keyring_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry/keyring"
)

func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// helper puts a credential helper into PATH, which writes what it was asked to the file it returns.
func helper(t *testing.T, name, script string) (asked string) {
	t.Helper()
	asked = filepath.Join(t.TempDir(), "asked")
	path := write(t, "docker-credential-"+name, "#!/bin/sh\necho \"$1 $(cat)\" > "+asked+"\n"+script, 0o755)
	t.Setenv("PATH", filepath.Dir(path)+":"+os.Getenv("PATH"))
	return asked
}

func TestEachHostHasItsOwnEntry(t *testing.T) {
	first := write(t, "a.json", `{"auths": {
		"https://index.docker.io/v1/": {"auth": "aHVi OnA="},
		"R.example:5000": {"auth": "am9lOnA6cQ=="},
		"token.example": {"identitytoken": "id"}, "bearer.example": {"registrytoken": "b"}}}`, 0o600)
	second := write(t, "b.json", `{"auths": {"r.example:5000": {"auth": "eDp5"}, "https://other.example/v2/": {"username": "u", "password": "w"}}}`, 0o600)
	ring, err := keyring.Read([]string{first, "/nonexistent/config.json", second})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]keyring.Secret{
		"r.example:5000": {User: "joe", Password: "p:q"},
		"token.example":  {Password: "id"},
		"bearer.example": {Bearer: "b"},
		"other.example":  {User: "u", Password: "w"},
	} {
		c := ring.Find(host)
		if c == nil {
			t.Errorf("%s has none", host)
			continue
		}
		if got, err := c.Get(t.Context()); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", host, got, err, want)
		}
	}
	for _, host := range []string{"r.example", "r.example:5001", "example", "sub.other.example", ""} {
		if c := ring.Find(host); c != nil {
			t.Errorf("%q has %s", host, c)
		}
	}
	hub := ring.Find("registry-1.docker.io")
	if hub == nil || !strings.Contains(hub.String(), first) || !strings.Contains(hub.String(), `"https://index.docker.io/v1/"`) {
		t.Fatalf("docker.io: %v", hub)
	}
	if _, err := hub.Get(t.Context()); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "aHVi") {
		t.Errorf("broken base64: %v", err)
	}
}

func TestHelpersAreAskedForTheirHosts(t *testing.T) {
	asked := helper(t, "cloud", `echo '{"ServerURL":"x","Username":"AWS","Secret":"s3cr3t"}'`)
	helper(t, "tokens", `echo '{"Username":"<token>","Secret":"id"}'`)
	helper(t, "none", "echo 'credentials not found in native keychain'; exit 1")
	helper(t, "broken", "echo s3cr3t")
	path := write(t, "c.json", `{"credHelpers": {"ecr.example": "cloud", "docker.io": "tokens", "none.example": "none",
		"broken.example": "broken", "absent.example": "no-such-helper", "evil.example": "../../x"}}`, 0o600)
	ring, err := keyring.Read([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]keyring.Secret{
		"ecr.example": {User: "AWS", Password: "s3cr3t"}, "registry-1.docker.io": {Password: "id"}, "none.example": {},
	} {
		if got, err := ring.Find(host).Get(t.Context()); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", host, got, err, want)
		}
	}
	if data, err := os.ReadFile(asked); err != nil || string(data) != "get ecr.example\n" {
		t.Errorf("the helper was asked %q, %v", data, err)
	}
	for host, kind := range map[string]error{"broken.example": errs.Invalid, "absent.example": errs.Unavailable, "evil.example": errs.Invalid} {
		_, err := ring.Find(host).Get(t.Context())
		if !errors.Is(err, kind) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v, want kind %v", host, err, kind)
		}
	}
	if c := ring.Find("other.example"); c != nil {
		t.Errorf("other.example has %s", c)
	}
}

func TestTheStoreHasWhatTheFileHasNot(t *testing.T) {
	helper(t, "store", `echo '{"Username":"u","Secret":"p"}'`)
	path := write(t, "d.json", `{"credsStore": "store", "auths": {"a.example": {}, "b.example": {"auth": "eDp5"}}}`, 0o600)
	ring, err := keyring.Read([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]keyring.Secret{
		"a.example": {User: "u", Password: "p"}, "b.example": {User: "x", Password: "y"}, "c.example": {User: "u", Password: "p"},
	} {
		if got, err := ring.Find(host).Get(t.Context()); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", host, got, err, want)
		}
	}
}

func TestNoTextOfABadFileIsQuoted(t *testing.T) {
	path := write(t, "e.json", `{"auths": {"h": "hunter2"}}`, 0o600)
	if _, err := keyring.Read([]string{path}); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	var none *keyring.Ring
	if none.Find("h") != nil {
		t.Error("no ring has an entry")
	}
}

// TestAFileThatIsANamedPipe: berth does not wait for a writer.
func TestAFileThatIsANamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Read([]string{path}); err == nil || !strings.Contains(err.Error(), path+": is not a regular file") {
		t.Errorf("error %v", err)
	}
}

// TestAHelperEndsWithItsChildren: a child of a helper that is killed, or that ends before its child, would stay for ever.
func TestAHelperEndsWithItsChildren(t *testing.T) {
	for name, end := range map[string]string{"killed": "wait\n", "ended": ""} {
		t.Run(name, func(t *testing.T) { helperWithChild(t, end, name == "killed") })
	}
}

func helperWithChild(t *testing.T, end string, kill bool) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	helper(t, "hangs", "sleep 1000 &\necho $! > "+pipe+"\n"+end)
	ring, err := keyring.Read([]string{write(t, "f.json", `{"credHelpers": {"r.example": "hangs"}}`, 0o600)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := ring.Find("r.example").Get(ctx)
		ended <- err
	}()
	text, err := os.ReadFile(pipe)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if kill {
		cancel()
	}
	if err := <-ended; !errors.Is(err, errs.Unavailable) {
		t.Errorf("error %v", err)
	}
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 2000); n != 1 || err != nil {
		t.Errorf("the child of the helper stays (%d, %v)", n, err)
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"auths": {"h": {"auth": "dTpw"}}}`))
	f.Add([]byte(`{"auths": {"https://h/v1/": {"username": "u", "password": "\n"}}}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "config.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		ring, err := keyring.Read([]string{path})
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if c := ring.Find("h"); c != nil && c.Helper == "" {
			if _, err := c.Get(t.Context()); err != nil && !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
		}
	})
}
