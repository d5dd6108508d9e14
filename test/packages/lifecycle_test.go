//go:build integration && e2e

package packages

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPackages installs the last release with each package manager, starts pods, upgrades to this
// version, downgrades, removes, and installs again. No process of a pod restarts, and no line of a
// log is lost. Only Debian's systems can be had here: dnf, zypper and apk run on them. Fedora, Rocky, openSUSE and
// Alpine cannot be had.
func TestPackages(t *testing.T) {
	for _, c := range []struct{ release, manager string }{
		{"debian-12", "deb"},
		{"debian-12", "rpm"},
		{"debian-12", "dnf"},
		{"debian-12", "zypper"},
		{"debian-12", "apk"},
		{"debian-12", "archive"},
		{"debian-11", "deb"},
		{"debian-13", "deb"},
		{"ubuntu-22.04", "deb"},
		{"ubuntu-24.04", "deb"},
		{"ubuntu-25.10", "deb"},
	} {
		t.Run(c.release+" "+c.manager, func(t *testing.T) {
			h := boot(t, c.release, c.manager)
			h.firstInstallation()
			h.runPods()
			processes := h.processes()
			if n := strings.Count(processes, "\n"); n != h.pods {
				t.Fatalf("%d processes of %d pods are found:\n%s", n, h.pods, processes)
			}
			keeper := h.property("berth-supervisor", "MainPID")

			h.changes("upgrade", h.todays, processes, keeper)
			h.runPod("after")
			h.changes("downgrade", h.olds, processes, keeper)
			h.changes("second upgrade", h.todays, processes, keeper)
			h.keepsDaemonOfBadConfiguration(processes)
			h.removal(processes)
			h.installedAgain(processes)
			h.end()
		})
	}
}

// firstInstallation: nothing starts and nothing is enabled.
func (h *host) firstInstallation() {
	h.t.Helper()
	out := h.installs(h.olds)
	if !strings.Contains(out, "systemctl enable --now berth-supervisor berth") {
		h.t.Errorf("the installation does not say how to start berth:\n%s", out)
	}
	for _, unit := range []string{"berth", "berth-supervisor", "berth-cluster"} {
		if state := h.property(unit, "LoadState") + " " + h.property(unit, "ActiveState") + " " + h.property(unit, "UnitFileState"); state != "loaded inactive disabled" {
			h.t.Errorf("after the installation %s is %s, want loaded inactive disabled", unit, state)
		}
	}
	h.start()
}

// changes installs another version over the one that runs.
func (h *host) changes(what, file, processes, keeper string) {
	h.t.Helper()
	h.installs(file)
	h.await("the programs of the "+what, h.runsInstalled)
	if state := h.property("berth", "ActiveState"); state != "active" {
		h.t.Errorf("after the %s berth is %s\n%s", what, state, h.journal())
	}
	if now := h.property("berth-supervisor", "MainPID"); now != keeper {
		h.t.Errorf("after the %s the keeper is process %s, before %s", what, now, keeper)
	}
	if got := h.Run("cat", "/etc/berth/berth.toml"); got != configuration {
		h.t.Errorf("after the %s the configuration is another one:\n%s", what, got)
	}
	h.alive(what, processes)
}

// keepsDaemonOfBadConfiguration: an upgrade does not restart the daemon if it could not start.
func (h *host) keepsDaemonOfBadConfiguration(processes string) {
	h.t.Helper()
	h.Write("/etc/berth/berth.toml", "[network]\nmode = \"no such mode\"\n")
	daemon := h.property("berth", "MainPID")
	out := h.installs(h.olds)
	if !strings.Contains(out, "the daemon was not restarted: correct /etc/berth/berth.toml") {
		h.t.Errorf("an upgrade does not name the bad configuration:\n%s", out)
	}
	if now := h.property("berth", "MainPID"); now != daemon {
		h.t.Errorf("the daemon is process %s, was %s", now, daemon)
	}
	h.Write("/etc/berth/berth.toml", configuration)
	h.installs(h.todays)
	h.await("the programs of this version", h.runsInstalled)
	h.alive("upgrade with a bad configuration", processes)
}

// removal: the pods run on, and so does their supervisor.
func (h *host) removal(processes string) {
	h.t.Helper()
	out := h.removes()
	if !strings.Contains(out, "pods run on, and so does their supervisor") {
		h.t.Errorf("the removal does not say that pods run on:\n%s", out)
	}
	h.sameProcesses("removal", processes)
	// systemd keeps what it holds for the supervisor.
	h.Run("systemctl", "daemon-reload")
	if unit := h.property("berth-supervisor", "FragmentPath"); !strings.HasPrefix(unit, "/run/") {
		h.t.Errorf("the unit of the supervisor is %q, and none that stays", unit)
	}
	if _, err := os.Stat(h.Root + h.bin + "/berth"); !os.IsNotExist(err) {
		h.t.Errorf("the program stays: %v", err)
	}
	if h.purge != nil {
		out := h.do("purge", func() (string, error) { return h.purge(h.Machine) })
		if !strings.Contains(out, "pods run, so /run/berth and /var/lib/berth stay") {
			h.t.Errorf("the purge does not say that the state stays:\n%s", out)
		}
		h.sameProcesses("purge", processes)
	}
}

// installedAgain: berth takes over the pods of the berth that was removed.
func (h *host) installedAgain(processes string) {
	h.t.Helper()
	h.installs(h.todays)
	h.start()
	h.await("the programs of this version", h.runsInstalled)
	h.alive("second installation", processes)
	if unit := h.property("berth-supervisor", "FragmentPath"); strings.HasPrefix(unit, "/run/") {
		h.t.Errorf("the unit of the supervisor is %s after an installation", unit)
	}
	h.runPod("again")
}

// end removes the pods, berth and, if the manager can, its state.
func (h *host) end() {
	h.t.Helper()
	h.berth("pod", "rm", "--all", "--force")
	h.removes()
	if got := h.processes(); strings.TrimSpace(got) != "" {
		h.t.Errorf("processes of pods stay:\n%s", got)
	}
	if pids, err := h.Try("pgrep", "-x", "berth|berth-superviso"); err == nil { // the kernel cuts names
		h.t.Errorf("processes of berth stay: %s", pids)
	}
	if h.purge == nil {
		return
	}
	h.do("purge", func() (string, error) { return h.purge(h.Machine) })
	for _, dir := range []string{"/var/lib/berth", "/run/berth", "/etc/berth"} {
		if out, err := h.Try("ls", "-A", dir); err == nil {
			h.t.Errorf("after the purge %s is there, with %s", dir, fmt.Sprintf("%q", out))
		}
	}
}
