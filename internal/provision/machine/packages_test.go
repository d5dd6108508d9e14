package machine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// TestBusy: a command is retried only if its package manager reports that a lock is held.
func TestBusy(t *testing.T) {
	words := map[string]bool{
		"apt: E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812":                      true,
		"apt: E: The package flock needs to be reinstalled":                                                      false,
		"dnf: Waiting for process with pid 4711 to finish.":                                                      true,
		"dnf: error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)": true,
		"dnf: Error: file /usr/bin/flock conflicts between attempted installs":                                   false,
		"dnf: Failed to write block 17 of /dev/vda: Input/output error":                                          false,
		"yum: Another app is currently holding the yum lock; waiting for it to exit...":                          true,
		"yum: blocked by a module that is not enabled":                                                           false,
		"zypper: System management is locked by the application with pid 812 (zypper).":                          true,
		"zypper: Problem: block-devices conflicts with other":                                                    false,
	}
	for _, m := range managers() {
		for text, want := range words {
			if len(text) > len(m.name) && text[:len(m.name)+1] == m.name+":" && m.busy.MatchString(text) != want {
				t.Errorf("%q is taken for a held lock: %t", text, !want)
			}
		}
	}
}

// TestPolicy: packages may start their services, except those that are held. A policy whose writer
// has died removes itself.
func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	// The policy recognizes its writer by the command line, which contains "berth".
	writer := filepath.Join(dir, "berth")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, writer); err != nil {
		t.Fatal(err)
	}
	alive := exec.Command(writer, "600")
	if err := alive.Start(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "policy-rc.d")
	text := policy([]string{"containerd.service", "docker.socket"}, alive.Process.Pid)
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	for unit, want := range map[string]int{"containerd": 101, "containerd.service": 101, "docker.socket": 101, "docker": 0, "chrony.service": 0} {
		err := exec.Command("sh", file, unit, "start").Run()
		code := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		if code != want {
			t.Errorf("start of %s: %d (%v), want %d", unit, code, err, want)
		}
	}
	if err := alive.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := alive.Wait(); err == nil {
		t.Error("the writer was not killed")
	}
	if err := exec.Command("sh", file, "containerd.service", "start").Run(); err != nil {
		t.Errorf("a policy of nobody forbids: %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a policy of nobody stays: %v", err)
	}
}

// TestRemarksOfZypper: zypper ends with a status of its own when it did what it should, and has a remark.
func TestRemarksOfZypper(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p := &packages{machine: &Machine{root: "/"}}
	for _, m := range managers() {
		if m.name == "zypper" {
			p.manager = &m
		}
	}
	for status, ok := range map[string]bool{"0": true, "102": true, "103": true, "106": true, "107": true, "4": false, "104": false} {
		if err := os.WriteFile(filepath.Join(dir, "zypper"), []byte("#!/bin/sh\nexit "+status+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := p.run(t.Context(), p.manager.refresh, nil); (err == nil) != ok {
			t.Errorf("status %s: %v", status, err)
		}
	}
}

// TestNotToRevert: these outputs of managers mean that a version cannot be had, or does not fit, not that the machine is broken.
func TestNotToRevert(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		manager, stdout, stderr string
		status                  int
		gone                    bool
	}{
		{"apt", "", "E: Version '2.38.1-5+deb12u1' for 'util-linux' was not found", 100, true},
		{"apt", "", "E: Packages need to be removed but remove is disabled.", 100, false},
		{"apt", "The following packages have unmet dependencies:\n foo : Depends: libfoo (= 1.0) but 2.0 is to be installed", "E: Unable to correct problems, you have held broken packages.", 100, false},
		{"dnf", "", "Error: Unable to find a match: util-linux-2.38.1-1.el9", 1, true},
		{"dnf", "", "Error: \n Problem: conflicting requests\n  - nothing provides libfoo needed by foo-1.0-1.noarch", 1, false},
		{"yum", "", "Error: Package: foo-1.0-1.noarch (test)\n           Requires: libfoo = 1.0\n You could try using --skip-broken to work around the problem", 1, false},
		{"zypper", "", "No provider of 'util-linux = 2.38.1-1' found.", 104, true},
		{"zypper", "Problem: foo-1.0-1.noarch requires libfoo = 1.0, but this requirement cannot be provided\n Solution 1: do not install foo", "", 4, false},
	} {
		p := &packages{machine: &Machine{root: "/", files: newFiles("/", nil, "")}}
		for _, m := range managers() {
			if m.name == c.manager {
				m.locks, m.repair = nil, nil
				p.manager = &m
			}
		}
		script := "#!/bin/sh\ncase $* in *install*) ;; *) exit 0 ;; esac\ncat <<'EOF'\n" + c.stdout + "\nEOF\ncat >&2 <<'EOF'\n" + c.stderr + "\nEOF\nexit " + strconv.Itoa(c.status) + "\n"
		if err := os.WriteFile(filepath.Join(dir, p.manager.program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		err := p.Revert(t.Context(), []provision.PackageVersion{{Name: "foo", Version: "1.0-1"}, {Name: "libfoo", Version: "1.0-1"}})
		if !errors.Is(err, errs.State) || errors.Is(err, errs.NotFound) != c.gone {
			t.Errorf("%s says %q, %q: %v", c.manager, c.stdout, c.stderr, err)
		}
		if reason, _, _ := strings.Cut(strings.TrimPrefix(c.stdout, "The following packages have unmet dependencies:\n "), "\n"); !strings.Contains(err.Error(), reason) {
			t.Errorf("it does not say that %s: %v", reason, err)
		}
	}
}
